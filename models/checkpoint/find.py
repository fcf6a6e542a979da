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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from models.errors import ModelError
from models.progress import ProgressReport

_BLOCK: Final = 1 << 22
_RUN: Final = "run_"
_CHECKPOINTS: Final = "checkpoints"
_SKIPPED: Final = ("eval_", "__MACOSX", ".")
_PIECES_OF_OTHERS: Final = ("model.safetensors", "pytorch_model.bin")

Written = tuple[float, ...]
"""When a file was last written; a greater one is later."""


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
    below = {path.relative_to(folder).as_posix(): (path.stat().st_mtime,) for path in _all_below(folder)}
    return folder / choose(below, title=str(folder))


def _all_below(folder: Path) -> Iterator[Path]:
    """Yield all that is below a folder, also through links; each folder is entered once, under its own name first.

    A link can lead upward, or to a folder that lies here too.
    """
    entered = set[str]()
    for place, folders, files in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in entered:
            folders.clear()
            continue
        entered.add(real)
        folders.sort(key=lambda name: Path(place, name).is_symlink())
        yield from (path for name in (*folders, *files) if (path := Path(place, name)).exists())


def _out_of_zip(source: Path, *, work: Path, report: ProgressReport) -> Found:
    with _reading_zip(source), zipfile.ZipFile(source) as archive:
        below: dict[str, Written] = {entry.filename: entry.date_time for entry in archive.infolist()}
        inner = choose(below, title=source.name)
        packed_file = archive.getinfo(str(inner))
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
    """Turn zipfile's errors for damaged files into ModelError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(f"{source} is damaged, or is not a readable zip ({error}); download it again") from error


def _model(parts: tuple[str, ...]) -> str | None:
    """Name the folder above the last run of a path."""
    runs = [number for number, part in enumerate(parts) if part.startswith(_RUN) and number]
    return parts[runs[-1] - 1] if runs else None


def choose(below: Mapping[str, Written], *, title: str) -> PurePosixPath:
    """Choose the checkpoint below a model folder, a run, or its folder `checkpoints`.

    below: the paths of all that is below it, with when each was written
    Raises ModelError if there is none, or if runs are in several folders.
    """
    paths = {
        path: written
        for path, written in ((PurePosixPath(name), written) for name, written in below.items())
        if not any(part.startswith(_SKIPPED) for part in path.parts)
    }
    if own := [path for path in paths if _is_checkpoint(path) and str(path.parent) in (".", _CHECKPOINTS)]:
        return _newest(own, paths)
    runs = {run for path in paths for run in path.parents if run.name.startswith(_RUN)}
    folders = sorted({str(run.parent) for run in runs})
    if not runs:
        raise ModelError(
            f"{title}: there is no checkpoint in it; expected run_*/checkpoints/checkpoint_*.pth, "
            f"or {' or '.join(_PIECES_OF_OTHERS)}"
        )
    if len(folders) > 1:
        raise ModelError(f"{title}: there are runs in {', '.join(folders)}; name one of these folders")
    run = max(runs, key=lambda run: run.name)
    own = [path for path in paths if _is_checkpoint(path) and path.parent == run / _CHECKPOINTS]
    if not own:
        raise ModelError(
            f"{title}: {run.name}, the last run, holds no checkpoints/checkpoint_*.pth; name the checkpoint itself"
        )
    return _newest(own, paths)


def _is_checkpoint(path: PurePosixPath) -> bool:
    return re.fullmatch(r"checkpoint_.*\.pth", path.name) is not None


def _newest(found: list[PurePosixPath], written: Mapping[PurePosixPath, Written]) -> PurePosixPath:
    regular = [path for path in found if not path.name.endswith("_best.pth")]
    return max(regular or found, key=lambda path: (written[path], _step(path.name), path.name))


def _step(name: str) -> int:
    digits = re.search(r"\d+", name)
    return int(digits.group()) if digits else 0
