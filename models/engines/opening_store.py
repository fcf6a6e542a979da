"""What opening a model computes at every start, kept for the next one: packed weights, and graphs as they are run.

An entry is the folder `<root>/<key>`. Its key changes with the hashes of the model, the program, the libraries, the
processor and what the model is opened with. It is used only if the user of this process alone can read and write it,
and if all its files and those of the model have the size and time that it names; else it is made anew. Its hashes are
compared while it is used already (`engines.open_kept`). Nothing of it is unpickled.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import BinaryIO, Final, TypedDict
from uuid import uuid4

import torch
from torch import Tensor

from models.checkpoint.files import file_sha256
from models.engines.proof import PROOF
from models.errors import DeviceLost
from models.manifest import MANIFEST
from models.network.products import Choice, Form, Kept, Padding, Products
from node import __version__

_FORMAT: Final = 2
_CONTENT: Final = "entry.json"
_WEIGHTS: Final = "weights"
_MOST_ENTRIES: Final = 2
"""Entries that are kept, those used last, such as the one that is served and the one that is compared with it."""
_ALIGNMENT: Final = 64
_TYPES: Final = {str(kind): kind for kind in (torch.float32, torch.int8, torch.uint8)}
_UNUSABLE: Final = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError)

Stamp = list[int]
"""Size in bytes, and time of the last change in nanoseconds; a list, as JSON has it."""


class KeptTensor(TypedDict):
    """Where the numbers of a tensor lie in the file; layout: oneDNN's description of their order, or empty."""

    position: int
    size: int
    shape: list[int]
    dtype: str
    layout: str


class Packed(TypedDict):
    """The packed weights in the order of their products; paddings: [outputs, inputs, bits, least, multiple]."""

    form: Form
    reason: str
    weights: list[list[KeptTensor]]
    paddings: list[list[int]]


