"""The findings of a film's report: a TID 1410 group per reported box, codes if not reported, text for sentences.

The structure avoids what OHIF 3.13.2 cannot load (interoperability §2): it needs at least one group, a region in each
group, and a plain number either in every group or in no group. So the group of every finding has a number, numbers are
never at the root, and a film without a reported finding gets a report of text alone.

Evidence is a second finding site: the zone that the box overlaps most, with its side, and the share of the zone that
the box covers as a number below it. TID 1410 allows several sites, and highdicom reads them. OHIF shows the first site,
the finding's own, and takes a number only if it stands in the group itself; so the share, which a box outside all
zones does not have, neither mixes the shapes of groups nor adds a line to the label of the probability.

The short label is what dwv 0.36 draws beside a box, if it modifies the name of the group (HAS CONCEPT MOD).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo

from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from node.domain import Assessment, Code, Film, Finding, FindingBox, FindingState, GroundedSentence, Report, Side
from node.outputs import impression, wording
from node.outputs.patient import long_text, short_text
from node.outputs.sr import content
from node.outputs.sr.content import (
    CONTAINS,
    HAS_CONCEPT_MOD,
    HAS_OBS_CONTEXT,
    HAS_PROPERTIES,
    Item,
    container,
    with_content,
)
from node.outputs.sr.items import FINDING, concept, inferred_from, region, said_by_reader, source_object, text

PRIVATE_SCHEME = "99CHEX"
STATES: Mapping[FindingState, Concept] = {
    FindingState.PRESENT: Concept("52101004", "SCT", "Present"),
    FindingState.INDETERMINATE: Concept("82334004", "SCT", "Indeterminate"),
    FindingState.UNCALIBRATED: Concept("NOTCALIBRATED", PRIVATE_SCHEME, "Review, not calibrated"),
    FindingState.ABSENT: Concept("NOTREPORTED", PRIVATE_SCHEME, "Not reported, may have been missed"),
}
"""Codes of states. SNOMED's Absent (272519000) would deny what only stayed below its threshold."""
REJECTED = Concept("REJECTED", PRIVATE_SCHEME, "Rejected by a reader")
"""In place of `NOTREPORTED` where a person says that the finding is not there."""
NOT_ASSESSED = Concept("NOTASSESSED", PRIVATE_SCHEME, "Not assessed, may be there")
"""In place of `NOTREPORTED` of a finding that the model leaves out."""
SIDES: Mapping[Side, Concept] = {
    Side.RIGHT: Concept("24028007", "SCT", "Right"),
    Side.LEFT: Concept("7771000", "SCT", "Left"),
    Side.BILATERAL: Concept("51440002", "SCT", "Bilateral"),
}
PERCENT = Concept("%", "UCUM", "percent")
SHARE_OF_ZONE = Concept("SHAREOFZONE", PRIVATE_SCHEME, "Share of the zone that the box covers")
SHORT_LABEL = Concept("125309", "DCM", "Short Label")
READER = Concept("{reader}", "UCUM", "reader")
_PROBABILITY = ", AI probability"
_BY_READER: Mapping[Assessment, tuple[str, str]] = {
    Assessment.ACCEPTED: ("C", ", confirmed by reader"),
    Assessment.MOVED: ("M", ", box drawn by reader"),
    Assessment.ADDED: ("A", ", added by reader"),
}
"""First letter of the code and end of the name of a box's number that stands for a reader's word."""
GROUP = Concept("125007", "DCM", "Measurement Group")
TRACKING_NAME = Concept("112039", "DCM", "Tracking Identifier")
TRACKING_UID = Concept("112040", "DCM", "Tracking Unique Identifier")
FINDING_SITE = Concept("363698007", "SCT", "Finding Site")
LATERALITY = Concept("272741003", "SCT", "Laterality")
ALGORITHM_NAME = Concept("111001", "DCM", "Algorithm Name")
ALGORITHM_VERSION = Concept("111003", "DCM", "Algorithm Version")
ALGORITHM_PARAMETERS = Concept("111002", "DCM", "Algorithm Parameters")
PURPOSE_OF_REGION = Concept("130400", "DCM", "Geometric purpose of region")
BOUNDED_BY = Concept("75958009", "SCT", "Bounded by")
IMAGING_MEASUREMENTS = Concept("126010", "DCM", "Imaging Measurements")
QUALITATIVE_EVALUATIONS = Concept("C0034375", "UMLS", "Qualitative Evaluations")


