"""A radiologist's correction of the answer to a film, as a stored value, and which corrections may be sent.

A stored correction is immutable; another correction withdraws it. A radiologist corrects click by click, and a report
after each click would state half of the assessment. So a correction waits for a release: a file in the folder
`released` of its study that names it. A correction that a round has followed was sent with that round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from itertools import chain
from pathlib import Path

from models.contract import Box
from models.documents import decode
from node.character_sets import visible
from node.domain import Json
from node.store import files
from node.store.rounds import RoundMark


class CorrectionKind(StrEnum):
    """The kinds of correction. The values are a label of a metric and part of the interface for programs."""

    ACCEPT = "accept"
    """The finding is there."""
    REJECT = "reject"
    """The finding is not there."""
    MOVE = "move"
    """The finding is there, and one of its boxes lies elsewhere."""
    ADD = "add"
    """The finding is there, in a box that the network did not give."""
    REWORD = "reword"
    """The finding has another sentence."""
    WITHDRAW = "withdraw"
    """Takes back an earlier correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """One correction of the answer to one film.

    id: 32 hexadecimal digits
    film: SOP Instance UID
    prompt: key of the finding; "" only for WITHDRAW
    tracking_uid: for MOVE, that of the replaced box
    box: for MOVE and ADD, in pixels of the stored film
    text: for REWORD, the new sentence
    withdraws: id of the correction that WITHDRAW takes back
    at: aware UTC; by: the reader's name on this node, "" if the node does not ask for one
    source: page or api
    """

    id: str
    study_uid: str
    film: str
    kind: CorrectionKind
    at: datetime
    by: str
    source: str
    prompt: str = ""
    tracking_uid: str = ""
    box: Box | None = None
    text: str = ""
    withdraws: str = ""

    def __post_init__(self) -> None:
        needed = _NEEDED[self.kind]
        wrong = [name for name in _OPTIONAL if bool(getattr(self, name)) != (name in needed)]
        if wrong:
            raise ValueError(f"a correction {self.kind} has {', '.join(needed)} and nothing else; see {wrong[0]}")


_OPTIONAL = ("prompt", "tracking_uid", "box", "text", "withdraws")
_NEEDED: Mapping[CorrectionKind, tuple[str, ...]] = {
    CorrectionKind.ACCEPT: ("prompt",),
    CorrectionKind.REJECT: ("prompt",),
    CorrectionKind.MOVE: ("prompt", "tracking_uid", "box"),
    CorrectionKind.ADD: ("prompt", "box"),
    CorrectionKind.REWORD: ("prompt", "text"),
    CorrectionKind.WITHDRAW: ("withdraws",),
}


def active(corrections: Iterable[Correction]) -> tuple[Correction, ...]:
    """Return the corrections in effect, oldest first: neither withdrawn ones nor withdrawals."""
    ordered = sorted(corrections, key=lambda correction: (correction.at, correction.id))
    withdrawn: set[str] = set()
    for correction in reversed(ordered):  # the newest first, so that a withdrawal may be withdrawn
        if correction.kind is CorrectionKind.WITHDRAW and correction.id not in withdrawn:
            withdrawn.add(correction.withdraws)
    return tuple(
        correction
        for correction in ordered
        if correction.kind is not CorrectionKind.WITHDRAW and correction.id not in withdrawn
    )


def from_json(document: Mapping[str, Json]) -> Correction:
    """Return the correction that `documents.encode` wrote. Raises ValueError for any other document."""
    correction = decode(Correction, document)
    return replace(correction, text=visible(correction.text))  # as for a stored question, whatever wrote the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The ids of corrections that may be sent together; at: time of the decision, aware UTC."""

    corrections: tuple[str, ...]
    at: datetime


def releases_in(folder: Path) -> Iterator[Release]:
    """Yield the releases in a study's folder; an unreadable one releases nothing, and its corrections wait again."""
    yield from filter(None, (files.read_known(Release, path) for path in files.documents(folder / "released")))


def waiting(made: Collection[str], marks: Iterable[RoundMark], released: Iterable[Release]) -> frozenset[str]:
    """Return the ids of a study's corrections that may not be sent yet; made: the ids of all of them."""
    followed = chain.from_iterable(mark.corrections for mark in marks)
    return frozenset(made).difference(followed, *(release.corrections for release in released))
