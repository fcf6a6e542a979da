"""Weights on disk: one safetensors file, checked against the manifest's hashes before it is used (DESIGN.md 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path, PureWindowsPath

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.chex import Chex
from models.errors import ModelError
from models.manifest import WEIGHTS, Manifest, read_manifest
from models.tokenizers import PROMPT_VOCABULARY, SENTENCE_MERGES, SENTENCE_VOCABULARY

CARD = "MODEL_CARD.md"
REQUIRED = (WEIGHTS, CARD, *(f"vocab/{name}" for name in (PROMPT_VOCABULARY, SENTENCE_VOCABULARY, SENTENCE_MERGES)))
"""What every manifest must have a hash of: all that an answer depends on, and what people are told about it."""


def save_weights(path: Path, state: Mapping[str, Tensor], *, half: Collection[str] = ()) -> None:
    """Write weights, whole or not at all.

    half: keys to store in two bytes a number, for embeddings of a directory that must be small
    """
    stored = {
        key: tensor.detach().to("cpu", torch.float16 if key in half else tensor.dtype).contiguous()
        for key, tensor in state.items()
    }
    # A network that is at work reads its file as it needs it, so that file must never change under its name.
    aside = path.with_name(f"{path.name}.part")
    aside.touch()
    mode = aside.stat().st_mode
    save_file(stored, str(aside))
    # The library lets only the owner read; the node may be another user.
    aside.chmod(mode)
    aside.replace(path)


def load_weights(path: Path) -> dict[str, Tensor]:
    """Read weights as float32. Raises ModelError where the file is absent or damaged."""
    try:
        stored = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} cannot be read ({error}); restore the model directory") from error
    return {key: tensor.float() for key, tensor in stored.items()}


def verify(directory: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest's hash.

    Raises ModelError that names the first file that differs, has no hash though it is required, or lies elsewhere.
    """
    for name in REQUIRED:
        if name not in manifest.files:
            raise ModelError(f"{directory}: the manifest has no hash of {name}; restore the model directory")
    for name in manifest.files:
        # Read as Windows does, a name is split at both slashes, and may start with a drive too.
        place = PureWindowsPath(name)
        if place.anchor or ".." in place.parts:
            raise ModelError(f"{directory}: the manifest names {name}, outside the model directory; remove that line")
    for name, expected in manifest.files.items():
        path = directory / name
        try:
            found = file_sha256(path)
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror}); restore the model directory") from error
        if found != expected:
            raise ModelError(
                f"{path} is not the file that the manifest names (sha256 {found[:12]}, expected {expected[:12]}); "
                "restore it, or build the model directory again"
            )


def file_sha256(path: Path) -> str:
    """Hash a file without reading it into memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_network(directory: Path) -> Chex:
    """Open the network of a model directory, ready to answer. Hashes are not checked here, see `verify`.

    Raises ModelError where the weights do not fit the sizes of the manifest.
    """
    sizes = read_manifest(directory).sizes
    # Without storage until the loaded tensors take their places: the largest network is held once, not twice.
    with torch.device("meta"):
        network = Chex(sizes)
    path = directory / WEIGHTS
    state = load_weights(path)
    _check_fit(path, network.state_dict(), state)
    network.load_state_dict(state, assign=True)
    return network.requires_grad_(False).eval()


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
