"""Folds of patients: what is chosen on the films of all others is reported on the films of one."""

from __future__ import annotations

from collections.abc import Sequence

from models.lab.training.split import part_of


def folds(patients: Sequence[str], count: int = 5) -> list[frozenset[str]]:
    """Divide patients by a hash of their names, so that a patient is in one fold, and always in the same."""
    return [frozenset(name for name in patients if part_of(name, parts=count) == fold) for fold in range(count)]
