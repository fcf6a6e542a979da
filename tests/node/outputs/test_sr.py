"""The structured report: what it says, and that independent validators accept it."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from highdicom.sr import srread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, Side
from node.dicom import identity
from node.dicom.film_header import parse_header
from node.domain import Code, Evidence, Finding, GroundedSentence, Reason
from node.outputs import impression, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.outputs.sr.findings import PERCENT, QUALITATIVE_EVALUATIONS, probability_name, quantity_name, state_of
from node.outputs.sr.items import concept
from node.read import prompts
from tests.support import samples, validators
from tests.support.documents import (
    CONTAINED_TEXT,
    FORMS,
    MEASURED,
    NONE,
    NOT_PROCESSED,
    ONE,
    SEVERAL,
    all_written,
    contents,
    everything,
    film_of,
    form_of,
    groups,
    numbers,
    said,
    written,
)
from tests.support.samples import (
    BERLIN,
    EDEMA,
    absent,
    bare,
    cr,
    film,
    finding,
    report,
    several,
    sources,
    uncalibrated,
    unread,
)

UNPLACED = finding(EDEMA, boxes=(), state=FindingState.INDETERMINATE, probability=0.414, sentence=None)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_valid_named_and_declares_its_codes(form: str) -> None:
    dataset = form_of(form)

    items = list(everything(dataset))
    used = {
        code.CodingSchemeDesignator
        for item in items
        for code in (*item.ConceptNameCodeSequence, *item.get("ConceptCodeSequence", ()))
    }
    declared = [item.CodingSchemeDesignator for item in dataset.get("CodingSchemeIdentificationSequence", ())]

    assert validators.dciodvfy(dataset) == []
    assert validators.dsrdump(dataset) == []
    assert all("ConceptNameCodeSequence" in item for item in items)
    assert {item.ContinuityOfContent for item in items if item.ValueType == "CONTAINER"} == {"SEPARATE"}
    assert declared == (["99CHEX"] if "99CHEX" in used else [])
    assert declared == (["99CHEX"] if form in MEASURED else [])


@pytest.mark.drill(part="peers")
def test_the_templates_hold_in_pixelmed() -> None:
    forms = [form_of(form) for form in ("to be reviewed", "none", "study")]
    forms += [form_of("several", kind=kind) for kind in ("sr3d", "text")]

    forms += all_written(report(film(findings=(UNPLACED,))))

    assert validators.pixelmed(forms) == [[], [], [], [], [], []]


def test_every_reported_box_has_a_group_of_its_own() -> None:
    dataset = written(SEVERAL)

    found = groups(dataset)

    codes = ("60046008", "19242006", "19242006", "SUPPORT_DEVICES")
    assert [contents(group, "112039")[0].TextValue for group in found] == [
        "Pleural effusion",
        "Pulmonary edema 1/2",
        "Pulmonary edema 2/2",
        "Support devices",
    ]
    assert len({contents(group, "112040")[0].UID for group in found}) == 4
    values = [value for group in found for number in numbers(group) for value in number.MeasuredValueSequence]
    assert [value.NumericValue for value in values] == [83, 41, 41, 50]
    assert {value.MeasurementUnitsCodeSequence[0].CodeValue for value in values} == {"%"}
    states = [contents(group, code)[0] for group, code in zip(found, codes, strict=True)]
    assert [state.ConceptCodeSequence[0].CodeMeaning for state in states] == [
        "Present",
        "Indeterminate",
        "Indeterminate",
        "Present",
    ]
    assert [contents(group, "111030")[0].GraphicType for group in found] == ["POLYLINE"] * 4


def test_a_box_is_a_closed_line_clockwise_from_the_top_left() -> None:
    [group] = groups(written(ONE))

    [region] = contents(group, "111030")

    assert list(region.GraphicData) == [150.25, 900.5, 700.125, 900.5, 700.125, 1700, 150.25, 1700, 150.25, 900.5]
    assert region.ContentSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID == samples.film_uid(1)


@pytest.mark.parametrize("kind", ["sr", "sr3d"])
@pytest.mark.parametrize(
    ("nothing", "expected"),
    [(absent(), 4), (replace(absent(), state=FindingState.LEFT_OUT, probability=None), None), (UNPLACED, 41)],
)
def test_a_finding_without_a_box_is_a_code_with_its_probability(
    nothing: Finding, expected: int | None, kind: str
) -> None:
    [dataset] = all_written(report(film(findings=(finding(), nothing))), kind=kind)

    [evaluations] = srread(BytesIO(save_bytes(dataset))).content[0].ContentSequence.find(QUALITATIVE_EVALUATIONS)
    [answer] = [item for item in evaluations.ContentSequence if item.name == concept(nothing.code)]
    assert answer.value == state_of(nothing)
    read = [(item.name, item.value, item.unit) for item in answer.ContentSequence if item.ValueType == "NUM"]
    assert read == ([] if expected is None else [(quantity_name(nothing), expected, PERCENT)])
    assert numbers(evaluations) == []  # one there, OHIF would read


@pytest.mark.parametrize("kind", ["sr", "sr3d", "text"])
def test_a_text_on_a_finding_without_a_box_has_its_probability_where_numbers_may_stand(kind: str) -> None:
    [dataset] = all_written(report(film(findings=(UNPLACED, absent()))), kind=kind)

    [section] = contents(dataset, "59776-5")
    read = [
        (number.ConceptNameCodeSequence[0].CodeValue, number.MeasuredValueSequence[0].NumericValue)
        for number in numbers(section)
    ]
    assert read == ([] if kind == "text" else [("P19242006", 41)])
    assert [item.CodingSchemeDesignator for item in dataset.get("CodingSchemeIdentificationSequence", ())] == [
        "99CHEX" for _ in read
    ]
    assert validators.dciodvfy(dataset) == []


def test_a_sentence_that_a_rule_made_says_so_by_its_code() -> None:
    by_rule = replace(film(findings=(finding(),)), sentences=(replace(film().sentences[0], by="rule"),))

    [group] = groups(written(report(by_rule)))

    [text] = contents(group, "121106")
    assert text.TextValue == "Small right pleural effusion."
    [by] = contents(text, "SENTENCEBY")
    assert by.ConceptCodeSequence[0].CodeValue == "STANDARD"


def test_what_nobody_measured_is_to_be_reviewed_and_says_why() -> None:
    [group] = groups(written(report(film(findings=(uncalibrated(),)))))

    [state] = contents(group, uncalibrated().code.value)
    [value] = state.ConceptCodeSequence
    assert (value.CodeValue, value.CodingSchemeDesignator) == ("NOTCALIBRATED", "99CHEX")
    assert value.CodeMeaning == "Review, not calibrated"
    [number] = [item for item in group.ContentSequence if item.ValueType == "NUM"]
    assert number.ConceptNameCodeSequence[0].CodeMeaning.endswith(", review, AI")


def test_a_sentence_without_finding_is_inferred_from_its_boxes() -> None:
    [evaluations] = contents(written(SEVERAL), "C0034375")

    [sentence] = contents(evaluations, "121106")

    assert sentence.TextValue == 'left lung: "The left lung is clear."'
    [region] = sentence.ContentSequence
    assert (region.RelationshipType, region.ValueType) == ("INFERRED FROM", "SCOORD")
    assert list(region.GraphicData[:2]) == [1000, 200]


@pytest.mark.parametrize("form", MEASURED)
def test_groups_have_the_shape_that_viewers_can_show(form: str) -> None:
    found = groups(form_of(form))

    assert found
    assert all(len(contents(group, "111030")) == 1 for group in found)
    assert len({len(numbers(group)) for group in found}) == 1  # mixed shapes hide boxes in OHIF 3.13.2


def test_a_film_without_findings_gets_a_text_and_no_measurement() -> None:
    dataset = written(NONE)

    assert dataset.ConceptNameCodeSequence[0].CodeValue == "18748-4"
    assert {item.ValueType for item in everything(dataset) if item.RelationshipType == "CONTAINS"} <= {
        "CONTAINER",
        "TEXT",
    }
    for expected in (
        "No prompted finding came near its threshold. This is not a report of a normal film",
        "columns 120 to 1880, rows 0 to 1760 of 2000 x 1760 pixels",
        "Not reported (below threshold, may have been missed): Pneumothorax 4 %.",
        "The left lung is clear.",
    ):
        assert expected in said(dataset)


@pytest.mark.parametrize("form", FORMS)
def test_the_first_text_says_what_was_found(form: str) -> None:
    dataset = form_of(form)

    first = next(item for item in everything(dataset) if (item.ValueType, item.RelationshipType) == CONTAINED_TEXT)

    label, *lines = first.TextValue.split("\r\n")
    assert first.ConceptNameCodeSequence[0].CodeMeaning == "Impression"
    assert label == "AI RESEARCH - NOT FOR DIAGNOSIS"
    of, _ = FORMS[form]
    said_of = [film for film in of.films if film.source == film_of(dataset)]
    expected = impression.of_film(said_of[0]) if said_of else impression.of_report(of)
    assert " ".join(map(str.strip, lines)) == " ".join(map(str.strip, expected))


def test_the_analyzed_part_follows_and_the_versions_come_last() -> None:
    dataset = written(SEVERAL)

    about, last = contents(dataset, "121106")

    assert dataset.ContentSequence[-1].TextValue == last.TextValue
    for version in (identity.VERSION, "phantom 1.2.0", "ab" * 32, "chexpert14 1", "cd" * 32):
        assert version in last.TextValue
    assert "columns 120 to 1880, rows 0 to 1760 of 2000 x 1760 pixels" in about.TextValue
    assert "the rest of the film was not analyzed." in about.TextValue
    assert "no known words state its view or body part" in about.TextValue


@pytest.mark.parametrize(("modality", "expected"), [("CR", "CR"), ("DX", "DX"), ("RG", "RG"), ("", "RG")])
def test_the_modality_is_one_that_acquires(modality: str, expected: str) -> None:
    header = cr(1)
    header.Modality = modality

    dataset = written(ONE, header)

    [answer] = [item for item in everything(dataset) if item.ConceptNameCodeSequence[0].CodeValue == "121139"]
    assert answer.ConceptCodeSequence[0].CodeValue == expected


@pytest.mark.parametrize("reason", Reason)
def test_a_study_of_which_nothing_was_read_says_why(reason: Reason) -> None:
    dataset = written(report(unread(1, reason)))

    assert dataset.ConceptNameCodeSequence[0].CodeValue == "18748-4"
    assert dataset.ContentTemplateSequence[0].TemplateIdentifier == "2000"
    assert wording.REASONS[reason] in said(dataset)
    assert "normal" not in said(dataset)


def test_an_object_that_is_no_image_is_referred_to_as_composite() -> None:
    dose_report = bare(1)
    dose_report.SOPClassUID = "1.2.840.10008.5.1.4.1.1.88.67"
    private = bare(2)
    private.SOPClassUID = "1.2.3.4.5"

    dataset = written(NOT_PROCESSED, dose_report, private)

    assert [item.ValueType for item in everything(dataset) if "ReferencedSOPSequence" in item] == ["COMPOSITE"] * 2
    assert validators.dciodvfy(dataset) == []


def test_no_films_no_report() -> None:
    assert samples.datasets(sr.write, report(), {}, BERLIN) == []


def test_the_document_is_complete_preliminary_and_unverified() -> None:
    dataset = written(ONE)

    assert (dataset.CompletionFlag, dataset.PreliminaryFlag, dataset.VerificationFlag) == (
        "COMPLETE",
        "PRELIMINARY",
        "UNVERIFIED",
    )
    assert dataset.SeriesDescription == "AI findings - RESEARCH, NOT FOR DIAGNOSIS"
    assert len(dataset.ReferencedPerformedProcedureStepSequence) == len(dataset.PerformedProcedureCodeSequence) == 0
    [equipment] = dataset.ContributingEquipmentSequence
    assert equipment.PurposeOfReferenceCodeSequence[0].CodeValue == "109102"
    assert equipment.DeviceUID == identity.device_uid(samples.MODEL)
    assert parse_header(dataset).is_own


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
    assert validators.dciodvfy(dataset) == []


def test_control_characters_and_surrogates_leave_sentences() -> None:
    sentence = GroundedSentence(text="Effusion\x00\x1b \ud800 \\ right.\nNew.", prompt="x", score=0.5, boxes=())

    dataset = written(report(replace(film(findings=(finding(),)), sentences=(sentence,))))

    [group] = groups(dataset)
    assert contents(group, "121106")[0].TextValue == '"Effusion / right. New."'
    assert validators.dciodvfy(dataset) == []


@pytest.mark.parametrize(
    "box",
    [
        Box(left=-0.5, top=0, right=10, bottom=10),
        Box(left=0, top=0, right=samples.COLUMNS + 0.5, bottom=10),
        Box(left=0, top=-1, right=10, bottom=10),
        Box(left=0, top=0, right=10, bottom=samples.ROWS + 1),
    ],
)
def test_a_box_outside_its_film_is_refused(box: Box) -> None:
    outside = report(film(findings=(finding(boxes=(box,)),)))

    with pytest.raises(ValueError, match="leaves the film"):
        samples.datasets(sr.write, outside, sources(cr(1)), BERLIN)


@pytest.mark.parametrize("beside", [(), (finding(EDEMA),)])
def test_a_reported_finding_without_a_box_is_said(beside: tuple[Finding, ...]) -> None:
    boxless = finding(boxes=(), state=FindingState.INDETERMINATE)

    [written] = samples.datasets(sr.write, report(film(findings=(boxless, *beside))), sources(cr(1)), BERLIN)

    assert validators.dciodvfy(written) == []
    assert "leural effusion" in written.to_json()


def sites_of(group: Dataset) -> list[Dataset]:
    """Return the sites of a group's only number; the group itself has none, which OHIF would show with its code."""
    assert contents(group, "363698007") == []
    [number] = numbers(group)
    return contents(number, "363698007")


