"""Structured reports: what each says in which form, which a study gets, and what each replaces."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from highdicom.sr import (
    Comprehensive3DSR,
    ComprehensiveSR,
    MeasurementReport,
    srread,
)
from pydicom.dataset import Dataset
from pydicom.uid import BasicTextSRStorage, Comprehensive3DSRStorage, ComprehensiveSRStorage

from models.contract import Box, FindingState, Side
from node.domain import (
    About,
    Code,
    Evidence,
    Film,
    Finding,
    GroundedSentence,
    OutputObject,
    Reason,
    Report,
    Subject,
    derive_uid,
)
from node.output_kinds import OUTPUTS
from node.outputs import gsps, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.outputs.sr.findings import PERCENT, QUALITATIVE_EVALUATIONS, probability_name, quantity_name, state_of
from node.outputs.sr.items import FORMS as SR_FORMS
from node.outputs.sr.items import concept
from node.outputs.writers import classes_wanted, for_destination, output_of, write_objects
from node.read import prompts
from tests.support import films, samples, validators
from tests.support.documents import all_written, contents, everything, evidence, groups, numbers, replaced, said
from tests.support.samples import BERLIN, EDEMA, absent, bare, cr, film, finding, received, report, several, unread

SEVERAL = report(several())
ONE = report(film(findings=(finding(), absent())))
NOT_PROCESSED = report(unread(1), unread(2, Reason.LATERAL))
MIXED = report(several(), unread(2), film(3, findings=(absent(), samples.uncalibrated())))
FORMS = {"several": (SEVERAL, 0), "one": (ONE, 0), "to be reviewed": (MIXED, 1)}
"""Documents with boxes: a report, and the place of the document among those written of it."""
UNPLACED = finding(EDEMA, boxes=(), state=FindingState.INDETERMINATE, probability=0.414, sentence=None)
NOTHING = film(2, findings=(absent(),))
HEADERS = (cr(1), cr(2), bare(3))
ALL = report(several(), NOTHING, unread(3))


def written(of: Report, *headers: Dataset) -> Dataset:
    """Write a report, and return its first document."""
    return all_written(of, *headers)[0]


def form_of(name: str, *, kind: str = "sr") -> Dataset:
    """Write the document of a form."""
    of, place = FORMS[name]
    return all_written(of, kind=kind)[place]


def outputs(of: Report, *kinds: str) -> list[tuple[OutputObject, Dataset]]:
    """Write a report on films of `HEADERS` in several kinds."""
    objects = write_objects(of, received(*HEADERS), zone=BERLIN, kinds=kinds)
    return [(output_of(written), written.dataset) for written in objects]


@pytest.mark.parametrize("form", FORMS)
def test_a_comprehensive_3d_sr_has_the_same_content(form: str) -> None:
    plain, other = form_of(form), form_of(form, kind="sr3d")

    assert (plain.SOPClassUID, other.SOPClassUID) == (ComprehensiveSRStorage, Comprehensive3DSRStorage)
    assert plain.ContentSequence == other.ContentSequence


@pytest.mark.parametrize(("nothing", "expected"), [(absent(), 4), (samples.left_out(), None), (UNPLACED, 41)])
def test_a_finding_without_a_box_is_a_code_with_its_probability(nothing: Finding, expected: int | None) -> None:
    dataset = written(report(film(findings=(finding(), nothing))))

    [evaluations] = srread(BytesIO(save_bytes(dataset))).content[0].ContentSequence.find(QUALITATIVE_EVALUATIONS)
    [answer] = [item for item in evaluations.ContentSequence if item.name == concept(nothing.code)]
    assert answer.value == state_of(nothing)
    read = [(item.name, item.value, item.unit) for item in answer.ContentSequence if item.ValueType == "NUM"]
    assert read == ([] if expected is None else [(quantity_name(nothing), expected, PERCENT)])
    assert numbers(evaluations) == []  # one there, OHIF would read


@pytest.mark.parametrize("form", FORMS)
def test_groups_have_the_shape_that_viewers_can_show(form: str) -> None:
    found = groups(form_of(form))

    assert found
    assert all(len(contents(group, "111030")) == 1 for group in found)
    assert len({len(numbers(group)) for group in found}) == 1  # mixed shapes hide boxes in OHIF 3.13.2


def test_a_denial_refers_to_the_film_and_sentences_have_no_control_characters_and_surrogates() -> None:
    said_of = GroundedSentence(text="Effusion\x00\x1b \ud800 \\ right.\nNew.", prompt="x", score=0.5, boxes=())
    denial = GroundedSentence(text="No pneumothorax.", prompt="pneumothorax", score=0.2, boxes=())
    dataset = written(report(replace(film(findings=(finding(), absent())), sentences=(said_of, denial))))

    [group] = groups(dataset)
    assert contents(group, "121106")[0].TextValue == '"Effusion / right. New."'
    [item] = [item for item in everything(dataset) if item.get("TextValue", "").endswith('"No pneumothorax."')]
    [ground] = item.ContentSequence
    assert (ground.RelationshipType, ground.ValueType) == ("INFERRED FROM", "IMAGE")
    assert ground.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == samples.film_uid(1)
    assert validators.dciodvfy(dataset) == []


def test_a_study_of_which_nothing_was_read_says_why() -> None:
    for reason in Reason:
        dataset = written(report(unread(1, reason)))
        assert dataset.ContentTemplateSequence[0].TemplateIdentifier == "2000"
        assert wording.REASONS[reason] in said(dataset)
        assert "normal" not in said(dataset)


def test_the_modality_is_one_that_acquires_and_the_size_that_of_the_film() -> None:
    for modality, expected in (("CR", "CR"), ("DX", "DX"), ("RG", "RG"), ("", "RG")):
        dataset = written(ONE, films.changed(cr(1), {"Modality": modality}))
        described = {item.ConceptNameCodeSequence[0].CodeValue: item for item in everything(dataset)}
        assert described["121139"].ConceptCodeSequence[0].CodeValue == expected
        size = [described[code].MeasuredValueSequence[0].NumericValue for code in ("110910", "110911")]
        assert size == [samples.ROWS, samples.COLUMNS]


def test_an_object_that_is_no_image_is_referred_to_as_composite() -> None:
    dose_report = bare(1)
    dose_report.SOPClassUID = "1.2.840.10008.5.1.4.1.1.88.67"
    private = bare(2)
    private.SOPClassUID = "1.2.3.4.5"

    dataset = written(NOT_PROCESSED, dose_report, private)

    assert [item.ValueType for item in everything(dataset) if "ReferencedSOPSequence" in item] == ["COMPOSITE"] * 2
    assert validators.dciodvfy(dataset) == []
    [study] = dataset.CurrentRequestedProcedureEvidenceSequence
    assert private.SOPClassUID in {
        item.ReferencedSOPClassUID for series in study.ReferencedSeriesSequence for item in series.ReferencedSOPSequence
    }


def test_orders_are_named_once_where_the_films_name_them() -> None:
    first, second = cr(1), cr(3)
    request = Dataset()
    request.RequestedProcedureID = "P-1"
    for header in (first, second):
        header.RequestAttributesSequence = [request]
        header.FillerOrderNumberImagingServiceRequest = "F-9"

    dataset = all_written(report(several(), film(3)), first, second)[-1]

    [order] = dataset.ReferencedRequestSequence
    assert (order.AccessionNumber, order.RequestedProcedureID) == ("A-17", "P-1")
    assert order.FillerOrderNumberImagingServiceRequest == "F-9"
    assert "ReferencedRequestSequence" not in written(ONE, bare(1))


def sites_of(group: Dataset) -> list[Dataset]:
    """Return the sites of a group's only number; the group itself has none, which OHIF would show with its code."""
    assert contents(group, "363698007") == []
    [number] = numbers(group)
    return contents(number, "363698007")


