"""Body parts and views in other languages and spellings: what is read, what is answered, what the picture decides."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from node.commands.explain.film import explain_file
from node.dicom import header_reading
from node.dicom.film_header import parse_header
from node.domain import Note, Reason
from node.read import routing, views
from node.read.routing import Action, Decision
from tests.node.read.test_view_routing import answered, seeing
from tests.paths import FIXTURES
from tests.support import films

READ = Decision(action=Action.READ)
UNKNOWN = Decision(action=Action.READ, notes=(Note.VIEW_UNKNOWN,))
NOT_CHEST = Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)
LATERAL = Decision(action=Action.ANSWER, reason=Reason.LATERAL)

WORDS: dict[str, list[str]] = tomllib.loads(FIXTURES.joinpath("header_words.toml").read_text(encoding="utf-8"))


def choose(**changes: object) -> Decision:
    return routing.choose(parse_header(header(**changes)), routing.RULES)


def header(**changes: object) -> Dataset:
    """A frontal chest film whose descriptions say nothing."""
    silent = {"StudyDescription": "", "SeriesDescription": "", "ProtocolName": ""}
    return films.thumbnail({**silent, **changes})


def coded(value: str, scheme: str) -> list[Dataset]:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, "as coded"
    return [item]


@pytest.mark.parametrize("part", WORDS["chests"])
def test_the_chest_is_known_in_many_languages(part: str) -> None:
    assert choose(BodyPartExamined=part) == READ


@pytest.mark.parametrize("part", WORDS["other_parts"])
def test_other_parts_are_known_in_many_languages(part: str) -> None:
    assert choose(BodyPartExamined=part) == NOT_CHEST


@pytest.mark.parametrize("part", WORDS["strange"])
def test_an_unknown_word_is_an_unknown_part(part: str) -> None:
    assert choose(BodyPartExamined=part) == UNKNOWN


@pytest.mark.parametrize("view", WORDS["slanted"])
def test_a_lateral_or_oblique_view_is_known(view: str) -> None:
    assert choose(ViewPosition=view) == LATERAL


@pytest.mark.parametrize("view", WORDS["frontal"])
def test_a_frontal_view_is_known(view: str) -> None:
    assert choose(ViewPosition=view) == READ


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"BodyPartExamined": "XQZ", "AnatomicRegionSequence": coded("72696002", "SCT")}, NOT_CHEST),
        ({"BodyPartExamined": "", "AnatomicRegionSequence": coded("T-D9200", "SRT")}, NOT_CHEST),
        ({"BodyPartExamined": "XQZ", "AnatomicRegionSequence": coded("816094009", "SCT")}, READ),
        ({"BodyPartExamined": "", "AnatomicRegionSequence": coded("TH", "99SITE")}, UNKNOWN),
        ({"BodyPartExamined": "", "AnatomicRegionSequence": coded("816094009", "99SITE")}, UNKNOWN),
        ({"BodyPartExamined": "XQZ", "StudyDescription": "Rodilla derecha"}, NOT_CHEST),
        ({"BodyPartExamined": "", "SeriesDescription": "膝関節 正面"}, NOT_CHEST),
        ({"BodyPartExamined": "", "ProtocolName": "Kolano boczne"}, NOT_CHEST),
        ({"BodyPartExamined": "XQZ", "StudyDescription": "胸部"}, UNKNOWN),
        ({"BodyPartExamined": "", "StudyDescription": "main building, walk-in"}, UNKNOWN),
        ({"BodyPartExamined": "CHEST", "StudyDescription": "Knie rechts"}, READ),
        ({"ViewPosition": "", "SeriesDescription": "TÓRAX PERFIL"}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "Torace LL"}, LATERAL),
        ({"ViewPosition": "", "ProtocolName": "Thorax seitl."}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "胸部側面"}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "胸部正側位"}, UNKNOWN),
        ({"ViewPosition": "", "SeriesDescription": "thorax face et profil"}, UNKNOWN),
        ({"ViewPosition": "", "SeriesDescription": "5 ll"}, UNKNOWN),
        ({"ViewPosition": "", "BodyPartExamined": "TORACE LL"}, LATERAL),
        ({"ViewPosition": "", "BodyPartExamined": "CHESTLAT"}, LATERAL),
        ({"ViewPosition": "", "BodyPartExamined": "CHESTPA"}, READ),
        ({"ViewPosition": "", "ViewCodeSequence": coded("LL", "99SITE")}, UNKNOWN),
        ({"ViewPosition": "XQZ"}, UNKNOWN),
        ({"ViewPosition": "Decúbito lateral"}, UNKNOWN),
        ({"ViewPosition": "左侧卧位"}, UNKNOWN),
    ],
)
def test_every_attribute_of_part_and_view_is_read_so(changes: dict[str, object], expected: Decision) -> None:
    assert choose(**changes) == expected


@pytest.mark.parametrize(
    ("part", "sets", "expected"),
    [
        ("TÓRAX".encode(), None, READ),
        ("TÓRAX".encode(), "ISO_IR 100", READ),
        ("TÓRAX".encode("iso8859-1"), None, READ),
        ("TÓRAX".encode("iso8859-1"), "ISO_IR 192", READ),
        ("грудная клетка".encode("iso8859-5"), "ISO_IR 144", READ),
        ("колено".encode("iso8859-5"), "ISO_IR 144", NOT_CHEST),
        ("胸部".encode("gb18030"), "GB18030", READ),
        ("胸部".encode("gb18030"), None, UNKNOWN),
        (b"\xff\xfe\x00C", "ISO_IR 192", UNKNOWN),
        (b"CHEST\x00", None, READ),
        ("GÖĞÜS".encode("iso8859-9"), "ISO_IR 148", READ),
    ],
)
def test_a_body_part_is_read_in_the_set_of_its_bytes(
    part: bytes, sets: str | None, expected: Decision, tmp_path: Path
) -> None:
    film = header(BodyPartExamined="Q" * len(part), SpecificCharacterSet=sets)
    path = tmp_path / "film.dcm"
    path.write_bytes(films.file_bytes(film).replace(b"Q" * len(part), part))

    assert routing.choose(parse_header(header_reading.read_header(path)), routing.RULES) == expected


@pytest.mark.parametrize(
    ("part", "certain", "expected"),
    [
        ("XQZ", {"not_chest": 0.97}, NOT_CHEST.reason),
        ("", {"not_chest": 0.97}, NOT_CHEST.reason),
        ("XQZ", {"not_chest": 0.5, "PA": 0.5}, None),
        ("XQZ", {"lateral": 0.97}, LATERAL.reason),
        ("XQZ", {"lateral": 0.5, "not_chest": 0.47}, LATERAL.reason),
        ("Brust", {"not_chest": 0.97}, None),
    ],
)
def test_the_picture_decides_where_the_part_is_unknown(
    tmp_path: Path, part: str, certain: dict[str, float], expected: Reason | None
) -> None:
    silent = {"ViewPosition": "PA", "StudyDescription": ""}

    film = answered(tmp_path, seeing(certain), {**silent, "BodyPartExamined": part})

    assert film.reason == expected
    assert (Note.VIEW_UNKNOWN in film.notes) == (part != "Brust")


def test_explain_shows_the_words_that_count_alone(tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    named = header(StudyDescription="Müller, Knie", SeriesDescription="Thorax seitl. Hans")
    named.SpecificCharacterSet = "ISO_IR 192"
    path.write_bytes(films.file_bytes(named))

    explained = explain_file(path, model=tmp_path / "none")

    shown = {keyword: value for rule in explained.rules for keyword, value in rule.attributes.items()}
    assert shown["StudyDescription"] == "text with KNIE"
    assert shown["SeriesDescription"] == "text with SEITL, THORAX"


def test_the_tag_follows_the_words_of_other_languages() -> None:
    tags = {view: views.tag_of(parse_header(header(ViewPosition=view))) for view in ("后前位", "PERFIL", "FACE", "XQZ")}

    assert tags == {"后前位": "PA", "PERFIL": "lateral", "FACE": "frontal", "XQZ": None}
