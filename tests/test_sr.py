"""The structured report: what it says, that others accept it, and that one UID never has two contents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import Tag

from node import identity
from node.domain import Box, FindingState, GroundedSentence, ObjectReference, Reason, Report, Side
from node.outputs import sr, words
from node.outputs.document import save_bytes
from tests import samples, validators
from tests.samples import BERLIN, absent, bare, cr, film, finding, report, several, sources, unread

SEVERAL = report(several())
ONE = report(film(findings=(finding(), absent())))
NONE = report(film(findings=(absent(),)))
NOT_PROCESSED = report(unread(1), unread(2, Reason.LATERAL))
MIXED = report(several(), unread(2), film(3, findings=(absent(),)))
FORMS = {"several": SEVERAL, "one": ONE, "none": NONE, "not processed": NOT_PROCESSED, "mixed": MIXED}


def written(of: Report, *headers: Dataset) -> Dataset:
    """Write a report on films 1 to 3, and read it back from its bytes."""
    [dataset] = sr.write(of, sources(*(headers or (cr(1), bare(2), cr(3)))), BERLIN)
    return dcmread(BytesIO(save_bytes(dataset)))


def contents(item: Dataset, name: str) -> list[Dataset]:
    """Return the children of a content item that have a code as their name."""
    return [child for child in item.get("ContentSequence", ()) if child.ConceptNameCodeSequence[0].CodeValue == name]


def groups(dataset: Dataset) -> list[Dataset]:
    """Return the measurement groups."""
    [measurements] = contents(dataset, "126010")
    return contents(measurements, "125007")


def everything(item: Dataset) -> Iterator[Dataset]:
    """Walk the content tree."""
    for child in item.get("ContentSequence", ()):
        yield child
        yield from everything(child)


def said(dataset: Dataset) -> str:
    """Return all text of the content tree."""
    return "\n".join(item.TextValue for item in everything(dataset) if item.ValueType == "TEXT")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_accepted_by_dciodvfy_and_dcmtk(form: str) -> None:
    dataset = written(FORMS[form])

    assert validators.dciodvfy(dataset) == []
    assert validators.dsrdump(dataset) == []


def test_the_templates_hold_in_pixelmed() -> None:
    forms = [written(FORMS[form]) for form in ("mixed", "one", "none", "not processed")]

    assert validators.pixelmed(forms) == [[], [], [], []]


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
    probabilities = [contents(group, "122157")[0].MeasuredValueSequence[0].NumericValue for group in found]
    assert probabilities == [0.83, 0.41, 0.41, 0.5]
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


def test_a_side_stands_with_the_site_and_is_left_out_when_unknown() -> None:
    effusion, edema, _, devices = groups(written(SEVERAL))

    [site] = contents(effusion, "363698007")
    assert contents(site, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Right"
    assert "ContentSequence" not in contents(edema, "363698007")[0]
    assert contents(devices, "363698007") == []


def test_the_side_of_a_box_comes_before_the_side_of_its_finding() -> None:
    one = finding(side=Side.BILATERAL)
    left = replace(one.boxes[0], side=Side.LEFT)

    [group] = groups(written(report(film(findings=(replace(one, boxes=(left,)),)))))

    [site] = contents(group, "363698007")
    assert contents(site, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Left"


def test_absent_findings_are_codes_at_the_root_and_never_numbers() -> None:
    dataset = written(SEVERAL)

    [evaluations] = contents(dataset, "C0034375")

    [answer] = contents(evaluations, "36118008")
    assert answer.ConceptCodeSequence[0].CodeMeaning == "Absent"
    assert "NUM" not in {item.ValueType for item in everything(evaluations)}


def test_a_sentence_without_a_finding_is_a_text_inferred_from_its_boxes() -> None:
    [evaluations] = contents(written(SEVERAL), "C0034375")

    [sentence] = contents(evaluations, "121106")

    assert sentence.TextValue == "left lung (score 0.71): The left lung is clear."
    [region] = sentence.ContentSequence
    assert (region.RelationshipType, region.ValueType) == ("INFERRED FROM", "SCOORD")
    assert list(region.GraphicData[:2]) == [1000, 200]


@pytest.mark.parametrize("form", ["several", "one", "none", "mixed"])
def test_groups_have_the_shape_that_viewers_can_show(form: str) -> None:
    found = groups(written(FORMS[form]))

    assert found
    assert all(len(contents(group, "111030")) == 1 for group in found)
    assert len({len(contents(group, "122157")) for group in found}) == 1  # mixed shapes hide boxes in OHIF 3.13.2


@pytest.mark.parametrize("form", FORMS)
def test_every_content_item_has_a_name(form: str) -> None:
    assert all("ConceptNameCodeSequence" in item for item in everything(written(FORMS[form])))


def test_the_analyzed_square_stands_for_a_film_without_findings() -> None:
    [group] = groups(written(NONE))

    [region] = contents(group, "111030")
    assert list(region.GraphicData[:6]) == [120, 0, 1880, 0, 1880, 1760]
    assert contents(group, "122157") == []
    assert contents(group, "121106")[0].TextValue == words.NOTHING_NEAR


def test_a_film_without_findings_beside_one_with_findings_is_told_in_words_only() -> None:
    dataset = written(report(several(), film(3, findings=(absent(),))))

    assert len(groups(dataset)) == 4
    about = [item.TextValue for item in contents(dataset, "121106")]
    assert [words.NOTHING_NEAR in text for text in about] == [False, False, True]


def test_the_research_label_comes_first_and_the_analyzed_part_is_told() -> None:
    first, about, *_ = (
        item for item in everything(written(SEVERAL)) if item.ConceptNameCodeSequence[0].CodeValue == "121106"
    )

    assert first.TextValue.startswith("AI RESEARCH - NOT FOR DIAGNOSIS")
    for version in (identity.VERSION, "phantom 1.2.0", "ab" * 32, "chexpert14 1", "cd" * 32):
        assert version in first.TextValue
    assert "columns 120 to 1880, rows 0 to 1760 of 2000 x 1760 pixels" in about.TextValue
    assert "The rest of the film was not analyzed." in about.TextValue
    assert "does not state view" in about.TextValue


def test_a_film_that_was_not_read_is_listed_beside_the_read_ones() -> None:
    dataset = written(MIXED)

    assert words.REASONS[Reason.UNDECODABLE] in said(dataset)
    [evidence] = dataset.CurrentRequestedProcedureEvidenceSequence
    [series] = evidence.ReferencedSeriesSequence
    assert [one.ReferencedSOPInstanceUID for one in series.ReferencedSOPSequence] == [
        samples.film_uid(number) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("reason", Reason)
def test_a_study_of_which_nothing_was_read_says_why(reason: Reason) -> None:
    dataset = written(report(unread(1, reason)))

    assert dataset.ConceptNameCodeSequence[0].CodeValue == "18748-4"
    assert dataset.ContentTemplateSequence[0].TemplateIdentifier == "2000"
    assert words.REASONS[reason] in said(dataset)
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
    assert sr.write(report(), {}, BERLIN) == []


def test_the_document_is_complete_preliminary_and_unverified() -> None:
    dataset = written(ONE)

    assert (dataset.CompletionFlag, dataset.PreliminaryFlag, dataset.VerificationFlag) == (
        "COMPLETE",
        "PRELIMINARY",
        "UNVERIFIED",
    )
    assert dataset.SeriesDescription.startswith("AI RESEARCH - NOT FOR DIAGNOSIS")
    assert len(dataset.ReferencedPerformedProcedureStepSequence) == len(dataset.PerformedProcedureCodeSequence) == 0
    [equipment] = dataset.ContributingEquipmentSequence
    assert equipment.PurposeOfReferenceCodeSequence[0].CodeValue == "109102"
    assert equipment.DeviceUID == identity.device_uid(samples.MODEL)
    assert identity.is_own(dataset)


def test_times_are_those_of_the_site() -> None:
    dataset = written(ONE)

    assert (dataset.ContentDate, dataset.ContentTime) == ("20240201", "003015")  # 23:30:15 UTC the day before
    assert dataset.TimezoneOffsetFromUTC == "+0100"


def test_orders_are_named_once_where_the_films_name_them() -> None:
    first, second = cr(1), cr(3)
    request = Dataset()
    request.RequestedProcedureID = "P-1"
    for header in (first, second):
        header.RequestAttributesSequence = [request]
        header.FillerOrderNumberImagingServiceRequest = "F-9"

    dataset = written(report(several(), film(3)), first, second)

    [order] = dataset.ReferencedRequestSequence
    assert (order.AccessionNumber, order.RequestedProcedureID) == ("A-17", "P-1")
    assert order.FillerOrderNumberImagingServiceRequest == "F-9"
    assert "ReferencedRequestSequence" not in written(ONE, bare(1))
    assert validators.dciodvfy(dataset) == []


def test_the_same_reading_gives_the_same_bytes() -> None:
    assert save_bytes(sr.write(MIXED, sources(cr(1), bare(2), cr(3)), BERLIN)[0]) == save_bytes(
        sr.write(MIXED, sources(cr(1), bare(2), cr(3)), BERLIN)[0]
    )


def test_a_later_round_that_says_the_same_has_the_same_uid() -> None:
    older = ObjectReference(
        sop_class_uid="1.2.840.10008.5.1.4.1.1.88.33", sop_instance_uid="1.2.3", series_instance_uid="1.2"
    )
    later = replace(ONE, created_at=datetime(2025, 1, 1, tzinfo=UTC), predecessors=(older,))

    dataset = written(later)

    assert dataset.SOPInstanceUID == written(ONE).SOPInstanceUID
    [study] = dataset.PredecessorDocumentsSequence
    assert study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID == "1.2.3"
    assert validators.dciodvfy(dataset) == []


def test_a_document_never_names_itself_as_its_predecessor() -> None:
    first = written(ONE)
    itself = ObjectReference(
        sop_class_uid=first.SOPClassUID,
        sop_instance_uid=first.SOPInstanceUID,
        series_instance_uid=first.SeriesInstanceUID,
    )

    assert "PredecessorDocumentsSequence" not in written(replace(ONE, predecessors=(itself,)))


def test_whatever_is_said_differently_has_another_uid() -> None:
    renamed = cr(1)
    renamed.PatientName = "Muller^Jorg"
    [film_1] = ONE.films
    surer = replace(film_1.findings[0], probability=0.84)

    uids = {
        written(ONE).SOPInstanceUID,
        written(ONE, renamed).SOPInstanceUID,
        written(replace(ONE, films=(replace(film_1, findings=(surer, absent())),))).SOPInstanceUID,
        written(replace(ONE, prompts_version="2")).SOPInstanceUID,
        written(replace(ONE, model=replace(samples.MODEL, weights_sha256="ef" * 32))).SOPInstanceUID,
        written(NONE).SOPInstanceUID,
        written(replace(ONE, films=(*ONE.films, unread(2)))).SOPInstanceUID,
    }

    assert len(uids) == 7


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("chrJapMulti.dcm", "やまだ^たろう"),
        ("chrKoreanMulti.dcm", "김희중"),
        ("chrH31.dcm", "Yamada^Tarou=山田^太郎=やまだ^たろう"),
        ("chrH32.dcm", "ﾔﾏﾀﾞ^ﾀﾛｳ=山田^太郎=やまだ^たろう"),
        ("chrX2.dcm", "Wang^XiaoDong=王^小东"),
    ],
)
def test_names_in_other_scripts_survive(file: str, name: str) -> None:
    dataset = written(ONE, samples.named(file))

    assert dataset.SpecificCharacterSet == "ISO_IR 192"
    assert str(dataset.PatientName) == name
    assert validators.dciodvfy(dataset) == []
    assert validators.dsrdump(dataset) == []


def test_what_a_film_does_not_say_is_left_empty() -> None:
    dataset = written(ONE, bare(1))

    for keyword in ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"):
        assert keyword in dataset
        assert not dataset[keyword].value
    assert validators.dciodvfy(dataset) == []


def test_the_film_that_says_most_describes_the_patient() -> None:
    dataset = written(report(film(1), film(3)), bare(1), cr(3))

    assert dataset.PatientID == "4711"


@pytest.mark.filterwarnings("ignore:.*encod:UserWarning")  # pydicom says that bytes do not fit their character set
def test_broken_patient_attributes_are_left_out_or_cut() -> None:
    header = cr(1)
    for keyword, vr, value in (
        ("PatientName", "PN", b"A" * 70 + b"^B\x1b[31m\\other^name"),
        ("PatientID", "LO", b"X" * 100 + b"\\second"),
        ("PatientBirthDate", "DA", b"20240230"),
        ("PatientSex", "CS", b"male"),
        ("PatientAge", "AS", b"45 years"),
        ("PatientWeight", "DS", b"heavy"),
        ("PatientSize", "DS", b"nan"),
        ("StudyDate", "DA", b"1993.08.22"),
        ("StudyTime", "TM", b"25:61"),
        ("AccessionNumber", "SH", b"01234567890123456789"),
        ("StudyDescription", "LO", b"line\x00 one\r\nline two"),
    ):
        _put(header, keyword, vr, value)

    dataset = written(ONE, header)

    assert validators.dciodvfy(dataset) == []
    assert (dataset.PatientBirthDate, dataset.PatientSex, dataset.StudyTime) == ("", "", "")
    assert (dataset.PatientName, dataset.PatientID, dataset.StudyDate) == ("A" * 64, "X" * 64, "19930822")
    assert dataset.StudyDescription == "line one line two"
    assert not {"PatientAge", "PatientWeight", "PatientSize"} & {element.keyword for element in dataset}


@pytest.mark.filterwarnings("ignore:.*encod:UserWarning")
@settings(max_examples=40, deadline=None)
@given(
    values=st.dictionaries(
        st.sampled_from(("PatientName", "PatientID", "PatientBirthDate", "StudyTime", "PatientSex", "PatientWeight")),
        st.binary(max_size=90),
    ),
    said=st.text(min_size=1, max_size=300).filter(str.strip),
)
def test_no_bytes_of_a_sender_and_no_sentence_can_stop_the_report(values: dict[str, bytes], said: str) -> None:
    header = cr(1)
    for keyword, value in values.items():
        _put(header, keyword, header[keyword].VR if keyword in header else "DS", value)
    sentence = GroundedSentence(text=said, prompt="left_lung", score=0.5, boxes=())

    dataset = written(report(replace(film(findings=(finding(sentence=0),)), sentences=(sentence,))), header)

    assert dataset.StudyInstanceUID == samples.STUDY


def test_control_characters_and_stray_surrogates_are_taken_out_of_sentences() -> None:
    sentence = GroundedSentence(text="Effusion\x00\x1b \ud800 \\ right.\nNew.", prompt="x", score=0.5, boxes=())

    dataset = written(report(replace(film(findings=(finding(),)), sentences=(sentence,))))

    [group] = groups(dataset)
    assert contents(group, "121106")[0].TextValue == "Effusion     \\ right.\nNew."
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

    with pytest.raises(ValueError, match="outside its film"):
        sr.write(outside, sources(cr(1)), BERLIN)


def test_a_reported_finding_without_a_box_is_refused() -> None:
    boxless = report(film(findings=(finding(boxes=(), state=FindingState.INDETERMINATE),)))

    with pytest.raises(ValueError, match="needs a box"):
        sr.write(boxless, sources(cr(1)), BERLIN)


def test_private_codes_are_declared() -> None:
    [scheme] = written(SEVERAL).CodingSchemeIdentificationSequence

    assert scheme.CodingSchemeDesignator == "99CHEX"
    assert "CodingSchemeIdentificationSequence" not in written(ONE)


def test_a_real_film_is_described_as_it_describes_itself() -> None:
    path = get_testdata_file("RG1_UNCR.dcm")
    assert path is not None
    header = dcmread(path, stop_before_pixels=True)
    about = replace(report(replace(several(), source=header.SOPInstanceUID)), study_uid=str(header.StudyInstanceUID))

    [dataset] = sr.write(about, {str(header.SOPInstanceUID): header}, ZoneInfo("UTC"))

    assert (dataset.PatientID, str(dataset.PatientName)) == (header.PatientID, str(header.PatientName))
    assert validators.dciodvfy(dataset) == []


def _put(header: Dataset, keyword: str, vr: str, value: bytes) -> None:
    """Put bytes into a header as a file would."""
    header[keyword] = RawDataElement(Tag(keyword), vr, len(value), value, 0, False, True)
