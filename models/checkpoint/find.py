"""Finds the checkpoint in a published zip or folder (spec §12).

It takes the last run by name and in it the newest checkpoint, the best one only if there is no other: the default of
the published code.
"""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from models.errors import ModelError
from models.progress import ProgressReport

_BLOCK = 1 << 22
_RUN = "run_"
_SKIPPED = ("eval_", "__MACOSX", ".")
_PIECES_OF_OTHERS = ("model.safetensors", "pytorch_model.bin")

_Place = TypeVar("_Place", Path, zipfile.Path)
_Age = Callable[[_Place], tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file with weights.

    path: where it can be read
    place: a name for people: the source's name, and the path inside it
    model: the folder above its run; None if it is in none
    sha256: of the file itself, whether it came from a zip or not
    """

    path: Path
    place: str
    model: str | None
    sha256: str


def find(source: Path, *, work: Path, report: ProgressReport) -> Found:
    """Find the checkpoint in a zip, a folder or a file; a checkpoint in a zip is unpacked into the folder `work`.

    Raises ModelError if there is none, if the choice is ambiguous, or if the zip is damaged.
    """
    if source.is_dir():
        path = _in_folder(source)
        place, parts = f"{source.resolve().name}/{path.relative_to(source).as_posix()}", path.resolve().parts
    elif not source.is_file():
        raise ModelError(f"{source} does not exist; name a zip, a folder or a file with weights")
    elif _is_archive(source):
        return _out_of_zip(source, work=work, report=report)
    else:
        path, place, parts = source, source.name, source.resolve().parts
    report(f"taking {place}")
    size, done, hashed = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hashed.update(block)
            done += len(block)
            report("hash", done, size)
    return Found(path=path, place=place, model=_model(parts), sha256=hashed.hexdigest())


def _is_archive(source: Path) -> bool:
    """Return whether a file is a zip of files, and not the zip of one pickle with its tensors that PyTorch writes."""
    if not zipfile.is_zipfile(source):
        return False
    with _reading_zip(source), zipfile.ZipFile(source) as archive:
        return not any(re.fullmatch(r"[^/]+/data\.pkl", name) for name in archive.namelist())


def _in_folder(folder: Path) -> Path:
    for name in _PIECES_OF_OTHERS:
        if (folder / name).is_file():
            return folder / name
    return choose(folder, age=lambda path: (path.stat().st_mtime,), title=str(folder))


def _out_of_zip(source: Path, *, work: Path, report: ProgressReport) -> Found:
    with _reading_zip(source), zipfile.ZipFile(source) as archive:
        chosen = choose(zipfile.Path(archive), age=lambda path: archive.getinfo(path.at).date_time, title=source.name)
        packed_file, inner = archive.getinfo(chosen.at), PurePosixPath(chosen.at)
        place = f"{source.name}: {inner}"
        report(f"taking {place}")
        size, done, hashed = packed_file.file_size, 0, hashlib.sha256()
        # Not `extract`: a name inside an archive is not trusted to decide where a file is written.
        path = work / "checkpoint.pth"
        with archive.open(packed_file) as packed, path.open("wb") as file:
            while block := packed.read(_BLOCK):
                file.write(block)
                hashed.update(block)
                done += len(block)
                report("unpack", done, size)
    return Found(path=path, place=place, model=_model((source.stem, *inner.parts)), sha256=hashed.hexdigest())


@contextmanager
def _reading_zip(source: Path) -> Iterator[None]:
    """Turn what zipfile raises on damaged files into ModelError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(f"{source} is damaged, or is not a readable zip ({error}); download it again") from error


def _model(parts: tuple[str, ...]) -> str | None:
    """Name the folder above the last run of a path."""
    runs = [number for number, part in enumerate(parts) if part.startswith(_RUN) and number]
    return parts[runs[-1] - 1] if runs else None


def choose(root: _Place, *, age: _Age[_Place], title: str) -> _Place:
    """Choose the checkpoint below a model folder, a run, or its folder `checkpoints`.

    age: returns when a file was last written; a greater number is later
    Raises ModelError if there is none, or if runs are in several folders.
    """
    if _checkpoints(root):
        return _newest(root, age=age)
    run = root if (root / "checkpoints").is_dir() else _last_run(root, title=title)
    if not (run / "checkpoints").is_dir() or not _checkpoints(run / "checkpoints"):
        raise ModelError(
            f"{title}: {run.name}, the last run, holds no checkpoints/checkpoint_*.pth; name the checkpoint itself"
        )
    return _newest(run / "checkpoints", age=age)


def _last_run(root: _Place, *, title: str) -> _Place:
    holding = _holding_runs(root)
    if not holding:
        raise ModelError(
            f"{title}: there is no checkpoint in it; expected run_*/checkpoints/checkpoint_*.pth, "
            f"or {' or '.join(_PIECES_OF_OTHERS)}"
        )
    if len(holding) > 1:
        names = ", ".join(sorted(os.path.relpath(str(folder), str(root)) for folder in holding))
        raise ModelError(f"{title}: there are runs in {names}; name one of these folders")
    return max(_folders(holding[0], _RUN), key=lambda run: run.name)


def _holding_runs(root: _Place) -> list[_Place]:
    """List the folders that contain runs, at any depth; folders below or beside runs are not searched."""
    holding, seen, waiting = [], set(), [root]
    while waiting:
        folder = waiting.pop()
        # Links could lead upward or to the same folder twice; in a zip they lead nowhere.
        if (place := os.path.realpath(str(folder))) in seen:
            continue
        seen.add(place)
        if _folders(folder, _RUN):
            holding.append(folder)
        else:
            waiting += _folders(folder, "")
    return holding


def _folders(folder: _Place, beginning: str) -> list[_Place]:
    return [
        inner
        for inner in folder.iterdir()
        if inner.name.startswith(beginning) and not inner.name.startswith(_SKIPPED) and inner.is_dir()
    ]


def _checkpoints(folder: _Place) -> list[_Place]:
    return [path for path in folder.iterdir() if re.fullmatch(r"checkpoint_.*\.pth", path.name) and path.is_file()]


def _newest(folder: _Place, *, age: _Age[_Place]) -> _Place:
    found = _checkpoints(folder)
    regular = [path for path in found if not path.name.endswith("_best.pth")]
    return max(regular or found, key=lambda path: (age(path), _step(path.name), path.name))


def _step(name: str) -> int:
    digits = re.search(r"\d+", name)
    return int(digits.group()) if digits else 0
