"""The importer of published checkpoints: which one is taken; a whole model directory or none; what is refused."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from models.checkpoint import published
from models.checkpoint.__main__ import main
from models.checkpoint.assembly import assemble, check_behavior, shapes_of
from models.checkpoint.files import verify
from models.checkpoint.importer import bring
from models.checkpoint.source import Contents, find
from models.checkpoint.weights import load_network, load_weights
from models.engines.proof import PROOF, STAGES, check_proof
from models.errors import ModelError
from models.manifest import PUBLISHED_SIZES, WEIGHTS, read_manifest, write_manifest
from models.network.chex import Chex
from models.progress import quiet
from tests.support import official
from tests.support.material import material
from tests.support.official import HEADS, RUN, STEP, Content, State, import_command, said_of
from tests.support.peers import wait_until
from tests.support.service import INTERRUPTIBLE, run_command

RUNTIMES = pytest.mark.drill(part="runtimes")
INNER = f"{RUN}/checkpoints/checkpoint_{STEP:09d}.pth"


@pytest.fixture(scope="module")
def state() -> State:
    return official.state()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model folder, unpacked."""
    return official.published_folder(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    """The same, as it is published."""
    return official.packed(folder.parent / "published.zip", (INNER, folder.parent / INNER))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "out" / "model"


def run(source: Path, model: Path, *more: str) -> int:
    return main([str(source), str(model), "--no-export", "--gpt2-heads", str(HEADS), *more])


# ---- which checkpoint is taken: the one that the published code takes (spec §12)

FIRST, LATER = "run_2024-01-01_00-00-00", "run_2024-02-01_00-00-00"


def lay_out(root: Path, *names: str) -> Path:
    """Make files, each a minute younger than the one before."""
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (60 * number, 60 * number))
    return root


def chosen(root: Path) -> str:
    return find(root, work=root, report=quiet).place.partition("/")[2]


@pytest.mark.parametrize("above", ["", "model.n_head=8/", "1/2/3/4/5/6/"])
def test_the_newest_checkpoint_of_the_last_run_is_taken(tmp_path: Path, above: str) -> None:
    lay_out(tmp_path, f"{above}{FIRST}/checkpoints/checkpoint_best.pth")
    assert chosen(tmp_path) == f"{above}{FIRST}/checkpoints/checkpoint_best.pth", "where it is the only one"
    for name in ("checkpoint_000000020.pth", "checkpoint_000000100.pth", "checkpoint_000000003.pth"):
        lay_out(tmp_path, f"{above}{FIRST}/checkpoints/{name}")
    (tmp_path / above / "run_9_latest").symlink_to(FIRST)
    (tmp_path / above / "up").symlink_to(tmp_path)
    (tmp_path / above / "nowhere").symlink_to(tmp_path / "absent")
    assert chosen(tmp_path) == f"{above}{FIRST}/checkpoints/checkpoint_000000100.pth", "they are equally new"
    lay_out(
        tmp_path,
        f"{above}{LATER}/checkpoints/checkpoint_000000009.pth",
        f"{above}{LATER}/checkpoints/checkpoint_000000005.pth",
        f"{above}{LATER}/checkpoints/checkpoint_best.pth",
        f"{above}{LATER}/model_config.yaml",
        f"{above}{FIRST}/checkpoints/checkpoint_000000100.pth",
        "eval_run_2025/checkpoints/checkpoint_000000100.pth",
    )

    assert chosen(tmp_path) == f"{above}{LATER}/checkpoints/checkpoint_000000005.pth"


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ((f"a/{FIRST}/checkpoints/checkpoint_1.pth", f"b/{FIRST}/checkpoints/checkpoint_1.pth"), "runs in a, b; name"),
        ((f"a/{FIRST}/checkpoints/checkpoint_1.pth", f"c/d/{FIRST}/checkpoints/checkpoint_1.pth"), "runs in a, c/d; "),
        (
            (f"{FIRST}/checkpoints/checkpoint_000000001.pth", f"{LATER}/experiment_config.yaml"),
            f"{LATER}, the last run, holds no checkpoints/checkpoint_",
        ),
        (("readme.txt", "eval_a/run_1/checkpoints/checkpoint_000000001.pth"), "no checkpoint in it; expected run_"),
    ],
    ids=["runs in two folders", "at two depths", "a last run without one", "none"],
)
def test_what_has_no_certain_checkpoint_is_refused(tmp_path: Path, names: tuple[str, ...], complaint: str) -> None:
    lay_out(tmp_path, *names)

    with pytest.raises(ModelError, match=complaint):
        chosen(tmp_path)


