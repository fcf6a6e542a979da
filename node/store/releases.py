"""Which corrections of a study may leave, as files in its folder `released`; all others wait for their reader.

A reader says what he corrects one click after the other. A report that followed each of them would say what he never
meant, so a correction waits until a release names it. One that a round has followed has left without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from node.codec import decode
from node.store import files
from node.store.rounds import RoundMark


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The ids of corrections that may leave together; at: when that was decided, aware UTC."""

    corrections: tuple[str, ...]
    at: datetime


def in_folder(folder: Path) -> Iterator[Release]:
    """Yield the releases in a study's folder; one that cannot be read releases nothing: its corrections wait again."""
    for path in files.listed(folder / "released", "*.json"):
        try:
            yield decode(Release, files.read_json(path))
        except ValueError:
            continue


def waiting(made: Collection[str], marks: Iterable[RoundMark], released: Iterable[Release]) -> frozenset[str]:
    """Return those of a study's corrections that may not leave yet; made: the ids of all of them."""
    followed = chain.from_iterable(mark.corrections for mark in marks)
    return frozenset(made).difference(followed, *(release.corrections for release in released))
