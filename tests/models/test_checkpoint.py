"""Weights on disk: what is written is read and synced, and what does not fit is refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from torch import Tensor

from models.checkpoint import published
from models.checkpoint.assembly import INITIAL, UNTRAINED
from models.checkpoint.files import REQUIRED, file_sha256, verify, write_stream
from models.checkpoint.importer import new_directory
from models.checkpoint.weights import load_network, load_stored, load_weights, release_pages, save_weights
from models.engines.engine_files import EngineFiles
from models.engines.proof import PROOF, Proof, write_proof
from models.errors import ModelError
from models.files import beside
from models.join import main as join
from models.manifest import MANIFEST, PUBLISHED_SIZES, WEIGHTS, read_manifest, write_manifest
from models.network.chex import Chex
from models.reading.tokenizers import VOCABULARIES
from node.commands import read_files
from node.read import prompts
from node.store import files
from tests.models.test_engine_files import FakeCompiler
from tests.support import films
from tests.support.fakes import ScriptedReader
from tests.support.material import material
from tests.support.processes import mapped_kib


@pytest.fixture
def state(untrained_weights: Path) -> dict[str, Tensor]:
    return load_weights(untrained_weights / WEIGHTS)


@pytest.fixture
def directory(tmp_path: Path, untrained_weights: Path) -> Path:
    return Path(shutil.copytree(untrained_weights, tmp_path / "model"))


def test_weights_come_back_as_they_were_and_halves_as_float32(directory: Path, state: dict[str, Tensor]) -> None:
    written = {name: weight + torch.randn_like(weight) for name, weight in state.items()}
    save_weights(directory / WEIGHTS, written)
    loaded, whole = load_network(directory), (directory / WEIGHTS).stat().st_size
    save_weights(directory / WEIGHTS, written, half=True)
    halves = load_weights(directory / WEIGHTS)

    assert not loaded.training
    assert (directory / WEIGHTS).stat().st_size < 0.6 * whole
    assert {tensor.dtype for tensor in halves.values()} == {torch.float32}
    for key, tensor in written.items():
        assert torch.equal(loaded.state_dict()[key], tensor), key
        torch.testing.assert_close(halves[key], tensor, rtol=1e-3, atol=1e-4)


def test_pages_of_a_used_weight_are_given_back_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_weights(path, {"large": torch.randn(2048, 2048), "small": torch.ones(3)})
    weights = load_stored(path)
    expected = weights["large"].clone()
    used = mapped_kib(path)

    release_pages(weights["large"])

    assert used >= 16_384 - 64
    assert mapped_kib(path) <= 64  # the pages at its ends, which it shares with its neighbors
    assert torch.equal(weights["large"], expected)


@pytest.mark.parametrize("count", [1, 3])
def test_weights_that_are_not_as_many_as_their_shapes_are_not_written(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match=f"{4 * count} bytes of weights for shapes of 8"):
        write_stream(tmp_path / WEIGHTS, {"weight": (2,)}, [np.ones(count, np.float32)])


@pytest.mark.parametrize("name", REQUIRED)
def test_a_manifest_that_lacks_a_needed_hash_is_refused(directory: Path, name: str) -> None:
    good = read_manifest(directory)
    files = {listed: sha256 for listed, sha256 in good.files.items() if listed != name}

    with pytest.raises(ModelError, match=f"no hash of {name}"):
        verify(directory, replace(good, files=files))


def damage(directory: Path) -> None:
    content = bytearray((directory / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (directory / WEIGHTS).write_bytes(content)


def with_no_plain_file(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Make something called `other`, which is told although no file was opened: one of them is damaged."""

    def change(directory: Path) -> None:
        damage(directory)
        make(directory / "other")

    return change


def move_vocabularies_behind_a_link(directory: Path) -> None:
    shutil.move(directory / "vocab", directory / "elsewhere")
    (directory / "vocab").symlink_to(directory / "elsewhere")