class Content(TypedDict):
    """What an entry says of itself; sources: the model's files, files: SHA-256 of its own, stamps: theirs."""

    packed: Packed
    sources: dict[str, Stamp]
    files: dict[str, str]
    stamps: dict[str, Stamp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry that is complete, or, without content, one that is being made; packed: what was kept in it meanwhile."""

    folder: Path
    content: Content | None = None
    packed: list[Packed] = field(default_factory=list)

    @property
    def is_new(self) -> bool:
        """Whether it is being made."""
        return self.content is None

    def graph(self, stage: str) -> Path:
        """Return the path of a graph as the runtime optimized it."""
        return self.folder / f"{stage}.onnx"

    @property
    def choice(self) -> Choice | None:
        """The form of the weights; None if that is still to be measured."""
        return self.content and Choice(form=self.content["packed"]["form"], reason=self.content["packed"]["reason"])

    def weights(self) -> Kept | None:
        """Map the packed weights and their paddings; None if there are none yet."""
        if self.content is None:
            return None
        path, packed = self.folder / _WEIGHTS, self.content["packed"]
        size = path.stat().st_size
        file = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8) if size else torch.empty(0)
        paddings = {
            (outputs, inputs, bits): Padding(least=least, multiple=multiple)
            for outputs, inputs, bits, least, multiple in packed["paddings"]
        }
        return [tuple(_mapped(file, kept) for kept in weight) for weight in packed["weights"]], paddings

    def keep(self, products: Products, choice: Choice) -> None:
        """Write the packed weights of a new entry."""
        with (self.folder / _WEIGHTS).open("wb") as file:
            weights = [[_kept(file, tensor) for tensor in prepared] for prepared in products.prepared]
        paddings = [[*shape, padding.least, padding.multiple] for shape, padding in products.paddings.items()]
        self.packed.append(Packed(form=choice.form, reason=choice.reason, weights=weights, paddings=paddings))

    def compare(self) -> None:
        """Compare the files with their hashes. Removes a damaged entry, and raises DeviceLost: the process must end."""
        for name, sha256 in (self.content or {"files": {}})["files"].items():
            if file_sha256(self.folder / name) != sha256:
                remove(self.folder)
                raise DeviceLost(f"{self.folder / name} was damaged, and is removed; start again to make it anew")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningStore:
    """The entries below a folder; sources: the files of the model directory that an entry is made of."""

    root: Path
    key: str
    sources: Mapping[str, Path]

    @property
    def folder(self) -> Path:
        """The folder of the entry."""
        return self.root / self.key

    def find(self) -> Entry | None:
        """Return the entry if it may be used. One that is damaged or foreign is removed."""
        try:
            if not self.folder.is_dir():
                return None
            _require_own(self.root, self.folder, *self.folder.iterdir())
            content = _read(self.folder / _CONTENT)
            stamps = {name: _stamp(path) for name, path in self.sources.items()}
            files = {name: _stamp(self.folder / name) for name in content["files"]}
            if content["sources"] == stamps and content["stamps"] == files:
                with suppress(OSError):  # of a folder that cannot be written
                    (self.folder / _CONTENT).touch()  # the entries that were used last are kept
                return Entry(folder=self.folder, content=content)
        except _UNUSABLE:
            pass
        remove(self.folder)
        return None

    @contextmanager
    def making(self) -> Iterator[Entry | None]:
        """Give an entry to be filled; it counts when the block ends without an error.

        None where the folder cannot be written: then nothing is kept. A folder that others may write is made anew.
        """
        aside = self.root / f"{self.key}.{uuid4().hex}.part"
        try:
            with suppress(FileNotFoundError):
                _make_own(self.root)
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_own(self.root)
            aside.mkdir(mode=0o700)
            stamps = {name: _stamp(path) for name, path in self.sources.items()}
        except _UNUSABLE:
            yield None
            return
        entry = Entry(folder=aside)
        try:
            yield entry
            for packed in entry.packed:
                with suppress(OSError):  # a full disk: the model is opened, and nothing is kept
                    self._finish(aside, packed, stamps)
        finally:
            remove(aside)

    def _finish(self, aside: Path, packed: Packed, sources: dict[str, Stamp]) -> None:
        paths = sorted(aside.iterdir())
        for path in paths:
            path.chmod(0o600)
        files = {path.name: file_sha256(path) for path in paths}
        stamps = {path.name: _stamp(path) for path in paths}
        _write(aside / _CONTENT, Content(packed=packed, sources=sources, files=files, stamps=stamps))
        remove(self.folder)
        aside.rename(self.folder)
        entries = sorted(self.root.glob("*/" + _CONTENT), key=lambda path: path.stat().st_mtime, reverse=True)
        for entry in entries[_MOST_ENTRIES:]:
            remove(entry.parent)


def store_of(directory: Path, *, root: Path, files: Sequence[str], opened_with: Mapping[str, object]) -> OpeningStore:
    """Return the store of a model directory, whose manifest and proof name the hashes of all its files.

    files: those whose sizes and times are compared; opened_with: engine, precision and threads
    """
    proof = directory / PROOF
    facts = {
        "format": _FORMAT,
        "program": __version__,
        "manifest": file_sha256(directory / MANIFEST),
        "proof": file_sha256(proof) if proof.is_file() else "",
        "libraries": {name: _version(name) for name in ("torch", "onnxruntime", "numpy")},
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        **opened_with,
    }
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    return OpeningStore(root=root, key=key, sources={name: directory / name for name in files})


def remove(folder: Path) -> None:
    """Remove an entry; one that cannot be removed is left."""
    shutil.rmtree(folder, ignore_errors=True)


def _make_own(root: Path) -> None:
    """Remove a folder that others may write, with all that they may have put there."""
    try:
        _require_own(root)
    except ValueError:
        remove(root)


def _require_own(*paths: Path) -> None:
    """Raise ValueError unless this user owns every path, and nobody else can read or write it; links are refused."""
    for path in paths:
        status = path.lstat()
        is_plain = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
        if not is_plain or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ValueError(f"{path} is not this user's alone")


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _read(path: Path) -> Content:
    """Read what an entry says of itself. Raises ValueError unless it has the hash of its first line."""
    sha256, _, text = path.read_bytes().partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != sha256:
        raise ValueError(f"{path} is damaged")
    content: Content = json.loads(text)
    return content


def _write(path: Path, content: Content) -> None:
    text = json.dumps(content).encode()
    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    path.chmod(0o600)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    """Return the name and the instructions of the processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _kept(file: BinaryIO, tensor: Tensor) -> KeptTensor:
    """Append a tensor to a file."""
    position = file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
    if tensor.is_mkldnn:
        size, address = torch.ops.mkldnn._nbytes(tensor), torch.ops.mkldnn.data_ptr(tensor)
        layout = bytes(torch.ops.mkldnn._get_mkldnn_serialized_md(tensor).tolist()).hex()
    else:
        size, address, layout = tensor.nbytes, tensor.data_ptr(), ""
    file.write((ctypes.c_char * size).from_address(address))
    return KeptTensor(position=position, size=size, shape=list(tensor.shape), dtype=str(tensor.dtype), layout=layout)


def _mapped(file: Tensor, kept: KeptTensor) -> Tensor:
    """Return a tensor whose numbers stay in the file."""
    numbers, dtype = file[kept["position"] :][: kept["size"]], _TYPES[kept["dtype"]]
    if not kept["layout"]:
        return numbers.view(dtype).view(kept["shape"])
    tensor = _opaque(numbers, shape=kept["shape"], dtype=dtype, layout=bytes.fromhex(kept["layout"]))
    tensor.numbers = numbers  # type: ignore[attr-defined]  # the mapping must live as long as the tensor
    return tensor


def _opaque(numbers: Tensor, *, shape: Sequence[int], dtype: torch.dtype, layout: bytes) -> Tensor:
    """Return a tensor of oneDNN around numbers in its own order, by PyTorch's stable C interface (AOTInductor).

    layout: oneDNN's description of the order. Raises RuntimeError where PyTorch does not take it.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    kind = library.aoti_torch_dtype_int8() if dtype == torch.int8 else library.aoti_torch_dtype_float32()
    handle = ctypes.c_void_p()
    dimensions = ctypes.c_int64 * len(shape)
    strides = [1] * len(shape)
    for place in range(len(shape) - 1, 0, -1):
        strides[place - 1] = strides[place] * shape[place]
    failed = library.aoti_torch_create_tensor_from_blob_v2(
        ctypes.c_void_p(numbers.data_ptr()),
        ctypes.c_int64(len(shape)),
        dimensions(*shape),
        dimensions(*strides),
        ctypes.c_int64(0),
        ctypes.c_int32(kind),
        ctypes.c_int32(library.aoti_torch_device_type_cpu()),
        ctypes.c_int32(0),
        ctypes.byref(handle),
        ctypes.c_int32(library.aoti_torch_layout__mkldnn()),
        ctypes.c_char_p(layout),
        ctypes.c_int64(len(layout)),
    )
    if failed:
        raise RuntimeError("PyTorch does not take these packed weights")
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    tensor: Tensor = torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule(handle, None, None))
    return tensor
