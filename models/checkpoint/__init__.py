"""Weights on disk: read, written, verified; `python -m models.checkpoint` brings published ones (DESIGN.md 4)."""

from models.checkpoint.stream import write_stream
from models.checkpoint.weights import (
    CARD,
    REQUIRED,
    file_sha256,
    load_network,
    load_weights,
    save_weights,
    verify,
)

__all__ = [
    "CARD",
    "REQUIRED",
    "file_sha256",
    "load_network",
    "load_weights",
    "save_weights",
    "verify",
    "write_stream",
]
