"""Folds of patients: what is chosen on the films of all others is reported on the films of one."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.lab.training.split import part_of

FOLDS: Final = 5


def folds_of(patients: NDArray[np.str_]) -> NDArray[np.intp]:
    """Return the fold of each film, by a hash of its patient."""
    return np.array([part_of(f"fold {patient}", parts=FOLDS) for patient in patients], dtype=np.intp)
