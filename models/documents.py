"""Makes values of the program's types from documents, TOML or JSON, and JSON from values; pydantic checks every type.

What a person writes (settings, a manifest, a run file) goes through `from_table`: an unknown key is refused, and every
mistake is told at once by its key, with what to do. What the program stored goes through `decode`, which repeats no
value. What a value refuses itself (`__post_init__`) is refused by both.

pydantic is imported when the first document is read, which takes 70 ms.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, get_args, get_type_hints

from models.errors import ModelError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails
    from pydantic_core.core_schema import CoreSchema

_T = TypeVar("_T")

_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_WANTED: Final[Mapping[str, str]] = {
    "string_type": "a text in quotes",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
}
"""Remedies, by pydantic's name of the mistake."""


class Misfit(ValueError):
    """A document does not fit its type. mistakes: a line for each, as `key: what is wrong; what to do`."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for the value of a field, as in `Annotated[str, Rule(complaint)]`.

    complaint: gets the value as the document has it, and returns what is wrong with it and what to do, or None
    """

    complaint: Callable[[Any], str | None]

    def __get_pydantic_core_schema__(self, source: object, handler: Callable[[object], CoreSchema]) -> CoreSchema:
        """Check the type first, then the rule."""
        from pydantic_core import PydanticCustomError
        from pydantic_core.core_schema import no_info_wrap_validator_function

        def check(value: object, made: Callable[[object], object]) -> object:
            fitting = made(value)
            if (complaint := self.complaint(value)) is not None:
                raise PydanticCustomError("rule", "{complaint}", {"complaint": complaint})
            return fitting

        return no_info_wrap_validator_function(check, handler(source))


@dataclass(frozen=True, slots=True)
class TypeOf:
    """Chooses the type of a table that may have several, as in `Annotated[Protocol, TypeOf(choose)]`.

    choose: gets the table and returns its dataclass
    """

    choose: Callable[[Mapping[str, object]], type]

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        """Let the table's own dataclass check it."""
        from pydantic_core.core_schema import dict_schema, no_info_after_validator_function

        return no_info_after_validator_function(lambda table: from_table(self.choose(table), table), dict_schema())


