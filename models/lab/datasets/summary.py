"""What was prepared of a data set: our counts beside those that are published, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["paper", "data set"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published count. what: the name of our own count; source: the paper on ChEX, or the data set's description."""

    what: str
    count: int
    source: Source


def table(counts: Mapping[str, int], published: Sequence[Published]) -> list[dict[str, object]]:
    """Return a row for each count; those that are published and were not met have 0."""
    known = {figure.what: figure for figure in published}
    rows: list[dict[str, object]] = []
    for what in dict.fromkeys([*known, *sorted(counts)]):
        row: dict[str, object] = {"what": what, "count": counts.get(what, 0)}
        if what in known:
            row |= {"published": known[what].count, "by": known[what].source}
        rows.append(row)
    return rows


def text(rows: Sequence[Mapping[str, object]]) -> str:
    """Write the rows for a terminal; a count that differs from the published one is marked."""
    return "\n".join(_line(row) for row in rows)


def _line(row: Mapping[str, object]) -> str:
    line = f"{row['count']:>9}  {row['what']}"
    if "published" not in row:
        return line
    mark = "" if row["published"] == row["count"] else "  (differs)"
    return f"{line}; published by the {row['by']}: {row['published']}{mark}"
