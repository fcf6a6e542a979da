"""Texts in missing, misspelled and untrue character sets: read as a person would, or left empty with a note."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset

from node.character_sets import TERMS
from node.dicom import attributes, film_text
from node.dicom.film_text import DecodedText
from node.domain import Film, Note, Reason
from node.outputs import oru, report_txt, wording
from node.outputs.document import save_bytes
from node.outputs.patient import read_text
from node.outputs.writers import write_objects
from node.read import prompts
from node.read.film import Answered, answer_film
from tests.node.jobs.test_rounds import STUDY, Bench
from tests.node.test_config import GOOD, load
from tests.support import films, samples
from tests.support.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
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


def outputs(answer: Answered) -> Iterator[Dataset]:
    """Every object about a film, read back from its bytes."""
    film, header = film_of(answer), answer.dataset
    picture = np.zeros((film.rows or 64, film.columns or 64), np.uint8)
    source = {film.source: samples.source(header, lambda: picture)}
    for made in write_objects(samples.report(film), source, zone=samples.BERLIN, kinds=("sr", "text", "gsps", "sc")):
        yield dcmread(BytesIO(save_bytes(made.dataset)))


def message(answer: Answered) -> str:
    film = film_of(answer)
    content = oru.write(samples.report(film), {film.source: answer.dataset}, samples.BERLIN, order=None, documents=[])[
        1
    ]
    return content.decode()


@pytest.mark.parametrize(
    ("declared", "name", "site", "seen", "notes"),
    [
        # missing
        (None, "Müller^Jörg".encode(UTF), "", "Müller^Jörg", RECODED),
        (None, "王^小明".encode(UTF), "", "王^小明", RECODED),
        (None, "王^小明".encode(CHINESE), "", "", LEFT_OUT),
        (None, "王^小明".encode(CHINESE), "GB18030", "王^小明", RECODED),
        (None, "Müller^Jörg".encode(LATIN), "", "", LEFT_OUT),
        (None, "Müller^Jörg".encode(LATIN), "ISO_IR 100", "Müller^Jörg", RECODED),
        (None, "김^철수".encode("euc_kr"), "ISO 2022 IR 149", "김^철수", RECODED),
        (None, b"Yamada^Tarou=\x1b$B;3ED\x1b(B^\x1b$BB@O:\x1b(B", "", "Yamada^Tarou=山田^太郎", RECODED),
        (None, b"Smith^John", "GB18030", "Smith^John", ()),
        (b"", "Müller".encode(UTF), "", "Müller", RECODED),
        # untrue
        (b"ISO_IR 100", "Müller^Jörg".encode(UTF), "", "Müller^Jörg", RECODED),
        (b"ISO_IR 100", "Łukasz".encode(UTF), "", "Łukasz", RECODED),
        (b"ISO_IR 100", "王^小明".encode(UTF), "", "王^小明", RECODED),
        (b"ISO_IR 144", "Иванов^Иван".encode(UTF), "", "Иванов^Иван", RECODED),
        (b"ISO_IR 13", "山田^太郎".encode(UTF), "", "山田^太郎", RECODED),
        (b"GB18030", "王^小明".encode(UTF), "", "王^小明", RECODED),
        (b"ISO 2022 IR 6\\ISO 2022 IR 149", "김^희중".encode(UTF), "", "김^희중", RECODED),
        (b"ISO_IR 192", "Müller".encode(LATIN), "", "", LEFT_OUT),
        (b"ISO_IR 192", "Müller".encode(LATIN), "ISO_IR 100", "Müller", RECODED),
        (b"KLINGON", "Müller".encode(UTF), "", "Müller", RECODED),
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
        (b"\\ISO 2022 IR 149", "김^희중".encode("euc_kr"), "", "김^희중", ()),  # without its escape sequence
        (b"\\ISO 2022 IR 100", b"Buc^J\x1b-A\xe9r\xf4me", "", "Buc^Jérôme", ()),
        # no text, in whatever set
        (b"ISO_IR 192", b"M\xef\xbf\xbdller", "", "", LEFT_OUT),
        (b"ISO_IR 100", b"M\xef\xbf\xbdller", "ISO_IR 100", "", LEFT_OUT),
        (b"ISO_IR 100", b"O\x92Brien", "", "", LEFT_OUT),
        (b"ISO_IR 192", b"O\xc2\x92Brien", "ISO_IR 100", "", LEFT_OUT),
        (b"ISO_IR 100", b"A\x1b$XB", "", "", LEFT_OUT),
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
        ("109", b"-C", "iso8859-3", "Ċikku"),
        ("110", b"-D", "iso8859-4", "Ķēniņš"),
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
        ("BIG5", "big5", "王小明"),
        ("EUC-JP", "euc_jp", "山田"),
        ("KOI8-R, KOI8R", "koi8-r", "Иванов"),
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


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize(
    ("values", "site"),
    [
        (named(None, "王^小明".encode(UTF)), ""),
        (named(b"ISO_IR 100", "Müller".encode(UTF), PatientID="Ä-1".encode(UTF)), ""),
        (named(None, "Müller".encode(LATIN), StudyDescription="Röntgen Thorax".encode(LATIN)), ""),
        (named(None, "王^小明".encode(CHINESE), ReferringPhysicianName="李^四".encode(CHINESE)), "GB18030"),
        (named(b"ISO_IR 192", b"A\xef\xbf\xbdB", AccessionNumber=b"\xef\xbf\xbd7"), "ISO_IR 100"),
    ],
)
def test_no_replacement_character_leaves_in_any_output(
    tmp_path: Path, values: Mapping[str, bytes | None], site: str
) -> None:
    answer = answered(tmp_path, values, site=site)
    names = {str(dataset.PatientName) for dataset in outputs(answer)}

    said = message(answer)

    assert names == {read_text(answer.dataset, "PatientName")}
    texts = [said, report_txt.render(samples.report(film_of(answer))), *(str(dataset) for dataset in outputs(answer))]
    assert not [text for text in texts for sign in text if sign == "\ufffd" or "\x80" <= sign <= "\x9f"]
    assert wording.NOTES[film_of(answer).notes[0]] in wording.limits(film_of(answer))
    assert "Note: text of its header" in said or "could not be decoded" in said


TEXTS = sorted(keyword for keyword in film_text.COPIED if dictionary_VR(keyword) in ("LO", "PN", "SH"))


@pytest.mark.parametrize("keyword", [keyword for keyword in TEXTS if keyword != "CodeMeaning"])
def test_every_copied_text_gets_the_note_and_no_other(tmp_path: Path, keyword: str) -> None:
    values = {"SpecificCharacterSet": None, keyword: "Ö-17".encode(LATIN)}

    assert film_of(answered(tmp_path, values)).notes == LEFT_OUT
    assert film_of(answered(tmp_path, {**values, keyword: "Ö-17".encode(UTF)})).notes == RECODED
    not_copied = {"InstitutionName": "Spital Köniz".encode(LATIN), "PatientSex": "女".encode(UTF)}
    assert film_of(answered(tmp_path, {"SpecificCharacterSet": None, **not_copied})).notes == ()


def test_texts_of_the_request_are_decoded_too(tmp_path: Path) -> None:
    request = films.as_written(Dataset(), {"RequestedProcedureDescription": "Thorax für Köniz".encode(UTF)})
    film = films.thumbnail({"RequestAttributesSequence": [request]})
    path = films.saved(tmp_path, films.as_written(film, {"SpecificCharacterSet": b"ISO_IR 100"}))

    answer = answer_film(path, ScriptedReader(), PROMPTS)

    report = next(outputs(answer))
    assert report.ReferencedRequestSequence[0].RequestedProcedureDescription == "Thorax für Köniz"
    assert film_of(answer).notes == RECODED


@pytest.mark.parametrize(("declared", "own"), [(b"8859-1", None), (b"ISO_IR 192", b"ISO_IR 100")])
def test_an_item_has_its_own_set_or_else_that_of_its_parent(declared: bytes, own: bytes | None) -> None:
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
