"""`python -m models.checkpoint`: published files in, a model directory out, or one line that says what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models import published
from models.checkpoint import load_network, load_weights, verify
from models.checkpoint.__main__ import main
from models.checkpoint.importer import Wishes, bring
from models.chex import Chex
from models.manifest import WEIGHTS, read_manifest
from tests import official
from tests.official import HEADS, LM_HEAD, RUN, STEP, Content, State

INNER = f"{RUN}/checkpoints/checkpoint_{STEP:09d}.pth"


@pytest.fixture(scope="module")
def state() -> State:
    return official.state()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, state: State) -> Path:
    """A published model folder, unpacked."""
    root = tmp_path_factory.mktemp("published")
    official.save(root / INNER, official.checkpoint(state))
    return root / RUN.split("/")[0]


@pytest.fixture(scope="module")
def archive(folder: Path) -> Path:
    """The same, as it is published."""
    return official.packed(folder.parent / "published.zip", (INNER, folder.parent / INNER))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "out" / "model"


def run(source: Path, model: Path, *more: str) -> int:
    return main([str(source), str(model), "--gpt2-heads", str(HEADS), *more])


Damage = Callable[[Content, State], object]


@pytest.fixture
def refused(
    tmp_path: Path, model: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> Callable[[Damage | Path], str]:
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
        return captured.err.strip().splitlines()[-1]

    return refuse


def test_the_imported_network_is_the_published_one_bit_for_bit(archive: Path, model: Path, state: State) -> None:
    assert run(archive, model) == 0

    manifest = read_manifest(model)
    verify(model, manifest)
    network = load_network(model)
    original = Chex(manifest.sizes).eval().requires_grad_(False)
    original.load_state_dict(published.rename(state))
    for key, tensor in original.state_dict().items():
        assert torch.equal(network.state_dict()[key], tensor), key
    pixels, tokens = torch.randn(1, 224, 224), torch.randint(0, 49408, (3, 77))
    answers = [one.find(*one.encode_image(pixels), one.encode_prompts(tokens)[None]) for one in (network, original)]
    for got, wanted in zip(*answers, strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(*(one.write(found[3][0], 6) for one, found in zip((network, original), answers, strict=True)))


def test_the_tiny_official_zip_is_read_as_it_is(
    shared: Path, archive: Path, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared / "chex" / "tiny_official_checkpoint.zip", model) == 0
    assert run(archive, tmp_path / "ours") == 0

    assert read_manifest(model).files[WEIGHTS] == read_manifest(tmp_path / "ours").files[WEIGHTS]
    assert read_manifest(model).name == "chex_tiny"
    assert "taking tiny_official_checkpoint.zip: chex_tiny/run_2024-01-01_00-00-00/" in capsys.readouterr().err


def test_the_manifest_says_what_published_weights_need(archive: Path, model: Path) -> None:
    assert run(archive, model) == 0

    manifest = read_manifest(model)
    assert (manifest.name, manifest.version) == ("chex_test", f"step-{STEP}")
    assert (manifest.gray, manifest.input.resize, manifest.input.mean, manifest.input.std) == (
        "mimic_jpg",
        "via_256",
        0.505,
        0.248,
    )
    assert (manifest.sizes.detector.heads, manifest.sizes.generator.heads) == (4, HEADS)
    assert manifest.sizes.generator.max_length == 24
    assert manifest.report.remove_above == 0.95
    assert manifest.decisions.region_threshold == 0.5
    assert manifest.origins == {}
    card = (model / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert f"published.zip: {INNER}" in card
    assert "not calibrated" in card
    assert "licence of these weights is that of their publisher" in card


def test_the_answer_is_one_json_document(
    archive: Path, model: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(archive, model, "--json", "--name", "mine", "--version", "2") == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["directory"] == str(model)
    assert (answer["name"], answer["version"], answer["step"]) == ("mine", "2", STEP)
    assert answer["parameters"] == sum(tensor.numel() for key, tensor in state.items() if key != LM_HEAD)
    assert answer["source"] == f"published.zip: {INNER}"
    assert answer["weights_sha256"] == read_manifest(model).files[WEIGHTS]


@pytest.mark.parametrize("source", ["chex_test", RUN, f"{RUN}/checkpoints", INNER])
def test_every_level_of_the_folder_is_a_source(folder: Path, model: Path, source: str) -> None:
    assert run(folder.parent / source, model) == 0

    manifest = read_manifest(model)
    assert (manifest.name, manifest.version) == ("chex_test", f"step-{STEP}")


def test_an_empty_directory_is_filled(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert run(archive, tmp_path / "empty") == 0

    verify(tmp_path / "empty", read_manifest(tmp_path / "empty"))


def test_weights_of_before_torch_and_numpy_renamed_things_are_read(
    folder: Path, tmp_path: Path, model: Path, state: State
) -> None:
    weights = {f"_orig_mod.{key}": tensor for key, tensor in state.items()}
    weights["_orig_mod.txt_decoder.language_model.transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4).bool()
    weights["_orig_mod.txt_decoder.language_model.transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    new, old = official.save(tmp_path / "new.pth", official.checkpoint(weights)), tmp_path / "old.pth"
    with zipfile.ZipFile(new) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name).replace(b"numpy._core.", b"numpy.core."))

    assert run(old, model) == 0

    assert "post_decoder.gate" in load_weights(model / WEIGHTS)


def test_half_precision_becomes_float32(tmp_path: Path, model: Path, state: State) -> None:
    halves = {key: tensor.half() for key, tensor in state.items()}
    source = official.save(tmp_path / "half.pth", official.checkpoint(halves))

    assert run(source, model) == 0

    loaded = load_weights(model / WEIGHTS)["detector.box_tokens"]
    assert torch.equal(loaded, state["detector.multiregion_tokens"].half().float())


# Of these, some tell sizes and some do not; one has a part of its own below, and one is turned around.
@pytest.mark.parametrize(
    "key",
    [
        "img_encoder.backbone.conv1.weight",
        "img_encoder.backbone.positional_embedding",
        "img_encoder.backbone.transformer.resblocks.1.attn.in_proj_weight",
        "txt_encoder.token_embedding.weight",
        "txt_encoder.text_projection",
        "detector.multiregion_tokens",
        "detector.decoder.decoder_layers.1.norm_encoder.bias",
        "detector.out_projector.1.layers.3.weight",
        "post_decoder.gate",
        "txt_decoder.language_model.transformer.wpe.weight",
        "txt_decoder.language_model.transformer.h.1.mlp.c_fc.weight",
        "txt_decoder.language_model.transformer.ln_f.weight",
        "txt_decoder.prefix_proj.layers.3.weight",
    ],
)
def test_a_missing_key_is_named(refused: Callable[[Damage | Path], str], key: str) -> None:
    assert f"{key} is missing" in refused(lambda _, weights: weights.pop(key))


@pytest.mark.parametrize(
    "key",
    [
        "img_encoder.backbone.conv1.weight",
        "img_encoder.backbone.proj",
        "txt_encoder.positional_embedding",
        "txt_encoder.ln_final.weight",
        "detector.multiregion_tokens",
        "detector.patch_projector.1.layers.0.weight",
        "post_decoder.ln_gate.weight",
        "txt_decoder.language_model.transformer.h.0.attn.c_attn.weight",
        "txt_decoder.prefix_proj.layers.3.weight",
    ],
)
def test_a_wrong_shape_is_named_with_what_was_expected(refused: Callable[[Damage | Path], str], key: str) -> None:
    right: list[int] = []

    def lengthen(_: Content, weights: State) -> None:
        right.extend(weights[key].shape)
        weights[key] = torch.cat([weights[key], weights[key]], dim=-1)

    said = refused(lengthen)

    assert key in said
    assert f"{[*right[:-1], 2 * right[-1]]}, expected {right}" in said


def test_an_unexpected_key_is_named(refused: Callable[[Damage | Path], str]) -> None:
    for key in ("classifier.weight", "detector.extra.weight", "detector.decoder.decoder_layers.7.norm_sa.weight"):
        assert key in refused(lambda _, weights, key=key: weights.update({key: torch.ones(2)}))  # type: ignore[misc]


def test_weights_that_are_no_finite_numbers_are_refused(refused: Callable[[Damage | Path], str]) -> None:
    gate = "post_decoder.gate"

    assert f"{gate} holds numbers that are not finite" in refused(
        lambda _, weights: weights.update({gate: torch.tensor([float("nan")])})
    )
    assert f"{gate} holds torch.int64" in refused(lambda _, weights: weights.update({gate: torch.tensor([1])}))
    assert "is a str, expected a tensor" in refused(lambda _, weights: weights.update({gate: "1"}))  # type: ignore[dict-item]


def test_another_architecture_is_refused_with_its_key(refused: Callable[[Damage | Path], str]) -> None:
    def change(key: str, value: object) -> Damage:
        def damage(content: Content, _: State) -> None:
            table = content["config_dict"]
            *path, last = key.split(".")
            for name in path:
                assert isinstance(table, dict)
                table = table[name]
            assert isinstance(table, dict)
            table[last] = value

        return damage

    assert "act is 'relu', expected 'gelu'" in refused(change("act", "relu"))
    assert "detector.clip_pos is True, expected False" in refused(change("detector.clip_pos", True))
    assert "generation_kwargs.num_beams is 4, expected 1" in refused(
        change("txt_decoder.generation_kwargs.num_beams", 4)
    )
    assert "generation_kwargs.top_k is unknown" in refused(change("txt_decoder.generation_kwargs.top_k", 5))
    assert "d_model is 128, but detector.multiregion_tokens says 64" in refused(change("d_model", 128))
    assert "n_post_decoder_layers is 3, but" in refused(change("n_post_decoder_layers", 3))
    assert "n_head is None, expected a whole number" in refused(change("n_head", None))
    assert "dim (64) must be a multiple of heads (5)" in refused(change("n_head", 5))


def test_a_file_that_is_no_checkpoint_is_refused(refused: Callable[[Damage | Path], str], tmp_path: Path) -> None:
    assert "config_dict is missing, expected a dictionary" in refused(lambda content, _: content.pop("config_dict"))
    assert "holds optimizer; expected state_dict (ChEX)" in refused(
        official.save(tmp_path / "other.pth", {"optimizer": 1})
    )
    assert "holds a list, expected a dictionary" in refused(official.save(tmp_path / "list.pth", [torch.ones(2)]))


class Planted:
    """Something that runs a command when it is loaded by a program that trusts it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.trace),)


