"""Patient, study and all other texts: copied in any script and never trusted, nor what turns others or is unseen."""

from __future__ import annotations

import struct
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.datadict import dictionary_VR
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset
from pydicom.tag import Tag

from models.errors import ModelError
from models.manifest import MANIFEST, read_manifest
from node.answers.questions import understand
from node.commands.ask import questions_of
from node.dicom import attributes, header_reading, marked_question
from node.domain import GroundedSentence, JsonObject, Note
from node.errors import ConfigError
from node.hl7.text import read
from node.outputs import oru, patient, writers
from node.outputs.sr import report as sr
from node.outputs.study_parts import divide
from node.read import prompts
from node.store import correction
from node.web.corrections import NewCorrection
from node.web.questions import NewQuestions
from tests.node.outputs.test_objects import ONE, written
from tests.support import films, samples, validators

LONG_HEADS: Final = frozenset(("OB", "SQ", "UN", "UT"))
TURNED: Final = [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))]
JOINING: Final = [chr(code) for code in range(0x200C, 0x2010)]
UNSEEN: Final = ["\u00ad", "\u200b", *JOINING, *TURNED, "\u2060", "\ufeff"]
WRONG: Final = {
    "numbers": ("US", b"\1\2\3\4"),
    "numbers that are letters": ("US", b"AB12"),
    "bytes": ("OB", b"\xff\xfe\0\1"),
    "no items": ("SQ", b"garbage!"),
    "an item": ("SQ", struct.pack("<HHL", 0xFFFE, 0xE000, 10) + struct.pack("<HH2sH", 8, 0x100, b"SH", 2) + b"T1"),
    "a tag": ("AT", b"\1\2\3\4"),
    "long unknown bytes": ("UN", b"\0\1\xff\xfe" * 2000),
    "a long text": ("UT", b"y" * 6000),
    "an unknown representation": ("ZZ", b"ab"),
    "a long value of it": ("ZZ", b"q" * 6000),
    "control characters": ("LO", b"A\x01B\x02"),
    "text that is none": ("LO", b"\xff\xfe\x80\x81"),
}
COPIED: Final = tuple(dict.fromkeys((*attributes.REQUIRED, *attributes.OPTIONAL, *attributes.REQUESTED)))


def with_element(keyword: str, vr: str, value: bytes) -> bytes:
    """The file of a film in which a device wrote an element in its own way."""
    film, tag = films.thumbnail({keyword: None}), Tag(keyword)
    content = films.file_bytes(film)
    body = films.body_of(content)
    file = BytesIO(body)
    read_dataset(file, False, True, stop_when=lambda found, _vr, _length: found > tag)
    head = struct.pack("<HH2s", tag.group, tag.element, vr.encode())
    head += struct.pack("<HL", 0, len(value)) if vr in LONG_HEADS else struct.pack("<H", len(value))
    return content[: -len(body)] + body[: file.tell()] + head + value + body[file.tell() :]


@pytest.mark.parametrize("keyword", COPIED)
@pytest.mark.parametrize(("vr", "value"), WRONG.values(), ids=WRONG)
def test_what_is_no_text_is_left_empty_with_a_note(tmp_path: Path, keyword: str, vr: str, value: bytes) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(with_element(keyword, vr, value))
    header, notes = header_reading.read_noted_header(path)
    target = Dataset()

    patient.copy_patient(header, target)
    film = patient.noted(samples.film(), header)

    assert patient.read_text(header, keyword) == patient.whole_text(header, keyword) == ""
    assert target.get(keyword, "") in ("", None)
    is_text = vr == "LO" and dictionary_VR(keyword) not in ("SH", "LO", "PN")  # a wrong date or age has no note
    assert is_text or {Note.IDENTIFIER_LEFT_OUT, Note.TEXT_LEFT_OUT} & {*film.notes, *notes}


