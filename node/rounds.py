"""Marks of finished rounds: small files in a study's folder, which outlive everything else that is known of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import cast

from node import durable
from node.domain import JsonObject, OutputObject


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMark:
    """A finished round: which files it covered, when it began, what it wrote."""

    number: int
    created_at: datetime
    files: tuple[str, ...]
    outputs: tuple[OutputObject, ...]


def marks(folder: Path) -> list[RoundMark]:
    """The marks in a folder, oldest first; none when it does not exist."""
    return [_mark(content) for path in sorted(folder.glob("*.json")) if (content := durable.read_json(path))]


def keep(folder: Path, mark: RoundMark) -> None:
    """Keep a mark in a folder that exists, synced.

    A number that another round has (two ran at once when our tables were lost) stays with it: the next is taken.
    """
    while not durable.write_new(path := folder / f"{mark.number:06d}.json", _content(mark)):
        if path.read_bytes() == _content(mark):
            return
        mark = replace(mark, number=mark.number + 1)


def _content(mark: RoundMark) -> bytes:
    return durable.to_json({**asdict(mark), "created_at": mark.created_at.isoformat()})


def _mark(content: JsonObject) -> RoundMark:
    return RoundMark(
        number=int(str(content["number"])),
        created_at=datetime.fromisoformat(str(content["created_at"])),
        files=tuple(cast(list[str], content["files"])),
        outputs=tuple(OutputObject(**output) for output in cast(list[dict[str, str]], content["outputs"])),
    )