@pytest.mark.parametrize(
    "outside",
    [{"left": -0.5}, {"right": samples.COLUMNS + 0.5}, {"top": -1}, {"bottom": samples.ROWS + 1}],
)
def test_a_box_outside_its_film_is_refused(outside: dict[str, float]) -> None:
    box = replace(Box(left=0, top=0, right=10, bottom=10), **outside)

    for write in (sr.write, gsps.write):
        with pytest.raises(ValueError, match="leaves the film"):
            samples.datasets(write, report(film(findings=(finding(boxes=(box,)),))), received(cr(1)), BERLIN)


@pytest.mark.parametrize("state", [FindingState.PRESENT, FindingState.INDETERMINATE])
def test_the_names_of_all_numbers_of_the_set_fit_and_differ(state: FindingState) -> None:
    findings = [prompt.finding for prompt in prompts.load("chexpert14").prompts if prompt.finding]

    names = [probability_name(finding(code, state=state), side) for code in findings for side in (None, *Side)]

    assert all(len(name.meaning) <= 64 for name in names)
    assert len({name.value for name in names}) == len({name.meaning for name in names}) == len(names)
    assert all(len(name.value) <= 16 for name in names[:: len(Side) + 1])  # without a side


def test_the_longest_code_of_a_prompt_set_can_be_reported() -> None:
    long = Code(value="W" * 16, scheme="99SITE", meaning="M" * 64)

    dataset = written(report(film(findings=(finding(long, state=FindingState.INDETERMINATE),))))

    [number] = numbers(groups(dataset)[0])
    assert number.ConceptNameCodeSequence[0].LongCodeValue == "R" + "W" * 16 + "-R"
    assert number.ConceptNameCodeSequence[0].CodeMeaning.endswith("M, review, AI")
    assert validators.dciodvfy(dataset) == []
    assert validators.dsrdump(dataset) == []


