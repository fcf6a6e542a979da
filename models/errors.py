"""The error of a model directory, its weights or its numbers."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be used. The message says which file or key and what to do; it holds no patient data."""
