"""Answers a parsed text about a film from the film's stored answer alone; pure functions.

A finding is stated as in every output: present, to be reviewed, to be reviewed without calibration, or not reported. No
reply denies a finding or calls anything normal, because the network may have missed what it did not report.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from language.check import assertions, never_said
from language.sentences import by_rule, is_plural
from models.contract import Box, FindingState, Question, Side
from node.answers.comparison import REST, Change, FilmComparison
from node.answers.questions import Query, Topic
from node.domain import Film, FilmView, Finding, FindingBox, GroundedSentence
from node.outputs import impression, ratio_text, wording
from node.outputs.vocabulary import UNMEASURED, by_urgency, name_of, said_of
from node.prompt_set import PromptSet
from node.read.findings import PARTS, ZONES, covered, zone_of
from node.store.correction import CorrectionKind

_Boxes = tuple[FindingBox, ...]

_JUDGES: Final = "This program does not judge whether anything is as it should be; it reports the findings on its list."
_NETWORK: Final = "The report does not answer this, so the network is asked."
_WIDER: Final = "The closest finding on the list is stated here, and the network is asked in your own words."
_NOTHING: Final = (
    "Ask whether a finding is on the film, where it lies, what lies in a region or in a box that you draw, for a list "
    "of the findings, or for a summary."
)
_DRAWN: Final = "drawn box"
_LIES_IN: Final = 0.5
"""The share of one of two boxes that lies in the other at least if the one counts as lying in the other."""
_ACROSS: Final = "across the known zones or outside them"
_UNTOLD: Final = "in a zone that is not told"
_UNSIDED: Final = {"film_unsided": f"{wording.UNSIDED}."}
_SIDELESS: Final = "Its side is not told."
_NO_SIDE: Final = "No finding on the list is reported, so no side can be told; each may have been missed."
_MIDLINE: Final = PARTS.keys() - ZONES.keys()
"""Sites that lie on no side: heart and mediastinum."""
_NO_SIDED: Final = "What is reported lies in the heart or mediastinum, on no side."
_ALL_ZONES: Final = 4
"""The zones of one lung: upper, mid, lower and apical."""
_HEART: Final = "cardiomegaly"
_CHOOSE: Final = "Choose an earlier film of this patient to compare with."
_VIEWS: Final[Mapping[str, str]] = {"lateral": "a lateral film", "not_chest": "no film of the chest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A correction that a text asks for and a person has to confirm; prompt: key of the finding."""

    kind: CorrectionKind
    prompt: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a typed text.

    findings, boxes: its evidence: keys of prompts, and tracking UIDs in the order of the text
    corrections: corrections to confirm; a text alone corrects nothing
    needs_network: a prompt for the network, because the stored answer does not contain the reply
    """

    text: str
    findings: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    needs_network: str | None = None
    corrections: tuple[Proposal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Some sentences, and the boxes of one finding that they rest on."""

    text: str
    finding: str | None = None
    boxes: tuple[FindingBox, ...] = ()


def answer(query: Query, film: Film, *, box: Box | None = None) -> Reply:
    """Answer a query from a film's stored answer; box: that was drawn on the film, in its pixels."""
    if not film.is_read:
        return Reply(text=wording.not_processed(film))
    if query.topic is Topic.REFUSED:
        return Reply(text=f"{query.reason[:1].upper()}{query.reason[1:]}.")
    if query.topic is Topic.FREE:
        return Reply(text=_NETWORK, needs_network=query.prompt)
    if query.topic is Topic.COMPARE:
        return Reply(text=_CHOOSE)
    if query.topic is Topic.CORRECT:
        return _corrections(query, film)
    if query.topic is Topic.NOTHING and box is None:
        return Reply(text=_NOTHING)
    unasked = [key for key, finding in _asked_for(query, film) if finding is None]
    before = [(_JUDGES, query.judges), (_WIDER, query.prompt is not None)]
    sayer = _SAYERS[query.topic] if box is None or query.findings else partial(_drawn, box)
    said = [*(_Said(text=text) for text, holds in before if holds), *sayer(query, film)]
    if box is not None and query.findings:
        said = [_placed(each, box) for each in said]
    text = " ".join(each.text for each in said if each.text)
    return Reply(
        text=" ".join((text, *(caution for caution in wording.cautions(film) if caution not in text))),
        findings=tuple(dict.fromkeys(each.finding for each in said if each.finding is not None)),
        boxes=tuple(dict.fromkeys(found.tracking_uid for each in said for found in each.boxes)),
        needs_network=query.prompt or next((key.replace("_", " ") for key in unasked), None),
    )


