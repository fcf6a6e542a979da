"""Finds, opens and recognizes what is to be imported (spec §12), without running any code in it.

Of a zip or a folder it takes the last run by name and in it the newest checkpoint, the best one only if there is no
other: the default of the published code. It holds a complete ChEX network, the two encoders of CheXzero, or a GPT-2.

Tensors stay on disk until they are used, so an optimizer's state costs no memory. Besides tensors and plain containers
numpy scalars are allowed, which training results may be, under their names before and after numpy 2.0.
"""

from __future__ import annotations

import hashlib
import json
import operator
import re
import warnings
import zipfile
import zlib
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Literal, SupportsIndex

import numpy as np
import torch
from numpy._core.multiarray import scalar
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.serialization import safe_globals

from models.checkpoint import published
from models.errors import ModelError
from models.progress import ProgressReport

Kind = Literal["ChEX", "CheXzero", "GPT-2"]
Written = tuple[float, ...]
"""When a file was last written; a greater one is later."""

_BLOCK: Final = 1 << 22
_RUN: Final = "run_"
_CHECKPOINTS: Final = "checkpoints"
_SKIPPED: Final = ("eval_", "__MACOSX", ".")
_PIECES_OF_OTHERS: Final = ("model.safetensors", "pytorch_model.bin")

_BEGIN: Final = 1 << 12
_ALLOWED: Final[list[Callable[..., object] | tuple[Callable[..., object], str]]] = [
    (scalar, "numpy._core.multiarray.scalar"),
    (scalar, "numpy.core.multiarray.scalar"),
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")),
]


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
    found = (path for path in folder.rglob("*") if path.exists())  # a link may lead nowhere
    below = {path.relative_to(folder).as_posix(): (path.stat().st_mtime,) for path in found}
    return folder / choose(below, title=str(folder))


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


def open_weights(path: Path, *, place: str, report: ProgressReport) -> Mapping[str, object]:
    """Open the dictionary in a file. Raises ModelError if it is damaged, of another format, or holds pickled code.

    place: the file's name in messages
    """
    content: object
    if _is_text(path):
        raise ModelError(
            f"{place} is a text file and holds no weights; perhaps a web page or a pointer of Git LFS was saved in "
            "their place: download the weights themselves"
        )
    if path.suffix == ".safetensors":
        try:
            content = load_file(path)
        except SafetensorError as error:
            raise ModelError(
                f"{place} is damaged, or is not a safetensors file ({error}); download it again"
            ) from error
    else:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
        if is_zip:
            _check_sums(path, place=place, report=report)
        content = _unpickled(path, place=place, is_zip=is_zip)
    if not isinstance(content, dict):
        raise ModelError(f"{place} holds a {type(content).__name__}, expected a dictionary of weights")
    return {str(key): value for key, value in content.items()}


def _is_text(path: Path) -> bool:
    """Return whether a file begins as a text does: UTF-8 without control characters. No format of weights does."""
    with path.open("rb") as file:
        begin = file.read(_BEGIN)
    try:
        text = getincrementaldecoder("utf-8")().decode(begin)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return bool(begin) and all(letter.isprintable() or letter.isspace() for letter in text)


def _unpickled(path: Path, *, place: str, is_zip: bool) -> object:
    with safe_globals(_ALLOWED), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols newer than PyTorch's own, which are refused below
        try:
            # Files of PyTorch before 1.6, as some of GPT-2 are, can only be read as a whole.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
        except Exception as error:  # a damaged pickle can raise any error
            if named := re.search(r"GLOBAL (\S+)|but got (<class '[\w.]+'>)", str(error)):
                raise ModelError(
                    f"{place} holds pickled code, {named[1] or named[2]}, and was refused before any of it ran; "
                    "expected nothing but weights, numbers and texts"
                ) from error
            # Only its first sentence: the rest is advice for users of the PyTorch API.
            cause = re.split(r"\.?\s*\n|\.\s", str(error).strip())[0][:200] or type(error).__name__
            raise ModelError(f"{place} is damaged, or no file of weights alone ({cause}); download it again") from error


def _check_sums(path: Path, *, place: str, report: ProgressReport) -> None:
    """Verify the checksum of every part of the file, which PyTorch does not do."""
    try:
        with zipfile.ZipFile(path) as archive:
            total, done = sum(entry.file_size for entry in archive.infolist()), 0
            for entry in archive.infolist():
                with archive.open(entry) as part:
                    while block := part.read(_BLOCK):
                        done += len(block)
                        report("check", done, total)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(f"{place} is damaged ({error}); download it again") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Weights under their published names, each once, and their metadata.

    config: `config_dict` of ChEX, `config.json` beside a GPT-2
    config_place: its name in messages
    step: the training step
    """

    kind: Kind
    state: Mapping[str, Tensor]
    config: Mapping[str, object] = field(default_factory=dict)
    config_place: str = ""
    step: int | None = None


def recognize(content: Mapping[str, object], *, path: Path) -> Contents:
    """Recognize the dictionary of a file.

    path: the file's path; a GPT-2 has its `config.json` beside it
    Raises ModelError if the contents are unknown, or if a weight is not a tensor of real numbers.
    """
    if "state_dict" in content:
        return _chex(content)
    if "visual.conv1.weight" in content:
        return Contents(kind="CheXzero", state=published.clean(published.from_chexzero(_tensors(content))))
    if "wte.weight" in content or "transformer.wte.weight" in content:
        state = published.clean(published.from_gpt2(_tensors(content)))
        config = path.with_name("config.json")
        return Contents(kind="GPT-2", state=state, config=_read_config(config), config_place=config.name)
    first = ", ".join(list(content)[:3]) or "nothing"
    raise ModelError(
        f"it holds {first}; expected state_dict (ChEX), visual.conv1.weight (CheXzero) or wte.weight (GPT-2)"
    )


def _chex(content: Mapping[str, object]) -> Contents:
    state, config = (_dictionary(content, key) for key in ("state_dict", "config_dict"))
    step = content.get("step")
    if isinstance(step, Tensor) or not isinstance(step, SupportsIndex):
        raise ModelError(f"step is {_kind_of(step)}, expected a whole number")
    return Contents(
        kind="ChEX",
        state=published.clean(_tensors(state)),
        config=config,
        config_place="config_dict",
        step=operator.index(step),
    )


def _dictionary(content: Mapping[str, object], key: str) -> dict[str, object]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ModelError(f"{key} is {_kind_of(value)}, expected a dictionary; is this a ChEX checkpoint?")
    return {str(name): entry for name, entry in value.items()}


def _tensors(content: Mapping[str, object]) -> dict[str, Tensor]:
    """Refuse anything but dense tensors."""
    tensors = {}
    for key, value in content.items():
        if not isinstance(value, Tensor) or value.is_meta or value.is_nested or value.layout != torch.strided:
            raise ModelError(f"{key} is {_kind_of(value)}, expected a dense tensor with numbers")
        tensors[key] = value.detach()
    return tensors


def _read_config(path: Path) -> dict[str, object]:
    """Read the configuration that Hugging Face puts beside weights. Without the file there is nothing to check."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}); download it again, or remove it") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} is a {type(config).__name__}, expected an object; download it again, or remove it")
    return config


def _kind_of(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
