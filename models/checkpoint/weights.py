"""Weights on disk as one safetensors file. `files.verify` checks it before an engine is given out (design §4)."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.errors import ModelError
from models.files import beside
from models.manifest import WEIGHTS, read_manifest
from models.network.chex import Chex, without_numbers


def save_weights(path: Path, state: Mapping[str, Tensor], *, half: bool = False) -> None:
    """Write weights atomically; half: as float16, for a directory that must be small."""
    stored = {
        key: tensor.detach().to("cpu", torch.float16 if half else tensor.dtype).contiguous()
        for key, tensor in state.items()
    }
    # A network that is in use reads its file on demand, so the file must never be changed in place.
    with beside(path) as aside:
        aside.touch()
        mode = aside.stat().st_mode
        save_file(stored, str(aside))
        aside.chmod(mode)  # the library lets only the owner read; the node may be another user


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read weights as float32. Raises ModelError if the file is missing or damaged."""
    return {key: tensor.float() for key, tensor in load_stored(path).items()}


def load_network(directory: Path) -> Chex:
    """Open the network of a model directory for inference. Hashes are not checked here, see `files.verify`.

    Raises ModelError if the weights do not fit the sizes of the manifest.
    """
    return _load(directory, part="")


def load_generator(directory: Path) -> Chex:
    """Open the network as `load_network` does, but load only the weights of its sentence generator.

    For engines that run the other parts as graphs: these parts keep their shapes and use no memory.
    """
    return _load(directory, part="generator.")


def _load(directory: Path, *, part: str) -> Chex:
    sizes = read_manifest(directory).sizes
    # Parameters have no storage until the loaded tensors replace them, so the network is in memory only once.
    with without_numbers():
        network = Chex(sizes)
    path = directory / WEIGHTS
    stored = load_stored(path)
    _check_fit(path, network.state_dict(), stored)
    state = {key: tensor.float() for key, tensor in stored.items() if key.startswith(part)}
    network.load_state_dict(state, assign=True, strict=not part)
    return network.requires_grad_(False).eval()


def load_stored(path: Path) -> dict[str, Tensor]:
    """Map weights into memory as they are stored: nothing is read before it is used. Raises ModelError as above."""
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read ({error}); restore the model directory") from error


def release_pages(weight: Tensor) -> None:
    """Give back to the system what it has read of the file that a weight is mapped from; later uses read it again.

    The whole file, because the system reads parts of other weights as well. A weight that is in no file is left alone.
    Nothing may have been written into the file's weights: that would be lost.
    """
    if mapping := _mapping_of(weight.data_ptr(), weight.data_ptr() + weight.nbytes):
        first, last = mapping
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _mapping_of(begin: int, end: int) -> tuple[int, int] | None:
    """Return where the mapping of a file that holds these addresses begins and ends.

    None if there is none, or the system does not tell.
    """
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        first, last = (int(address, 16) for address in line.partition(" ")[0].split("-"))
        if first <= begin and end <= last:
            return (first, last) if line.split()[4] != "0" else None  # its inode
    return None


def _check_fit(path: Path, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    for problem, keys in (("lacks", missing), ("has unknown", unexpected)):
        if keys:
            raise ModelError(
                f"{path} {problem} {len(keys)} weights, first {keys[0]}; sizes and weights do not belong together"
            )
    for key, tensor in wanted.items():
        if tensor.shape != found[key].shape:
            raise ModelError(
                f"{path}: {key} is {list(found[key].shape)}, the sizes of the manifest ask for {list(tensor.shape)}"
            )
