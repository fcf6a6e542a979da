"""What a reader's correction leaves on films that were read: no word against it, and the first answer once taken back.

On each film a reported finding is rejected, accepted (rather one to be reviewed), has a box moved and its sentence
reworded, and one that is not reported is added. That nothing else changes is tried in
`tests/node/outputs/test_corrections.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from models.contract import Box, FindingState
from node.domain import Film, Finding
from node.outputs import wording
from node.outputs.corrected_film import SideOf, correct
from node.prompt_set import PromptSet
from node.store.correction import Correction, CorrectionKind
from tests.drills.sweep import patterns
from tests.support import samples

_AT: Final = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


def objections(
    film: Film, prompts: PromptSet, side_of: SideOf, *, regions: Mapping[str, Box], number: int
) -> Iterator[str]:
    """Yield what is wrong after each correction; number: of the film, which chooses the findings."""
    for new in chosen(film, number, prompts):
        after = correct(film, [new], prompts=prompts, side_of=side_of)
        withdrawal = replace(
            new,
            id="2" * 32,
            kind=CorrectionKind.WITHDRAW,
            at=_AT + timedelta(seconds=1),
            prompt="",
            box=None,
            tracking_uid="",
            text="",
            withdraws=new.id,
        )
        for fault in patterns.contradictions_of(after, regions):
            yield f"{new.kind} {new.prompt}: patterns: {fault}"
        if correct(film, [new, withdrawal], prompts=prompts, side_of=side_of) != film:
            yield f"{new.kind} {new.prompt}: taken back, the answer is another"


def chosen(film: Film, number: int, prompts: PromptSet) -> Iterator[Correction]:
    """Yield corrections of each kind, those that the film has a finding for; each is made alone."""
    reported, absent = wording.reported(film), film.in_state(FindingState.ABSENT)
    left, top, right, bottom = film.analyzed.edges if film.analyzed else (0.0, 0.0, 1.0, 1.0)
    width, height = right - left, bottom - top
    column, row = number % 5, number // 5 % 5
    drawn = Box(
        left=left + column * width / 8,
        top=top + row * height / 8,
        right=left + column * width / 8 + width / 3,
        bottom=top + row * height / 8 + height / 3,
    )
    if reported:
        finding = reported[number % len(reported)]
        yield _made(film, CorrectionKind.REJECT, finding)
        if finding.boxes:
            yield _made(film, CorrectionKind.MOVE, finding, box=drawn, tracking_uid=finding.boxes[0].tracking_uid)
        else:
            yield _made(film, CorrectionKind.ADD, finding, box=drawn)
        words = f"In a reader's words, there is {prompts[finding.prompt].phrases[0].lower()}."
        yield _made(film, CorrectionKind.REWORD, finding, text=words)
        doubtful = [found for found in reported if found.state is not FindingState.PRESENT] or reported
        yield _made(film, CorrectionKind.ACCEPT, doubtful[number % len(doubtful)])
    if absent:
        yield _made(film, CorrectionKind.ADD, absent[number % len(absent)], box=drawn)


def _made(
    film: Film,
    kind: CorrectionKind,
    finding: Finding,
    *,
    box: Box | None = None,
    tracking_uid: str = "",
    text: str = "",
) -> Correction:
    return Correction(
        id="1" * 32,
        study_uid=samples.STUDY,
        film=film.source,
        kind=kind,
        at=_AT,
        by="anna",
        source="page",
        prompt=finding.prompt,
        box=box,
        tracking_uid=tracking_uid,
        text=text,
    )