def for_network(query: Query, reply: Reply, prompts: PromptSet, *, box: Box | None = None) -> Question | None:
    """Return the question that the network is asked besides a reply, if any: one about a drawn box, but for changes."""
    if query.topic in (Topic.REFUSED, Topic.COMPARE, Topic.CORRECT):
        return None
    if box is None:
        return None if reply.needs_network is None else Question(prompt=reply.needs_network)
    named = prompts[query.findings[0]].phrases[0] if len(query.findings) == 1 else None
    return Question(prompt=reply.needs_network or named, box=box)


def answer_by(comparison: FilmComparison, query: Query) -> Reply:
    """Answer a query on what changed by the comparison of two films; only of the findings that it names, if any."""
    if comparison.obstacle is not None:
        return Reply(text=comparison.text)
    wanted = [found for found in comparison.findings if not query.findings or found.prompt in query.findings]
    told = [found for found in wanted if query.findings or found.change is not Change.NOT_REPORTED]
    unasked = [_unasked(key).text for key in query.findings if key not in {found.prompt for found in wanted}]
    return Reply(
        text=" ".join((*(found.text for found in told), *unasked, REST)),
        findings=tuple(found.prompt for found in told),
        boxes=tuple(dict.fromkeys(uid for found in told for uid in found.later)),
    )


def _corrections(query: Query, film: Film) -> Reply:
    """Propose the corrections of a text: accept or add the findings that it asserts, reject those that it denies."""
    found = {finding.prompt: finding for finding in film.findings}
    made, texts = list[Proposal](), list[str]()
    for key in (*query.findings, *query.denied):
        finding, is_denied = found.get(key), key in query.denied
        if finding is None:
            texts.append(_unasked(key).text)
        elif is_denied and not finding.state.is_reported:
            texts += _missing(finding)
        else:
            is_there = finding.state.is_reported and query.side in (None, Side.BILATERAL, finding.side)
            kind = CorrectionKind.REJECT if is_denied else CorrectionKind.ACCEPT if is_there else CorrectionKind.ADD
            made.append(Proposal(kind=kind, prompt=key, text=f"{kind.capitalize()}: {name_of(finding)}"))
    to_confirm = [f"To confirm: {'; '.join(proposal.text for proposal in made)}."] if made else []
    return Reply(text=" ".join((*to_confirm, *texts)), corrections=tuple(made))


def _presence(query: Query, film: Film) -> Iterator[_Said]:
    """Yield the findings; an enlarged heart with its measurement."""
    for key, finding in _asked_for(query, film):
        yield _stated(finding, query) if finding is not None else _unasked(key)
    if _HEART in query.findings and (ratio := ratio_text.ratio_of(film)) is not None:
        value, _widths, *rest, _use = ratio_text.lines(ratio)
        yield _Said(text=" ".join((f"{value}.", *rest)))


def _place(query: Query, film: Film) -> Iterator[_Said]:
    """Yield the places of the requested findings, else of all reported ones, with the objections to them."""
    keys = query.findings or tuple(finding.prompt for finding in by_urgency(wording.reported(film)))
    for key, finding in _asked_for(replace(query, findings=keys), film):
        if finding is None:
            yield _unasked(key)
            continue
        said = _stated(finding, query)
        places = (text for text in _places(finding, said.boxes) if text not in said.text)
        parts = (said.text, *places, wording.reason_of(finding.contradiction))
        yield replace(said, text=" ".join(filter(None, parts)))


def _view(_query: Query, film: Film) -> Iterator[_Said]:
    """Yield the view by the header, and by the picture."""
    view = film.view or FilmView()
    sure = "" if view.certainty is None else f" ({wording.percent(view.certainty)})"
    seen = f"looks like {_VIEWS.get(view.seen, view.seen)}{sure}" if view.seen else "tells none to this model"
    yield _Said(
        text=f"Its header names {'no view' if view.tag is None else f'the view {view.tag}'}; its picture {seen}."
    )


