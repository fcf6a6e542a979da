"""What a reader's correction changes on films that were read: the finding, what follows from it, and nothing else.

On each film a reported finding is rejected, accepted (rather one to be reviewed), has a box moved and its sentence
reworded, and one that is not reported is added. What may follow stands in `node.outputs.corrected_film`. Findings and
sentences are compared before and after, and a correction that is taken back must restore the first answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from language.labels import RuleLabeler
from language.sentences import unstated
from models.contract import Box, FindingState
from node.domain import Film, Finding
from node.outputs import wording
from node.outputs.corrected_film import CORRECTED, SideOf, correct
from node.prompt_set import PromptSet
from node.store.correction import Correction, CorrectionKind
from tests.drills.sweep import patterns
from tests.support import samples

_AT: Final = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
_LABELER: Final = RuleLabeler()


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
        found = [
            *_states(film, after, new),
            *_stale(after),
            *_sentences(film, after, new, prompts),
            *(f"patterns: {fault}" for fault in patterns.contradictions_of(after, regions)),
        ]
        if correct(film, [new, withdrawal], prompts=prompts, side_of=side_of) != film:
            found.append("taken back, the answer is another")
        yield from (f"{new.kind} {new.prompt}: {fault}" for fault in found)


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


def _states(before: Film, after: Film, new: Correction) -> Iterator[str]:
    for old, now in zip(before.findings, after.findings, strict=True):
        if old.prompt != new.prompt:
            if replace(old, sentence=None) != replace(now, sentence=None):
                yield f"{old.prompt} changed, too"
        elif new.kind is CorrectionKind.REWORD:
            if replace(old, sentence=None) != replace(now, sentence=None):
                yield "is another finding, too"
            if now.sentence is None or after.sentences[now.sentence].text != new.text:
                yield "has not the words of the reader"
        else:
            yield from _judged(old, now, new)


def _judged(old: Finding, now: Finding, new: Correction) -> Iterator[str]:
    """Compare a finding before and after a correction of its state or of its boxes."""
    expected = FindingState.ABSENT if new.kind is CorrectionKind.REJECT else FindingState.PRESENT
    if now.state is not expected:
        yield f"is {now.state}"
    if now.reader is None:
        yield "does not say that a reader spoke"
    if now.contradiction is not None:
        yield "is contradicted by the network"
    if (new.box in [found.box for found in now.boxes]) != (new.box is not None):
        yield "has not the box of the reader"
    if new.kind is CorrectionKind.ACCEPT and now.boxes != old.boxes:
        yield "has other boxes"
    if (now.sentence is None) != (expected is FindingState.ABSENT):
        yield "has no sentence" if now.sentence is None else "has a sentence"


def _stale(after: Film) -> Iterator[str]:
    """Object to the sentence of a finding that is present and that asks for a review of it."""
    for finding in after.in_state(FindingState.PRESENT):
        text = "" if finding.sentence is None else after.sentences[finding.sentence].text
        if text != unstated(text):
            yield f"{finding.prompt} is present, and is to be reviewed: {text}"


def _names(text: str, key: str) -> bool:
    return key in _LABELER.label(text) or re.search(patterns.NAMES.get(key, "(?!)"), text.lower()) is not None


def _sentences(before: Film, after: Film, new: Correction, prompts: PromptSet) -> Iterator[str]:
    """Compare sentences: only those that name the finding may be gone, and for a gone one a rule may speak."""
    spoken, now = (Counter((said.prompt, unstated(said.text)) for said in film.sentences) for film in (before, after))
    withheld = Counter((said.prompt, unstated(said.text)) for said in after.withheld if said.reason == CORRECTED)
    gone, come = spoken - now, now - spoken
    for prompt, text in gone:
        if prompt != new.prompt and not _concerns(text, new, prompts):
            yield f"withheld without a reason: {text}"
        if not withheld[prompt, text] and prompt != new.prompt:
            yield f"lost: {text}"
    for prompt, text in come:
        if prompt != new.prompt and all(prompt != other for other, _ in gone):
            yield f"said anew: {text}"
    is_gone = new.kind is CorrectionKind.REJECT
    for said in after.sentences:
        mark = _LABELER.label(said.text).get(new.prompt)
        if mark is not None and (mark == "negative") != is_gone:
            yield f"{said.prompt} says: {said.text}"


def _concerns(text: str, new: Correction, prompts: PromptSet) -> bool:
    """Say whether a sentence may have to go: it names the finding, or calls normal what now holds one."""
    calls_normal = new.box is not None and patterns.calls_normal(text)
    return _names(text, new.prompt) or calls_normal or prompts[new.prompt].phrases[0].lower() in text.lower()