def test_pickled_code_is_refused_and_named_and_never_runs(
    refused: Callable[[Damage | Path], str], tmp_path: Path
) -> None:
    trace = tmp_path / "it ran"
    bare = tmp_path / "bare.pth"
    bare.write_bytes(pickle.dumps({"state_dict": Planted(trace)}, protocol=4))

    said = refused(lambda content, _: content.update(results=Planted(trace)))

    assert f"holds pickled code, {os.mkdir.__module__}.mkdir, and was refused" in said
    assert f"holds pickled code, {os.mkdir.__module__}.mkdir, and was refused" in refused(bare)
    assert not trace.exists()


def test_a_damaged_zip_is_refused(refused: Callable[[Damage | Path], str], archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    damaged = tmp_path / "damaged.zip"

    damaged.write_bytes(whole[: len(whole) // 2])
    assert "damaged.zip is damaged" in refused(damaged)

    middle = len(whole) // 2
    damaged.write_bytes(
        whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 64]) + whole[middle + 64 :]
    )
    assert "damaged.zip is damaged" in refused(damaged)


def test_a_damaged_pth_is_refused(refused: Callable[[Damage | Path], str], folder: Path, tmp_path: Path) -> None:
    whole = (folder.parent / INNER).read_bytes()
    damaged = tmp_path / "damaged.pth"

    damaged.write_bytes(whole[: len(whole) // 2])
    assert "damaged.pth is damaged" in refused(damaged)

    # One bit of one weight, which PyTorch itself does not notice.
    middle = len(whole) // 2
    damaged.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    assert "damaged.pth is damaged" in refused(damaged)

    damaged.write_bytes(b"")
    assert "damaged.pth is damaged" in refused(damaged)


def test_a_source_that_is_not_there_is_refused(refused: Callable[[Damage | Path], str], tmp_path: Path) -> None:
    assert "absent.pth does not exist" in refused(tmp_path / "absent.pth")


def test_an_existing_directory_is_left_alone(archive: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.mkdir(parents=True)
    (model / "mine.txt").write_text("mine")

    assert run(archive, model) == 2

    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in model.iterdir()] == ["mine.txt"]
    assert [path.name for path in model.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("stopped_at", ["unpack", "check", "write"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_whatever_stops_it_leaves_nothing_behind(
    archive: Path, model: Path, stopped_at: str, failure: type[BaseException]
) -> None:
    def stop(stage: str, done: int = 0, total: int = 0) -> None:
        if stage == stopped_at and done:
            raise failure

    with pytest.raises(failure):
        bring(archive, model, Wishes(gpt2_heads=HEADS), report=stop)

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


def test_the_heads_of_gpt2_are_never_guessed(
    archive: Path, tmp_path: Path, model: Path, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(archive), str(model)]) == 2
    assert "--gpt2-heads" in capsys.readouterr().err

    assert main([str(archive), str(model), "--gpt2-heads", "7"]) == 2
    assert "width (64) must be a multiple of heads (7)" in capsys.readouterr().err