def test_a_zone_that_is_the_site_itself_stands_once_and_the_side_of_a_box_counts() -> None:
    heart = Evidence(zone="cardiac_silhouette", extent=0.5, site=samples.HEART)
    enlarged, bilateral = finding(site=samples.HEART, side=None), finding(side=Side.BILATERAL)
    enlarged = replace(enlarged, boxes=(replace(enlarged.boxes[0], evidence=heart),))
    left = replace(bilateral.boxes[0], side=Side.LEFT, evidence=samples.LOWER_ZONE)

    [of_heart], [of_both] = (
        groups(written(report(film(findings=(each,))))) for each in (enlarged, replace(bilateral, boxes=(left,)))
    )

    [found] = sites_of(of_heart)
    assert found.ConceptCodeSequence[0].CodeMeaning == "Heart"
    assert [number.MeasuredValueSequence[0].NumericValue for number in numbers(found)] == [50]
    sides = [contents(site, "272741003")[0].ConceptCodeSequence[0] for site in sites_of(of_both)]
    assert [(side.CodeMeaning, side.CodeValue) for side in sides] == [("Left", "7771000"), ("Right", "24028007")]


@pytest.mark.parametrize(("kind", "document"), [("sr", ComprehensiveSR), ("sr3d", Comprehensive3DSR)])
def test_highdicom_reads_the_same_findings_back(kind: str, document: type) -> None:
    read = srread(BytesIO(save_bytes(form_of("several", kind=kind))))

    assert isinstance(read, document)
    assert isinstance(read.content, MeasurementReport)
    groups = {str(group.tracking_uid): group for group in read.content.get_planar_roi_measurement_groups()}
    expected = {box.tracking_uid: (of, box) for of in wording.reported(SEVERAL.films[0]) for box in of.boxes}
    assert groups.keys() == expected.keys()
    for uid, (of, box) in expected.items():
        group, (left, top, right, bottom) = groups[uid], box.box.edges
        assert group.finding_type is not None and group.roi is not None
        corners = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
        assert (group.finding_type.value, group.roi.value.tolist()) == (of.code.value, corners)
        [number], [state] = group.get_measurements(), group.get_qualitative_evaluations(name=group.finding_type)
        assert (number.value, number.unit.value) == (wording.whole_percent(of.probability or 0.0), "%")
        assert (state.name.value, state[0].ConceptCodeSequence[0].CodeMeaning.lower()) == (of.code.value, of.state)
        sides = [contents(site, "272741003") for site in number.finding_sites]
        assert [side.ConceptCodeSequence[0].CodeMeaning.lower() for [side] in filter(None, sides)] == [
            side for side in (box.side, box.evidence and box.evidence.side) if side
        ]


def test_a_study_has_a_report_of_its_own_if_a_films_does_not_do() -> None:
    for of, count in (
        ((several(),), 1),
        ((unread(1),), 1),
        ((several(), unread(2)), 2),
        ((several(), film(3)), 3),
        ((unread(1), unread(2)), 1),
    ):
        documents = all_written(report(*of))
        assert len(documents) == count
        assert evidence(documents[-1]) == [each.source for each in of]


def test_a_3d_report_is_beside_the_studys_report_for_both_forms_and_a_text_of_the_class_of_its_form() -> None:
    """A text may follow a report with boxes, or come before one: OHIF shows the newest of each class in a series."""
    plain, other = outputs(ALL, "sr"), outputs(ALL, "sr3d")

    assert [output.kind for output, _ in other] == ["sr3d", "sr3d", "sr"]
    assert save_bytes(other[-1][1]) == save_bytes(plain[-1][1])
    text = other[1][1]
    assert (text.SOPClassUID, text.ContentTemplateSequence[0].TemplateIdentifier) == (Comprehensive3DSRStorage, "2000")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("sr", "gsps"), ["sr 1", "sr 2", "sr ", "gsps 1", "gsps 2"]),
        (("sr3d",), ["sr ", "sr3d 1", "sr3d 2"]),
        (("text",), ["text 1", "text 2", "text "]),
        (("sr", "text"), ["sr 1", "sr 2", "sr ", "text 1"]),
        (("sr3d", "text", "gsps"), ["sr ", "sr3d 1", "sr3d 2", "text 1", "gsps 1", "gsps 2"]),
        (("sr", "sr3d"), ["sr 1", "sr 2", "sr ", "sr3d 1", "sr3d 2"]),
        (("oru",), []),
    ],
)
def test_a_destination_gets_each_report_in_one_form(wanted: tuple[str, ...], expected: list[str]) -> None:
    written = [output for output, _ in outputs(ALL, *SR_FORMS, "gsps")]

    assert [f"{output.kind} {output.subject.film[-1:]}" for output in for_destination(written, wanted)] == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("sr",), {ComprehensiveSRStorage: "sr"}),
        (("sr3d",), {Comprehensive3DSRStorage: "sr3d", ComprehensiveSRStorage: "sr3d"}),
        (("sr3d", "sr"), {Comprehensive3DSRStorage: "sr3d", ComprehensiveSRStorage: "sr"}),
        (("text",), {BasicTextSRStorage: "text"}),
        (("text", "sr"), {ComprehensiveSRStorage: "sr", BasicTextSRStorage: "text"}),
    ],
)
def test_an_archive_must_accept_the_class_of_all_it_gets(wanted: tuple[str, ...], expected: dict[str, str]) -> None:
    assert classes_wanted(wanted) == expected