def read_toml(path: Path, *, name: str) -> dict[str, object]:
    """Read a file; name: what it should be, as "a run file". Raises ModelError if it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); name {name}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not TOML ({error}); correct it") from error


def from_file(kind: type[_T], table: Mapping[str, object], *, path: Path) -> _T:
    """Make a dataclass from the table of a file. Raises ModelError that lists every mistake in it, a line each."""
    try:
        return from_table(kind, table)
    except Misfit as misfit:
        raise ModelError("\n".join(f"{path}: {mistake}" for mistake in misfit.mistakes)) from misfit


def from_table(
    kind: type[_T],
    table: Mapping[str, object],
    *,
    removed: Mapping[str, str] | None = None,
    unknown: Literal["forbid", "ignore"] = "forbid",
) -> _T:
    """Make a value of a type from a table that a person wrote. Raises Misfit that lists every mistake in it.

    removed: by full key, the replacement of a removed key; unknown: what becomes of a key that the type does not have
    """
    from pydantic import ValidationError

    content = json.dumps(table, ensure_ascii=False, default=lambda date: {"date": str(date)})  # no text, number or list
    try:
        return _made(kind, content, extra=unknown)
    except ValidationError as error:
        mistakes = [line for mistake in error.errors() for line in _told(mistake, kind, removed or {})]
        raise Misfit(mistakes) from error


def decode(kind: type[_T], value: object) -> _T:
    """Make a value of a type from JSON values that the program stored; no field may be missing, default or not.

    Unknown keys are ignored: another version of the program may have written them. Raises Misfit that says where
    the values do not fit, and repeats none of them: they may be a patient's.
    """
    from pydantic import ValidationError

    names = {field.name for field in fields(kind)} if is_dataclass(kind) else set()
    if isinstance(value, Mapping) and (lost := names - value.keys()):
        raise Misfit([f"no {kind.__name__}; it lacks {', '.join(sorted(lost))}"])
    try:
        return _made(kind, json.dumps(value, ensure_ascii=False), extra="ignore")
    except ValidationError as error:
        found = (f"{'.'.join(map(str, mistake['loc']))}: {mistake['type']}" for mistake in error.errors())
        raise Misfit([f"no {kind.__name__}; {'; '.join(found)}"]) from None


def encode(value: DataclassInstance) -> dict[str, Any]:
    """Return a dataclass as JSON values, which `decode` reads."""
    return asdict(value, dict_factory=_as_json)


def _as_json(values: list[tuple[str, object]]) -> dict[str, object]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in values}


def refuse(complaints: Iterator[str]) -> None:
    """Raise ValueError with a line for each complaint, if there is one; each begins with the field that it is about."""
    if lines := list(complaints):
        raise ValueError("\n".join(lines))


def _made(kind: type[_T], content: str, *, extra: Literal["forbid", "ignore"]) -> _T:
    """Make a value from JSON, in which strict types take a list as a tuple, a text as a path and 1 as a float.

    A surrogate without its pair, which a client may send in a text and no encoding has, becomes a blank.
    """
    made: _T = _adapter(kind).validate_json(  # type: ignore[arg-type]  # it is hashable
        _SURROGATE.sub(" ", content), strict=True, extra=extra
    )
    return made


@cache
def _adapter(kind: type[_T]) -> TypeAdapter[_T]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _told(mistake: ErrorDetails, kind: type, removed: Mapping[str, str]) -> Iterator[str]:
    """Return pydantic's errors in plain words with remedies; list items are counted from 1."""
    value, place = mistake["input"], [part for part in mistake["loc"] if part != "[key]"]
    key = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    match mistake["type"]:
        case "value_error":  # a dataclass refused itself, and says which fields it means
            for line in str(mistake["ctx"]["error"]).split("\n"):
                yield f"{key}.{line}".removeprefix(".")
        case "rule":
            yield f"{key}: {mistake['msg']}"
        case "missing":
            yield f"{key}: is missing; add it"
        case "unexpected_keyword_argument" if key in removed:
            yield f"{key}: removed; use {removed[key]}"
        case "unexpected_keyword_argument":
            near = difflib.get_close_matches(str(place[-1]), _keys(kind, place[:-1]), 1)
            hint = f"did you mean {near[0]}?" if near else "remove it, correct its spelling, or use a newer program"
            yield f"{key}: unknown key; {hint}"
        case "literal_error" | "enum":
            yield f"{key}: {value!r} is unknown; use {mistake['ctx']['expected']}"
        case "dataclass_type" | "dict_type" | "mapping_type":
            yield f"{key}: must be a table"
        case "too_short":
            if not value:  # else every item has a mistake of its own
                yield f"{key}: must be a list that is not empty"
        case "too_long":
            yield f"{key}: must have {mistake['ctx']['max_length']} values"
        case other if other in _WANTED:
            yield f"{key}: must be {_WANTED[other]}, got {value!r}"
        case _:
            yield f"{key}: {mistake['msg']}, got {value!r}"


def _keys(kind: type, place: Sequence[int | str]) -> list[str]:
    """Return the keys that the table in a place of a document may have."""
    for part in place:
        kind = _table(get_type_hints(kind).get(str(part), kind))
    return [field.name for field in fields(kind)]


def _table(kind: Any) -> type:  # noqa: ANN401  # any type of a field
    """Return the dataclass in a type such as `tuple[T, ...]`, `Mapping[str, T]` or `T | None`."""
    while not is_dataclass(kind):
        kind = next(inner for inner in get_args(kind) if is_dataclass(inner) or get_args(inner))
    return kind  # type: ignore[return-value]  # a dataclass, not an instance
