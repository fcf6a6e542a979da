"""Files that outlive a power cut: those of a model directory and of results are synced, and so are their folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import torch

from models.checkpoint.importer import new_directory
from models.checkpoint.weights import save_weights
from models.engines.engine_files import EngineFiles
from models.engines.proof import PROOF, Proof, write_proof
from models.files import beside
from models.manifest import MANIFEST, WEIGHTS, read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES
from node.commands import read_files
from node.read import prompts
from node.store import files
from tests.models.test_engine_files import FakeCompiler
from tests.support import films
from tests.support.fakes import ScriptedReader

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


def weights(folder: Path) -> None:
    save_weights(folder / WEIGHTS, {"weight": torch.zeros(1)})


def manifest(folder: Path) -> None:
    write_manifest(folder, read_manifest(VOCABULARIES.parent))


def proof(folder: Path) -> None:
    write_proof(folder, Proof(graphs={}, weights_sha256="0", versions={}, stages={}, passed=True))


def engine(folder: Path) -> None:
    EngineFiles(folder).open(VOCABULARIES.parent / MANIFEST, FakeCompiler())


def results(folder: Path) -> None:
    film = folder.with_name("film.dcm")
    film.write_bytes(films.file_bytes(films.thumbnail()))
    studies, reader = read_files.collect([film]), ScriptedReader("1")
    list(read_files.read(studies, folder, reader=reader, prompts=prompts.load("chexpert14"), zone=ZoneInfo("UTC")))


def whole_directory(folder: Path) -> None:
    folder.rmdir()
    with new_directory(folder) as aside:
        (aside / "vocab").mkdir()
        (aside / "vocab" / "words").write_text("a")


@pytest.mark.parametrize("write", [weights, manifest, proof, engine, results, whole_directory])
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


def test_whoever_may_read_a_new_file_may_read_results(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    results(tmp_path / "out")

    modes = {path.stat().st_mode for path in tmp_path.glob("out/*/*")}
    assert modes == {(tmp_path / "file").stat().st_mode}


def test_what_a_kill_left_beside_results_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "out" / films.thumbnail().StudyInstanceUID
    folder.mkdir(parents=True)
    (folder / f"{files.TEMPORARY}half").write_bytes(b"half of a picture")

    results(tmp_path / "out")

    assert (folder / "report.json").exists()
    assert list(files.unfinished(folder)) == []