def _drawn(box: Box, _query: Query, film: Film) -> Iterator[_Said]:
    """Yield the reported findings in a box that was drawn on the film."""
    reported = by_urgency(wording.reported(film))
    yield from _inside([(found, _overlapping(found.boxes, box), ()) for found in reported], place_of=lambda _: _DRAWN)


def _inside(
    findings: Iterable[tuple[Finding, _Boxes, _Boxes]], *, place_of: Callable[[_Boxes], str]
) -> Iterator[_Said]:
    """State each finding that has boxes in a place, and how many of its boxes these are.

    findings: each with its boxes inside, and those that may extend into it
    place_of: names the part of the place that holds some boxes; of no box, the whole place
    """
    is_empty = True
    for finding, inside, spread in findings:
        if inside or spread:
            is_empty = False
            texts = [
                f"{_lie(finding, boxes)} {where}{place_of(boxes)}."
                for boxes, where in ((inside, "in the "), (spread, f"{_spread(spread)}, and may reach into the "))
                if boxes
            ]
            yield _Said(text=" ".join((_statement(finding), *texts)), finding=finding.prompt, boxes=(*inside, *spread))
    if is_empty:
        yield _Said(text=f"None of the reported boxes lies in the {place_of(())}; what is there may have been missed.")


def _lie(finding: Finding, boxes: Sequence[FindingBox]) -> str:
    """Return the subject "boxes" and its verb: "The box lies", "1 of 2 boxes lies", "All 2 boxes lie"."""
    count = len(finding.boxes)
    if count == len(boxes):
        return "The box lies" if count == 1 else f"All {count} boxes lie"
    return f"{len(boxes)} of {count} boxes {'lies' if len(boxes) == 1 else 'lie'}"


def _placed(said: _Said, drawn: Box) -> _Said:
    """Return a finding's boxes inside a drawn box, or a sentence if there are none."""
    inside = _overlapping(said.boxes, drawn)
    if inside or not said.boxes:
        return replace(said, boxes=inside)
    return replace(said, text=f"{said.text} None of the boxes lies in the {_DRAWN}, where it may have been missed.")


def _region(query: Query, film: Film) -> Iterator[_Said]:
    """Yield the findings in regions: a box counts for its own region; one in no single region may reach into any."""
    reported = by_urgency(wording.reported(film))
    found = [(finding, *_placed_in(finding, finding.boxes, query.regions)) for finding in reported]
    yield from _inside(found, place_of=partial(_holding, query.regions))
    told = [box.evidence for _, boxes, _ in found for box in boxes if box.evidence is not None]
    if any(each.side is None and (each.zone or "").startswith(("left_", "right_")) for each in told):
        yield _Said(text="The film does not tell which side is which; left and right are as on an upright film.")
    for sentence in film.sentences:
        if sentence.prompt in query.regions and _may_be_quoted(sentence, film):
            yield _Said(text=f"The report says: {wording.said(sentence)}")


def _sides(_query: Query, film: Film) -> Iterator[_Said]:
    """Yield one line with the side of each reported finding."""
    reported = by_urgency(wording.reported(film))
    sided = [finding for finding in reported if finding.site is None or finding.site.value not in _MIDLINE]
    told = "; ".join(f"{wording.uncapitalized(name_of(finding))} {_side(finding)}" for finding in sided)
    yield _Said(text=f"{told[:1].upper()}{told[1:]}." if told else _NO_SIDED if reported else _NO_SIDE)
    if any(finding.place == "film_unsided" for finding in sided):
        yield _Said(text=f"{wording.UNSIDED}.")
    if any(finding.place in ("no_side", "no_place") for finding in reported):
        yield _Said(text=f"{wording.UNRELIABLE}.")
    yield from (_Said(text="", finding=finding.prompt, boxes=finding.boxes) for finding in reported)


def _side(finding: Finding) -> str:
    sides = {box.lies for box in finding.boxes if box.lies is not None}
    if finding.side is None and sides:
        boxes = "its box" if len(finding.boxes) == 1 else "its boxes"
        return f"with {boxes} on both sides" if len(sides) > 1 else f"with {boxes} on the {sides.pop()}"
    if finding.side is None:
        return "on an unknown side"
    return "on both sides" if finding.side is Side.BILATERAL else f"on the {finding.side}"


