"""Which received objects are read, answered or left alone: by their header, and by what their picture shows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.uid import (
    UID,
    DigitalXRayImageStorageForPresentation,
    DigitalXRayImageStorageForProcessing,
    MultiFrameGrayscaleWordSecondaryCaptureImageStorage,
    SecondaryCaptureImageStorage,
)

from models.contract import VIEWS, View, ViewReading
from models.manifest import Ages
from node.commands.explain.film import explain_file
from node.dicom import attributes
from node.dicom.film_header import parse_header
from node.dicom.header_reading import read_header
from node.domain import Film, FilmView, Note, Reason, TaggedView
from node.outputs import wording
from node.prompt_set import PromptSet
from node.read import prompts, routing, view_check
from node.read.decoding import Radiograph
from node.read.film import answer_film
from node.read.model import Reading
from node.read.routing import Action, Decision
from tests.paths import FIXTURES
from tests.support import films
from tests.support.decoded import refusal
from tests.support.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
READ = Decision(action=Action.READ)
READ_AGE_UNKNOWN = Decision(action=Action.READ, notes=(Note.AGE_UNKNOWN,))
READ_AGE_WITHOUT_UNIT = Decision(action=Action.READ, notes=(Note.AGE_WITHOUT_UNIT,))
UNKNOWN = Decision(action=Action.READ, notes=(Note.VIEW_UNKNOWN,))
DISAGREES = Decision(action=Action.READ, notes=(Note.VIEW_DISAGREES,))
NOT_CHEST = Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)
LATERAL = Decision(action=Action.ANSWER, reason=Reason.LATERAL)
WORDS: dict[str, list[str]] = tomllib.loads(FIXTURES.joinpath("header_words.toml").read_text(encoding="utf-8"))


def choose(dataset: Dataset) -> Decision:
    return routing.choose(parse_header(dataset), routing.RULES)


def answer(reason: Reason) -> Decision:
    return Decision(action=Action.ANSWER, reason=reason)


def header(changes: dict[str, object] | None = None) -> Dataset:
    """RG1's attributes with some changed; its pixels are of no interest here."""
    return films.changed(films.rg1(), changes or {})


def coded(value: str, scheme: str = "SCT") -> list[Dataset]:
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, scheme, "as coded"
    return [item]


HEADERS: dict[str, dict[str, object]] = tomllib.loads(FIXTURES.joinpath("headers.toml").read_text(encoding="utf-8"))


def expected_of(name: str) -> Decision:
    decision, note = str(HEADERS[name]["decision"]), HEADERS[name].get("note")
    if decision != "read":
        return answer(Reason(decision))
    return Decision(action=Action.READ, notes=(Note(str(note)),) if note else ())


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_real_files_are_decided(name: str) -> None:
    dataset = Dataset()
    for keyword, value in HEADERS[name].items():
        if keyword[0].isupper():
            setattr(dataset, keyword, value)
    if HEADERS[name]["pixels"]:
        dataset.PixelData = b""

    assert choose(dataset) == expected_of(name)


@pytest.mark.parametrize("name", HEADERS)
def test_real_files_are_routed_as_their_model_headers(name: str) -> None:
    dataset = read_header(films.shared(name))

    assert choose(dataset) == expected_of(name)
    for keyword, value in HEADERS[name].items():
        assert not keyword[0].isupper() or attributes.text(dataset, keyword) == str(value), keyword


@pytest.mark.parametrize("name", films.REFUSED)
def test_every_refused_film_has_its_reason_from_header_or_pixels(name: str) -> None:
    make, reason = films.REFUSED[name]
    film = make()

    decision = choose(film)

    if decision.action is Action.ANSWER:
        assert decision.reason is reason
    else:
        assert decision.action is Action.READ
        assert refusal(film) == reason


def test_objects_that_are_no_images_and_own_ones_are_left_alone() -> None:
    assert choose(films.own_object()) == Decision(action=Action.LEAVE, reason=Reason.OWN_OBJECT)
    for odd in (
        *map(films.non_image, films.NON_IMAGES),
        films.of_class(films.non_image("SR"), UID("1.2.3.4")),
    ):
        assert choose(odd) == Decision(action=Action.LEAVE, reason=Reason.MODALITY)
    assert choose(films.of_class(header(), UID("1.2.3.4"))) == answer(Reason.MODALITY), "it has a size"