@pytest.mark.parametrize("keyword", ["PatientName", "StudyDate"])
@pytest.mark.parametrize(("vr", "value"), WRONG.values(), ids=WRONG)
def test_no_writer_fails_over_such_a_value(tmp_path: Path, keyword: str, vr: str, value: bytes) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(with_element(keyword, vr, value))
    header = header_reading.read_header(path)
    header.SOPInstanceUID = samples.cr(1).SOPInstanceUID
    report, uid = samples.report(samples.film()), str(header.SOPInstanceUID)

    division = divide(report.study_uid, {uid: header}, nobodys=())
    written = list(writers.write_objects(report, samples.received(header), zone=samples.BERLIN, kinds=("sr", "gsps")))
    _, message = oru.write(report, samples.sources(header), samples.BERLIN, order=None, documents=[])

    assert not division.unclear
    assert len(written) > 1
    assert next(read(message).named("PID")).text(5) in ("", "CompressedSamples")


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


def test_what_a_film_says_of_patient_and_study_is_copied() -> None:
    said = {
        "PatientBirthDate": "19500228",
        "PatientAge": "073Y",
        "PatientSize": "1.7",
        "PatientWeight": "80",
        "StudyDescription": "Thorax",
    }
    header = films.changed(samples.cr(1), said)

    dataset = written(ONE, header)

    assert {keyword: str(dataset[keyword].value) for keyword in said} == said
    for keyword in set(attributes.REQUIRED) - said.keys() | {"IssuerOfPatientID"}:
        assert dataset[keyword].value and dataset[keyword] == header[keyword], keyword


def test_what_a_film_does_not_say_is_left_empty() -> None:
    dataset = written(ONE, samples.bare(1))

    for keyword in ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"):
        assert keyword in dataset
        assert not dataset[keyword].value


def test_the_film_that_says_most_describes_the_patient() -> None:
    of, headers = samples.report(samples.film(1), samples.film(3)), samples.sources(samples.bare(1), samples.cr(3))

    datasets = samples.datasets(sr.write, of, headers, samples.BERLIN)

    assert [dataset.PatientID for dataset in datasets] == ["4711"] * 3  # on each film, and on the study


@pytest.mark.filterwarnings("ignore:.*encod:UserWarning")  # pydicom says that bytes do not fit their character set
def test_broken_patient_attributes_are_left_out() -> None:
    header = samples.cr(1)
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
    header = samples.cr(1)
    for keyword, value in values.items():
        _put(header, keyword, header[keyword].VR if keyword in header else "DS", value)
    sentence = GroundedSentence(text=said, prompt="left_lung", score=0.5, boxes=())

    dataset = written(
        samples.report(replace(samples.film(findings=(samples.finding(sentence=0),)), sentences=(sentence,))), header
    )

    assert dataset.StudyInstanceUID == samples.STUDY


def _put(header: Dataset, keyword: str, vr: str, value: bytes) -> None:
    """Put bytes into a header as a file would."""
    header[keyword] = RawDataElement(Tag(keyword), vr, len(value), value, 0, False, True)


@pytest.mark.parametrize("sign", TURNED, ids=ascii)
@pytest.mark.parametrize(
    "keyword", ["PatientName", "PatientID", "AccessionNumber", "StudyDescription", "RequestedProcedureID"]
)
def test_what_turns_a_copied_text_around_is_left_out(keyword: str, sign: str) -> None:
    header = samples.cr(1)
    setattr(header, keyword, f"AB{sign}12")

    assert patient.read_text(header, keyword) == patient.whole_text(header, keyword) == ""
    assert Note.IDENTIFIER_LEFT_OUT in patient.noted(samples.film(), header).notes


@pytest.mark.parametrize("sign", JOINING, ids=ascii)
def test_names_keep_the_signs_that_they_need(sign: str) -> None:
    header = samples.cr(1)
    header.SpecificCharacterSet, header.PatientName = "ISO_IR 192", f"علی{sign}رضا^محمد"

    assert patient.read_text(header, "PatientName") == f"علی{sign}رضا^محمد"
    _, message = oru.write(
        samples.report(samples.film()), samples.sources(header), samples.BERLIN, order=None, documents=[]
    )
    assert sign in message.decode()


