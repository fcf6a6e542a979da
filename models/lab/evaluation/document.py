"""The figures of one evaluation as JSON (design §8) and as Markdown, by the keys of the JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from models.checkpoint.card import bounded, section, shown
from models.errors import ModelError

Table = tuple[list[str], list[list[str]]]
"""The cells of its head, and those of its rows."""
DIGITS: Final = 6
_BESIDE: Final = ("references", "deviations", "not_computed")


def rounded(value: object) -> object:
    """Round every number of a document to its significant digits."""
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def read_evaluation(path: Path) -> Mapping[str, object]:
    """Read the document that `models.evaluate` wrote. Raises ModelError if it is something else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as an evaluation ({error}); name what --out wrote") from error
    if not isinstance(document, dict) or not {"data", "count", "tasks", "model"} <= document.keys():
        raise ModelError(f"{path} is no evaluation; name what models.evaluate --out wrote")
    return document


def markdown(document: Mapping[str, object]) -> str:
    """Write a document as Markdown."""
    return section("evaluation", document=document, tables=tables)


def tables(made: Mapping[str, object]) -> Iterator[Table]:
    """Yield the figures of one task beside what needs no network, then a table of each part of it."""
    references, deviations, reasons = (inner(made, key) for key in _BESIDE)
    rivals = {name: inner(references, name) for name in references}
    rows = [
        [
            key,
            f"not computed: {reasons[key]}" if key in reasons else shown(value),
            shown(deviations.get(key)),
            *(shown(rival.get(key)) for rival in rivals.values()),
        ]
        for key, value in made.items()
        if _is_single(value)
    ]
    yield ["", "value", "deviation", *rivals], rows
    for key in made:
        if key not in _BESIDE and (part := inner(made, key)):
            yield _part(key, part)


def _part(title: str, part: Mapping[str, object]) -> Table:
    """Return a table with a row for each figure, or for each group of figures."""
    if singles := [[name, shown(value)] for name, value in part.items() if not isinstance(value, Mapping)]:
        return [title, "value"], singles
    groups = {name: inner(part, name) for name in part}
    columns = dict.fromkeys(name for own in groups.values() for name, value in own.items() if _is_single(value))
    return [title, *columns], [[group, *(bounded(own, name) for name in columns)] for group, own in groups.items()]


def _is_single(value: object) -> bool:
    return not isinstance(value, Mapping | list | tuple)


def inner(table: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return a table inside a table; an empty one if it is missing."""
    found = table.get(key)
    return found if isinstance(found, Mapping) else {}
