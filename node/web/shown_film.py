"""The view model of one film for pages: findings and corrections, in words and boxes, as frozen values.

`glossary.toml` explains each finding to a person who is no physician. Only pages show that: no output
that leaves the node does.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final, Literal

from language.sentences import unstated
from models.contract import Box
from models.documents import decode
from node.domain import Code, Film, Finding
from node.outputs import impression, ratio_text, report_txt, vocabulary, wording
from node.store.correction import Correction, CorrectionKind, active
from node.store.rounds import RoundMark
from node.web.studies import WaitingCorrections
from node.web.words import WITHHELD

PRESENT, REVIEW = "present", "review"
_GLOSSARY: Final = Path(__file__).with_name("glossary.toml")
_MADE: Final[Mapping[CorrectionKind, str]] = {
    CorrectionKind.ACCEPT: "Accepted",
    CorrectionKind.REJECT: "Rejected",
    CorrectionKind.MOVE: "Box moved",
    CorrectionKind.ADD: "Box added",
    CorrectionKind.REWORD: "Reworded",
    CorrectionKind.WITHDRAW: "Taken back",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A coded concept in common words; code: value and scheme; source, link: the source of the facts."""

    code: tuple[str, str]
    name: str
    text: str
    source: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Glossary:
    """All explanations; caution: that only a physician can judge, shown with every text."""

    caution: str
    terms: tuple[Explanation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBox:
    """A box in pixels of the stored film; label: as drawn in every output; zone: where it lies, in words.

    by: its score, or who drew it
    """

    tracking_uid: str
    label: str
    box: Box
    by: str
    zone: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFinding:
    """A reported finding; number: its place on the page; mark: its state in words, or the radiologist's assessment.

    prompt: its key; state: present or review; text: its sentence without a word on who wrote it
    plain: explanation for a person who is no physician
    """

    number: int
    prompt: str
    name: str
    state: str
    mark: str
    probability: str
    sentence: str
    text: str
    objection: str | None
    zone: str | None
    boxes: tuple[ShownBox, ...]
    is_judged: bool
    plain: Explanation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFilm:
    """A film that was answered.

    limits: limits of the reading; blank for a film that was not read
    unreported: see `report_txt.unreported`
    loose: sentences that belong to no reported finding, with their boxes
    withheld: names of the findings and regions that sentences were generated for, by the reason to withhold these
    searched: labels that begin with "not a finding", with their boxes, of a layer that is off at every load
    """

    is_read: bool
    columns: int
    rows: int
    analyzed: Box | None
    impression: tuple[str, ...]
    limits: str
    findings: tuple[ShownFinding, ...]
    unreported: tuple[tuple[str, list[str]], ...]
    loose: tuple[tuple[str, tuple[Box, ...]], ...]
    withheld: tuple[tuple[str, list[str]], ...]
    ratio: tuple[str, ...]
    searched: tuple[tuple[str, tuple[Box, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCorrections:
    """The corrections of a film.

    counting: those in effect, newest first
    texts: what each does, by its id: "Rejected: edema"
    choices: key and name of each finding that a reader may add
    state: "" without any correction; `waiting` while some of the study wait; `pending` while the newest round does not
        follow them all; else `written`
    newest: that was made last, also if it takes another one back
    round: number of the newest round
    waiting: number of waiting corrections in the study; seconds: time until they leave
    """

    counting: tuple[Correction, ...]
    texts: Mapping[str, str]
    choices: tuple[tuple[str, str], ...]
    state: Literal["", "waiting", "pending", "written"]
    newest: Correction | None
    round: int | None
    waiting: WaitingCorrections
    seconds: int


def show(film: Film) -> ShownFilm:
    """Put the answer to a film into words: those of every other output."""
    ratio = ratio_text.ratio_of(film)
    return ShownFilm(
        is_read=film.is_read,
        columns=film.columns or 0,
        rows=film.rows or 0,
        analyzed=film.analyzed,
        impression=tuple(impression.of_film(film)),
        limits=wording.limits(film) if film.is_read else "",
        findings=tuple(_findings(film)),
        unreported=tuple(report_txt.unreported(film)),
        loose=tuple(
            (text, tuple(scored.box for scored in boxes)) for text, boxes in wording.loose(film, wording.reported(film))
        ),
        withheld=tuple(_withheld(film).items()),
        ratio=() if ratio is None else tuple(ratio_text.lines(ratio)),
        searched=tuple(
            (
                f"not a finding: looked here for {wording.uncapitalized(vocabulary.name_of(finding))}",
                tuple(scored.box for scored in finding.searched),
            )
            for finding in wording.searched(film)
        ),
    )


def _findings(film: Film) -> Iterator[ShownFinding]:
    """Yield the reported findings, the most urgent first."""
    sentences = wording.sentences(film)
    for number, finding in enumerate(vocabulary.by_urgency(wording.reported(film)), 1):
        sentence = None if finding.sentence is None else film.sentences[finding.sentence]
        yield ShownFinding(
            number=number,
            prompt=finding.prompt,
            name=wording.sided(vocabulary.name_of(finding), finding.side),
            state=REVIEW if finding.state in vocabulary.MARKS else PRESENT,
            mark=vocabulary.said_of(finding),
            probability=wording.number(finding),
            sentence=sentences.get(finding.prompt, ""),
            text="" if sentence is None else unstated(sentence.text.strip()),
            objection=wording.reason_of(finding.contradiction),
            zone=wording.zone_of(wording.zone_of_all(finding)),
            boxes=tuple(_boxes(finding)),
            is_judged=finding.reader is not None,
            plain=explain(finding.code),
        )


def _boxes(finding: Finding) -> Iterator[ShownBox]:
    for found in finding.boxes:
        yield ShownBox(
            tracking_uid=found.tracking_uid,
            label=wording.label(finding, found),
            box=found.box,
            by=f"score {found.score:.2f}" if found.reader is None else vocabulary.READER[found.reader.what],
            zone=wording.place_of(finding, found),
        )


def _withheld(film: Film) -> dict[str, list[str]]:
    """Return what withheld sentences are about, by reason. Pages do not show their texts, which are in report.json."""
    topics = wording.topics_of(film)
    names: dict[str, list[str]] = {}
    for sentence in film.withheld:
        names.setdefault(WITHHELD.get(sentence.reason, sentence.reason), []).append(topics[sentence.prompt])
    return names


def explain(code: Code) -> Explanation | None:
    """Return the explanation of a finding or a part of the chest; None if the glossary lacks it."""
    return next((term for term in glossary().terms if term.code == (code.value, code.scheme)), None)


@cache
def glossary() -> Glossary:
    """Return the whole glossary."""
    return decode(Glossary, tomllib.loads(_GLOSSARY.read_text(encoding="utf-8")))


def show_corrections(
    film: Film, made: Sequence[Correction], rounds: Sequence[RoundMark], *, waiting: WaitingCorrections, now: datetime
) -> ShownCorrections:
    """Put the corrections of a film into words.

    film: its answer; made: all of its corrections, oldest first; rounds, waiting: those of its study, oldest first
    """
    names = {finding.prompt: vocabulary.name_of(finding) for finding in film.findings}
    followed = {correction for mark in rounds for correction in mark.corrections}
    newest = rounds[-1] if rounds else None
    state: Literal["waiting", "pending", "written"] = (
        "written" if followed.issuperset(item.id for item in made) else "pending"
    )
    if waiting.leave_at is not None:
        state = "waiting"
    return ShownCorrections(
        counting=tuple(reversed(active(made))),
        texts=_texts(made, names),
        choices=tuple(
            (finding.prompt, names[finding.prompt]) for finding in sorted(film.findings, key=vocabulary.name_of)
        ),
        state=state if made or waiting.leave_at is not None else "",
        newest=made[-1] if made else None,
        round=None if newest is None else newest.number,
        waiting=waiting,
        seconds=0 if waiting.leave_at is None else max(0, math.ceil((waiting.leave_at - now).total_seconds())),
    )


def _texts(made: Sequence[Correction], names: Mapping[str, str]) -> dict[str, str]:
    """Return by id a description of each correction's effect."""
    texts: dict[str, str] = {}
    for item in made:
        about = texts.get(item.withdraws, "") if item.withdraws else names.get(item.prompt, item.prompt)
        texts[item.id] = f"{_MADE[item.kind]}: {wording.uncapitalized(about)}"
    return texts
