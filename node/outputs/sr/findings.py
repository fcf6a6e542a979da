"""The findings of a film's report: a TID 1410 group per reported box, codes if not reported, text for sentences.

The structure avoids what OHIF 3.13.2 cannot load (interoperability §2): it needs at least one group, a region in each
group, and a plain number either in every group or in no group. So the group of every finding has a number, numbers are
never at the root, and a film without a reported finding gets a report of text alone.

A finding without a box has its probability below the code of its state (HAS PROPERTIES), where OHIF reads no number. A
group of its own (TID 1501) would have no region: OHIF then draws nothing of the whole report.

The finding's site is below the number of its box, as in TID 1419: OHIF labels a box with the site of the group itself,
by its bare code ("363698007: Lung"). Evidence is a second finding site: the zone that the box overlaps most, with its
side, and below it a number, the share of the zone that the box covers. OHIF reads numbers of the group itself only; so
the share, which a box outside all zones lacks, neither mixes the shapes of groups nor adds a line to the label.

The short label is what dwv 0.36 draws beside a box, if it modifies the name of the group (HAS CONCEPT MOD).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Final

from highdicom.sr import (
    AlgorithmIdentification,
    CodeContentItem,
    ContainerContentItem,
    ContentItem,
    FindingSite,
    ImageRegion,
    Measurement,
    NumContentItem,
    PlanarROIMeasurementsAndQualitativeEvaluations,
    QualitativeEvaluation,
    RelationshipTypeValues,
    TrackingIdentifier,
)
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code as Concept

from models.contract import Box, By, FindingState, Side
from node.dicom import identity
from node.domain import Assessment, Code, Film, Finding, FindingBox, Report
from node.outputs import highdicom_gaps, vocabulary, wording
from node.outputs.patient import long_text, short_text
from node.outputs.sr.items import (
    POLYLINE,
    concept,
    container,
    container_of,
    image_of,
    inferred_from,
    outline,
    region,
    said_by_reader,
    source_object,
    text,
    with_content,
)

PRIVATE_SCHEME = "99CHEX"
STATES: Mapping[FindingState, Concept] = {
    FindingState.PRESENT: Concept("52101004", "SCT", "Present"),
    FindingState.INDETERMINATE: Concept("82334004", "SCT", "Indeterminate"),
    FindingState.UNCALIBRATED: Concept("NOTCALIBRATED", PRIVATE_SCHEME, "Review, not calibrated"),
    FindingState.ABSENT: Concept("NOTREPORTED", PRIVATE_SCHEME, "Not reported, may have been missed"),
    FindingState.LEFT_OUT: Concept("NOTASSESSED", PRIVATE_SCHEME, "Not assessed, may be there"),
}
"""Codes of states. SNOMED's Absent (272519000) would deny a finding that is only below its threshold."""
REJECTED = Concept("REJECTED", PRIVATE_SCHEME, "Rejected by a reader")
"""Replaces `NOTREPORTED` if a radiologist rejected the finding."""
ORIGIN = Concept("SENTENCEBY", PRIVATE_SCHEME, "Sentence by")
_NETWORK: Final = Concept("NETWORK", PRIVATE_SCHEME, "Neural network")
ORIGINS: Mapping[By, Concept] = {
    "network": _NETWORK,
    "network_uncalibrated": _NETWORK,
    "rule": Concept("STANDARD", PRIVATE_SCHEME, "Standard wording"),
}
"""Who wrote the sentence of a finding; a radiologist is its observer."""
SIDES: Mapping[Side, Concept] = {
    Side.RIGHT: Concept("24028007", "SCT", "Right"),
    Side.LEFT: Concept("7771000", "SCT", "Left"),
    Side.BILATERAL: Concept("51440002", "SCT", "Bilateral"),
}
PERCENT = Concept("%", "UCUM", "percent")
SHARE_OF_ZONE = Concept("SHAREOFZONE", PRIVATE_SCHEME, "Share of the zone that the box covers")
BOX = Concept("box", PRIVATE_SCHEME, "box")
"""A readable unit: OHIF shows its code, and would show UCUM's `{box}` with its braces."""
_PROBABILITY, _IN_SHORT = ", AI probability", ", AI"
_BY_READER: Mapping[Assessment, tuple[str, str]] = {
    Assessment.ACCEPTED: ("C", f", confirmed{_IN_SHORT}"),
    Assessment.DRAWN: ("D", f", drawn by reader{_IN_SHORT}"),
    Assessment.MOVED: ("M", ", drawn by reader"),
    Assessment.ADDED: ("A", ", added by reader"),
}
"""By assessment, the first letter of the code and the end of the name of a box's number: the network's probability, if
it reports the finding and a radiologist confirmed it; else the count of the box."""
PROPERTIES: Final = RelationshipTypeValues.HAS_PROPERTIES
BOUNDED_BY = Concept("75958009", "SCT", "Bounded by")
QUALITATIVE_EVALUATIONS = Concept("C0034375", "UMLS", "Qualitative Evaluations")


