"""Checks of the numbers in a manifest; each raises ValueError that names the number and its bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Final, cast

# Far above every network of this kind: a larger size is a mistake, and building it would take hours or all memory.
_MOST_LAYERS: Final = 256
_LARGEST_SIZE: Final = 1 << 20


def require_positive(values: object, *names: str) -> None:
    """Refuse values that are not above 0: these, or all numeric fields."""
    for name in names or [entry.name for entry in fields(cast("type", values))]:
        value = getattr(values, name)
        if not isinstance(value, str | tuple) and not 0 < value < math.inf:
            raise ValueError(f"{name} ({value}) must be above 0 and finite")


def require_size(values: object, *, may_be_zero: Sequence[str] = ()) -> None:
    """Refuse sizes of a network part that are not above 0, but for these, or too large to build."""
    zero = [name for name in may_be_zero if getattr(values, name) == 0]
    require_positive(values, *[entry.name for entry in fields(cast("type", values)) if entry.name not in zero])
    for entry in fields(cast("type", values)):
        value, most = getattr(values, entry.name), _MOST_LAYERS if entry.name == "layers" else _LARGEST_SIZE
        if not isinstance(value, str | tuple) and value > most:
            raise ValueError(f"{entry.name} ({value}) must be at most {most}")


def require_divisible(name: str, value: int, part_name: str, part: int) -> None:
    """Refuse a value that is not a multiple of another one."""
    if value % part:
        raise ValueError(f"{name} ({value}) must be a multiple of {part_name} ({part})")


def require_rising(name: str, values: Sequence[int], *, below: int) -> None:
    """Refuse numbers that do not rise, or do not lie in 0..below - 1."""
    if any(second <= first for first, second in pairwise([-1, *values, below])):
        raise ValueError(f"{name} must rise within 0..{below - 1}")


def require_unit(values: object, *names: str) -> None:
    """Refuse values outside 0..1."""
    for name in names:
        if not 0 <= getattr(values, name) <= 1:
            raise ValueError(f"{name} ({getattr(values, name)}) must lie in 0..1")
