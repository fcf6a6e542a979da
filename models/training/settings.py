"""Converts a TOML table into frozen dataclasses and reports every mistake in it at once.

Keys are the names of the fields. An unknown or missing key is a mistake, and so is a value that a dataclass refuses
with ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Literal, TypeVar, cast, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def from_table(kind: type[_T], table: Mapping[str, object]) -> tuple[_T | None, list[str]]:
    """Make a dataclass from a table. Returns it, or None and the mistakes, each of which starts with its key."""
    mistakes: list[str] = []
    made = _made(kind, table, prefix="", mistakes=mistakes)
    return (None, mistakes) if mistakes else (cast("_T", made), [])


def require(values: object, *, above_zero: str = "", not_negative: str = "", share: str = "") -> None:
    """Check the ranges of numbers; names are separated by spaces. Raises ValueError that lists all mistakes.

    share: numbers that must lie in 0..1
    """
    wrong = [f"{name} must be above 0" for name in above_zero.split() if not 0 < getattr(values, name) < math.inf]
    wrong += [f"{name} must not be negative" for name in not_negative.split() if getattr(values, name) < 0]
    wrong += [f"{name} must lie in 0..1" for name in share.split() if not 0 <= getattr(values, name) <= 1]
    if wrong:
        raise ValueError("; ".join(wrong))


def _made(kind: type, table: object, *, prefix: str, mistakes: list[str]) -> object:
    if not isinstance(table, Mapping):
        mistakes.append(f"{prefix.rstrip('.')} must be a table")
        return None
    known = {entry.name: entry for entry in fields(kind)}
    before = len(mistakes)
    mistakes.extend(f"{prefix}{key} is unknown; remove it" for key in table.keys() - known.keys())
    mistakes.extend(
        f"{prefix}{key} is missing; add it"
        for key, entry in known.items()
        if key not in table and entry.default is MISSING and entry.default_factory is MISSING
    )
    hints = get_type_hints(kind)
    values = {
        key: _checked(hints[key], value, key=prefix + key, mistakes=mistakes)
        for key, value in table.items()
        if key in known
    }
    if len(mistakes) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        mistakes.append(f"{prefix}{error}")
        return None


def _checked(hint: object, value: object, *, key: str, mistakes: list[str]) -> object:
    """Convert a value to the type of its field. A value of another type is recorded as a mistake and gives None."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        [hint] = [kind for kind in inner if kind is not NoneType]
        return _checked(hint, value, key=key, mistakes=mistakes)
    if isinstance(hint, type) and is_dataclass(hint):
        return _made(hint, value, prefix=f"{key}.", mistakes=mistakes)
    if origin is Literal:
        if value not in inner:
            mistakes.append(f"{key} is {value!r}, expected one of {', '.join(map(repr, inner))}")
        return value
    if origin is tuple and isinstance(value, list):
        if inner[-1] is not Ellipsis and len(value) != len(inner):
            mistakes.append(f"{key} must have {len(inner)} values")
            return None
        return tuple(
            _checked(inner[0], entry, key=f"{key}[{place}]", mistakes=mistakes) for place, entry in enumerate(value)
        )
    if origin is Mapping and isinstance(value, Mapping):
        return {
            name: _checked(inner[1], entry, key=f"{key}.{name}", mistakes=mistakes) for name, entry in value.items()
        }
    if hint is float and type(value) is int:
        return float(value)
    if not (isinstance(hint, type) and type(value) is hint):
        mistakes.append(f"{key} is {value!r}, expected {_named(hint)}")
    return value


def _named(hint: object) -> str:
    if get_origin(hint) is tuple:
        return "a list"
    if get_origin(hint) is Mapping:
        return "a table"
    names = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(cast("type", hint), str(hint))