def earlier(name: str) -> OutputObject:
    """A report of an earlier round, by its kind and the number of its film; without one it is on the study."""
    kind, _, number = name.partition(" ")
    film = samples.film_uid(int(number)) if number else ""
    return OutputObject(
        kind=kind,
        study_uid=samples.STUDY,
        sop_class_uid=OUTPUTS.own[kind].sop_class,
        sop_instance_uid=derive_uid("earlier", name),
        series_instance_uid=derive_uid("series", name),
        subject=Subject(about=About.FILM, film=film) if film else Subject(),
    )


BOTH = (several(), film(3))
TEXT = film(findings=(absent(),))


@pytest.mark.parametrize(
    ("kind", "films", "before", "expected"),
    [
        ("sr", (several(),), ["sr"], [["sr"]]),  # nothing was processed
        ("sr", BOTH, ["sr"], [[], [], ["sr"]]),
        ("sr", (several(),), ["sr", "sr 1"], [["sr", "sr 1"]]),
        ("sr", BOTH, ["sr", "sr 1", "sr 3"], [["sr 1"], ["sr 3"], ["sr"]]),
        ("sr", BOTH, ["sr 1"], [["sr 1"], [], []]),
        ("sr", (several(), unread(3)), ["sr", "sr 1", "sr 3"], [["sr 1"], ["sr", "sr 3"]]),
        ("sr", (unread(1),), ["sr 1"], [["sr 1"]]),
        ("sr", (unread(1),), ["sr", "text"], [["sr"]]),
        ("text", (unread(1),), ["sr", "text"], [["text"]]),
        ("sr3d", (unread(1),), ["sr", "text"], [["sr"]]),  # one report on the study for both
        ("sr", (several(),), ["sr 1", "sr3d 1", "text 1"], [["sr 1"]]),
        ("sr3d", (several(),), ["sr 1", "sr3d 1", "text 1"], [["sr3d 1"]]),
        ("text", (several(),), ["sr 1", "sr3d 1", "text 1"], [["text 1"]]),
        ("sr3d", (TEXT,), ["sr 1", "sr3d 1", "text 1"], [["sr3d 1"]]),
        ("text", (TEXT,), ["sr 1", "sr3d 1", "text 1"], [["text 1"]]),
        ("sr3d", (several(),), ["sr 1"], [["sr 1"]]),  # the destination's setting was "sr"
        ("text", (several(),), ["sr 1"], [["sr 1"]]),
        ("sr", (several(),), ["sr3d 1", "text 1"], [["sr3d 1", "text 1"]]),
        # the study has no report of its own any more
        ("sr3d", (several(),), ["sr3d 1", "sr", "text"], [["sr3d 1", "sr", "text"]]),
        ("text", (several(),), ["sr3d 1", "text 1", "sr", "text"], [["text 1", "text"]]),
    ],
)
def test_each_document_replaces_those_that_its_destinations_have(
    kind: str, films: tuple[Film, ...], before: list[str], expected: list[list[str]]
) -> None:
    of = replace(report(*films), predecessors=tuple(map(earlier, before)))

    documents = all_written(of, kind=kind)

    names = {earlier(name).sop_instance_uid: name for name in before}
    assert [[names[uid] for uid in replaced(dataset)] for dataset in documents] == expected
    for study in (study for dataset in documents for study in dataset.get("PredecessorDocumentsSequence", ())):
        for item in (item for series in study.ReferencedSeriesSequence for item in series.ReferencedSOPSequence):
            assert item.ReferencedSOPClassUID == earlier(names[item.ReferencedSOPInstanceUID]).sop_class_uid