def test_a_zip_is_judged_by_its_own_times(tmp_path: Path) -> None:
    below, packed = f"chex_stage3/{FIRST}/checkpoints", tmp_path / "a.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name, date in (
            (f"{below}/checkpoint_000000001.pth", (2024, 3, 1)),
            (f"{below}/checkpoint_000000002.pth", (2024, 2, 28)),
            (f"{below}/checkpoint_best.pth", (2025, 1, 1)),
            (f"__MACOSX/{below}/checkpoint_000000003.pth", (2025, 1, 1)),
        ):
            archive.writestr(zipfile.ZipInfo(name, (*date, 0, 0, 0)), name)
    found = find(packed, work=tmp_path, report=quiet)

    assert found.place == f"a.zip: {below}/checkpoint_000000001.pth"
    assert (found.model, found.path.read_text()) == ("chex_stage3", f"{below}/checkpoint_000000001.pth")
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("readme.txt", "")
    with pytest.raises(ModelError, match="there is no checkpoint in it; expected run_"):
        find(packed, work=tmp_path, report=quiet)


# ---- a whole network


def test_the_imported_network_is_the_published_one_bit_for_bit(archive: Path, model: Path, state: State) -> None:
    assert run(archive, model) == 0

    manifest = read_manifest(model)
    verify(model, manifest)
    network = load_network(model)
    original = Chex(manifest.sizes).eval().requires_grad_(False)
    original.load_state_dict(published.rename(state))
    for key, tensor in original.state_dict().items():
        assert torch.equal(network.state_dict()[key], tensor), key
    # What published weights need, manifest and card say.
    shown = manifest.input
    assert (manifest.gray, shown.resize, shown.mean, shown.std) == ("mimic_jpg", "via_256", 0.505, 0.248)
    assert (manifest.sizes.detector.heads, manifest.sizes.generator.heads) == (4, HEADS)
    assert manifest.sizes.generator.max_length == 24
    assert (manifest.report.remove_above, manifest.decisions.region_threshold) == (0.95, 0.5)
    assert manifest.origins == {}
    card = (model / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "not calibrated" in card and "licence of these weights is that of their publisher" in card


@pytest.mark.parametrize(("layers", "shared"), [(1, False), (2, True), (1, True)])
def test_the_ablations_of_the_prefix_are_imported_too(
    tmp_path: Path, model: Path, state: State, layers: int, shared: bool
) -> None:
    """As in the published code: one layer has the key of the first of two, a shared prefix no axis of layers."""
    width, depth, length = 64, 2, 5
    rows, prefix = length * 2 * width * (1 if shared else depth), "txt_decoder.prefix_proj.layers."
    last = f"{prefix}{0 if layers == 1 else 3}."
    weights = {key: value for key, value in state.items() if not key.startswith(prefix) or layers == 2}
    inner = 64 if layers == 1 else weights[f"{prefix}3.weight"].shape[1]
    drawn = torch.Generator().manual_seed(3)
    weights |= {
        f"{last}weight": torch.randn(rows, inner, generator=drawn) / 16,
        f"{last}bias": torch.randn(rows, generator=drawn) / 16,
    }
    content = official.checkpoint(weights)
    content["config_dict"]["txt_decoder"] |= {"n_projection_layers": layers, "shared_projection": shared}  # type: ignore[index] # a dictionary

    assert run(official.save(tmp_path / "ablation.pth", content), model) == 0

    generator, feature = load_network(model).generator, torch.randn(1, 64, generator=drawn)
    hidden = feature
    if layers == 2:
        hidden = torch.nn.functional.gelu(feature @ weights[f"{prefix}0.weight"].T + weights[f"{prefix}0.bias"])
    flat = hidden @ weights[f"{last}weight"].T + weights[f"{last}bias"]
    nested = flat.reshape(1, length, 1 if shared else depth, 2, HEADS, width // HEADS).expand(-1, -1, depth, -1, -1, -1)
    assert torch.allclose(generator.prefix_key_values(feature), nested.permute(2, 3, 0, 4, 1, 5), atol=1e-5)


def test_the_tiny_official_zip_is_read_as_it_is(
    archive: Path, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(material("chex/tiny_official_checkpoint.zip"), model) == 0
    assert run(archive, tmp_path / "ours") == 0

    assert read_manifest(model).files[WEIGHTS] == read_manifest(tmp_path / "ours").files[WEIGHTS]
    assert read_manifest(model).name == "chex_tiny"
    assert "taking tiny_official_checkpoint.zip: chex_tiny/run_2024-01-01_00-00-00/" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["chex_test", RUN, f"{RUN}/checkpoints", INNER, "chex", "chex.pth", "chex.v1"])
def test_every_level_of_the_folder_is_a_source_and_a_zip_of_any_name(
    folder: Path, archive: Path, tmp_path: Path, model: Path, source: str
) -> None:
    """A zip is known by what is in it."""
    place = folder.parent / source if source.startswith("chex_test") else shutil.copyfile(archive, tmp_path / source)

    assert run(place, model) == 0

    manifest, card = read_manifest(model), (model / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert (manifest.name, manifest.version) == ("chex_test", f"step-{STEP}")
    assert source.startswith("chex_test") or f"{source}: {INNER}" in card


def test_halves_saved_by_older_torch_and_numpy_become_float32(tmp_path: Path, model: Path, state: State) -> None:
    weights = {f"_orig_mod.{key}": tensor.half() for key, tensor in state.items()}
    weights["_orig_mod.txt_decoder.language_model.transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4).bool()
    weights["_orig_mod.txt_decoder.language_model.transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    new, old = official.save(tmp_path / "new.pth", official.checkpoint(weights)), tmp_path / "old.pth"
    with zipfile.ZipFile(new) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"numpy._core.", b"numpy.core."))

    assert run(old, model) == 0

    loaded = load_weights(model / WEIGHTS)["detector.box_tokens"]
    assert torch.equal(loaded, state["detector.multiregion_tokens"].half().float())


# ---- what is there is left alone, and what fails leaves nothing


def test_an_impossible_target_directory_is_refused_at_once_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty", target_is_directory=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))

    for place, said in {
        "link": "link exists already; name a new directory",
        "dangling": "dangling exists already; name a new directory",
        "empty": "empty exists already; name a new directory",
        "mine": "mine exists already; name a new directory",
        "mine/file": "mine/file exists already; name a new directory",
        "mine/file/below/model": "mine/file is not a folder; name a new directory elsewhere",
        "dangling/model": "dangling is not a folder; name a new directory elsewhere",
    }.items():
        assert run(tmp_path / "absent.zip", tmp_path / place) == 2
        assert f"{tmp_path / said}" in capsys.readouterr().err

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("folder", ["a\nb", "a\x1b[31m", "a\\b"])
def test_a_name_that_no_report_can_carry_is_refused(
    tmp_path: Path, model: Path, state: State, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    source = official.save(tmp_path / folder / "run_1" / "checkpoint.pth", official.checkpoint(state))

    assert run(source, model) == 2

    assert f"the folder {folder!r} gives the model its name; rename it" in capsys.readouterr().err
    assert not model.exists()


@pytest.mark.parametrize("stopped_at", ["unpack", "check", "write"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_whatever_stops_it_leaves_nothing_behind(
    archive: Path, model: Path, stopped_at: str, failure: type[BaseException]
) -> None:
    def stop(stage: str, done: int = 0, total: int = 0) -> None:
        if stage == stopped_at and done:
            raise failure

    with pytest.raises(failure):
        bring(archive, model, gpt2_heads=HEADS, report=stop)

    assert not model.parent.exists()


def test_a_full_disk_is_exit_1_and_leaves_nothing_behind(folder: Path, model: Path, repository: Path) -> None:
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, 1 << 24)); "
        "from models.checkpoint.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, str(folder), str(model), "--gpt2-heads", str(HEADS)]

    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)

    assert done.returncode == 1
    assert "failed: [Errno 27] File too large" in done.stderr
    assert not model.parent.exists()


def test_the_heads_of_gpt2_are_never_guessed(archive: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(archive), str(model)]) == 2
    assert "--gpt2-heads" in capsys.readouterr().err

    assert main([str(archive), str(model), "--gpt2-heads", "7"]) == 2
    assert "width (64) must be a multiple of heads (7)" in capsys.readouterr().err


# ---- CheXzero and GPT-2 hold a part of the network: the rest comes from elsewhere, and the card says from where


def gpt2_folder(folder: Path, weights: State, **others: object) -> Path:
    """A folder as Hugging Face has it; others: in its configuration."""
    official.save(folder / "pytorch_model.bin", weights)
    config = {"model_type": "gpt2", "n_head": HEADS, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    (folder / "config.json").write_text(json.dumps(config | others))
    return folder


@pytest.fixture
def gpt2(tmp_path: Path, state: State) -> Path:
    return gpt2_folder(tmp_path / "gpt2", official.gpt2(state))


def test_chexzero_and_then_gpt2_are_put_into_a_network(
    gpt2: Path, tmp_path: Path, state: State, untrained_weights: Path
) -> None:
    chexzero = official.save(tmp_path / "best_64.pt", official.chexzero(state))
    first, second, large = (tmp_path / name for name in ("first", "second", "large"))
    # A rest for other films: their square and its patches are those of the encoder, all else is that of the rest.
    given = read_manifest(shutil.copytree(untrained_weights, large))
    sizes = replace(given.sizes, image_encoder=replace(given.sizes.image_encoder, image_size=256))
    write_manifest(large, replace(given, sizes=sizes, input=replace(given.input, size=256, mean=0.4)))

    assert main([str(chexzero), str(first), "--no-export", "--rest", str(large)]) == 0
    assert main([str(gpt2), str(second), "--no-export", "--rest", str(first)]) == 0

    manifest, rest = read_manifest(second), read_manifest(large)
    verify(second, manifest)
    load_network(second)
    theirs, untouched = published.rename(state), load_weights(untrained_weights / WEIGHTS)
    for name, tensor in load_weights(second / WEIGHTS).items():
        untrained = name.startswith(("detector.", "post_decoder.", "generator.prefix."))
        assert torch.equal(tensor, (untouched if untrained else theirs)[name]), name
    assert manifest.origins["image_encoder"] == "best_64.pt"
    assert manifest.origins["generator"] == "gpt2/pytorch_model.bin"
    assert "never trained" in manifest.origins["detector"]
    assert (manifest.gray, manifest.decisions, manifest.report) == (rest.gray, rest.decisions, rest.report)
    assert manifest.input == replace(rest.input, size=224)
    assert (manifest.sizes.generator.positions, manifest.sizes.generator.heads) == (256, HEADS)
    card = (second / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "Not a trained model: detector, post_decoder, generator.prefix have learned nothing" in card
    assert "never any clinical use" in manifest.intended_use


def test_gpt2_is_read_in_every_form(gpt2: Path, tmp_path: Path, state: State, untrained_weights: Path) -> None:
    bare = official.gpt2(state, below="txt_decoder.language_model.transformer.")
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    torch.save(bare | {"h.0.attn.bias": torch.ones(1)}, old / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    new.mkdir()
    save_file({key: tensor.contiguous() for key, tensor in bare.items()}, str(new / "model.safetensors"))

    hashes = set()
    for number, source in enumerate((gpt2, gpt2 / "pytorch_model.bin", old, new, new / "model.safetensors")):
        assert run(source, tmp_path / f"model{number}", "--rest", str(untrained_weights)) == 0
        hashes.add(read_manifest(tmp_path / f"model{number}").files[WEIGHTS])

    assert len(hashes) == 1


def test_what_lacks_is_zeros_of_the_published_sizes() -> None:
    parts = ("image_encoder.", "prompt_encoder.")
    ours = {name: shape for name, shape in shapes_of(PUBLISHED_SIZES).items() if name.startswith(parts)}
    # One number each, as large as they are.
    state = {name: torch.ones(()).expand(shape) for name, shape in published.their_shapes(ours).items()}

    network = assemble(Contents(kind="CheXzero", state=state), place="best_64.pt", rest=None, generator_heads=None)

    assert network.sizes == PUBLISHED_SIZES
    assert network.shapes == shapes_of(PUBLISHED_SIZES)
    assert network.origins["prompt_encoder"] == "best_64.pt"
    assert network.origins["generator.prefix"] == "never trained, zeros"
    pieces = [(values.size, bool(values.any())) for values in network.numbers(quiet)]
    assert sum(size for size, _ in pieces) == network.parameters
    assert sum(size for size, is_known in pieces if is_known) == sum(math.prod(shape) for shape in ours.values())


def test_a_part_that_does_not_fit_the_rest_is_refused(
    tmp_path: Path, state: State, capsys: pytest.CaptureFixture[str], untrained_weights: Path
) -> None:
    words, clip = official.gpt2(state), official.chexzero(state)
    del clip["visual.ln_post.bias"]

    for source, complaint in (
        (
            gpt2_folder(tmp_path / "shallow", {key: value for key, value in words.items() if ".h.1." not in key}),
            "fit: txt_decoder.prefix_proj.layers.3.weight is [1280, 128], expected [640, 128]",
        ),
        (
            gpt2_folder(tmp_path / "otherwise", words, activation_function="relu"),
            "config.json: activation_function is 'relu', expected 'gelu_new'",
        ),
        (official.save(tmp_path / "another.bin", words | {"score.weight": torch.ones(2)}), "score.weight"),
        (official.save(tmp_path / "a.pt", clip), "img_encoder.backbone.ln_post.bias is missing; expected the"),
        (official.save(tmp_path / "whole.pth", official.checkpoint(state)), "leave --rest out"),
    ):
        assert run(source, tmp_path / "model", "--rest", str(untrained_weights)) == 2
        assert complaint in capsys.readouterr().err
        assert not (tmp_path / "model").exists()


# ---- what is refused, each with one line: the file, the key, what was expected and what was found

Damage = Callable[[Content, State], object]
Refused = Callable[[Damage | Path], str]


@pytest.fixture
def refused(tmp_path: Path, model: Path, state: State, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Try what cannot be imported; gives the one line that says why, and sees that nothing is left behind."""

    def refuse(wrong: Damage | Path) -> str:
        if not isinstance(wrong, Path):
            damage, weights = wrong, dict(state)
            content = official.checkpoint(weights)
            damage(content, weights)
            wrong = official.save(tmp_path / "wrong.pth", content)
        before = sorted(tmp_path.rglob("*"))

        assert run(wrong, model) == 2

        assert sorted(tmp_path.rglob("*")) == before
        captured = capsys.readouterr()
        assert captured.out == ""
        line = captured.err.strip().splitlines()[-1]
        assert line.startswith("error: ") and wrong.name in line
        return line

    return refuse


NUMBERS = "is a Tensor, expected a dense tensor with numbers"


# Of these keys, some tell sizes and some do not; one has a part of its own, and one is turned around.
@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("post_decoder.gate", None, "is missing; expected the"),
        pytest.param("img_encoder.backbone.conv1.weight", None, "is missing", marks=RUNTIMES),
        ("post_decoder.gate_more", torch.ones(2), "is unknown; expected the"),
        pytest.param(
            "module.img_encoder.backbone.conv1.weight",
            torch.ones(2),
            "is unknown, expected a key that begins with img_encoder.backbone., txt_encoder., detector., ",
            marks=RUNTIMES,
        ),
        pytest.param(
            "detector.decoder.decoder_layers.0.extra",
            torch.ones(2),
            "is unknown, expected a key that begins with detector.decoder.decoder_layers.0.norm_sa., ",
            marks=RUNTIMES,
        ),
        ("post_decoder.gate", torch.tensor([float("nan")]), "holds nan, expected finite numbers"),
        ("post_decoder.gate", torch.tensor([float("-inf")]), "holds -inf, expected finite numbers"),
        ("post_decoder.gate", torch.tensor([1]), "holds torch.int64, expected floating-point numbers"),
        ("post_decoder.gate", "1", "is a str, expected a dense tensor with numbers"),
        ("post_decoder.gate", torch.ones(1).to_sparse(), NUMBERS),
        ("post_decoder.gate", torch.ones(1, device="meta"), NUMBERS),
        ("detector.multiregion_tokens", torch.tensor(1.0), "has the shape [], expected a tensor of 1 axes or more"),
    ],
)
def test_a_key_that_is_missing_unknown_or_no_weight_is_named(
    refused: Refused, key: str, value: Tensor | None, complaint: str
) -> None:
    def change(_: Content, weights: State) -> None:
        weights.pop(key, None)
        if value is not None:
            weights[key] = value

    assert f"wrong.pth: {key} {complaint}" in refused(change)


@pytest.mark.parametrize(
    "key",
    [
        "img_encoder.backbone.conv1.weight",
        "detector.multiregion_tokens",
        "txt_decoder.language_model.transformer.h.0.attn.c_attn.weight",
        "txt_decoder.prefix_proj.layers.3.weight",
    ],
)
def test_a_wrong_shape_is_named_with_what_was_expected(refused: Refused, state: State, key: str) -> None:
    right = [*state[key].shape]

    said = refused(lambda _, weights: weights.update({key: torch.cat([weights[key], weights[key]], dim=-1)}))

    assert key in said
    assert f"{[*right[:-1], 2 * right[-1]]}, expected {right}" in said


def changed(key: str, value: object) -> Damage:
    """Set a key, with dots, of the configuration."""

    def change(content: Content, _: State) -> None:
        table: Any = content["config_dict"]
        *path, last = key.split(".")
        for name in path:
            table = table[name]
        table[last] = value

    return change


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        *(
            pytest.param("detector.soft_roi_beta", beta, "expected a finite number above 0", id=f"beta {name}")
            for name, beta in {"nan": math.nan, "infinite": math.inf, "huge": 10**400, "0": 0, "text": "2"}.items()
        ),
        ("detector.soft_roi_beta", -2.0, "detector.soft_roi_beta is -2.0, expected a finite number above 0"),
        ("detector.soft_roi_beta", True, "detector.soft_roi_beta is True, expected a finite number above 0"),
        ("act", "relu", "act is 'relu', expected 'gelu'"),
        ("detector.clip_pos", True, "detector.clip_pos is True, expected False"),
        ("txt_decoder.generation_kwargs.num_beams", 4, "generation_kwargs.num_beams is 4, expected 1"),
        ("txt_decoder.generation_kwargs.top_k", 5, "generation_kwargs.top_k is unknown"),
        ("txt_decoder.n_projection_layers", 3, "n_projection_layers is 3, expected 1 or 2"),
        ("txt_decoder.prefix_length_factor", 3, "prefix_length_factor is 3, but txt_decoder.prefix_proj says 5"),
        ("d_model", 128, "d_model is 128, but detector.multiregion_tokens says 64"),
        ("n_post_decoder_layers", 3, "n_post_decoder_layers is 3, but"),
        ("n_head", None, "n_head is None, expected a whole number"),
        ("n_head", 5, "dim (64) must be a multiple of heads (5)"),
    ],
)
def test_another_architecture_is_refused_with_its_key(
    refused: Refused, key: str, value: object, complaint: str
) -> None:
    assert complaint in refused(changed(key, value))


def test_whatever_computes_otherwise_than_published_is_refused() -> None:
    """By the settings of which a published configuration may have another value (spec 2 to 7)."""
    keys = (
        "model_class layer_scale post_decoder_patches post_decoder_cls post_decoder_gate "
        "img_encoder.projection_bn img_encoder.normalize_projected img_encoder.add_cls_features "
        "img_encoder.additional_projection_layers txt_encoder.projection_bn txt_encoder.normalize_projected "
        "txt_encoder.n_projection_layers detector.multiregion_sa detector.decoder_sa detector.decoder_ff "
        "detector.use_pos_embeddings detector.shortcut_tokens detector.shortcut_pos_embeddings "
        "detector.skip_con_roi_pool detector.predictor_hidden_layers detector.patch_project_layers "
        "detector.out_project_layers txt_decoder.model_class txt_decoder.position_offset "
        "txt_decoder.generation_kwargs.do_sample txt_decoder.generation_kwargs.repetition_penalty "
        "txt_decoder.generation_kwargs.min_length"
    )
    for key in keys.split():
        *above, last = key.split(".")
        config: dict[str, object] = {last: "other"}
        for part in reversed(above):
            config = {part: config}
        with pytest.raises(ModelError, match=f"{key} is 'other', expected "):
            check_behavior(Contents(kind="ChEX", state={}, config=config))


@RUNTIMES
def test_a_file_that_is_no_checkpoint_is_refused(refused: Refused, tmp_path: Path) -> None:
    assert "config_dict is missing, expected a dictionary" in refused(lambda content, _: content.pop("config_dict"))
    for content, said in (({"optimizer": 1}, "holds optimizer; expected state_dict (ChEX)"), ([1], "holds a list, ")):
        assert said in refused(official.save(tmp_path / "other.pth", content))
    for name in ("page.zip", "weights.pth", "model.safetensors"):
        # A web page in place of the weights; its 4096th byte is the first one of a letter of two.
        (page := tmp_path / name).write_text(f"<!DOCTYPE html>{'x' * 4080}éé", encoding="utf-8")
        assert f"{name} is a text file and holds no weights" in refused(page)


class Planted:
    """Something that runs a command when it is loaded by a program that trusts it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


@RUNTIMES
def test_pickled_code_is_refused_and_named_and_never_runs(refused: Refused, tmp_path: Path) -> None:
    trace, bare = tmp_path / "it ran", tmp_path / "bare.pth"
    bare.write_bytes(pickle.dumps({"state_dict": Planted(trace)}, protocol=4))

    assert "bare.pth is damaged, or no file of weights alone" in refused(bare)
    said = refused(lambda content, _: content.update(results=Planted(trace)))
    assert f"holds pickled code, {os.mkdir.__module__}.mkdir, and was refused" in said
    assert not trace.exists()


@RUNTIMES
@pytest.mark.parametrize(("name", "count"), [("damaged.zip", 64), ("damaged.pth", 1)])
def test_a_damaged_file_is_refused(
    refused: Refused, archive: Path, folder: Path, tmp_path: Path, name: str, count: int
) -> None:
    """Of the weights one bit, which PyTorch itself does not notice; of a zip some bytes."""
    whole = (archive if name == "damaged.zip" else folder.parent / INNER).read_bytes()
    middle, damaged = len(whole) // 2, tmp_path / name
    turned = bytes(byte ^ 1 for byte in whole[middle : middle + count])

    for content in (whole[:middle], whole[:middle] + turned + whole[middle + count :]):
        damaged.write_bytes(content)
        assert f"{name} is damaged" in refused(damaged)
    (tmp_path / "empty.pth").touch()
    assert "empty.pth is damaged" in refused(tmp_path / "empty.pth")


# ---- the import goes on to the graphs, so that the next command reads a film


def is_exporting(importer: int) -> bool:
    """Whether a process waits for the exporter: it does so before the exporter has loaded PyTorch."""
    children = [
        Path("/proc", child) for child in Path(f"/proc/{importer}/task/{importer}/children").read_text().split()
    ]
    exporters = [child for child in children if b"export.build" in (child / "cmdline").read_bytes()]
    return any(b"libtorch" in (child / "maps").read_bytes() for child in exporters)


@RUNTIMES
def test_an_import_ends_with_proven_graphs_and_the_next_command_reads_a_film(
    imported_model: Path, tmp_path: Path, chest_film: Path
) -> None:
    said = said_of(imported_model)

    assert said.returncode == 0, said.stderr
    first, last = said.stdout.splitlines()
    assert first == f"{imported_model}: chex_test step-{STEP} is imported"
    assert last.startswith(f"{imported_model}: graphs exported and proven; ")
    # Of the libraries that export there is no line: each of these is ours, and tells progress, a stage or a difference.
    stage = rf"({'|'.join(STAGES)})(\.\w+)?: (exported, |largest difference )"
    ours = re.compile(rf"taking chex_test/|\w+: \d+ %$|{stage}|{re.escape(str(imported_model))}: ")
    assert [line for line in said.stderr.splitlines() if not ours.match(line)] == []
    assert {line.partition(":")[0] for line in said.stderr.splitlines() if ": exported, " in line} == set(STAGES)
    check_proof(imported_model, read_manifest(imported_model))

    read = run_command("read", chest_film, "--model", imported_model, "--out", tmp_path / "out", "--json")
    assert read.returncode == 0, read.stderr
    (study,) = json.loads(read.stdout)["studies"]
    assert study["model"]["engine"] == "onnx"
    assert [film["status"] for film in study["films"]] == ["read"]


@RUNTIMES
def test_a_failed_export_keeps_the_import_and_names_the_remedy(folder: Path, tmp_path: Path, repository: Path) -> None:
    model, absent = tmp_path / "model", tmp_path / "absent"
    absent.mkdir()
    (absent / "onnxscript.py").write_text("raise ModuleNotFoundError('not installed', name='onnxscript')\n")
    environment = {**os.environ, "PYTHONPATH": str(absent)}

    done = subprocess.run(
        import_command(folder, model), cwd=repository, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert done.stderr.splitlines()[-2:] == [
        "onnxscript is missing; run pip install -c constraints.txt '.[cpu]'",
        f"export failed: {model} is imported and lacks only its graphs; run python -m export.build --model {model}",
    ]
    verify(model, read_manifest(model))
    assert not (model / PROOF).exists()


@RUNTIMES
def test_a_stopped_export_keeps_the_import_and_leaves_no_process(
    folder: Path, tmp_path: Path, repository: Path
) -> None:
    model = tmp_path / "model"
    command, pipe = [*INTERRUPTIBLE, *import_command(folder, model)], subprocess.PIPE
    with subprocess.Popen(command, cwd=repository, stdout=pipe, stderr=pipe, text=True) as process:
        wait_until(lambda: is_exporting(process.pid), what="the exporter", limit_seconds=120.0)

        process.send_signal(signal.SIGINT)
        # The exporter holds these pipes too: they end when both processes have.
        said, error = process.communicate(timeout=60)

    assert process.returncode == 130
    assert said == f"{model}: chex_test step-{STEP} is imported\n"
    assert error.splitlines()[-1] == (
        f"export stopped: {model} is imported and lacks only its graphs; run python -m export.build --model {model}"
    )
    verify(model, read_manifest(model))
