"""Make values of the program from JSON values, and JSON values from them; pydantic checks every type.

What a value refuses itself (`__post_init__`) is refused here, too. Unknown keys are passed over: another version of the
program may have written them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from node.domain import Json, JsonObject

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

_T = TypeVar("_T")

_EDGES, _CODE = ("left", "top", "right", "bottom"), ("value", "scheme", "meaning")
_LISTS: Final[Mapping[str, tuple[str, ...]]] = {"box": _EDGES, "analyzed": _EDGES, "code": _CODE, "site": _CODE}
"""Boxes and codes are short lists in JSON, under these keys."""
_FIELDS: Final[Mapping[str, str]] = {"study": "study_uid", "laterality": "side"}
"""The fields that have another name in JSON."""


def decode(kind: type[_T], value: object) -> _T:
    """Make a value of a type from JSON values; of a dataclass no field may be missing, default or not.

    Raises ValueError that says where they do not fit, and repeats none of them: they may be a patient's.
    """
    from pydantic import ValidationError  # 70 ms, which a command that decodes nothing need not wait

    if isinstance(value, Mapping) and (lost := _field_names(kind) - value.keys()):
        raise ValueError(f"no {kind.__name__}; it lacks {', '.join(sorted(lost))}")
    try:
        made: _T = _adapter(kind).validate_python(value)  # type: ignore[arg-type]  # every type can be hashed
    except ValidationError as error:
        found = (f"{'.'.join(map(str, mistake['loc']))}: {mistake['type']}" for mistake in error.errors())
        raise ValueError(f"no {kind.__name__}; {'; '.join(found)}") from None
    return made


def encode(value: DataclassInstance) -> JsonObject:
    """Return a dataclass as JSON values, which `decode` reads."""
    return asdict(value, dict_factory=_as_json)


def spelled_out(document: Mapping[str, Json]) -> JsonObject:
    """Return what outputs have in short with the names of fields: boxes, codes, sides and studies."""
    return {_FIELDS.get(key, key): _spelled_out(key, value) for key, value in document.items()}


def _field_names(kind: type[_T]) -> set[str]:
    return {item.name for item in fields(kind)} if is_dataclass(kind) else set()


def _spelled_out(key: str, value: Json) -> Json:
    if isinstance(value, dict):
        return spelled_out(value)
    if not isinstance(value, list):
        return value
    if key in _LISTS:
        return dict(zip(_LISTS[key], value, strict=True))
    return [_spelled_out(key, item) for item in value]


def _as_json(values: list[tuple[str, Json | datetime]]) -> JsonObject:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in values}


@cache
def _adapter(kind: type[_T]) -> TypeAdapter[_T]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