@pytest.mark.parametrize(
    ("storage_class", "changes", "expected"),
    [
        (DigitalXRayImageStorageForPresentation, {"Modality": "DX"}, READ),
        (DigitalXRayImageStorageForPresentation, {"Modality": ""}, READ),
        (DigitalXRayImageStorageForPresentation, {"Modality": "PX"}, answer(Reason.MODALITY)),
        (DigitalXRayImageStorageForProcessing, {"Modality": "DX"}, answer(Reason.FOR_PROCESSING)),
        (SecondaryCaptureImageStorage, {}, READ),
        (SecondaryCaptureImageStorage, {"Modality": "RG", "ConversionType": "DF"}, READ),
        *(
            (SecondaryCaptureImageStorage, {"Modality": "CR", "ConversionType": drawn}, answer(Reason.MODALITY))
            for drawn in ("SD", "DRW", "SYN")
        ),
        (SecondaryCaptureImageStorage, {"Modality": None}, READ),
        (SecondaryCaptureImageStorage, {"Modality": None, "BodyPartExamined": "HIP"}, answer(Reason.MODALITY)),
        (SecondaryCaptureImageStorage, {"Modality": "OT"}, answer(Reason.MODALITY)),
        (MultiFrameGrayscaleWordSecondaryCaptureImageStorage, {"NumberOfFrames": 1}, READ),
        (MultiFrameGrayscaleWordSecondaryCaptureImageStorage, {"NumberOfFrames": 2}, answer(Reason.MODALITY)),
    ],
)
def test_storage_class_and_modality_together_say_what_is_a_film(
    storage_class: UID, changes: dict[str, object], expected: Decision
) -> None:
    assert choose(films.of_class(header(changes), storage_class)) == expected


SPECIES, TWO, IMAGE_TYPE = (
    answer(Reason.SPECIES),
    Decision(action=Action.READ, notes=(Note.TWO_VIEWS,)),
    Decision(action=Action.READ, notes=(Note.IMAGE_TYPE,)),
)
SLANTED = (
    *("399067008", "399173006", "399198007", "399352003", "399260004", "30730003", "399182000", "399184004"),
    *("399236003", "399135007", "399006002", "399356000", "399038007", "260427002", "260426006", "399312000"),
    *("399059000", "399160007"),
)
PEOPLE = (
    *("Human", "HOMO SAPIENS", "Mensch", "humain", "ヒト", "", "UNKNOWN", "n/a", "Homo sapiens (organism)"),
    *("unspecified", "NOT SPECIFIED", "Man", "Adult", "Male", "Patient", "H", "Default", "Human, non-pregnant"),
    *("Мужчина", "M\N{REPLACEMENT CHARACTER}nniska"),
)
ANIMALS = (
    *("Canine", "FELINE", "non-human primate", "Hund", "馬", "Canis lupus familiaris", "Cat, domestic"),
    *("Macaca mulatta", "Genus Mus", "non-human", "BOVINE/ADULT", "Kaninchen"),
    *("Dog", "CAT", "Horse", "Ferret", "Rattus norvegicus", "Sus scrofa", "Katze", "chien", "chat", "perro", "gato"),
    *("cane", "gatto", "hond", "paard", "собака", "köpek", "犬", "고양이"),
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({"BodyPartExamined": part, "StudyDescription": ""}, UNKNOWN) for part in (None, "", "UNKNOWN")),
        *(({"ViewPosition": view}, UNKNOWN) for view in (None, "", "ERECT", "LLD", "RLD", "LEFT LATERAL DECUBITUS")),
        *(
            ({"ViewPosition": "", "ViewCodeSequence": coded(code)}, READ)
            for code in ("399033003", "272479007", "399348003")
        ),
        # one attribute that says lateral or oblique is enough
        *(({"ViewPosition": view}, LATERAL) for view in ("LL", "RL", "LATERAL", "LLO", "RAO")),
        *(
            ({"ViewCodeSequence": coded(*code)}, LATERAL)
            for code in (*((code,) for code in SLANTED), ("R-10232", "SRT"))
        ),
        *(
            ({"BodyPartExamined": "", "StudyDescription": "", "AnatomicRegionSequence": coded(code)}, READ)
            for code in ("816094009", "51185008", "39607008")
        ),
        *(({"PatientOrientation": axes}, LATERAL) for axes in (["A", "F"], ["P", "F"], ["F", "A"])),
        ({"BodyPartExamined": "CHEST LAT"}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "Thorax lat."}, LATERAL),
        (
            {"ViewPosition": "AP", "ProtocolName": "Chest lateral"},
            READ,
        ),  # modalities keep the one that was chosen first
        ({"ViewPosition": "PA", "SeriesDescription": "Thorax LAT"}, TWO),
        ({"ViewPosition": "", "ViewCodeSequence": coded("399348003"), "SeriesDescription": "CHEST LAT"}, TWO),
        # what is no plain film
        ({"ImageType": ["DERIVED", "PRIMARY", "BONE"]}, IMAGE_TYPE),
        ({"ImageType": ["DERIVED", "PRIMARY", "", "SUBTRACTION"]}, IMAGE_TYPE),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "TOMO"]}, IMAGE_TYPE),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]}, IMAGE_TYPE),
        ({"ImageType": ["ORIGINAL", "PRIMARY", "", "", "BONE"]}, READ),
        ({"ImageType": ["DERIVED", "PRIMARY", "POST_PROCESSED", "", "100000"]}, READ),
        ({"ImageType": ["DERIVED", "PRIMARY", "RT", "STANDARD"]}, READ),
        ({"ImageType": ["ORIGINAL", "PRIMARY"]}, READ),
        ({"ImageType": None}, READ),
        *(
            ({"SeriesDescription": text, "ProtocolName": text}, READ)
            for text in ("Thorax BONE enhanced", "TOMO off", "Chest localizer", "subtraction none")
        ),
        # people, however their species is named, and animals
        *(({"PatientSpeciesDescription": word}, READ) for word in PEOPLE),
        *(
            ({"PatientSpeciesCodeSequence": coded(*code)}, READ)
            for code in (("337915000",), ("L-85B00", "SRT"), ("", ""), ("HUM", "99LOCAL"))
        ),
        ({"PatientSpeciesCodeSequence": coded("337915000"), "PatientSpeciesDescription": "Adult"}, READ),
        ({"PatientSpeciesCodeSequence": coded("261665006")}, READ),  # unknown
        *(({"PatientSpeciesDescription": word}, SPECIES) for word in ANIMALS),
        *(({"PatientSpeciesCodeSequence": coded(*code)}, SPECIES) for code in (("448771007",), ("L-80700", "SRT"))),
        ({"PatientSpeciesCodeSequence": coded("448771007"), "PatientSpeciesDescription": "Human"}, SPECIES),
    ],
)
def test_every_attribute_of_a_header_is_decided_so(changes: dict[str, object], expected: Decision) -> None:
    assert choose(header(changes)) == expected