def test_a_numbers_name_tells_the_finding_and_if_to_review_it() -> None:
    names = [number.ConceptNameCodeSequence[0] for group in groups(written(SEVERAL)) for number in numbers(group)]

    assert [(name.CodeValue, name.CodingSchemeDesignator, name.CodeMeaning) for name in names] == [
        ("P60046008-R", "99CHEX", "Right pleural effusion, AI"),
        ("R19242006", "99CHEX", "Pulmonary edema, review, AI"),
        ("R19242006", "99CHEX", "Pulmonary edema, review, AI"),
        ("PSUPPORT_DEVICES", "99CHEX", "Support devices, AI"),
    ]


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


def test_a_side_stands_with_the_site_unless_it_is_unknown() -> None:
    effusion, edema, _, devices = groups(written(SEVERAL))

    site, _ = sites_of(effusion)
    assert contents(site, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Right"
    assert "ContentSequence" not in sites_of(edema)[0]
    assert sites_of(devices) == []


def test_the_zone_of_a_box_is_a_site_with_side_and_share() -> None:
    effusion, edema, _, _ = groups(written(SEVERAL))

    [_, zone] = sites_of(effusion)
    [value] = zone.ConceptCodeSequence
    assert (value.CodeValue, value.CodingSchemeDesignator, value.CodeMeaning) == (
        "281394001",
        "SCT",
        "Lower zone of lung",
    )
    assert contents(zone, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Right"
    [share] = numbers(zone)
    [measured] = share.MeasuredValueSequence
    assert (measured.NumericValue, measured.MeasurementUnitsCodeSequence[0].CodeValue) == (34, "%")
    assert len(sites_of(edema)) == 1  # in no zone; the groups have the same shape all the same
    assert [len(numbers(group)) for group in (effusion, edema)] == [1, 1]


@pytest.mark.parametrize("site", [None, samples.HEART])
def test_a_zone_that_is_the_site_itself_stands_once(site: Code | None) -> None:
    lies = Evidence(zone="cardiac_silhouette", extent=0.5, site=samples.HEART)
    enlarged = finding(site=site, side=None)
    enlarged = replace(enlarged, boxes=(replace(enlarged.boxes[0], evidence=lies),))

    [group] = groups(written(report(film(findings=(enlarged,)))))

    [found] = sites_of(group)
    assert found.ConceptCodeSequence[0].CodeMeaning == "Heart"
    assert [number.MeasuredValueSequence[0].NumericValue for number in numbers(found)] == [50]


def test_the_short_label_is_the_label_that_is_drawn() -> None:
    found = groups(written(SEVERAL))

    labels = [contents(group, "125309")[0] for group in found]

    assert {(label.ValueType, label.RelationshipType) for label in labels} == {("TEXT", "HAS CONCEPT MOD")}
    drawn = [wording.label(reported, box) for reported in wording.reported(SEVERAL.films[0]) for box in reported.boxes]
    assert sorted(label.TextValue for label in labels) == sorted(drawn)
    assert labels[0].TextValue == "Right pleural effusion 83 %"


def test_the_side_of_a_box_comes_before_the_side_of_its_finding() -> None:
    bilateral = finding(side=Side.BILATERAL)
    left = replace(bilateral.boxes[0], side=Side.LEFT)

    [group] = groups(written(report(film(findings=(replace(bilateral, boxes=(left,)),)))))

    [site] = sites_of(group)
    assert contents(site, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Left"
