"""Opens a foreign file of PyTorch or safetensors without running any code in it.

Tensors stay on disk until they are used, so an optimizer's state costs no memory. Besides tensors and plain containers
numpy scalars are allowed, which training results may be (spec §12), under their names before and after numpy 2.0.
"""

from __future__ import annotations

import pickle
import pickletools
import re
import warnings
import zipfile
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy._core.multiarray import scalar
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.serialization import safe_globals

from models.errors import ModelError
from models.progress import ProgressReport

_BLOCK = 1 << 22
_BEGIN = 1 << 12
_ALLOWED: list[Callable[..., object] | tuple[Callable[..., object], str]] = [
    (scalar, "numpy._core.multiarray.scalar"),
    (scalar, "numpy.core.multiarray.scalar"),
    np.dtype,
    *(type(np.dtype(kind)) for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")),
]


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
        except pickle.UnpicklingError as error:
            found = _found(path, str(error), is_zip=is_zip)
            if found is None:
                raise ModelError(f"{place} is damaged, or no file of PyTorch; download it again") from error
            raise ModelError(
                f"{place} holds pickled code, {found}, and was refused before any of it ran; "
                "expected nothing but weights, numbers and texts"
            ) from error
        except Exception as error:  # a damaged pickle can raise any error
            # Only its first sentence: the rest is advice for users of the PyTorch API.
            cause = re.split(r"\.?\s*\n|\.\s", str(error).strip())[0][:200] or type(error).__name__
            raise ModelError(f"{place} is damaged, or no file of PyTorch ({cause}); download it again") from error


def _found(path: Path, message: str, *, is_zip: bool) -> str | None:
    """Name the code that a pickle refers to, from PyTorch's message or, if that does not say it, from the file.

    None if the file is not a complete pickle.
    """
    if named := re.search(r"GLOBAL (\S+)|but got (<class '[\w.]+'>)", message):
        return str(named[1] or named[2])
    if not is_zip:
        texts: list[str] = []
        try:
            with path.open("rb") as file:
                for opcode, argument, _ in pickletools.genops(file):
                    if opcode.name == "STACK_GLOBAL":
                        return ".".join(texts[-2:])
                    texts += [argument] if isinstance(argument, str) else []
        except ValueError:
            return None
    return message.partition("error:")[2].strip().partition("\n")[0] or "of an unknown kind"


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