KEYWORDS = [
    "SOPClassUID", "Modality", "BodyPartExamined", "ViewPosition", "PatientOrientation", "PhotometricInterpretation",
    "SeriesDescription", "ProtocolName", "ConversionType", "PresentationIntentType",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYWORDS), st.text(max_size=20), max_size=4))
def test_any_header_gets_a_decision_with_a_reason(texts: dict[str, str]) -> None:
    film = Dataset()
    film.SOPClassUID, film.Modality, film.Rows, film.Columns = DigitalXRayImageStorageForPresentation, "DX", 512, 512
    film.PixelData = b""
    films.changed(film, texts)

    decision = choose(film)

    assert (decision.action is Action.READ) == (decision.reason is None)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"PatientAge": "018Y"}, READ),
        ({"PatientAge": "216M"}, READ),
        ({"PatientAge": "065Y"}, READ),
        ({"PatientAge": "017Y"}, answer(Reason.AGE)),
        ({"PatientAge": "215M"}, answer(Reason.AGE)),
        ({"PatientAge": "066Y"}, answer(Reason.AGE)),
        ({"PatientAge": None, "PatientBirthDate": "19860826"}, READ),
        ({"PatientAge": None, "PatientBirthDate": "19860827"}, answer(Reason.AGE)),
        ({"PatientAge": "040Y", "PatientBirthDate": "20040101"}, answer(Reason.AGE)),
        ({"PatientAge": "40", "PatientBirthDate": "soon"}, READ_AGE_WITHOUT_UNIT),
        ({"PatientAge": "forty", "PatientBirthDate": "soon"}, READ_AGE_UNKNOWN),
        ({"PatientAge": None, "PatientBirthDate": "20990101"}, READ_AGE_UNKNOWN),
    ],
)
def test_a_film_is_read_if_the_model_is_for_its_age(changes: dict[str, object], expected: Decision) -> None:
    rules = routing.rules_for(Ages(least=18, most=65))
    film = header({"PatientBirthDate": None, "StudyDate": "20040826"} | changes)

    assert routing.choose(parse_header(film), rules) == expected