def measurements(report: Report, film: Film, source: Dataset, *, zone: tzinfo) -> Item:
    """Encode every reported box of a film, the most urgent finding first (TID 1500 row 6); zone: of its times."""
    item, made_by = container(IMAGING_MEASUREMENTS), algorithm(report)
    for finding in impression.by_urgency(wording.reported(film)):
        for name, box in wording.named_boxes(finding):
            tracked, said = tracking(name, box.tracking_uid), _comments(film, finding, box, zone)
            group = _group(made_by, tracked, finding, box, source, comments=said)
            item.content.append(said_by_reader(group, wording.mark_of(finding, box), zone))
    return item


def state_of(finding: Finding) -> Concept:
    """Return the code of a finding's state."""
    if wording.is_left_out(finding):
        return NOT_ASSESSED
    return REJECTED if finding.state is FindingState.ABSENT and finding.reader else STATES[finding.state]


def evaluations(film: Film, source: Dataset, *, zone: tzinfo) -> Item | None:
    """Encode absent findings, and sentences without a finding group (TID 1500 row 12); None if there are neither.

    A sentence is a text inferred from the regions of its boxes, which no viewer takes for a finding group. The
    algorithm is not named again here: PixelMed takes its name for an evaluation with a wrong relationship.
    """
    item = container(QUALITATIVE_EVALUATIONS)
    for finding in film.in_state(FindingState.ABSENT):
        answer = content.code(concept(finding.code), state_of(finding), CONTAINS)
        item.content.append(inferred_from(said_by_reader(answer, finding.reader, zone), source_object(source)))
    for sentence in _loose_sentences(film):
        grounds = [region(scored.box, source) for scored in sentence.boxes] or [source_object(source)]
        item.content.append(inferred_from(text(wording.spoken(sentence)), *grounds))
    return item if item.content else None


def _comments(film: Film, finding: Finding, box: FindingBox, zone: tzinfo) -> Iterator[Item]:
    """Yield the texts on a box of a finding; a sentence that a reader wrote says who wrote it and when."""
    if (sentence := wording.reworded(film, finding)) is not None:
        yield said_by_reader(text(wording.said(sentence)), sentence.reader, zone)
    if (about := wording.about_box(film, finding, box)) is not None:
        yield text(about)


def _group(
    made_by: Sequence[Item],
    tracked: Sequence[Item],
    finding: Finding,
    box: FindingBox,
    source: Dataset,
    *,
    comments: Iterable[Item],
) -> Item:
    """Encode one box of a finding."""
    return group_of(
        made_by,
        tracked,
        region(box.box, source, CONTAINS),
        finding_type=concept(finding.code),
        sites=_sites(finding, box),
        number=_number(finding, box),
        states=[(concept(finding.code), state_of(finding))],
        label=wording.label(finding, box),
        comments=comments,
    )


def group_of(
    made_by: Sequence[Item],
    tracked: Sequence[Item],
    box: Item,
    *,
    number: Item,
    states: Iterable[tuple[Concept, Concept]],
    label: str,
    comments: Iterable[Item],
    finding_type: Concept | None = None,
    sites: Sequence[Item] = (),
) -> Item:
    """Encode one box (TID 1410).

    made_by: `algorithm`; tracked: `tracking`
    number: its only one, which OHIF 3.13.2 makes the label of the box
    states: questions with their answers
    label: the short label; comments: texts on the box
    """
    return with_content(
        container(GROUP, template="1410"),
        (
            *tracked,
            *([] if finding_type is None else [content.code(FINDING, finding_type, CONTAINS)]),
            *sites,
            *made_by,
            number,
            *(content.code(question, answer, CONTAINS) for question, answer in states),
            content.code(PURPOSE_OF_REGION, BOUNDED_BY, CONTAINS),
            box,
            content.text(SHORT_LABEL, label, HAS_CONCEPT_MOD),
            *comments,
        ),
    )


