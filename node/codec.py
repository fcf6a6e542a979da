"""Make values of the program from JSON values, and JSON values from them; pydantic checks every type.

What a value refuses itself (`__post_init__`) is refused here, too. Unknown keys are passed over: another version of the
program may have written them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from node.domain import Json, JsonObject

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

_T = TypeVar("_T")


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


def _field_names(kind: type[_T]) -> set[str]:
    return {item.name for item in fields(kind)} if is_dataclass(kind) else set()


def _as_json(values: list[tuple[str, Json | datetime]]) -> JsonObject:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in values}


@cache
def _adapter(kind: type[_T]) -> TypeAdapter[_T]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