@pytest.mark.parametrize(
    ("listed", "change", "complaint"),
    [
        ((), damage, rf"{WEIGHTS} is not the file that the manifest names"),
        (("onnx/find.onnx",), Path.stat, r"onnx/find\.onnx cannot be read"),
        *(
            ((name,), Path.stat, "outside the model directory")
            for name in ("/etc/hostname", "../outside", "vocab/../../outside", "C:\\outside", "..\\outside")
        ),
        (("other",), with_no_plain_file(os.mkfifo), "is not a regular file"),
        (("other",), with_no_plain_file(Path.mkdir), "is not a regular file"),
        (("other",), with_no_plain_file(lambda path: path.symlink_to("/dev/zero")), "is a link"),
        (("other",), with_no_plain_file(lambda path: path.symlink_to(path.parent / WEIGHTS)), "is a link"),
        ((), move_vocabularies_behind_a_link, "vocab is a link"),
    ],
)
def test_a_directory_that_is_not_as_its_manifest_says_is_refused(
    directory: Path, listed: tuple[str, ...], change: Callable[[Path], object], complaint: str
) -> None:
    good = read_manifest(directory)
    verify(directory, good)
    change(directory)

    with pytest.raises(ModelError, match=complaint):
        verify(directory, replace(good, files={**good.files, **dict.fromkeys(listed, "0" * 64)}))


def without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if name != key}


def test_weights_that_do_not_fit_are_refused(directory: Path, state: dict[str, Tensor]) -> None:
    gate = "post_decoder.gate"

    for weights, complaint in (
        (without(state, gate), rf"lacks 1 weights, first {gate}"),
        ({**state, "extra": torch.zeros(1)}, "has unknown 1 weights, first extra"),
        ({**state, gate: torch.zeros(2)}, rf"{gate} is \[2\], the sizes of the manifest ask for \[1\]"),
    ):
        save_weights(directory / WEIGHTS, weights)
        with pytest.raises(ModelError, match=complaint):
            load_network(directory)
    for content in (b"not weights at all", b"", None):
        (directory / WEIGHTS).unlink() if content is None else (directory / WEIGHTS).write_bytes(content)
        with pytest.raises(ModelError, match="restore the model directory"):
            load_network(directory)


def test_full_size_has_the_published_parameter_counts() -> None:
    with torch.device("meta"):
        network = Chex(PUBLISHED_SIZES)

    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in network.named_children()}

    # spec §13
    assert counts == {
        "image_encoder": 87_849_216,
        "prompt_encoder": 63_428_096,
        "detector": 28_134_405,
        "post_decoder": 12_620_801,
        "generator": 354_823_168 + 504_612_864,
    }
    assert sum(counts.values()) == 1_051_468_550