@pytest.mark.parametrize(
    ("changes", "is_noted"),
    [
        ({"PixelSpacing": [0.1, 0.12]}, True),
        ({"PixelSpacing": None, "ImagerPixelSpacing": [0.1, 0.12]}, True),
        ({"PixelSpacing": [0.1, 0.14]}, False),
        ({"PixelSpacing": [0.12, 0.14], "PatientOrientation": ["F", "L"]}, True),
        ({"PixelSpacing": [0.14, 0.1], "PatientOrientation": ["F", "L"]}, False),
        ({"PixelSpacing": [0, 0]}, False),
        ({"PixelSpacing": None}, False),
        ({"PixelSpacing": [0.1, 0.1], "PatientAge": "040Y"}, None),
    ],
)
def test_a_film_without_an_age_whose_field_is_small_may_be_a_childs(
    changes: dict[str, object], is_noted: bool | None
) -> None:
    film = header({"PatientBirthDate": None, "PatientAge": None, "Rows": 1955, "Columns": 1841} | changes)

    notes = routing.choose(parse_header(film), routing.rules_for(range(18, 130))).notes

    asked = () if is_noted is None else (Note.AGE_UNKNOWN, Note.MAYBE_CHILD) if is_noted else (Note.AGE_UNKNOWN,)
    assert notes == asked
    assert choose(film).notes == ()


def test_no_age_is_asked_for_by_a_model_for_all_ages() -> None:
    child, unknown = header({"PatientAge": "003D"}), header({"PatientAge": None, "PatientBirthDate": None})

    assert (choose(child), choose(unknown)) == (READ, READ)


def header_of_words(**changes: object) -> Dataset:
    """A frontal chest film whose descriptions say nothing."""
    silent = {"StudyDescription": "", "SeriesDescription": "", "ProtocolName": ""}
    return films.thumbnail({**silent, **changes})


@pytest.mark.parametrize(
    ("keyword", "word", "expected"),
    [
        (keyword, word, expected)
        for name, keyword, expected in (
            ("chests", "BodyPartExamined", READ),
            ("other_parts", "BodyPartExamined", NOT_CHEST),
            ("strange", "BodyPartExamined", UNKNOWN),
            ("slanted", "ViewPosition", LATERAL),
            ("frontal", "ViewPosition", READ),
            ("decubitus", "ViewPosition", UNKNOWN),
        )
        for word in WORDS[name]
    ],
)
def test_parts_and_views_are_known_in_many_languages(keyword: str, word: str, expected: Decision) -> None:
    assert choose(header_of_words(**{keyword: word})) == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"BodyPartExamined": "XQZ", "AnatomicRegionSequence": coded("72696002", "SCT")}, NOT_CHEST),
        ({"BodyPartExamined": "", "AnatomicRegionSequence": coded("T-D9200", "SRT")}, NOT_CHEST),
        ({"BodyPartExamined": "", "AnatomicRegionSequence": coded("T-D3000", "SRT")}, READ),
        ({"BodyPartExamined": "XQZ", "AnatomicRegionSequence": coded("816094009", "SCT")}, READ),
        ({"BodyPartExamined": "", "AnatomicRegionSequence": coded("TH", "99SITE")}, UNKNOWN),
        ({"BodyPartExamined": "", "AnatomicRegionSequence": coded("816094009", "99SITE")}, UNKNOWN),
        ({"BodyPartExamined": "THORAX FACE"}, READ),
        ({"BodyPartExamined": "FACE"}, NOT_CHEST),
        ({"BodyPartExamined": "XQZ", "StudyDescription": "Rodilla derecha"}, NOT_CHEST),
        ({"BodyPartExamined": "", "SeriesDescription": "膝関節 正面"}, NOT_CHEST),
        ({"BodyPartExamined": "", "ProtocolName": "Kolano boczne"}, NOT_CHEST),
        ({"BodyPartExamined": "XQZ", "StudyDescription": "胸部"}, UNKNOWN),
        ({"BodyPartExamined": "", "StudyDescription": "main building, walk-in"}, UNKNOWN),
        ({"BodyPartExamined": "", "StudyDescription": "Chest and abdomen"}, UNKNOWN),
        ({"BodyPartExamined": "CHEST", "StudyDescription": "Knie rechts"}, READ),
        ({"ViewPosition": "", "SeriesDescription": "TÓRAX PERFIL"}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "Torace LL"}, LATERAL),
        ({"ViewPosition": "", "ProtocolName": "Thorax seitl."}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "胸部側面"}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "胸部正側位"}, UNKNOWN),
        ({"ViewPosition": "", "SeriesDescription": "thorax face et profil"}, UNKNOWN),
        ({"ViewPosition": "", "SeriesDescription": "CHEST PA AND LATERAL"}, UNKNOWN),
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
    assert choose(header_of_words(**changes)) == expected


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
    film = header_of_words(BodyPartExamined="Q" * len(part), SpecificCharacterSet=sets)
    path = tmp_path / "film.dcm"
    path.write_bytes(films.file_bytes(film).replace(b"Q" * len(part), part))

    assert choose(read_header(path)) == expected


