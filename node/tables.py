"""TOML tables into frozen dataclasses and back. Every mistake is noted; nothing here knows a setting by its name.

A field's type hint says what its value must be. A tuple is a list of values or of tables, `T | None` a table or value
that may be left out, and a union of dataclasses several forms of one table, of which the `type` in it chooses.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import TypeVar

from node.rules import ruled

_T = TypeVar("_T")

_WANTED = {Path: "a path in quotes", float: "a number", int: "a whole number", str: "a text in quotes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading of a file: the mistakes so far."""

    mistakes: list[str] = field(default_factory=list)

    def table(self, kind: type[_T], table: object, *, where: str) -> _T | None:
        """Make one dataclass from one table; None when a value is missing or of the wrong type."""
        if not isinstance(table, Mapping):
            self.mistakes.append(f"{where}: must be a table, write [{where}] and its keys below")
            return None
        hints = typing.get_type_hints(kind)
        fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
        for key in sorted(table.keys() - fields.keys()):
            name = f"{where}.{key}".lstrip(".")
            self.mistakes.append(f"{name}: unknown key; remove it or correct its spelling")
        values: dict[str, object] = {}
        for key, item in fields.items():
            name = f"{where}.{key}".lstrip(".")
            if key in table:
                values[key] = self._value(hints[key], table[key], where=name)
                self.mistakes.extend(f"{name}: {complaint}" for complaint in ruled(item, values[key]))
            elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                self.mistakes.append(f"{name}: is missing; add it")
                values[key] = None
        return None if None in values.values() else kind(**values)

    def _value(self, hint: object, value: object, *, where: str) -> object:
        """Convert one TOML value to a field's type; None, with a mistake noted, when it does not fit."""
        if isinstance(hint, UnionType):
            hint = _chosen(typing.get_args(hint), value)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.table(hint, value, where=where)
        if typing.get_origin(hint) is tuple:
            return self._values(typing.get_args(hint)[0], value, where=where)
        if hint is Path and isinstance(value, str) and value:
            return Path(value)
        if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(hint, type) and type(value) is hint:
            return value
        self.mistakes.append(f"{where}: must be {_WANTED.get(hint, 'true or false')}, got {value!r}")  # type: ignore[call-overload]  # hint is a type
        return None

    def _values(self, hint: object, value: object, *, where: str) -> tuple[object, ...] | None:
        """Convert a list; the mistakes of one of several say which."""
        if not isinstance(value, list) or not value:
            self.mistakes.append(f"{where}: must be a list with something in it")
            return None
        places = [f"{where}[{number}]" if len(value) > 1 else where for number in range(1, len(value) + 1)]
        items = [self._value(hint, one, where=at) for at, one in zip(places, value, strict=True)]
        return None if None in items else tuple(items)


def to_lines(value: object, where: str = "") -> list[str]:
    """Render one dataclass as TOML lines: plain keys first, then its tables; what is left out has no line."""
    plain, tables = [], []
    for item in dataclasses.fields(value):  # type: ignore[arg-type]  # always one of our dataclasses
        name, inner = f"{where}.{item.name}".lstrip("."), getattr(value, item.name)
        if inner is None:
            continue
        if dataclasses.is_dataclass(inner):
            tables += ["", f"[{name}]", *to_lines(inner, name)]
        elif isinstance(inner, tuple) and inner and dataclasses.is_dataclass(inner[0]):
            for one in inner:
                tables += ["", f"[[{name}]]", *to_lines(one, name)]
        else:
            plain.append(f"{item.name} = {_toml(inner)}")
    return plain + tables


def _chosen(kinds: tuple[type, ...], value: object) -> type:
    """Say what a union stands for here: the form that the table's `type` names, or else the first one.

    The rule on `type` complains about a name that there is not.
    """
    kinds = tuple(kind for kind in kinds if kind is not NoneType)
    named = value.get("type") if isinstance(value, Mapping) else None
    return next((kind for kind in kinds if named is not None and _type_of(kind) == named), kinds[0])


def _type_of(kind: type) -> object:
    """The `type` of one form of a table: the default of that field."""
    return next(item.default for item in dataclasses.fields(kind) if item.name == "type")


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case tuple():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
        case _:
            return json.dumps(str(value))  # a JSON string is a TOML basic string
