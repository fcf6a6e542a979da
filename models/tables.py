"""Reads the tables of a TOML file into frozen dataclasses and lists every mistake in them at once.

Keys are the names of the fields. Mistakes are an unknown or missing key, a value of another type, and what a dataclass
refuses with ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from models.errors import ModelError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_T = TypeVar("_T")

_TYPES: Final[Mapping[str, str]] = {
    "string_type": "string",
    "int_type": "integer",
    "float_type": "float",
    "bool_type": "boolean",
    "tuple_type": "array",
}


def read_table(kind: type[_T], table: Mapping[str, object], *, path: Path) -> _T:
    """Make a dataclass from the table of a file. Raises ModelError with one line for each mistake, by its key."""
    # As JSON, in which a list may be a tuple and a whole number a float although types are strict. It has no dates.
    content = json.dumps(table, default=lambda date: {"date": str(date)})
    try:
        return TypeAdapter(kind).validate_json(content, strict=True, extra="forbid")
    except ValidationError as error:
        raise ModelError("\n".join(f"{path}: {_told(mistake)}" for mistake in error.errors())) from error


def _told(mistake: ErrorDetails) -> str:
    """Say in the words of a person what pydantic found, and what to do."""
    kind, value = mistake["type"], mistake["input"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in mistake["loc"]).removeprefix(".")
    match kind:
        case "missing":
            return f"{key} is missing; add it"
        case "unexpected_keyword_argument":
            return f"{key} is unknown to this version; remove it, or use a newer program"
        case "dataclass_type" | "mapping_type" | "dict_type":
            return f"{key} must be a table"
        case "too_long":
            return f"{key} must have {mistake['ctx']['max_length']} values"
        case "literal_error":
            return f"{key} is {value!r}; this version knows {mistake['ctx']['expected'].replace(' or ', ', ')}"
        case "value_error":
            return f"{key}.{mistake['ctx']['error']}".removeprefix(".")
    return f"{key} is {value!r}; it must be of type {_TYPES.get(kind, kind)}"
