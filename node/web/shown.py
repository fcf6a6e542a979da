"""What a page shows of one film, in words and boxes: frozen values that templates only lay out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from language.sentences import unstated
from node.domain import Box, Film, Finding, FindingState, GroundedSentence
from node.outputs import impression, measured, wording
from node.outputs.patient import short_text
from node.web.glossary import Explanation, explain
from node.web.words import WITHHELD

PRESENT, REVIEW = "present", "review"


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
    """A reported finding; number: its place on the page; state: present or review; mark: the state in words.

    prompt: its key; text: its sentence without a word on who wrote it
    reader: what a reader said about it, with the network's probability where it keeps one
    plain: what it is, for a person who is no physician
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
    reader: str | None
    plain: Explanation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSearched:
    """Where the network looked for a finding that is not reported; label: says first that it is no finding."""

    label: str
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWithheld:
    """Withheld sentences of one reason; names: of the findings and regions that they were generated for."""

    reason: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFilm:
    """A film that was answered.

    about: what was analyzed, with the notes of the film; of a film that was not read, why
    absent: findings below their threshold that no reader rejected, each with its probability
    rejected, left_out: names of those that a reader rejected, and that the model leaves out
    loose: sentences that belong to no reported finding, with their boxes
    searched: for a layer that is off at every load
    """

    is_read: bool
    columns: int
    rows: int
    analyzed: Box | None
    impression: tuple[str, ...]
    about: tuple[str, ...]
    findings: tuple[ShownFinding, ...]
    absent: tuple[tuple[str, str], ...]
    rejected: tuple[str, ...]
    left_out: tuple[str, ...]
    loose: tuple[tuple[str, tuple[Box, ...]], ...]
    withheld: tuple[ShownWithheld, ...]
    ratio: tuple[str, ...]
    searched: tuple[ShownSearched, ...]


def show(film: Film) -> ShownFilm:
    """Put the answer to a film into words: those of every other output."""
    ratio = measured.ratio_of(film)
    listed = dict(impression.under_headings(film))
    return ShownFilm(
        is_read=film.is_read,
        columns=film.columns or 0,
        rows=film.rows or 0,
        analyzed=film.analyzed,
        impression=tuple(impression.of_film(film)),
        about=tuple(wording.about(film)),
        findings=tuple(_findings(film)),
        absent=tuple(
            (wording.name_of(finding), wording.certainty(finding))
            for finding in listed.get(wording.HEADINGS[FindingState.ABSENT], ())
        ),
        rejected=tuple(map(wording.name_of, listed.get(wording.REJECTED, ()))),
        left_out=tuple(map(wording.name_of, impression.left_out(film))),
        loose=tuple(
            (short_text(wording.spoken(sentence), 2000), tuple(scored.box for scored in sentence.boxes))
            for sentence in _loose_sentences(film)
        ),
        withheld=tuple(_withheld(film)),
        ratio=() if ratio is None else tuple(measured.lines(ratio)),
        searched=tuple(
            ShownSearched(
                label=f"not a finding: looked here for {wording.uncapitalized(wording.name_of(finding))}",
                boxes=tuple(scored.box for scored in place.boxes),
            )
            for finding, place in wording.searched(film)
        ),
    )


def _findings(film: Film) -> Iterator[ShownFinding]:
    """Yield the reported findings: those that are present first, and the most urgent of a state first."""
    reported = impression.by_urgency(wording.reported(film))
    for number, finding in enumerate(sorted(reported, key=lambda found: found.state in wording.MARKS), 1):
        sentence = None if finding.sentence is None else film.sentences[finding.sentence]
        yield ShownFinding(
            number=number,
            prompt=finding.prompt,
            name=wording.sided(wording.name_of(finding), finding.side),
            state=REVIEW if finding.state in wording.MARKS else PRESENT,
            mark=wording.MARKS.get(finding.state, PRESENT),
            probability=wording.certainty(finding),
            sentence="" if sentence is None else wording.said(sentence),
            text="" if sentence is None else unstated(sentence.text.strip()),
            objection=wording.reason_of(finding.contradiction),
            zone=wording.zone_of(finding.evidence),
            boxes=tuple(_boxes(finding)),
            reader=_judged(finding),
            plain=explain(finding.code),
        )


def _judged(finding: Finding) -> str | None:
    said, told = wording.reader_of(finding.reader), finding.output_probability
    return said if said is None or told is None else f"{said} AI probability {wording.percent(told)}."


def _boxes(finding: Finding) -> Iterator[ShownBox]:
    for found in finding.boxes:
        yield ShownBox(
            tracking_uid=found.tracking_uid,
            label=wording.label(finding, found),
            box=found.box,
            by=f"score {found.score:.2f}" if found.reader is None else wording.READER[found.reader.what],
            zone=wording.zone_of(found.evidence),
        )


def _loose_sentences(film: Film) -> Iterator[GroundedSentence]:
    """Yield the sentences that belong to no reported finding."""
    carried = {finding.sentence for finding in wording.reported(film)}
    yield from (sentence for index, sentence in enumerate(film.sentences) if index not in carried)


def _withheld(film: Film) -> Iterator[ShownWithheld]:
    """Yield the withheld sentences by reason. Their texts stay in report.json: no page says them."""
    names: dict[str, list[str]] = {}
    for sentence in film.withheld:
        names.setdefault(sentence.reason, []).append(sentence.prompt.replace("_", " "))
    for reason, prompts in names.items():
        yield ShownWithheld(reason=WITHHELD.get(reason, reason), names=tuple(prompts))
