"""Which patients of a file of films are held out: no training sees them, and thresholds and figures come from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelError

_PARTS = 1000
FOLDS = 5
"""The number of folds of patients in cross-fitting: choices on all others are measured on one."""


class Patients(Protocol):
    """A set of patients, as names."""

    def __contains__(self, patient: str, /) -> bool:
        """Return whether a patient is in the set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The patients that are held out: those named, and a share of all others by a hash of their names."""

    share: float = 0.0
    named: frozenset[str] = frozenset()

    def __contains__(self, patient: str) -> bool:
        """Return whether a patient is held out. The answer for a name never changes."""
        return patient in self.named or part_of(patient, parts=_PARTS) < self.share * _PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The complement of a set of patients."""

    others: Patients

    def __contains__(self, patient: str) -> bool:
        """Return whether a patient is none of the others."""
        return patient not in self.others


def part_of(name: str, *, parts: int) -> int:
    """Return the part, 0 to parts - 1, that a name belongs to by a hash: always the same one."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % parts


def read_held_out(text: str) -> HeldOut:
    """Read a share above 0 and up to 1, or the path of a file with a patient a line; # begins a comment.

    Raises ModelError for another number, and for a file that cannot be read or names nobody.
    """
    try:
        share = float(text)
    except ValueError:
        return HeldOut(named=_patients(Path(text)))
    if not 0 < share <= 1:  # nor is NaN
        raise ModelError(f"a share of patients must be above 0 and at most 1, not {text}")
    return HeldOut(share=share)


def _patients(path: Path) -> frozenset[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path} cannot be read ({error}); name a file with one patient per line, or a share"
        ) from error
    named = frozenset(name for line in lines if (name := line.partition("#")[0].strip()))
    if not named:
        raise ModelError(f"{path} names no patient; write one patient a line")
    return named


def folds_of(patients: NDArray[np.str_]) -> NDArray[np.intp]:
    """Return the fold of each film, by a hash of its patient."""
    return np.array([part_of(f"fold {patient}", parts=FOLDS) for patient in patients], dtype=np.intp)