Group = PlanarROIMeasurementsAndQualitativeEvaluations


def measurements(report: Report, film: Film, source: Dataset, *, zone: tzinfo) -> list[Group]:
    """Make a group of every reported box of a film, the most urgent finding first (TID 1500 row 6).

    zone: the time zone of its times
    """
    made_by, groups = algorithm(report), list[Group]()
    for finding in vocabulary.by_urgency(wording.reported(film)):
        for name, box in wording.named_boxes(finding):
            kind = concept(finding.code)
            group = group_of(
                made_by,
                (name, box.tracking_uid),
                box.box,
                source,
                finding_type=kind,
                number=_number(finding, box),
                states=[(kind, state_of(finding))],
                label=wording.label(finding, box),
                comments=_comments(film, finding, box, zone),
            )
            said_by_reader(container_of(group), wording.mark_of(finding, box), zone)
            groups.append(group)
    return groups


def state_of(finding: Finding) -> Concept:
    """Return the code of a finding's state, or of its rejection by a reader."""
    return REJECTED if wording.is_rejected(finding) else STATES[finding.state]


def evaluations(film: Film, source: Dataset, *, zone: tzinfo) -> ContainerContentItem | None:
    """Make items of findings and sentences without a group (TID 1500 row 12); None if there are none.

    A sentence is a text inferred from the regions of its boxes, which no viewer takes for a finding group. The
    algorithm is not repeated here: PixelMed takes its name for an evaluation with a wrong relationship.
    """
    items = list[ContentItem]()
    for finding in (each for each in film.findings if not each.boxes):
        answer = CodeContentItem(concept(finding.code), state_of(finding), RelationshipTypeValues.CONTAINS)
        with_content(said_by_reader(answer, finding.reader, zone), _probability(finding, PROPERTIES))
        items.append(inferred_from(answer, source_object(source)))
    for words, boxes in wording.loose(film, (each for each in wording.reported(film) if each.boxes)):
        grounds: list[ContentItem] = [region(scored.box, source) for scored in boxes]
        items.append(inferred_from(text(words), *(grounds or [source_object(source)])))
    return container(QUALITATIVE_EVALUATIONS, content=items) if items else None


def probabilities(film: Film, source: Dataset) -> list[ContentItem]:
    """Make the numbers of the reported findings of a film without a group (TID 2001 row 5), the most urgent first."""
    reported = vocabulary.by_urgency(wording.reported(film))
    numbers = (number for each in reported for number in _probability(each, RelationshipTypeValues.CONTAINS))
    return [inferred_from(number, source_object(source)) for number in numbers]


def _probability(finding: Finding, relationship: RelationshipTypeValues) -> Iterator[ContentItem]:
    """Yield the probability of a finding without a group, if it has one."""
    if (told := finding.output_probability) is not None:
        percent = wording.whole_percent(told)
        yield NumContentItem(quantity_name(finding), percent, PERCENT, relationship_type=relationship)


def _comments(film: Film, finding: Finding, box: FindingBox, zone: tzinfo) -> Iterator[ContentItem]:
    """Yield the texts on a box of a finding; a radiologist's sentence has its author and time."""
    if (sentence := wording.reworded(film, finding)) is not None:
        yield said_by_reader(text(wording.said(sentence)), sentence.reader, zone)
    if (about := wording.about_box(film, finding, box)) is not None:
        by = None if finding.sentence is None else ORIGINS.get(film.sentences[finding.sentence].by)
        origin = [] if by is None else [CodeContentItem(ORIGIN, by, RelationshipTypeValues.HAS_CONCEPT_MOD)]
        yield with_content(text(about), origin)


