"""What a page shows of the corrections of one film: which count, by whom, and whether a report follows them yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from node.domain import Film
from node.outputs import wording
from node.store.correction import Correction, CorrectionKind, active
from node.store.rounds import RoundMark
from node.web.studies import WaitingCorrections

_MADE: Final[Mapping[CorrectionKind, str]] = {
    CorrectionKind.ACCEPT: "Accepted",
    CorrectionKind.REJECT: "Rejected",
    CorrectionKind.MOVE: "Box moved",
    CorrectionKind.ADD: "Box added",
    CorrectionKind.REWORD: "Reworded",
    CorrectionKind.WITHDRAW: "Taken back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCorrection:
    """A correction; text: "Rejected: edema"; at: aware; by: the reader, "" if the node does not ask for a name."""

    id: str
    text: str
    at: datetime
    by: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCorrections:
    """The corrections of a film.

    counting: those that count, the newest first
    choices: key and name of each finding that a reader may add
    state: "" without any correction; `waiting` while some of the study wait; `pending` while the newest round does not
        follow them all; else `written`
    newest: that was made last, also if it takes another one back
    round: number of the newest round
    waiting: of the study; seconds: until they leave
    """

    counting: tuple[ShownCorrection, ...]
    choices: tuple[tuple[str, str], ...]
    state: Literal["", "waiting", "pending", "written"]
    newest: ShownCorrection | None
    round: int | None
    waiting: WaitingCorrections
    seconds: int


def show_corrections(
    film: Film, made: Sequence[Correction], rounds: Sequence[RoundMark], *, waiting: WaitingCorrections, now: datetime
) -> ShownCorrections:
    """Put the corrections of a film into words.

    film: its answer; made: all of its corrections, oldest first; rounds, waiting: of its study, oldest first
    """
    names = {finding.prompt: wording.name_of(finding) for finding in film.findings}
    texts = _texts(made, names)
    followed = {correction for mark in rounds for correction in mark.corrections}
    shown = {
        item.id: ShownCorrection(id=item.id, text=texts[item.id], at=item.at, by=item.by, source=item.source)
        for item in made
    }
    newest = rounds[-1] if rounds else None
    state: Literal["waiting", "pending", "written"] = "written" if followed.issuperset(shown) else "pending"
    if waiting.leave_at is not None:
        state = "waiting"
    return ShownCorrections(
        counting=tuple(shown[item.id] for item in reversed(active(made))),
        choices=tuple(
            (finding.prompt, names[finding.prompt]) for finding in sorted(film.findings, key=wording.name_of)
        ),
        state=state if made or waiting.leave_at is not None else "",
        newest=shown[made[-1].id] if made else None,
        round=None if newest is None else newest.number,
        waiting=waiting,
        seconds=0 if waiting.leave_at is None else max(0, math.ceil((waiting.leave_at - now).total_seconds())),
    )


def _texts(made: Sequence[Correction], names: Mapping[str, str]) -> dict[str, str]:
    """Say in words what each correction did, by its id."""
    texts: dict[str, str] = {}
    for item in made:
        about = texts.get(item.withdraws, "") if item.withdraws else names.get(item.prompt, item.prompt)
        texts[item.id] = f"{_MADE[item.kind]}: {wording.uncapitalized(about)}"
    return texts
