"""The two packages of ONNX Runtime, of which an environment may have one: both install the same module."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from models.errors import ModelError

WHEELS: Final = ("onnxruntime", "onnxruntime-gpu")
REMOVE: Final = f"pip uninstall -y {' '.join(WHEELS)}"
INSTALL_GPU: Final = "pip install -c constraints.txt '.[gpu]'"
INSTALL_CPU: Final = "pip install -c constraints.txt '.[cpu]'"


def check_wheels() -> None:
    """Raise ModelError if both are installed: which files of the module are whose depends on what pip did last."""
    if all(map(_is_installed, WHEELS)):
        raise ModelError(
            f"{' and '.join(WHEELS)} are both installed, and one has overwritten files of the other; "
            f"run {REMOVE} && {INSTALL_GPU}, or without a GPU {REMOVE} && {INSTALL_CPU}"
        )


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
