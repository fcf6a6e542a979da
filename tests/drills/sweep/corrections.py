"""What a reader's correction changes on films that were read: the finding, what follows from it, and nothing else.

On each film a reported finding is rejected, accepted (rather one to be reviewed), has a box moved and its sentence
reworded, and one that is not reported is added. What may follow stands in `node.outputs.corrected_film`. Sentences,
impression, structured reports in both forms and HL7 message are compared before and after, and a correction that is
taken back must restore the first answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from language.labels import RuleLabeler
from language.sentences import unstated
from models.contract import Box, FindingState
from node.domain import Film, Finding
from node.outputs import impression, oru, wording
from node.outputs.corrected_film import CORRECTED, SideOf, correct
from node.outputs.sr import report as sr
from node.prompt_set import PromptSet
from node.store.correction import Correction, CorrectionKind
from tests.drills.sweep import patterns
from tests.support import samples

_AT: Final = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
_ZONE: Final = ZoneInfo("UTC")
_LABELER: Final = RuleLabeler()
_HEADINGS: Final = re.compile(r"^(\d+\. |and: )")
_COUNTS: Final = re.compile(r"^(not reported \(below|not evaluated|not looked for|no prompted finding)")


_WRITERS: Final = {"sr": sr.write, "sr3d": sr.write_3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """The structured reports of a film in one form, in pieces.

    groups: what each measurement group says, that of the cardiothoracic ratio among them
    evaluations: what each evaluation says, with the words that stand for it in a report of text alone
    text: the words of the film's report if it is of text alone, which has no evaluations; else ""
    """

    groups: Counter[str]
    evaluations: Counter[tuple[str, str]]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What leaves the node about a film, in pieces: each as often as it is there.

    observations: coded and numeric ones of the message
    reports: by kind of output
    """

    impression: Counter[str]
    observations: Counter[str]
    reports: Mapping[str, WrittenReport]


def objections(
    film: Film, prompts: PromptSet, side_of: SideOf, *, regions: Mapping[str, Box], number: int
) -> Iterator[str]:
    """Yield what is wrong after each correction; number: of the film, which chooses the findings."""
    before = written(film)
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
            *differences(before, written(after), _changed(film, after, new, prompts)),
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
        yield _made(film, CorrectionKind.MOVE, finding, box=drawn, tracking_uid=finding.boxes[0].tracking_uid)
        words = f"In a reader's words, there is {prompts[finding.prompt].phrases[0].lower()}."
        yield _made(film, CorrectionKind.REWORD, finding, text=words)
        doubtful = [found for found in reported if found.state is not FindingState.PRESENT] or reported
        yield _made(film, CorrectionKind.ACCEPT, doubtful[number % len(doubtful)])
    if absent:
        yield _made(film, CorrectionKind.ADD, absent[number % len(absent)], box=drawn)


def written(film: Film) -> Written:
    """Write the outputs of a film, and divide them."""
    silent = tuple(replace(finding, sentence=None) for finding in film.findings)
    return Written(
        impression=Counter(
            piece.lower() for line in impression.of_film(film) for piece in _HEADINGS.sub("", line).split("; ")
        ),
        observations=_observations(replace(film, sentences=(), findings=silent)),
        reports={
            kind: _divided(samples.datasets(write, samples.report(film), _sources(film), _ZONE))
            for kind, write in _WRITERS.items()
        },
    )


@lru_cache(maxsize=8)
def _observations(film: Film) -> Counter[str]:
    """Write the message of a film without its sentences, each of which takes time, and which change no such item."""
    _, message = oru.write(samples.report(film), _sources(film), _ZONE, order=None, documents=[])
    fields = [line.split("|") for line in message.decode().split("\r") if line.startswith("OBX")]
    return Counter("|".join(part[3:9]) for part in fields if part[2] in ("CWE", "NM"))


def _sources(film: Film) -> dict[str, Dataset]:
    header = samples.cr()
    header.Rows, header.Columns = film.rows, film.columns
    return {film.source: header}


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


def _divided(reports: Sequence[Dataset]) -> WrittenReport:
    """Divide the reports of one film, of which the first is the one on its findings."""
    groups = [item for dataset in reports for item in _items(dataset, "Imaging Measurements")]
    evaluations = [item for dataset in reports for item in _items(dataset, "Qualitative Evaluations")]
    about = reports[0]
    is_text = not any(True for _ in _items(about, "Imaging Measurements"))
    texts = [str(item.value) for item in about.iterall() if item.keyword == "TextValue"] if is_text else []
    return WrittenReport(
        groups=Counter("; ".join(_said(item)) for item in groups),
        evaluations=Counter(("; ".join(_said(item)), _in_words(item)) for item in evaluations),
        text=_plain(" ".join(texts)),
    )


def _items(report: Dataset, section: str) -> Iterator[Dataset]:
    """Yield the items of the sections of a structured report that have a name."""
    for container in report.ContentSequence:
        if container.ConceptNameCodeSequence[0].CodeMeaning == section:
            yield from container.get("ContentSequence", ())


def _in_words(evaluation: Dataset) -> str:
    """Return the sentence of an evaluation, or the name of its finding."""
    said = str(evaluation.get("TextValue", "")).partition(": ")[2]
    return _plain(said or evaluation.ConceptNameCodeSequence[0].CodeMeaning)


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


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


def _changed(before: Film, after: Film, new: Correction, prompts: PromptSet) -> list[str]:
    """Return what a piece that changes has to name: the finding, or a sentence that came or went."""
    spoken, now = ({said.text for said in film.sentences} for film in (before, after))
    heart = ["wide heart"] if new.prompt == "cardiomegaly" else []
    finding = next(found for found in after.findings if found.prompt == new.prompt)
    return [finding.code.meaning, prompts[new.prompt].phrases[0], *heart, *(spoken ^ now)]


def differences(before: Written, after: Written, changed: Sequence[str]) -> Iterator[str]:
    """Yield what is written differently and names nothing of what a correction changed.

    Where one report is of text alone, its text must say what the evaluations of the other one say.
    """
    yield from _differing("impression", before.impression, after.impression, changed)
    yield from _differing("observations", before.observations, after.observations, changed)
    for kind, old in before.reports.items():
        now = after.reports[kind]
        yield from _differing(f"groups of {kind}", old.groups, now.groups, changed)
        if bool(old.text) == bool(now.text):
            told, tells = (Counter(said for said, _ in report.evaluations.elements()) for report in (old, now))
            yield from _differing(f"evaluations of {kind}", told, tells, changed)
            continue
        text = old.text or now.text
        for said, words in {**old.evaluations, **now.evaluations}:
            if words not in text and not _is_named(said, changed):
                yield f"{kind} of text alone does not say: {said[:300]}"


def _differing(name: str, old: Counter[str], now: Counter[str], changed: Sequence[str]) -> Iterator[str]:
    for piece in [*(old - now), *(now - old)]:
        if not _COUNTS.match(piece) and not _is_named(piece, changed):
            yield f"{name} changed, too: {piece[:300]}"


def _is_named(piece: str, changed: Sequence[str]) -> bool:
    return any(word.lower() in piece.lower() for word in changed)