def _list(_query: Query, film: Film) -> Iterator[_Said]:
    """Say the impression, with the names of what is not reported or not evaluated in place of their counts."""
    yield from _impression(film, impression.of_film(film)[:-1])
    for text in _missing(*by_urgency(wording.unreported(film))):
        yield _Said(text=text)
    yield _Said(text=impression.not_looked_for(film))


def _summary(_query: Query, film: Film) -> Iterator[_Said]:
    yield from _impression(film, impression.of_film(film))


def _impression(film: Film, lines: Sequence[str]) -> Iterator[_Said]:
    """Yield lines of the impression, without the line that nothing is reported, which denies."""
    nothing = wording.nothing_reported(film)
    yield _Said(text=" ".join(f"{line.removesuffix('.')}." for line in lines if not line.startswith(nothing)))
    for finding in by_urgency(wording.reported(film)):
        yield _Said(text="", finding=finding.prompt, boxes=finding.boxes)


_SAYERS: Final = {
    Topic.PRESENCE: _presence,
    Topic.PLACE: _place,
    Topic.REGION: _region,
    Topic.SIDE: _sides,
    Topic.LIST: _list,
    Topic.SUMMARY: _summary,
    Topic.VIEW: _view,
    Topic.NORMAL: _summary,
    Topic.NOTHING: _summary,
}


def _asked_for(query: Query, film: Film) -> Iterator[tuple[str, Finding | None]]:
    found = {finding.prompt: finding for finding in film.findings}
    return ((key, found.get(key)) for key in query.findings)


def _unasked(key: str) -> _Said:
    name = key.replace("_", " ").capitalize()
    return _Said(
        text=f"{name} {'are' if is_plural(name) else 'is'} not on the list of findings that this film was read for."
    )


def _stated(finding: Finding, query: Query) -> _Said:
    """State a finding, with a word about the asked side and regions if it does not lie there."""
    if not finding.state.is_reported:
        return _Said(text=next(_missing(finding)), finding=finding.prompt)
    texts, boxes = [_statement(finding)], finding.boxes
    if query.side is not None and boxes and not any(box.side for box in boxes):
        texts += _places(finding, boxes) if finding.place == "no_side" else [_UNSIDED.get(finding.place, _SIDELESS)]
    elif query.side is not None and boxes:
        texts += _missing_sides(finding, query.side)
        boxes = tuple(box for box in boxes if query.side in (Side.BILATERAL, box.side)) or boxes
    if query.regions:
        place, (inside, spread) = _regions(query.regions), _placed_in(finding, boxes, query.regions)
        if spread:
            texts.append(f"{_lie(finding, spread)} {_spread(spread)}, and may reach into the {place}.")
        elif not inside and boxes:
            texts.append(f"None of the boxes lies in the {place}, where it may have been missed.")
        boxes = (*inside, *spread) or boxes
    return _Said(text=" ".join(texts), finding=finding.prompt, boxes=boxes)


def _missing_sides(finding: Finding, asked: Side) -> Iterator[str]:
    """Yield the requested sides without a box of a finding."""
    sides = (Side.RIGHT, Side.LEFT) if asked is Side.BILATERAL else (asked,)
    for side in sides:
        if side not in {box.side for box in finding.boxes}:
            yield f"None is reported on the {side}, where it may have been missed."


def _statement(finding: Finding) -> str:
    """Yield template sentences on a reported finding."""
    said = by_rule(name=name_of(finding), state=finding.state, side=finding.side, zone=zone_of(finding))
    reader, told = wording.reader_of(finding.reader), finding.output_probability
    whose = "probability" if reader is None else "AI probability"
    number = None if told is None else f"The {whose} is {wording.percent(told)}."
    is_contradicted = finding.contradiction is not None and finding.contradiction not in wording.OF_FILM
    doubt = "The network contradicts itself about it." if is_contradicted else None
    why = f"{UNMEASURED.capitalize()}." if finding.state is FindingState.UNCALIBRATED else None
    unsure = f": {wording.uncapitalized(wording.UNRELIABLE)}" if finding.place == "no_place" else ""
    nowhere = None if finding.boxes else f"Where it lies is not told{unsure}."
    return " ".join(filter(None, (said, reader, number, why, doubt, nowhere)))