def group_of(
    made_by: AlgorithmIdentification,
    tracking: tuple[str, str],
    box: Box,
    source: Dataset,
    *,
    number: Measurement,
    states: Iterable[tuple[Concept, Concept]],
    label: str,
    comments: Iterable[ContentItem],
    finding_type: Concept | None = None,
) -> Group:
    """Make the group of one box (TID 1410).

    made_by: `algorithm`; tracking: ID and UID, the same for the box in all versions
    number: its only one, which OHIF 3.13.2 makes the label of the box
    states: questions with their answers
    label: the short label; comments: texts on the box
    """
    name, uid = tracking
    group = PlanarROIMeasurementsAndQualitativeEvaluations(
        tracking_identifier=TrackingIdentifier(uid=uid, identifier=name),
        referenced_region=ImageRegion(POLYLINE, outline(box), image_of(source)),
        finding_type=finding_type,
        algorithm_id=made_by,
        measurements=[number],
        qualitative_evaluations=[QualitativeEvaluation(question, answer) for question, answer in states],
        geometric_purpose=BOUNDED_BY,
    )
    highdicom_gaps.label(container_of(group), label)
    with_content(container_of(group), comments)
    return group


def _sites(finding: Finding, box: FindingBox) -> list[FindingSite]:
    """Return the finding's own site, then the zone of its box with the share that the box covers; each code once."""
    evidence = box.evidence
    sites = [] if finding.site is None else [_site(finding.site, box.side)]
    if evidence is None or evidence.site is None:
        return sites
    if evidence.site != finding.site:
        sites.append(_site(evidence.site, evidence.side))
    percent = wording.whole_percent(evidence.extent)
    with_content(sites[-1], [NumContentItem(SHARE_OF_ZONE, percent, PERCENT, relationship_type=PROPERTIES)])
    return sites


def _site(place: Code, side: Side | None) -> FindingSite:
    return FindingSite(concept(place), laterality=None if side is None else SIDES[side])


def share(name: Concept, value: float, sites: Sequence[FindingSite] = ()) -> Measurement:
    """Make the number of a group from a share, 0..1, as a whole percent; sites: body sites of its subject."""
    return Measurement(name, wording.whole_percent(value), PERCENT, finding_sites=sites or None)


def _number(finding: Finding, box: FindingBox) -> Measurement:
    """Make the number of a box: its finding's probability, or the count 1 if a radiologist moved or added the box.

    A box that was drawn beside a moved box has the count too, if the finding has no probability.
    A group without a number hides the boxes of all others in OHIF 3.13.2, and a percentage would be the network's.
    """
    mark, sites = wording.mark_of(finding, box), _sites(finding, box)
    if mark is None:
        return share(probability_name(finding, box.side), finding.probability or 0.0, sites)
    told = finding.output_probability
    what = Assessment.MOVED if told is None and mark.what is Assessment.DRAWN else mark.what
    letter, end = _BY_READER[what]
    name = _quantity(finding, letter, end, side=box.side)
    if told is None or what in (Assessment.MOVED, Assessment.ADDED):
        return Measurement(name, 1, BOX, finding_sites=sites or None)
    return share(name, told, sites)


def probability_name(finding: Finding, side: Side | None = None) -> Concept:
    """Return the concept name of the probability of a finding's box: a private code per finding, state and side.

    OHIF 3.13.2 labels a box with the name and value of its number, and shows nothing else of the group: with the common
    name Probability (122157, DCM) findings could not be distinguished. OHIF begins a label at the right edge of its box
    and cuts it at the edge of the viewport, so the name is short, with side and finding first. The code is P for
    present or R for review, the finding's code, and R, L or B for a side. If it is longer than 16 characters, it is a
    Long Code Value.
    """
    letter, end = ("R", f", review{_IN_SHORT}") if finding.state in vocabulary.MARKS else ("P", _IN_SHORT)
    return _quantity(finding, letter, end, side=side)


def quantity_name(finding: Finding) -> Concept:
    """Return the name of a finding's probability whatever its state and side, for receivers that sort by it."""
    return _quantity(finding, "P", _PROBABILITY, side=None)


def _quantity(finding: Finding, letter: str, end: str, *, side: Side | None) -> Concept:
    meaning = short_text(wording.sided(finding.code.meaning, side), 64 - len(end)) + end
    suffix = f"-{side[0].upper()}" if side else ""
    return Concept(f"{letter}{finding.code.value}{suffix}", PRIVATE_SCHEME, meaning)


def algorithm(report: Report) -> AlgorithmIdentification:
    """Identify the network and its questions (TID 4019)."""
    model = report.model
    return AlgorithmIdentification(
        name=long_text(model.name),
        version=long_text(model.version),
        parameters=[
            long_text(wording.prompt_set(report)),
            long_text(f"weights sha256 {model.weights_sha256}, engine {model.engine}"),
        ],
        family=codes.DCM.ArtificialIntelligence,
        manufacturer=identity.MANUFACTURER,
    )