@pytest.mark.parametrize(
    ("keyword", "text", "expected"),
    [
        ("SeriesDescription", "Tórax LAT".encode("iso8859-1"), LATERAL),
        ("SeriesDescription", "胸部 LAT".encode("gb18030"), LATERAL),
        ("ProtocolName", "Tórax LAT".encode("iso8859-1"), LATERAL),
        ("StudyDescription", "Rodilla, niño".encode("iso8859-1"), NOT_CHEST),
        ("PatientSpeciesDescription", "Canine, männlich".encode("iso8859-1"), SPECIES),
    ],
)
def test_words_beside_bytes_that_cannot_be_decoded_still_count(
    keyword: str, text: bytes, expected: Decision, tmp_path: Path
) -> None:
    film = header_of_words(ViewPosition="", BodyPartExamined="")
    path = films.saved(tmp_path, films.as_written(film, {"SpecificCharacterSet": None, keyword: text}))

    assert choose(read_header(path)) == expected


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
    named = header_of_words(StudyDescription="Müller, Knie", SeriesDescription="Thorax seitl. Hans")
    named.SpecificCharacterSet = "ISO_IR 192"
    path = films.saved(tmp_path, named)

    explained = explain_file(path, model=tmp_path / "none")

    shown = {keyword: value for rule in explained.rules for keyword, value in rule.attributes.items()}
    assert shown["StudyDescription"] == "text with KNIE"
    assert shown["SeriesDescription"] == "text with SEITL, THORAX"


def picture(*, mirrored: bool = False, rotated: bool = False, **probabilities: float) -> ViewReading:
    return seeing(probabilities, mirrored=mirrored, rotated=rotated)


def seeing(probabilities: Mapping[str, float], *, mirrored: bool = False, rotated: bool = False) -> ViewReading:
    shares = {view: probabilities.get(view, 0.0) for view in VIEWS}
    return ViewReading(probabilities=shares, certain=0.9, mirrored=mirrored, rotated=rotated)


class SeeingReader(ScriptedReader):
    """Sees the same view on every film."""

    def __init__(self, view: ViewReading | None) -> None:
        super().__init__()
        self._view = view

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        said = super().read(image, prompts)
        return replace(said, view=self._view)


def answered(folder: Path, view: ViewReading | None, changes: Mapping[str, object] | None = None) -> Film:
    path = films.saved(folder, films.thumbnail(changes))
    film = answer_film(path, SeeingReader(view), PROMPTS).film
    assert film is not None
    return film


@pytest.mark.parametrize(
    ("changes", "tag"),
    [
        ({"ViewPosition": "PA"}, "PA"),
        ({"ViewPosition": "ap"}, "AP"),
        ({"ViewPosition": "", "ViewCodeSequence": coded("399348003")}, "AP"),
        ({"ViewPosition": "FRONTAL"}, "frontal"),
        ({"ViewPosition": "AP PA"}, "frontal"),
        ({"ViewPosition": "LLD"}, "frontal"),
        ({"ViewPosition": "LL"}, "lateral"),
        ({"ViewPosition": "PERFIL"}, "lateral"),
        ({"ViewPosition": "FACE"}, "frontal"),
        ({"ViewPosition": "后前位", "SpecificCharacterSet": "ISO_IR 192"}, "PA"),
        ({"ViewPosition": "XQZ"}, None),
        ({"ViewPosition": ""}, None),
        ({"ViewPosition": "", "SeriesDescription": "CHEST PA"}, None),
    ],
)
def test_the_tag_is_the_view_that_the_header_names(changes: dict[str, object], tag: str | None) -> None:
    assert view_check.tag_of(parse_header(films.changed(films.rg1(), changes))) == tag