def _missing(*findings: Finding) -> Iterator[str]:
    """Yield the findings that are not reported; separately those that are rejected, or left out by the model."""
    for said in dict.fromkeys(map(said_of, sorted(findings, key=lambda each: each.state is FindingState.LEFT_OUT))):
        names = [name_of(finding) for finding in findings if said_of(finding) == said]
        be = "are" if len(names) > 1 or is_plural(names[0]) else "is"
        yield f"{wording.joined([names[0], *map(wording.uncapitalized, names[1:])])} {be} {said}."


def _places(finding: Finding, boxes: Sequence[FindingBox]) -> Iterator[str]:
    """Return the places of a finding's boxes, by the network's own zones."""
    count = len(finding.boxes)
    for number, box in enumerate(finding.boxes, 1):
        if box not in boxes:
            continue
        name = f"Box {number} of {count}" if count > 1 else "Its box"
        evidence = box.evidence
        if evidence is not None and evidence.site is not None:
            zone = wording.place_name(evidence.site, evidence.side)
            yield f"{name} lies in the {zone} and covers {wording.percent(evidence.extent)} of it."
        else:
            yield f"{name} lies {wording.place_of(finding, box) if box.lies is not None else _spread((box,))}."
    if finding.place == "no_side":
        yield f"{wording.UNRELIABLE}."


def _spread(boxes: _Boxes) -> str:
    """Return the places of boxes in no single known zone."""
    return _UNTOLD if any(box.evidence is None for box in boxes) else _ACROSS


def _placed_in(finding: Finding, boxes: _Boxes, regions: Collection[str]) -> tuple[_Boxes, _Boxes]:
    """Return the boxes in some regions, and those in no single known zone that may reach into one."""
    zones = ZONES.get(finding.site.value) if finding.site is not None else None
    sides = [
        next((side for side in (Side.RIGHT, Side.LEFT) if region.startswith(f"{side}_")), None)
        for region in regions
        if zones is None or region.partition("_")[2] in zones
    ]
    inside = tuple(box for box in boxes if box.evidence is not None and box.evidence.zone in regions)
    spread = tuple(
        box
        for box in boxes
        if (box.evidence is None or box.evidence.zone is None)
        and any(None in (side, box.side or box.lies) or side is (box.side or box.lies) for side in sides)
    )
    return inside, spread


def _overlapping(boxes: Iterable[FindingBox], drawn: Box) -> tuple[FindingBox, ...]:
    """Return the boxes that lie in a drawn box, or around it."""
    shares = ((found, max(covered(found.box, [drawn]), covered(drawn, [found.box]))) for found in boxes)
    return tuple(found for found, share in shares if share >= _LIES_IN)


def _holding(regions: Sequence[str], boxes: _Boxes) -> str:
    """Name those of some regions that hold boxes; all of them if none is known to."""
    zones = {box.evidence.zone for box in boxes if box.evidence is not None}
    return _regions([region for region in regions if region in zones] or regions)


def _regions(keys: Sequence[str]) -> str:
    """Name regions; all zones of a lung, or all regions of a side, by one name, and so those of both."""
    sides = {key.partition("_")[0] for key in keys}
    zones = [key for key in keys if key.endswith("_zone")]
    if not sides <= {Side.RIGHT, Side.LEFT} or len(zones) < _ALL_ZONES * len(sides):
        return wording.joined([key.replace("_", " ") for key in keys])
    if len(zones) == len(keys):
        return "lungs" if len(sides) > 1 else f"{sides.pop()} lung"
    return "chest on both sides" if len(sides) > 1 else f"{sides.pop()} side of the chest"


def _may_be_quoted(sentence: GroundedSentence, film: Film) -> bool:
    """Whether a sentence of the report asserts a finding, denies and sizes none, and agrees with every decision."""
    decided = {finding.prompt: finding.state for finding in film.findings}
    asserted = assertions(sentence.text)
    agrees = all(decided.get(statement.key, FindingState.PRESENT).is_reported for statement in asserted)
    return bool(asserted) and agrees and not never_said(sentence.text)