def tracking(name: str, uid: str) -> list[Item]:
    """Name a group, and give it a UID that stays with what it is about (TID 4108)."""
    return [
        content.text(TRACKING_NAME, name, HAS_OBS_CONTEXT),
        content.uid(TRACKING_UID, uid, HAS_OBS_CONTEXT),
    ]


def _sites(finding: Finding, box: FindingBox) -> list[Item]:
    """Return the finding's own site, then the zone of its box with the share that the box covers; each code once."""
    evidence = box.evidence
    sites = [] if finding.site is None else [_site(finding.site, box.side)]
    if evidence is None or evidence.site is None:
        return sites
    if evidence.site != finding.site:
        sites.append(_site(evidence.site, evidence.side))
    percent = wording.whole_percent(evidence.extent)
    sites[-1].content.append(content.number(SHARE_OF_ZONE, percent, PERCENT, HAS_PROPERTIES))
    return sites


def _site(code: Code, side: Side | None) -> Item:
    item = content.code(FINDING_SITE, concept(code), HAS_CONCEPT_MOD)
    return item if side is None else with_content(item, [content.code(LATERALITY, SIDES[side], HAS_CONCEPT_MOD)])


def share(name: Concept, value: float) -> Item:
    """Make the number of a group of a share, 0..1, as a whole percent."""
    return content.number(name, wording.whole_percent(value), PERCENT, CONTAINS)


def _number(finding: Finding, box: FindingBox) -> Item:
    """Make the number of a box: the probability, or that one reader drew it or confirmed its finding.

    A group without a number hides the boxes of all others in OHIF 3.13.2, and a percentage would be the network's.
    """
    mark = wording.mark_of(finding, box)
    if mark is None:
        return share(probability_name(finding, box.side), finding.probability)
    letter, end = _BY_READER[mark.what]
    return content.number(_quantity(finding, letter, end, side=box.side), 1, READER, CONTAINS)


def probability_name(finding: Finding, side: Side | None = None) -> Concept:
    """Return the concept name of the probability of a finding's box: a private code per finding, state and side.

    OHIF 3.13.2 labels a box with the name, value and site of its number, and shows nothing else of the group: with the
    common name Probability (122157, DCM) findings could not be told apart. OHIF cuts labels at the edge of the
    viewport, so side and finding come first. The code is P for present or R for review, the finding's code, and R, L or
    B for a side. If it is longer than 16 characters, it is a Long Code Value.
    """
    letter, end = ("R", ", review, AI probability") if finding.state in wording.MARKS else ("P", _PROBABILITY)
    return _quantity(finding, letter, end, side=side)


def quantity_name(finding: Finding) -> Concept:
    """Return the name of a finding's probability whatever its state and side, for receivers that sort by it."""
    return _quantity(finding, "P", _PROBABILITY, side=None)


def _quantity(finding: Finding, letter: str, end: str, *, side: Side | None) -> Concept:
    meaning = short_text(wording.sided(finding.code.meaning, side), 64 - len(end)) + end
    suffix = f"-{side[0].upper()}" if side else ""
    return Concept(f"{letter}{finding.code.value}{suffix}", PRIVATE_SCHEME, meaning)


def algorithm(report: Report) -> list[Item]:
    """Identify the network and its questions (TID 4019)."""
    model = report.model
    texts = (
        (ALGORITHM_NAME, model.name),
        (ALGORITHM_VERSION, model.version),
        (ALGORITHM_PARAMETERS, wording.prompt_set(report)),
        (ALGORITHM_PARAMETERS, f"weights sha256 {model.weights_sha256}, engine {model.engine}"),
    )
    return [content.text(name, long_text(value), HAS_CONCEPT_MOD) for name, value in texts]


def _loose_sentences(film: Film) -> Iterator[GroundedSentence]:
    """Yield the sentences that no group of a reported finding contains."""
    carried = {finding.sentence for finding in wording.reported(film)}
    yield from (sentence for index, sentence in enumerate(film.sentences) if index not in carried)
