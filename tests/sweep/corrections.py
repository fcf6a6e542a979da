"""What a reader's correction changes on films that were read: the finding, what follows from it, and nothing else.

On each film one reported finding is rejected, a box of one is moved, and one that is not reported is added. What may
follow stands in `node.outputs.corrected_film`. Sentences, impression, structured report and HL7 message are compared
before and after, and a correction that is taken back must restore the first answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from language.labels import RuleLabeler
from node.domain import Box, Film, Finding, FindingState
from node.outputs import impression, oru, wording
from node.outputs.corrected_film import CORRECTED, SideOf, correct
from node.outputs.correction import Correction, CorrectionKind
from node.outputs.sr import report as sr
from node.prompt_set import PromptSet
from tests import samples
from tests.sweep import patterns

_AT: Final = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
_ZONE: Final = ZoneInfo("UTC")
_LABELER: Final = RuleLabeler()
_HEADINGS: Final = re.compile(r"^(Also present|[\w ,]*[Rr]eview[\w ,]*): ")
_COUNTS: Final = re.compile(r"^(not reported, may have been missed|no prompted finding)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What leaves the node about a film, in pieces: each as often as it is there.

    groups: of the structured report, evaluations among them, none in a report of text alone
    observations: coded and numeric ones of the message
    """

    impression: Counter[str]
    groups: Counter[str]
    observations: Counter[str]


def objections(
    film: Film, prompts: PromptSet, side_of: SideOf, *, regions: Mapping[str, Box], number: int
) -> Iterator[str]:
    """Yield what is wrong after each correction; number: of the film, which chooses the findings."""
    before = written(film)
    for new in chosen(film, number):
        after = correct(film, [new], prompts=prompts, side_of=side_of)
        withdrawal = replace(
            new,
            id="2" * 32,
            kind=CorrectionKind.WITHDRAW,
            at=_AT + timedelta(seconds=1),
            prompt="",
            box=None,
            tracking_uid="",
            withdraws=new.id,
        )
        found = [
            *_states(film, after, new),
            *_sentences(film, after, new, prompts),
            *(f"patterns: {fault}" for fault in patterns.contradictions_of(after, regions)),
            *_pieces(before, written(after), _changed(film, after, new, prompts)),
        ]
        if correct(film, [new, withdrawal], prompts=prompts, side_of=side_of) != film:
            found.append("taken back, the answer is another")
        yield from (f"{new.kind} {new.prompt}: {fault}" for fault in found)


def chosen(film: Film, number: int) -> Iterator[Correction]:
    """Yield a rejection, a move and an addition, each if the film has a finding for it; each is made alone."""
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
        yield _made(film, CorrectionKind.MOVE, finding, box=drawn, tracking_uid=finding.boxes[0].tracking_uid)
    if absent:
        yield _made(film, CorrectionKind.ADD, absent[number % len(absent)], box=drawn)


def written(film: Film) -> Written:
    """Write the outputs of a film, and divide them."""
    report = samples.report(film)
    header = samples.cr()
    header.Rows, header.Columns = film.rows, film.columns
    sources = {film.source: header}
    groups = [group for dataset in sr.write(report, sources, _ZONE) for group in _groups(dataset)]
    _, message = oru.write(report, sources, _ZONE, order=None, documents=[])
    fields = [line.split("|") for line in message.decode().split("\r") if line.startswith("OBX")]
    return Written(
        impression=Counter(
            piece.lower() for line in impression.of_film(film) for piece in _HEADINGS.sub("", line).split("; ")
        ),
        groups=Counter(groups),
        observations=Counter("|".join(part[3:9]) for part in fields if part[2] in ("CWE", "NM")),
    )


def _made(
    film: Film, kind: CorrectionKind, finding: Finding, *, box: Box | None = None, tracking_uid: str = ""
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
    )


def _groups(dataset: Dataset) -> Iterator[str]:
    """Yield what each group and evaluation of a structured report says, in one text."""
    for container in dataset.ContentSequence:
        if str(container.ConceptNameCodeSequence[0].CodeMeaning) in ("Imaging Measurements", "Qualitative Evaluations"):
            yield from ("; ".join(_said(item)) for item in container.get("ContentSequence", ()))


def _said(item: Dataset) -> Iterator[str]:
    """Yield each name with its value: the objects and coordinates that an item refers to say nothing about others."""
    name = item.ConceptNameCodeSequence[0].CodeMeaning if "ConceptNameCodeSequence" in item else ""
    values = [str(item[key].value) for key in ("TextValue", "PersonName", "UID", "GraphicData") if key in item]
    values += [str(code.CodeMeaning) for code in item.get("ConceptCodeSequence", ())]
    values += [str(value.NumericValue) for value in item.get("MeasuredValueSequence", ())]
    if values:
        yield f"{name}: {', '.join(values)}"
    for child in item.get("ContentSequence", ()):
        yield from _said(child)


def _states(before: Film, after: Film, new: Correction) -> Iterator[str]:
    for old, now in zip(before.findings, after.findings, strict=True):
        if old.prompt != new.prompt:
            if replace(old, sentence=None) != replace(now, sentence=None):
                yield f"{old.prompt} changed, too"
            continue
        expected = FindingState.ABSENT if new.kind is CorrectionKind.REJECT else FindingState.PRESENT
        if now.state is not expected:
            yield f"is {now.state}"
        if (new.box in [found.box for found in now.boxes]) != (new.box is not None):
            yield "has not the box of the reader"
        if (now.sentence is None) != (expected is FindingState.ABSENT):
            yield "has no sentence" if now.sentence is None else "has a sentence"


def _names(text: str, key: str) -> bool:
    return key in _LABELER.label(text) or re.search(patterns.NAMES.get(key, "(?!)"), text.lower()) is not None


def _sentences(before: Film, after: Film, new: Correction, prompts: PromptSet) -> Iterator[str]:
    """Compare sentences: only those that name the finding may be gone, and for a gone one a rule may speak."""
    spoken, now = (Counter((said.prompt, said.text) for said in film.sentences) for film in (before, after))
    withheld = Counter((said.prompt, said.text) for said in after.withheld if said.reason == CORRECTED)
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


def _changed(before: Film, after: Film, new: Correction, prompts: PromptSet) -> list[str]:
    """Return what a piece that changes has to name: the finding, or a sentence that came or went."""
    spoken, now = ({said.text for said in film.sentences} for film in (before, after))
    finding = next(found for found in after.findings if found.prompt == new.prompt)
    return [finding.code.meaning, prompts[new.prompt].phrases[0], *(spoken ^ now)]


def _pieces(before: Written, after: Written, changed: list[str]) -> Iterator[str]:
    for name in ("impression", "groups", "observations"):
        old, now = (getattr(each, name) for each in (before, after))
        if not (old and now):  # a film without a reported finding has a report of text alone
            continue
        for piece in [*(old - now), *(now - old)]:
            if not _COUNTS.match(piece) and not any(word.lower() in piece.lower() for word in changed):
                yield f"{name} changed, too: {piece[:300]}"
