"""What is raised when a model directory, its weights or its numbers cannot be used."""

from __future__ import annotations


class ModelError(Exception):
    """A model cannot be used. The message says which file or key and what to do; it holds no patient data."""
