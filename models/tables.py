"""Reads the tables of a TOML file into frozen dataclasses and lists every mistake in them at once.

Keys are the names of the fields. Mistakes are an unknown or missing key, a value of another type, and what a dataclass
refuses with ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from models.errors import ModelError

_T = TypeVar("_T")

_TYPES: Mapping[object, str] = {str: "string", int: "integer", float: "float", bool: "boolean", tuple: "array"}


def read_table(kind: type[_T], table: Mapping[str, object], *, path: Path) -> _T:
    """Make a dataclass from the table of a file. Raises ModelError with one line for each mistake, by its key."""
    mistakes: list[str] = []
    made = _made(kind, table, prefix="", mistakes=mistakes)
    if mistakes:
        raise ModelError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return cast("_T", made)


def _made(kind: type, table: object, *, prefix: str, mistakes: list[str]) -> object:
    """Make a dataclass from a table; None, with its mistakes recorded, if there are any."""
    if not isinstance(table, Mapping):
        mistakes.append(f"{prefix.removesuffix('.')} must be a table")
        return None
    known, hints, before = {entry.name: entry for entry in fields(kind)}, get_type_hints(kind), len(mistakes)
    values = {}
    for key, value in table.items():
        if key in known:
            values[key] = _checked(hints[key], value, key=prefix + key, mistakes=mistakes)
        else:
            mistakes.append(f"{prefix}{key} is unknown to this version; remove it, or use a newer program")
    for key, entry in known.items():
        if key not in table and entry.default is MISSING and entry.default_factory is MISSING:
            mistakes.append(f"{prefix}{key} is missing; add it")
    if len(mistakes) > before:
        return None
    try:
        return kind(**values)
    except ValueError as error:
        mistakes.append(f"{prefix}{error}")
        return None


def _checked(hint: object, value: object, *, key: str, mistakes: list[str]) -> object:
    """Convert a value to the type of its field; a value of another type is recorded as a mistake."""
    if isinstance(hint, UnionType):  # None is what TOML cannot say: its key is left out
        hint = get_args(hint)[0]
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return _made(hint, value, prefix=f"{key}.", mistakes=mistakes)
    if origin is Mapping and isinstance(value, Mapping):
        return {
            name: _checked(inner[1], entry, key=f"{key}.{name}", mistakes=mistakes) for name, entry in value.items()
        }
    if origin is tuple and isinstance(value, list):
        if inner[-1] is not Ellipsis and len(value) != len(inner):
            mistakes.append(f"{key} must have {len(inner)} values")
            return None
        return tuple(
            _checked(inner[0], entry, key=f"{key}[{place}]", mistakes=mistakes) for place, entry in enumerate(value)
        )
    if hint is float and type(value) is int:
        return float(value)
    if origin is Literal and value not in inner:
        mistakes.append(f"{key} is {value!r}; this version knows {', '.join(map(repr, inner))}")
    elif origin is Mapping:
        mistakes.append(f"{key} must be a table")
    elif origin is not Literal and type(value) is not hint:
        mistakes.append(f"{key} is {value!r}; it must be of type {_TYPES[origin or hint]}")
    return value
