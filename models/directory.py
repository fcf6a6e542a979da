"""Checks by name that a model directory has the files an engine needs, in milliseconds and without torch.

`checkpoint.verify` and `engines.proof.check_proof` read the files and check their contents.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from models.engines.proof import Precision, require_files
from models.engines.wheels import check_wheels
from models.errors import ModelError
from models.manifest import MANIFEST, read_manifest

_GRAPHS: Final[Mapping[str, tuple[Precision, ...]]] = {
    "onnx": ("float32",),
    "onnx-cuda": ("float32",),
    "tensorrt": ("float16", "float32"),
}
"""The precisions of the exported graphs that an engine, or its fallback, runs."""


def check_files(directory: Path, *, engine: str) -> None:
    """Check that every file needed to open a model directory with an engine exists, and one ONNX Runtime to do it.

    Raises ModelError that names what is missing, or installed twice, and what to do.
    """
    check_wheels()
    missing = [name for name in read_manifest(directory).files if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory}: {', '.join(missing)} of {MANIFEST} are missing; restore the model directory")
    if engine in _GRAPHS:
        require_files(directory, *_GRAPHS[engine])