@pytest.mark.parametrize("sign", UNSEEN, ids=ascii)
def test_what_people_write_leaves_without_unseen_signs(sign: str) -> None:
    said, seen = f"no{sign}dule", "nodule"
    [asked] = NewQuestions.model_validate({"questions": [{"prompt": said}]}).checked()
    stored = {**_REWORDED, "text": said}

    assert asked.prompt == seen
    assert questions_of([said], [])[0].prompt == seen
    assert marked_question.words(said) == seen
    assert correction.from_json(stored).text == seen
    assert understand(f"{said}s beside the {sign}hilum?", prompts.load("chexpert14")) == understand(
        "nodules beside the hilum?", prompts.load("chexpert14")
    )
    assert patient.short_text(said) == patient.long_text(said) == seen
    assert NewCorrection(kind=correction.CorrectionKind.REWORD, text=said).text == said


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1b", "\x7f", "\ud800"], ids=ascii)
def test_what_people_write_ends_no_line_of_an_output(sign: str) -> None:
    said, seen = f"a nodule{sign}on the left", "a nodule on the left"
    [asked] = NewQuestions.model_validate({"questions": [{"prompt": said}]}).checked() if sign < "\ud800" else [None]

    assert asked is None or asked.prompt == seen
    assert questions_of([said], [])[0].prompt == marked_question.words(said) == seen
    assert correction.from_json({**_REWORDED, "text": said}).text == seen
    assert patient.short_text(said) == patient.long_text(said) == seen
    assert patient.long_text("two\nlines\tand more") == "two\nlines\tand more"


_REWORDED: Final[JsonObject] = {
    "id": "1",
    "study_uid": "1.2",
    "film": "1.2.3",
    "kind": "reword",
    "at": "2026-01-01T00:00:00+00:00",
    "by": "reader",
    "source": "page",
    "prompt": "edema",
    "tracking_uid": "",
    "box": None,
    "withdraws": "",
}


@pytest.mark.parametrize("sign", ["\u202e", "\u200b", "\u200d", "\x07"], ids=ascii)
@pytest.mark.parametrize("place", ['phrases = ["', 'negatives = ["', 'version = "', 'finding = ["'])
def test_a_prompt_set_with_unseen_signs_is_refused(tmp_path: Path, place: str, sign: str) -> None:
    text = (Path(prompts.__file__).parent / "prompt_sets" / "chexpert14.toml").read_text()
    path = tmp_path / "own.toml"
    escaped = f"\\u{ord(sign):04x}"
    assert place in text
    path.write_text(text.replace(place, f"{place}{escaped}", 1))

    with pytest.raises(ConfigError, match="printable"):
        prompts.load(str(path))


@pytest.mark.parametrize("key", ["name", "version", "licence", "trained_on", "intended_use"])
@pytest.mark.parametrize("sign", ["\x00", "\x07", "\x1b", "\n", "\x7f", "\x85", "\u200b", "\u202e"], ids=ascii)
def test_a_manifest_with_control_characters_is_refused(tmp_path: Path, key: str, sign: str) -> None:
    lines = (Path("models/weights/phantom") / MANIFEST).read_text().split("\n")
    place = next(number for number, line in enumerate(lines) if line.startswith(f'{key} = "'))
    lines[place] = lines[place].replace('= "', f'= "a\\u{ord(sign):04x}', 1)
    (tmp_path / MANIFEST).write_text("\n".join(lines))

    with pytest.raises(ModelError, match=f"'{key}'.*control characters"):
        read_manifest(tmp_path)


def test_a_patient_then_an_accession_number_then_more_attributes_describe_best() -> None:
    told: dict[str, str] = {"PatientID": "1", "PatientName": "A", "StudyDate": "20240101", "StudyID": "7"}
    best_first = [
        {"PatientID": "1", "AccessionNumber": "A-17"},
        {**told, "IssuerOfPatientID": "CLINIC"},
        told,
        {**told, "PatientID": "", "AccessionNumber": "A-17"},
    ]
    headers = [Dataset() for _ in best_first]
    for header, values in zip(headers, best_first, strict=True):
        for keyword, value in values.items():
            setattr(header, keyword, value)

    for better, worse in pairwise(headers):
        assert patient.best_described([worse, better]) is better
