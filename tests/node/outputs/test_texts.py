"""Patient, study and all other texts: in any script and character set, copied and never trusted, or left empty."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
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
from node.character_sets import TERMS
from node.commands.ask import questions_of
from node.dicom import attributes, film_text, header_reading, marked_question
from node.dicom.film_text import DecodedText
from node.domain import Film, GroundedSentence, JsonObject, Note, Reason
from node.errors import ConfigError
from node.hl7.text import read
from node.outputs import oru, patient, wording, writers
from node.outputs.patient import read_text
from node.outputs.sr import report as sr
from node.outputs.study_parts import divide
from node.read import prompts
from node.read.film import Answered, answer_film
from node.store import correction
from node.web.corrections import NewCorrection
from node.web.questions import NewQuestions
from tests.node.jobs.test_rounds import STUDY, Bench
from tests.node.outputs.test_objects import ONE, written
from tests.node.test_config import GOOD, load
from tests.support import films, samples, validators
from tests.support.fakes import ScriptedReader
from tests.support.samples import BERLIN

LONG_HEADS: Final = frozenset(("OB", "SQ", "UN", "UT"))
TURNED: Final = [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))]
JOINING: Final = [chr(code) for code in range(0x200C, 0x2010)]
UNSEEN: Final = ["\u00ad", "\u200b", *JOINING, *TURNED, "\u2060", "\ufeff"]
WRONG: Final = {
    "numbers": ("US", b"\1\2\3\4"),
    "bytes": ("OB", b"\xff\xfe\0\1"),
    "no items": ("SQ", b"garbage!"),
    "an item": ("SQ", struct.pack("<HHL", 0xFFFE, 0xE000, 10) + struct.pack("<HH2sH", 8, 0x100, b"SH", 2) + b"T1"),
    "long unknown bytes": ("UN", b"\0\1\xff\xfe" * 2000),
    "a long text": ("UT", b"y" * 6000),
    "an unknown representation": ("ZZ", b"ab"),
    "control characters": ("LO", b"A\x01B\x02"),
    "text that is none": ("LO", b"\xff\xfe\x80\x81"),
}
KINDS: Final = ("sr", "gsps")
PROMPTS: Final = prompts.load("chexpert14")
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
def test_what_is_no_text_is_left_empty_with_a_note_and_stops_no_writer(
    tmp_path: Path, keyword: str, vr: str, value: bytes
) -> None:
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
    if keyword not in ("PatientName", "StudyDate"):
        return
    header.SOPInstanceUID = samples.film_uid(1)
    report, headers = samples.report(samples.film()), samples.sources(header)
    kinds = [each.kind for each in writers.write_objects(report, samples.received(header), zone=BERLIN, kinds=KINDS)]
    _, message = oru.write(report, headers, BERLIN, order=None, documents=[])
    assert kinds == list(KINDS)
    assert next(read(message).named("PID")).text(5) in ("", "CompressedSamples")
    assert not divide(report.study_uid, headers, nobodys=()).unclear


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("chrJapMulti.dcm", "やまだ^たろう"),
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


def test_what_a_film_says_of_patient_and_study_is_copied_or_left_empty() -> None:
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
    of_bare = written(ONE, samples.bare(1))
    for keyword in ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"):
        assert not of_bare[keyword].value


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
    _, message = oru.write(samples.report(samples.film()), samples.sources(header), BERLIN, order=None, documents=[])
    assert sign in message.decode()


LINE_ENDS: Final = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1b", "\x7f"]


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        *((f"no{sign}dule", "nodule") for sign in UNSEEN),
        *((f"a nodule{sign}on the left", "a nodule on the left") for sign in LINE_ENDS),
    ],
    ids=ascii,
)
def test_what_people_write_leaves_without_unseen_signs_and_ends_no_line(said: str, seen: str) -> None:
    [asked] = NewQuestions.model_validate({"questions": [{"prompt": said}]}).checked()

    assert asked.prompt == questions_of([said], [])[0].prompt == marked_question.words(said) == seen
    assert correction.from_json({**_REWORDED, "text": said}).text == seen
    assert understand(f"{said}?", PROMPTS) == understand(f"{seen}?", PROMPTS)
    assert patient.short_text(said) == patient.long_text(said) == seen
    assert patient.long_text("two\nlines\tand more\ud800") == "two\nlines\tand more"
    assert NewCorrection(kind=correction.CorrectionKind.REWORD, text=said).text == said


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


@pytest.mark.parametrize("sign", ["\u202e", "\u200d", "\x07"], ids=ascii)
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


RECODED, LEFT_OUT = (Note.TEXT_RECODED,), (Note.TEXT_LEFT_OUT,)
LATIN, UTF, CHINESE = "latin-1", "utf-8", "gb18030"


def answered(folder: Path, values: Mapping[str, bytes | None], *, site: str = "") -> Answered:
    path = films.saved(folder, films.as_written(films.thumbnail(), values))
    return answer_film(path, ScriptedReader(), PROMPTS, character_set=site)


def named(declared: bytes | None, name: bytes, **others: bytes | None) -> Mapping[str, bytes | None]:
    return {"SpecificCharacterSet": declared, "PatientName": name, **others}


def film_of(answer: Answered) -> Film:
    assert answer.film is not None
    return answer.film


@pytest.mark.parametrize(
    ("declared", "name", "site", "seen", "notes"),
    [
        # missing
        (None, "Müller^Jörg".encode(UTF), "", "Müller^Jörg", RECODED),
        (None, "王^小明".encode(CHINESE), "", "", LEFT_OUT),
        (None, "王^小明".encode(CHINESE), "GB18030", "王^小明", RECODED),
        (None, "Müller^Jörg".encode(LATIN), "", "", LEFT_OUT),
        (None, "Müller^Jörg".encode(LATIN), "ISO_IR 100", "Müller^Jörg", RECODED),
        (None, b"Yamada^Tarou=\x1b$B;3ED\x1b(B^\x1b$BB@O:\x1b(B", "", "Yamada^Tarou=山田^太郎", RECODED),
        # untrue
        (b"ISO_IR 100", "Müller^Jörg".encode(UTF), "", "Müller^Jörg", RECODED),
        (b"ISO_IR 100", "Łukasz".encode(UTF), "", "Łukasz", RECODED),
        (b"GB18030", "王^小明".encode(UTF), "", "王^小明", RECODED),
        (b"ISO 2022 IR 6\\ISO 2022 IR 149", "김^희중".encode(UTF), "", "김^희중", RECODED),
        (b"ISO_IR 192", "Müller".encode(LATIN), "", "", LEFT_OUT),
        (b"ISO_IR 192", "Müller".encode(LATIN), "ISO_IR 100", "Müller", RECODED),
        (b"KLINGON", "Müller".encode(LATIN), "", "", LEFT_OUT),
        (b"KLINGON", b"Mueller", "", "Mueller", ()),
        (b"ISO 8859-12", "Müller".encode(UTF), "", "Müller", RECODED),  # a part that was never published
        # true, however it is spelled
        (b"ISO_IR 100", "Müller".encode(LATIN), "", "Müller", ()),
        (b"ISO_IR 101", "KÓŁKO^JAN".encode("iso8859-2"), "", "KÓŁKO^JAN", ()),  # its bytes are UTF-8 as well
        (b"ISO_IR 144", "ТИХО".encode("iso8859-5"), "", "ТИХО", ()),  # so are these
        (b"GB18030", "伦^伦".encode(CHINESE), "", "伦^伦", ()),
        (b" iso_ir 192 ", "Müller".encode(UTF), "", "Müller", ()),
        (b"ISO_IR 13", "ﾔﾏﾀﾞ^ﾀﾛｳ".encode("shift_jis"), "", "ﾔﾏﾀﾞ^ﾀﾛｳ", ()),
        (b"\\ISO_2022_IR_87", b"Yamada=\x1b$B;3ED\x1b(B", "", "Yamada=山田", ()),
        (b"\\ISO 2022 IR 149", b"Hong=\x1b$)C\xfb\xf3^\x1b$)C\xd1\xce\xd4\xd7", "", "Hong=洪^吉洞", ()),
        # no text, in whatever set
        (b"ISO_IR 192", b"M\xef\xbf\xbdller", "", "", LEFT_OUT),
        (b"ISO_IR 100", b"M\xef\xbf\xbdller", "ISO_IR 100", "", LEFT_OUT),
        (b"ISO_IR 100", b"O\x92Brien", "", "", LEFT_OUT),
    ],
)  # fmt: skip
def test_a_name_is_decoded_by_what_it_is(
    tmp_path: Path, declared: bytes | None, name: bytes, site: str, seen: str, notes: tuple[Note, ...]
) -> None:
    answer = answered(tmp_path, named(declared, name), site=site)

    assert read_text(answer.dataset, "PatientName") == seen
    assert film_of(answer).notes == notes


def declared_as(term: str) -> film_text.CharacterSets:
    return film_text.declared_by(films.as_written(Dataset(), {"SpecificCharacterSet": term.encode()}))


@pytest.mark.parametrize(
    ("number", "escape", "codec", "name"),
    [
        ("13", b")I", "shift_jis", "ﾔﾏﾀﾞ"),
        ("58", b"$)A", "gb2312", "王小明"),
        ("100", b"-A", "iso8859-1", "Müller"),
        ("101", b"-B", "iso8859-2", "Żółć"),
        ("126", b"-F", "iso8859-7", "Διονυσιος"),
        ("127", b"-G", "iso8859-6", "قباني"),
        ("138", b"-H", "iso8859-8", "שרון"),
        ("144", b"-L", "iso8859-5", "Иванов"),
        ("148", b"-M", "iso8859-9", "Çavuşoğlu"),
        ("149", b"$)C", "euc_kr", "김철수"),
        ("166", b"-T", "tis_620", "สมชาย"),
        ("203", b"-b", "iso8859-15", "Šœ€"),
    ],
)
def test_every_set_of_the_standard_is_known(number: str, escape: bytes, codec: str, name: str) -> None:
    """PS3.3 tables C.12-2 to C.12-4."""
    sets, encoded = film_text.CharacterSets(may_switch=True), name.encode(codec)

    assert film_text.decode(encoded, declared_as(f"ISO_IR {number}"), is_name=True) == DecodedText(text=name)
    switched = film_text.decode(b"A^\x1b" + escape + encoded, sets, is_name=True)
    assert switched == DecodedText(text=f"A^{name}")


CYRILLIC = "Иван".encode("iso8859-5")


@pytest.mark.parametrize(
    ("is_name", "encoded", "text"),
    [
        (True, b"^M\xfcller", "^Müller"),
        (True, b"=\x1b(BM\xfcller", "=Müller"),
        (True, b"\\M\xfcller", "\\Müller"),
        (False, b"^=" + CYRILLIC, "^=Иван"),
        (False, b"\n\x1b(BM\xfcller", "\nMüller"),
        (False, b"\\M\xfcller", "\\Müller"),
    ],
)
def test_a_set_is_active_until_a_delimiter_of_names_or_of_texts(encoded: bytes, text: str, *, is_name: bool) -> None:
    sets = declared_as("ISO 2022 IR 100\\ISO 2022 IR 144")

    read = film_text.decode(b"\x1b-L" + CYRILLIC + encoded, sets, is_name=is_name)

    assert read == DecodedText(text=f"Иван{text}")


@pytest.mark.parametrize(
    ("terms", "codec", "name"),
    [
        ("UTF8, Unicode, UNICODE-UTF-8, ISO 10646, ISO-10646/UTF-8", "utf-8", "Müller"),
        ("GB18030, GB18030-2000, ISO 2022 GB18030", "gb18030", "王小明"),
        ("GBK, CP936, ISO 2022 GBK", "gbk", "王小明"),
        ("GB2312, EUC-CN", "gb2312", "王小明"),
        ("EUC-KR, KS X 1001, KSC5601", "euc_kr", "김철수"),
        ("Shift_JIS, SJIS", "shift_jis", "山田"),
        ("EUC-JP", "euc_jp", "山田"),
        ("LATIN1, ISO-8859-1, 8859-1", "iso8859-1", "Müller"),
        ("ISO 8859-13", "iso8859-13", "Šarūnas"),
        ("WINDOWS-1251, CP1251", "cp1251", "Иванов"),
    ],
)
def test_sets_by_other_names_and_japanese_ones_of_two_bytes_are_known(terms: str, codec: str, name: str) -> None:
    sets = map(declared_as, terms.split(", "))

    assert {film_text.decode(name.encode(codec), each, is_name=True) for each in sets} == {DecodedText(text=name)}
    for escape, japanese in ((b"$B;3ED", "山田"), (b"$@;3ED", "山田"), (b"$(D0!", "丂")):
        read = film_text.decode(b"A=\x1b" + escape + b"\x1b(B", declared_as("\\ISO 2022 IR 159"), is_name=True)
        assert read == DecodedText(text=f"A={japanese}")


TEXTS = sorted(keyword for keyword in film_text.COPIED if dictionary_VR(keyword) in ("LO", "PN", "SH"))


@pytest.mark.parametrize("keyword", [keyword for keyword in TEXTS if keyword != "CodeMeaning"])
def test_every_copied_text_gets_the_note_and_no_other(tmp_path: Path, keyword: str) -> None:
    values = {"SpecificCharacterSet": None, keyword: "Ö-17".encode(LATIN)}

    assert film_of(answered(tmp_path, values)).notes == LEFT_OUT
    assert film_of(answered(tmp_path, {**values, keyword: "Ö-17".encode(UTF)})).notes == RECODED
    not_copied = {"InstitutionName": "Spital Köniz".encode(LATIN), "PatientSex": "女".encode(UTF)}
    assert film_of(answered(tmp_path, {"SpecificCharacterSet": None, **not_copied})).notes == ()


def test_texts_of_the_request_are_decoded_too_by_its_own_set_or_that_of_its_parent(tmp_path: Path) -> None:
    request = films.as_written(Dataset(), {"RequestedProcedureDescription": "Thorax für Köniz".encode(UTF)})
    film = films.thumbnail({"RequestAttributesSequence": [request]})
    path = films.saved(tmp_path, films.as_written(film, {"SpecificCharacterSet": b"ISO_IR 100"}))

    answer = answer_film(path, ScriptedReader(), PROMPTS)

    headers = {film_of(answer).source: answer.dataset}
    [report] = samples.datasets(sr.write, samples.report(film_of(answer)), headers, samples.BERLIN)
    assert report.ReferencedRequestSequence[0].RequestedProcedureDescription == "Thorax für Köniz"
    assert film_of(answer).notes == RECODED
    for declared, own in ((b"8859-1", None), (b"ISO_IR 192", b"ISO_IR 100")):
        item = films.as_written(Dataset(), {"SpecificCharacterSet": own, "CodeMeaning": "Köniz".encode(LATIN)})
        film = films.thumbnail({"RequestAttributesSequence": [item]})
        film = films.as_written(film, {"SpecificCharacterSet": declared})
        with attributes.quiet():
            assert film_text.settle(film) == ()
        assert film.RequestAttributesSequence[0].CodeMeaning == "Köniz"


def test_a_film_that_is_not_read_says_whose_text_was_left_out(tmp_path: Path) -> None:
    film = film_of(answered(tmp_path, named(None, "Müller".encode(LATIN), BodyPartExamined=b"HIP ")))

    assert (film.reason, film.notes) == (Reason.NOT_CHEST, LEFT_OUT)
    assert wording.NOTES[Note.TEXT_LEFT_OUT] in wording.not_processed(film)


def test_one_setting_decodes_names_everywhere_in_a_round(tmp_path: Path) -> None:
    bench = Bench(tmp_path, character_set="GB18030")
    film = films.thumbnail()
    bench.receive(films.as_written(film, named(None, "王^小明".encode(CHINESE))))

    deliveries = bench.round()

    for kind in ("sr", "gsps"):
        assert [str(dataset.PatientName) for dataset in bench.objects(deliveries, kind)] == ["王^小明"]
    [reading] = bench.spool.readings(STUDY).intact
    assert reading[1]["notes"] == ["text_recoded"]


def test_a_site_may_name_every_defined_term(tmp_path: Path) -> None:
    for term in ("", *TERMS):
        assert load(tmp_path, f'{GOOD}[site]\ncharacter_set = "{term}"\n').site.character_set == term
