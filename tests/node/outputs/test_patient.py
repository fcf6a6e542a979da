"""Patient and study attributes of a source: copied in any script, never trusted."""

from __future__ import annotations

from dataclasses import replace
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

from node.domain import GroundedSentence, Report
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from tests.support import samples, validators
from tests.support.samples import BERLIN, absent, bare, cr, film, finding, report, several, sources

ONE = report(film(findings=(finding(), absent())))


def written(of: Report, *headers: Dataset) -> Dataset:
    """Write a report on one film, and read it back from its bytes."""
    [dataset] = samples.datasets(sr.write, of, sources(*(headers or (cr(1),))), BERLIN)
    return dcmread(BytesIO(save_bytes(dataset)))


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
    datasets = samples.datasets(sr.write, report(film(1), film(3)), sources(bare(1), cr(3)), BERLIN)

    assert [dataset.PatientID for dataset in datasets] == ["4711"] * 3  # on each film, and on the study


@pytest.mark.filterwarnings("ignore:.*encod:UserWarning")  # pydicom says that bytes do not fit their character set
def test_broken_patient_attributes_are_left_out() -> None:
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
    assert (dataset.PatientName, dataset.PatientID, dataset.AccessionNumber) == ("", "", "")
    assert dataset.StudyDate == "19930822"
    left_out = {"PatientAge", "PatientWeight", "PatientSize", "StudyDescription"}
    assert not left_out & {element.keyword for element in dataset}


@pytest.mark.filterwarnings("ignore:.*encod:UserWarning")
@settings(max_examples=40, deadline=None)
@given(
    values=st.dictionaries(
        st.sampled_from(("PatientName", "PatientID", "PatientBirthDate", "StudyTime", "PatientSex", "PatientWeight")),
        st.binary(max_size=90),
    ),
    said=st.text(min_size=1, max_size=300).filter(str.strip),
)
def test_no_bytes_and_no_sentence_can_stop_the_report(values: dict[str, bytes], said: str) -> None:
    header = cr(1)
    for keyword, value in values.items():
        _put(header, keyword, header[keyword].VR if keyword in header else "DS", value)
    sentence = GroundedSentence(text=said, prompt="left_lung", score=0.5, boxes=())

    dataset = written(report(replace(film(findings=(finding(sentence=0),)), sentences=(sentence,))), header)

    assert dataset.StudyInstanceUID == samples.STUDY


def test_a_real_film_is_described_as_it_describes_itself() -> None:
    path = get_testdata_file("RG1_UNCR.dcm")
    assert path is not None
    header = dcmread(path, stop_before_pixels=True)
    about = replace(report(replace(several(), source=header.SOPInstanceUID)), study_uid=str(header.StudyInstanceUID))

    [dataset] = samples.datasets(sr.write, about, {str(header.SOPInstanceUID): header}, ZoneInfo("UTC"))

    assert (dataset.PatientID, str(dataset.PatientName)) == (header.PatientID, str(header.PatientName))
    assert validators.dciodvfy(dataset) == []


def _put(header: Dataset, keyword: str, vr: str, value: bytes) -> None:
    """Put bytes into a header as a file would."""
    header[keyword] = RawDataElement(Tag(keyword), vr, len(value), value, 0, False, True)
