"""`python -m models.checkpoint`: published files in, a whole model directory out, or none at all."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from models.checkpoint import published
from models.checkpoint.__main__ import main
from models.checkpoint.files import verify
from models.checkpoint.importer import ImportOptions, bring
from models.checkpoint.weights import load_network, load_weights
from models.manifest import WEIGHTS, read_manifest
from models.network.chex import Chex
from tests.support import official
from tests.support.material import material
from tests.support.official import HEADS, LM_HEAD, RUN, STEP, State

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
    return main([str(source), str(model), "--no-export", "--gpt2-heads", str(HEADS), *more])


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
    answers = [
        module.find(*module.encode_image(pixels), module.encode_prompts(tokens)[None]) for module in (network, original)
    ]
    for got, wanted in zip(*answers, strict=True):
        assert torch.equal(got, wanted)
    assert torch.equal(
        *(module.write(found[3][0], 6) for module, found in zip((network, original), answers, strict=True))
    )


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
    weights |= {f"{last}weight": torch.randn(rows, inner), f"{last}bias": torch.randn(rows)}
    content = official.checkpoint(weights)
    content["config_dict"]["txt_decoder"] |= {"n_projection_layers": layers, "shared_projection": shared}  # type: ignore[index] # a dictionary

    assert run(official.save(tmp_path / "ablation.pth", content), model) == 0

    generator, feature = load_network(model).generator, torch.randn(1, 64)
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
    assert run(archive, model, "--json", "--name", "mine", "--model-version", "2") == 0

    answer = json.loads(capsys.readouterr().out)
    assert answer["directory"] == str(model)
    assert (answer["name"], answer["version"], answer["step"]) == ("mine", "2", STEP)
    assert answer["parameters"] == sum(tensor.numel() for key, tensor in state.items() if key != LM_HEAD)
    assert answer["source"] == f"published.zip: {INNER}"
    assert answer["weights_sha256"] == read_manifest(model).files[WEIGHTS]
    assert answer["exported"] is False
    assert not (model / "onnx").exists()


@pytest.mark.parametrize("source", ["chex_test", RUN, f"{RUN}/checkpoints", INNER])
def test_every_level_of_the_folder_is_a_source(folder: Path, model: Path, source: str) -> None:
    assert run(folder.parent / source, model) == 0

    manifest = read_manifest(model)
    assert (manifest.name, manifest.version) == ("chex_test", f"step-{STEP}")


@pytest.mark.parametrize("name", ["chex", "chex.pth", "chex.v1"])
def test_a_published_zip_is_known_by_what_is_in_it(archive: Path, tmp_path: Path, model: Path, name: str) -> None:
    assert run(shutil.copyfile(archive, tmp_path / name), model) == 0

    assert f"{name}: {INNER}" in (model / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_weights_saved_by_older_torch_and_numpy_are_read(tmp_path: Path, model: Path, state: State) -> None:
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


def test_an_existing_directory_is_left_alone(archive: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model.mkdir(parents=True)
    (model / "mine.txt").write_text("mine")

    assert run(archive, model) == 2

    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in model.iterdir()] == ["mine.txt"]
    assert [path.name for path in model.parent.iterdir()] == ["model"]


def test_an_impossible_target_directory_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "empty", target_is_directory=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.rglob("*"))

    for place, said in {
        "link": "link is a link; name a new directory",
        "dangling": "dangling is a link; name a new directory",
        "file": "file exists already; name a new directory",
        "file/below/model": "file is not a folder; name a new directory elsewhere",
        "dangling/model": "dangling is not a folder; name a new directory elsewhere",
    }.items():
        assert run(tmp_path / "absent.zip", tmp_path / place) == 2
        assert f"{tmp_path / said}" in capsys.readouterr().err

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("option", ["--name", "--model-version"])
@pytest.mark.parametrize("text", ["", "  ", "a\nb", "a\x1b[31m", "a\\b", "\udcff", "n" * 65])
def test_a_name_that_no_report_can_carry_is_refused_at_once(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], option: str, text: str
) -> None:
    assert run(tmp_path / "absent.zip", model, option, text) == 2

    said = capsys.readouterr().err
    assert f"{option} is {text!r}, expected 1 to 64 printable characters without a backslash" in said
    assert not model.parent.exists()


@pytest.mark.parametrize("stopped_at", ["unpack", "check", "write"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_whatever_stops_it_leaves_nothing_behind(
    archive: Path, model: Path, stopped_at: str, failure: type[BaseException]
) -> None:
    def stop(stage: str, done: int = 0, total: int = 0) -> None:
        if stage == stopped_at and done:
            raise failure

    with pytest.raises(failure):
        bring(archive, model, ImportOptions(gpt2_heads=HEADS), report=stop)

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