@pytest.mark.parametrize(
    ("tag", "seen", "expected"),
    [
        ("PA", picture(AP=1.0), READ),
        ("AP", picture(PA=1.0), READ),
        ("PA", picture(lateral=0.6, PA=0.4), DISAGREES),
        ("frontal", picture(AP=0.5, PA=0.5), READ),
        ("frontal", picture(lateral=0.3, not_chest=0.3, AP=0.4), DISAGREES),
        ("AP", picture(AP=1.0, rotated=True), Decision(action=Action.READ, notes=(Note.ROTATED,))),
        (None, None, READ),
        (None, picture(PA=1.0, mirrored=True), Decision(action=Action.READ, notes=(Note.MIRRORED,))),
        (None, picture(lateral=0.4, AP=0.3, PA=0.3), READ),
        (None, picture(lateral=0.6, AP=0.4), LATERAL),
        (None, picture(not_chest=0.95), NOT_CHEST),
        (None, picture(lateral=0.5, not_chest=0.4, AP=0.1), LATERAL),
        (None, picture(lateral=0.3, not_chest=0.65, AP=0.05), NOT_CHEST),
        (None, picture(lateral=0.2, not_chest=0.25, AP=0.55), READ),
    ],
)
def test_a_picture_confirms_doubts_or_stops(
    tag: TaggedView | None, seen: ViewReading | None, expected: Decision
) -> None:
    assert view_check.confirm(READ, tag, seen, names_chest=True) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (picture(not_chest=0.95, PA=0.05), NOT_CHEST),
        (picture(lateral=0.4, not_chest=0.5, PA=0.1), NOT_CHEST),
        (picture(lateral=0.5, not_chest=0.4, PA=0.1), LATERAL),
        (picture(lateral=0.4, not_chest=0.4, PA=0.2), DISAGREES),
    ],
)
def test_a_certain_picture_stops_a_film_of_no_named_part(seen: ViewReading, expected: Decision) -> None:
    assert view_check.confirm(READ, "PA", seen, names_chest=False) == expected


def test_notes_of_the_header_stay() -> None:
    decision = Decision(action=Action.READ, notes=(Note.AGE_UNKNOWN,))

    assert view_check.confirm(decision, None, picture(lateral=1.0), names_chest=True).notes == (Note.AGE_UNKNOWN,)
    assert view_check.confirm(decision, "PA", picture(PA=1.0, rotated=True), names_chest=True).notes == (
        Note.AGE_UNKNOWN,
        Note.ROTATED,
    )


@pytest.mark.parametrize(("view", "reason"), [("lateral", Reason.LATERAL), ("not_chest", Reason.NOT_CHEST)])
def test_a_certain_picture_stops_a_film_without_a_view(tmp_path: Path, view: View, reason: Reason) -> None:
    seen = seeing({view: 0.97, "PA": 0.03})

    film = answered(tmp_path, seen, {"ViewPosition": ""})
    named = answered(tmp_path, seen, {"ViewPosition": "PA"})

    assert (film.reason, film.view) == (reason, FilmView(tag=None, seen=view, certainty=0.97))
    assert "its picture" in wording.not_processed(film)
    assert (named.is_read, named.notes) == (True, (Note.VIEW_DISAGREES,))


def test_a_reason_by_the_header_does_not_speak_of_the_picture(tmp_path: Path) -> None:
    film = answered(tmp_path, picture(lateral=1.0), {"ViewPosition": "LL"})

    assert (film.reason, film.view) == (Reason.LATERAL, FilmView(tag="lateral"))
    assert "picture" not in wording.not_processed(film)


def test_a_model_without_a_view_head_leaves_it_to_the_header(tmp_path: Path) -> None:
    film = answered(tmp_path, None, {"ViewPosition": ""})

    assert (film.notes, film.view) == ((Note.VIEW_UNKNOWN,), FilmView())


def test_a_mirrored_film_keeps_its_boxes(tmp_path: Path) -> None:
    plain, mirrored = (answered(tmp_path, picture(PA=1.0, mirrored=flag)) for flag in (False, True))

    assert [finding.boxes[0].box for finding in mirrored.findings if finding.boxes] == [
        finding.boxes[0].box for finding in plain.findings if finding.boxes
    ]
