"""Structured reports: what each says in which form, which a study gets, and what each replaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from highdicom.sr import (
    Comprehensive3DSR,
    ComprehensiveSR,
    MeasurementReport,
    PlanarROIMeasurementsAndQualitativeEvaluations,
    srread,
)
from pydicom.dataset import Dataset
from pydicom.uid import BasicTextSRStorage, Comprehensive3DSRStorage, ComprehensiveSRStorage

from models.contract import Box, FindingState, Side
from node.dicom import identity
from node.dicom.film_header import parse_header
from node.domain import About, Code, Evidence, Film, Finding, GroundedSentence, OutputObject, Reason, Report, Subject
from node.output_kinds import OUTPUTS
from node.outputs import gsps, impression, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.outputs.sr.findings import PERCENT, QUALITATIVE_EVALUATIONS, probability_name, quantity_name, state_of
from node.outputs.sr.items import FORMS as SR_FORMS
from node.outputs.sr.items import concept
from node.outputs.writers import classes_wanted, for_destination, output_of, write_objects
from node.read import prompts
from tests.support import samples, validators
from tests.support.documents import (
    all_written,
    contents,
    everything,
    evidence,
    film_of,
    groups,
    numbers,
    replaced,
    said,
)
from tests.support.samples import BERLIN, EDEMA, absent, bare, cr, film, finding, received, report, several, unread

SEVERAL = report(several())
ONE = report(film(findings=(finding(), absent())))
NONE = report(film(findings=(absent(),)))
NOT_PROCESSED = report(unread(1), unread(2, Reason.LATERAL))
MIXED = report(several(), unread(2), film(3, findings=(absent(), samples.uncalibrated())))
CONTAINED_TEXT = ("TEXT", "CONTAINS")  # the observer's name and versions are texts of another relationship
FORMS = {
    "several": (SEVERAL, 0),
    "one": (ONE, 0),
    "none": (NONE, 0),
    "not processed": (NOT_PROCESSED, 0),
    "to be reviewed": (MIXED, 1),
    "study": (MIXED, 2),
}
"""Each form of document: a report, and the place of the document among those written of it."""
MEASURED = ("several", "one", "to be reviewed")
UNPLACED = finding(EDEMA, boxes=(), state=FindingState.INDETERMINATE, probability=0.414, sentence=None)
# PS3.3 A.35.1.3.1: the relationships of Basic Text SR that reports use
BASIC = {
    ("CONTAINER", "HAS CONCEPT MOD", "CODE"),
    ("CODE", "HAS CONCEPT MOD", "TEXT"),
    ("CONTAINER", "HAS OBS CONTEXT", "CODE"),
    ("CONTAINER", "HAS OBS CONTEXT", "TEXT"),
    ("CONTAINER", "HAS OBS CONTEXT", "UIDREF"),
    ("CONTAINER", "CONTAINS", "CONTAINER"),
    ("CONTAINER", "CONTAINS", "TEXT"),
    ("TEXT", "INFERRED FROM", "IMAGE"),
    ("TEXT", "INFERRED FROM", "COMPOSITE"),
}
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


def relationships(item: Dataset) -> Iterator[tuple[str, str, str]]:
    for child in item.get("ContentSequence", ()):
        yield item.ValueType, child.RelationshipType, child.ValueType
        yield from relationships(child)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_names_its_items_and_declares_its_codes(form: str) -> None:
    dataset = form_of(form)

    items = list(everything(dataset))
    used = {
        code.CodingSchemeDesignator
        for item in items
        for code in (*item.ConceptNameCodeSequence, *item.get("ConceptCodeSequence", ()))
    }
    declared = [item.CodingSchemeDesignator for item in dataset.get("CodingSchemeIdentificationSequence", ())]

    assert {item.ContinuityOfContent for item in items if item.ValueType == "CONTAINER"} == {"SEPARATE"}
    assert declared == (["99CHEX"] if "99CHEX" in used else [])
    assert declared == (["99CHEX"] if form in MEASURED else [])


@pytest.mark.parametrize("form", FORMS)
def test_a_basic_text_sr_holds_only_what_it_may(form: str) -> None:
    dataset = form_of(form, kind="text")

    assert dataset.SOPClassUID == BasicTextSRStorage
    assert dataset.ContentTemplateSequence[0].TemplateIdentifier == "2000"
    assert set(relationships(dataset)) <= BASIC


@pytest.mark.parametrize("form", MEASURED)
def test_a_comprehensive_3d_sr_has_the_same_content(form: str) -> None:
    plain, other = form_of(form), form_of(form, kind="sr3d")

    assert (plain.SOPClassUID, other.SOPClassUID) == (ComprehensiveSRStorage, Comprehensive3DSRStorage)
    assert plain.ContentSequence == other.ContentSequence


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
    states = [contents(group, code)[0].ConceptCodeSequence[0] for group, code in zip(found, codes, strict=True)]
    assert [state.CodeMeaning for state in states] == ["Present", "Indeterminate", "Indeterminate", "Present"]
    regions = [contents(group, "111030")[0] for group in found]
    assert [region.GraphicType for region in regions] == ["POLYLINE"] * 4
    shown = {region.ContentSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID for region in regions}
    assert shown == {samples.film_uid(1)}


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
    declared = [item.CodingSchemeDesignator for item in dataset.get("CodingSchemeIdentificationSequence", ())]
    assert declared == ["99CHEX" for _ in read]


def test_a_sentence_that_a_rule_made_says_so_by_its_code() -> None:
    by_rule = replace(film(findings=(finding(),)), sentences=(replace(film().sentences[0], by="rule"),))

    [group] = groups(written(report(by_rule)))

    [text] = contents(group, "121106")
    assert text.TextValue == "Small right pleural effusion."
    [by] = contents(text, "SENTENCEBY")
    assert by.ConceptCodeSequence[0].CodeValue == "STANDARD"


def test_what_nobody_measured_is_to_be_reviewed_and_says_why() -> None:
    [group] = groups(written(report(film(findings=(samples.uncalibrated(),)))))

    [state] = contents(group, samples.uncalibrated().code.value)
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


def test_the_denial_of_an_absent_finding_refers_to_the_film() -> None:
    denial = GroundedSentence(text="No pneumothorax.", prompt="pneumothorax", score=0.2, boxes=())
    dataset = written(report(replace(ONE.films[0], sentences=(*ONE.films[0].sentences, denial))))

    [item] = [item for item in everything(dataset) if item.get("TextValue", "").endswith('"No pneumothorax."')]
    [ground] = item.ContentSequence
    assert (ground.RelationshipType, ground.ValueType) == ("INFERRED FROM", "IMAGE")
    assert ground.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == samples.film_uid(1)
    assert validators.dciodvfy(dataset) == []


@pytest.mark.parametrize("form", MEASURED)
def test_groups_have_the_shape_that_viewers_can_show(form: str) -> None:
    found = groups(form_of(form))

    assert found
    assert all(len(contents(group, "111030")) == 1 for group in found)
    assert len({len(numbers(group)) for group in found}) == 1  # mixed shapes hide boxes in OHIF 3.13.2


def test_a_film_without_findings_gets_a_text_and_no_measurement() -> None:
    dataset = written(NONE)

    assert dataset.ConceptNameCodeSequence[0].CodeValue == "18748-4"
    contained = {item.ValueType for item in everything(dataset) if item.RelationshipType == "CONTAINS"}
    assert contained <= {"CONTAINER", "TEXT"}
    for expected in (
        "No prompted finding came near its threshold. This is not a report of a normal film",
        "columns 120 to 1880, rows 0 to 1760 of 2000 x 1760 pixels",
        "Not reported (below threshold, may have been missed): Pneumothorax 4 %.",
        "The left lung is clear.",
    ):
        assert expected in said(dataset)


@pytest.mark.parametrize("kind", ["sr", "text"])
@pytest.mark.parametrize("form", FORMS)
def test_the_first_text_says_what_was_found(form: str, kind: str) -> None:
    dataset = form_of(form, kind=kind)

    first = next(item for item in everything(dataset) if (item.ValueType, item.RelationshipType) == CONTAINED_TEXT)

    label, *lines = first.TextValue.split("\r\n")
    assert (first.ConceptNameCodeSequence[0].CodeMeaning, label) == ("Impression", "AI RESEARCH - NOT FOR DIAGNOSIS")
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


def test_a_text_names_each_finding_in_an_item_of_its_own() -> None:
    """OHIF breaks no line of a text with this name."""
    [dataset] = all_written(SEVERAL, kind="text")

    [section] = contents(dataset, "59776-5")
    assert [item.TextValue for item in contents(section, "121071")] == [
        "1. Right pleural effusion, 83 % (present).",
        "2. Pulmonary edema, 41 % (possible, please review).",
        "3. Support devices, 50 % (present).",
    ]


@pytest.mark.parametrize(("modality", "expected"), [("CR", "CR"), ("DX", "DX"), ("RG", "RG"), ("", "RG")])
def test_the_modality_is_one_that_acquires(modality: str, expected: str) -> None:
    header = cr(1)
    header.Modality = modality

    dataset = written(ONE, header)

    described = {item.ConceptNameCodeSequence[0].CodeValue: item for item in everything(dataset)}
    assert described["121139"].ConceptCodeSequence[0].CodeValue == expected
    size = [described[code].MeasuredValueSequence[0].NumericValue for code in ("110910", "110911")]
    assert size == [samples.ROWS, samples.COLUMNS]


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
    [study] = dataset.CurrentRequestedProcedureEvidenceSequence
    assert private.SOPClassUID in {
        item.ReferencedSOPClassUID for series in study.ReferencedSeriesSequence for item in series.ReferencedSOPSequence
    }


def test_the_document_is_complete_preliminary_and_unverified() -> None:
    dataset = written(ONE)

    flags = (dataset.CompletionFlag, dataset.PreliminaryFlag, dataset.VerificationFlag)
    assert flags == ("COMPLETE", "PRELIMINARY", "UNVERIFIED")
    assert dataset.SeriesDescription == "AI findings - RESEARCH, NOT FOR DIAGNOSIS"
    assert len(dataset.ReferencedPerformedProcedureStepSequence) == len(dataset.PerformedProcedureCodeSequence) == 0
    [equipment] = dataset.ContributingEquipmentSequence
    assert equipment.PurposeOfReferenceCodeSequence[0].CodeValue == "109102"
    assert equipment.DeviceUID == identity.device_uid(samples.MODEL)
    versions = [identity.VERSION, "model phantom 1.2.0", "prompts chexpert14 1"]
    for own in (dataset, equipment):
        assert (list(own.SoftwareVersions), own.DeviceSerialNumber) == (versions, samples.MODEL.weights_sha256)
    assert "not reviewed" in equipment.ContributionDescription


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

    for write in (sr.write, gsps.write):
        with pytest.raises(ValueError, match="leaves the film"):
            samples.datasets(write, outside, received(cr(1)), BERLIN)


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


def test_the_zone_of_a_box_is_a_site_with_side_and_share() -> None:
    effusion, edema, _, devices = groups(written(SEVERAL))

    [_, zone] = sites_of(effusion)
    [value] = zone.ConceptCodeSequence
    assert (value.CodeValue, value.CodingSchemeDesignator) == ("281394001", "SCT")
    [side] = contents(zone, "272741003")[0].ConceptCodeSequence
    assert (side.CodeValue, side.CodeMeaning) == ("24028007", "Right")
    [share] = numbers(zone)
    [measured] = share.MeasuredValueSequence
    assert (measured.NumericValue, measured.MeasurementUnitsCodeSequence[0].CodeValue) == (34, "%")
    [of_edema] = sites_of(edema)  # in no zone; the groups have the same shape all the same
    assert "ContentSequence" not in of_edema, "its side is unknown"
    assert sites_of(devices) == []
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
    left = replace(bilateral.boxes[0], side=Side.LEFT, evidence=samples.LOWER_ZONE)

    [group] = groups(written(report(film(findings=(replace(bilateral, boxes=(left,)),)))))

    sides = [contents(site, "272741003")[0].ConceptCodeSequence[0] for site in sites_of(group)]
    assert [side.CodeMeaning for side in sides] == ["Left", "Right"], "that of the box, then that of its zone"
    assert [side.CodeValue for side in sides] == ["7771000", "24028007"]


@pytest.mark.parametrize(("kind", "document"), [("sr", ComprehensiveSR), ("sr3d", Comprehensive3DSR)])
def test_highdicom_reads_the_same_findings_back(tmp_path: Path, kind: str, document: type) -> None:
    path = tmp_path / "report.dcm"
    path.write_bytes(save_bytes(form_of("several", kind=kind)))

    read = srread(path)

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
        sites = [(of.site, box.side), (box.evidence and box.evidence.site, Side.RIGHT)]
        assert list(sites_read(group)) == [(site.value, side) for site, side in sites if site]


def sites_read(group: PlanarROIMeasurementsAndQualitativeEvaluations) -> Iterator[tuple[str, str | None]]:
    """Return code and side of each finding site."""
    for site in group.get_measurements()[0].finding_sites:
        [side] = [child.ConceptCodeSequence[0].CodeMeaning for child in contents(site, "272741003")] or [None]
        yield site.value.value, side and side.lower()


@pytest.mark.parametrize(
    ("films", "count"),
    [
        ((several(),), 1),
        ((unread(1),), 1),
        ((several(), unread(2)), 2),
        ((several(), film(3)), 3),
        ((unread(1), unread(2)), 1),
    ],
)
def test_a_study_has_a_report_of_its_own_if_a_films_does_not_do(films: tuple[Film, ...], count: int) -> None:
    documents = all_written(report(*films))

    assert len(documents) == count
    assert evidence(documents[-1]) == [film.source for film in films]


def test_the_studys_report_has_every_impression_and_reason() -> None:
    dataset = all_written(MIXED)[-1]

    assert wording.REASONS[Reason.UNDECODABLE] in said(dataset)
    for number in (1, 2, 3):
        assert f"Film {number} of 3 (SOP Instance UID {samples.film_uid(number)})" in said(dataset)


def test_each_object_has_one_kind_and_a_series_of_its_own() -> None:
    objects = outputs(ALL, *SR_FORMS)

    written = [dataset for _, dataset in objects]
    series = {(output.kind, output.subject): output.series_instance_uid for output, _ in objects}
    assert len(set(series.values())) == len(series) == len(written) == 8
    assert len({output.sop_instance_uid for output, _ in objects}) == 8
    assert {dataset.SeriesNumber for dataset in written} == {9001, 9003, 9011, 9021, 9023}
    assert all(parse_header(dataset).is_own for dataset in written)
    assert [(output.kind, output.subject.film[-1:], output.template) for output, _ in objects] == [
        ("sr", "1", "1500"),
        ("sr", "2", "2000"),
        ("sr", "", "2000"),
        ("sr3d", "1", "1500"),
        ("sr3d", "2", "2000"),
        ("text", "1", "2000"),
        ("text", "2", "2000"),
        ("text", "", "2000"),
    ]


def test_a_studys_report_is_one_object_for_both_forms() -> None:
    plain, other = outputs(ALL, "sr"), outputs(ALL, "sr3d")

    assert [output.kind for output, _ in other] == ["sr3d", "sr3d", "sr"]
    assert save_bytes(other[-1][1]) == save_bytes(plain[-1][1])


def test_a_text_on_a_film_has_the_class_of_its_form() -> None:
    """It may follow a report with boxes, or come before one, and OHIF shows the newest of each class in a series."""
    text = outputs(report(NOTHING), "sr3d")[0][1]

    assert text.SOPClassUID == Comprehensive3DSRStorage
    assert text.ContentTemplateSequence[0].TemplateIdentifier == "2000"


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


def earlier(uid: str, film: str = "", *, kind: str = "sr") -> OutputObject:
    """Name a report of an earlier round."""
    return OutputObject(
        kind=kind, study_uid=samples.STUDY, sop_class_uid=OUTPUTS.own[kind].sop_class, sop_instance_uid=uid,
        series_instance_uid=f"{uid}.1", subject=Subject(about=About.FILM, film=film) if film else Subject(),
    )  # fmt: skip


BEFORE = {
    "1.1": earlier("1.1", samples.film_uid(1)),
    "1.3": earlier("1.3", samples.film_uid(1), kind="sr3d"),
    "1.9": earlier("1.9", samples.film_uid(1), kind="text"),
    "2.1": earlier("2.1"),
    "2.9": earlier("2.9", kind="text"),
}


@pytest.mark.parametrize(
    ("films", "before", "expected"),
    [
        ((several(),), ("1.9",), [["1.9"]]),  # not processed
        ((several(), film(3)), ("1.9",), [[], [], ["1.9"]]),
        ((several(),), ("1.9", 1), [["1.9", "1.1"]]),
        ((several(), film(3)), ("1.9", 1, 3), [["1.1"], ["1.3"], ["1.9"]]),
        ((several(), film(3)), (1,), [["1.1"], [], []]),
        ((several(), unread(3)), ("1.9", 1, 3), [["1.1"], ["1.9", "1.3"]]),
        ((unread(1),), (1,), [["1.1"]]),
    ],
)  # fmt: skip
def test_each_document_names_those_that_it_replaces(
    films: tuple[Film, ...], before: tuple[str | int, ...], expected: list[list[str]]
) -> None:
    older = tuple(
        earlier(name) if isinstance(name, str) else earlier(f"1.{name}", samples.film_uid(name)) for name in before
    )

    documents = all_written(replace(report(*films), predecessors=older))

    assert [replaced(dataset) for dataset in documents] == expected


@pytest.mark.parametrize(
    ("kind", "now", "before", "expected"),
    [
        ("sr", several(), "1.1 1.3 1.9", ["1.1"]),
        ("sr3d", several(), "1.1 1.3 1.9", ["1.3"]),
        ("text", several(), "1.1 1.3 1.9", ["1.9"]),
        ("sr3d", several(), "1.1", ["1.1"]),  # the destination's setting was "sr", or the earlier report was a text
        ("text", several(), "1.1", ["1.1"]),
        ("sr", several(), "1.3 1.9", ["1.3", "1.9"]),
        ("sr3d", film(findings=(absent(),)), "1.1 1.3 1.9", ["1.3"]),
        ("sr3d", unread(1), "2.1 2.9", ["2.1"]),  # one report on the study for both
        ("text", film(findings=(absent(),)), "1.1 1.3 1.9", ["1.9"]),
        ("sr3d", several(), "1.3 2.1 2.9", ["1.3", "2.1", "2.9"]),  # the study has no report of its own any more
        ("text", several(), "1.3 1.9 2.1 2.9", ["1.9", "2.9"]),
        ("sr", unread(1), "2.1 2.9", ["2.1"]),
        ("text", unread(1), "2.1 2.9", ["2.9"]),
    ],
)
def test_a_report_replaces_those_its_destinations_have(kind: str, now: Film, before: str, expected: list[str]) -> None:
    of = replace(report(now), predecessors=tuple(BEFORE[uid] for uid in before.split()))

    dataset = all_written(of, kind=kind)[0]

    assert replaced(dataset) == expected
    [study] = dataset.PredecessorDocumentsSequence
    items = [item for series in study.ReferencedSeriesSequence for item in series.ReferencedSOPSequence]
    assert [item.ReferencedSOPClassUID for item in items] == [BEFORE[uid].sop_class_uid for uid in expected]