def test_every_published_weight_has_its_place_and_size() -> None:
    layout = json.loads(material("chex/state_dict_layout.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        wanted = Chex(PUBLISHED_SIZES).state_dict()
        theirs = {key: torch.empty(shape) for key, (shape, _) in layout.items()}
    tied = "txt_decoder.language_model.lm_head.weight"

    renamed = published.rename(without(theirs, tied))

    assert {key: tensor.shape for key, tensor in renamed.items()} == {k: t.shape for k, t in wanted.items()}
    assert published.sizes_of(renamed, heads=8, generator_heads=16, max_length=128) == PUBLISHED_SIZES


def test_untied_embeddings_are_refused() -> None:
    language = "txt_decoder.language_model."

    with pytest.raises(ModelError, match="tied"):
        published.rename(
            {f"{language}lm_head.weight": torch.ones(2), f"{language}transformer.wte.weight": torch.zeros(2)}
        )


def rewritten(directory: Path, state: dict[str, Tensor], **changes: object) -> None:
    """Replace the weights of a model directory, and what its manifest says."""
    save_weights(directory / WEIGHTS, state)
    manifest = read_manifest(directory)
    files = {**manifest.files, WEIGHTS: file_sha256(directory / WEIGHTS)}
    write_manifest(directory, replace(manifest, files=files, **changes))  # type: ignore[arg-type]


def test_a_join_has_the_generator_of_one_model_and_all_else_of_the_other(
    tmp_path: Path, untrained_weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regions, text = (Path(shutil.copytree(untrained_weights, tmp_path / name)) for name in ("regions", "text"))
    state = load_weights(regions / WEIGHTS)
    other = {
        name: weight + 1 if name.startswith(("generator.", "detector.")) else weight for name, weight in state.items()
    }
    rewritten(text, other, name="told")
    own = read_manifest(regions)

    assert join([str(regions), str(text), str(tmp_path / "joined"), "--json"]) == 0

    document, manifest = json.loads(capsys.readouterr().out), read_manifest(tmp_path / "joined")
    verify(tmp_path / "joined", manifest)
    assert document["weights_sha256"] == manifest.files[WEIGHTS]
    assert (document["name"], manifest.decisions) == (f"{own.name}-and-text", own.decisions)
    for name, weight in load_weights(tmp_path / "joined" / WEIGHTS).items():
        assert torch.equal(weight, (other if name.startswith("generator.") else state)[name]), name
    givers = {part: origin.split()[0] for part, origin in manifest.origins.items()}
    assert {part for part, giver in givers.items() if giver == "told"} == {"generator", "generator.prefix"}
    assert set(givers.values()) == {"told", own.name}

    def refused(first: Path, second: Path, place: str = "refused") -> str:
        assert join([str(first), str(second), str(tmp_path / place)]) == 2
        assert not (tmp_path / "refused").exists()
        return capsys.readouterr().err

    assert "joined exists already; name a new directory, or delete it first" in refused(regions, text, "joined")
    for mark in (INITIAL, UNTRAINED):
        rewritten(text, other, origins={"generator": f"{mark}, seed 1"})
        assert "its generator was not trained" in refused(regions, text)
    rewritten(text, other, origins={"post_decoder": INITIAL})
    assert "its post_decoder was not trained" in refused(text, regions)
    rewritten(text, {name: weight + name.startswith("prompt_encoder.") for name, weight in other.items()}, origins={})
    assert "have different prompt encoders" in refused(regions, text)


Inode = tuple[int, int]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Inode]:
    """What was synced so far: a file is the same one after a rename."""
    inodes: set[Inode] = set()
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        inodes.add(inode(os.fstat(descriptor)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return inodes


def inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino


def everything(folder: Path) -> set[Inode]:
    """A folder, and all that is in it."""
    return {inode(path.stat()) for path in (folder, *folder.rglob("*"))}


def manifest(folder: Path) -> None:
    write_manifest(folder, read_manifest(VOCABULARIES.parent))


def proof(folder: Path) -> None:
    write_proof(folder, Proof(graphs={}, weights_sha256="0", versions={}, stages={}, passed=True))


def results(folder: Path) -> None:
    film = folder.with_name("film.dcm")
    film.write_bytes(films.file_bytes(films.thumbnail()))
    studies, reader = read_files.collect([film]), ScriptedReader("1")
    command = read_files.FileReader(reader=reader, prompts=prompts.load("chexpert14"), zone=ZoneInfo("UTC"))
    list(command.read(studies, folder))


def whole_directory(folder: Path) -> None:
    folder.rmdir()
    with new_directory(folder) as aside:
        (aside / "vocab").mkdir()
        (aside / "vocab" / "words").write_text("a")


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: save_weights(folder / WEIGHTS, {"weight": torch.zeros(1)}),
        lambda folder: EngineFiles(folder).open(VOCABULARIES.parent / MANIFEST, FakeCompiler()),
        *(manifest, proof, results, whole_directory),
    ],
)
def test_a_written_file_and_its_folder_are_synced(
    tmp_path: Path, synced: set[Inode], write: Callable[[Path], None]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()

    write(folder)

    assert len(everything(folder)) > 1
    assert everything(folder) <= synced


@pytest.mark.parametrize(("name", "write"), [(MANIFEST, manifest), (PROOF, proof)])
def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, write: Callable[[Path], None]
) -> None:
    (tmp_path / name).write_text("before")

    def full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path)

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "before"}


def test_marks_keep_two_writers_of_one_file_apart(tmp_path: Path) -> None:
    path = tmp_path / "file"

    with beside(path, mark=".a") as first, beside(path, mark=".b") as second:
        first.write_text("first")
        second.write_text("second")

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "first"}


def test_whoever_may_read_a_new_file_may_read_results_and_what_a_kill_left_beside_them_is_removed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "out" / films.thumbnail().StudyInstanceUID
    folder.mkdir(parents=True)
    (tmp_path / "file").touch()
    (folder / f"{files.TEMPORARY}half").write_bytes(b"half of a picture")

    results(tmp_path / "out")

    assert {path.stat().st_mode for path in folder.iterdir()} == {(tmp_path / "file").stat().st_mode}
    assert (folder / "report.json").exists()
    assert list(files.unfinished(folder)) == []
