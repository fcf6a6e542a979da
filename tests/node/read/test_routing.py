"""Which received objects are read, answered or left alone: by their header, and by what their picture shows."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydicom.dataset import Dataset
from pydicom.uid import (
    UID,
    DigitalXRayImageStorageForPresentation,
    DigitalXRayImageStorageForProcessing,
    MultiFrameGrayscaleWordSecondaryCaptureImageStorage,
    SecondaryCaptureImageStorage,
)

from models.contract import VIEWS, ViewReading
from models.manifest import Ages
from node.cardiothoracic_ratio import View
from node.dicom import attributes
from node.dicom.film_header import parse_header
from node.dicom.header_reading import read_header
from node.domain import Film, Note, Reason, TaggedView
from node.outputs import wording
from node.prompt_set import PromptSet
from node.read import prompts, routing, view_check
from node.read.decoding import Radiograph
from node.read.film import answer_film
from node.read.model import Reading
from node.read.routing import Action, Decision
from tests.paths import FIXTURES
from tests.support import films
from tests.support.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")
READ = Decision(action=Action.READ)
UNKNOWN = Decision(action=Action.READ, notes=(Note.VIEW_UNKNOWN,))
DISAGREES = Decision(action=Action.READ, notes=(Note.VIEW_DISAGREES,))
NOT_CHEST = Decision(action=Action.ANSWER, reason=Reason.NOT_CHEST)
LATERAL = Decision(action=Action.ANSWER, reason=Reason.LATERAL)
WORDS: dict[str, list[str]] = tomllib.loads(FIXTURES.joinpath("header_words.toml").read_text(encoding="utf-8"))


def choose(dataset: Dataset) -> Decision:
    return routing.choose(parse_header(dataset), routing.RULES)


def answer(reason: Reason) -> Decision:
    return Decision(action=Action.ANSWER, reason=reason)


def read_with(note: Note) -> Decision:
    return Decision(action=Action.READ, notes=(note,))


def header(changes: Mapping[str, object] | None = None) -> Dataset:
    """A frontal chest film whose descriptions say nothing, with some attributes changed."""
    silent = {"StudyDescription": "", "SeriesDescription": "", "ProtocolName": ""}
    return films.thumbnail({**silent, **(changes or {})})


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


def test_objects_that_are_no_images_and_own_ones_are_left_alone() -> None:
    assert choose(films.own_object()) == Decision(action=Action.LEAVE, reason=Reason.OWN_OBJECT)
    for odd in (*map(films.non_image, films.NON_IMAGES), films.of_class(films.non_image("SR"), UID("1.2.3.4"))):
        assert choose(odd) == Decision(action=Action.LEAVE, reason=Reason.MODALITY)


OTHER, SPECIES = answer(Reason.MODALITY), answer(Reason.SPECIES)
TWO, IMAGE_TYPE = read_with(Note.TWO_VIEWS), read_with(Note.IMAGE_TYPE)
FOR_PRESENTATION, FOR_PROCESSING = DigitalXRayImageStorageForPresentation, DigitalXRayImageStorageForProcessing
CAPTURE, FRAMES = SecondaryCaptureImageStorage, MultiFrameGrayscaleWordSecondaryCaptureImageStorage
CHESTS = ("816094009", "51185008", "39607008")
CODES_OF_PEOPLE = [("337915000",), ("L-85B00", "SRT"), ("", ""), ("HUM", "99LOCAL")]
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
        # storage class and modality together say what is a film
        ({"SOPClassUID": FOR_PRESENTATION, "Modality": "DX"}, READ),
        ({"SOPClassUID": FOR_PRESENTATION, "Modality": ""}, READ),
        ({"SOPClassUID": FOR_PRESENTATION, "Modality": "PX"}, OTHER),
        ({"SOPClassUID": FOR_PROCESSING, "Modality": "DX"}, answer(Reason.FOR_PROCESSING)),
        ({"SOPClassUID": CAPTURE}, READ),
        ({"SOPClassUID": CAPTURE, "Modality": "RG", "ConversionType": "DF"}, READ),
        *(({"SOPClassUID": CAPTURE, "Modality": "CR", "ConversionType": way}, OTHER) for way in ("SD", "DRW", "SYN")),
        ({"SOPClassUID": CAPTURE, "Modality": None}, READ),
        ({"SOPClassUID": CAPTURE, "Modality": None, "BodyPartExamined": "HIP"}, OTHER),
        ({"SOPClassUID": CAPTURE, "Modality": "OT"}, OTHER),
        ({"SOPClassUID": FRAMES, "NumberOfFrames": 1}, READ),
        ({"SOPClassUID": FRAMES, "NumberOfFrames": 2}, OTHER),
        ({"SOPClassUID": "1.2.3.4"}, OTHER),  # it has a size
        *(({"BodyPartExamined": part}, UNKNOWN) for part in (None, "", "UNKNOWN")),
        *(({"ViewPosition": view}, UNKNOWN) for view in (None, "", "ERECT", "LLD", "RLD", "LEFT LATERAL DECUBITUS")),
        *(({"ViewPosition": "", "ViewCodeSequence": coded(code)}, READ) for code in ("399033003", "399348003")),
        # one attribute that says lateral or oblique is enough
        *(({"ViewPosition": view}, LATERAL) for view in ("LL", "RL", "LATERAL", "LLO", "RAO")),
        *(({"ViewCodeSequence": coded(code)}, LATERAL) for code in SLANTED),
        ({"ViewCodeSequence": coded("R-10232", "SRT")}, LATERAL),
        *(({"BodyPartExamined": "", "AnatomicRegionSequence": coded(code)}, READ) for code in CHESTS),
        *(({"PatientOrientation": axes}, LATERAL) for axes in (["A", "F"], ["P", "F"], ["F", "A"])),
        ({"BodyPartExamined": "CHEST LAT"}, LATERAL),
        ({"ViewPosition": "", "SeriesDescription": "Thorax lat."}, LATERAL),
        # modalities keep the one that was chosen first
        ({"ViewPosition": "AP", "ProtocolName": "Chest lateral"}, READ),
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
        *(({"SeriesDescription": text, "ProtocolName": text}, READ) for text in ("BONE enhanced", "TOMO off")),
        # people, however their species is named, and animals
        *(({"PatientSpeciesDescription": word}, READ) for word in PEOPLE),
        *(({"PatientSpeciesCodeSequence": coded(*code)}, READ) for code in CODES_OF_PEOPLE),
        ({"PatientSpeciesCodeSequence": coded("337915000"), "PatientSpeciesDescription": "Adult"}, READ),
        ({"PatientSpeciesCodeSequence": coded("261665006")}, READ),  # unknown
        *(({"PatientSpeciesDescription": word}, SPECIES) for word in ANIMALS),
        *(({"PatientSpeciesCodeSequence": coded(*code)}, SPECIES) for code in (("448771007",), ("L-80700", "SRT"))),
        ({"PatientSpeciesCodeSequence": coded("448771007"), "PatientSpeciesDescription": "Human"}, SPECIES),
        # words of any language for part and view, and codes
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
        *(({"BodyPartExamined": word}, READ) for word in WORDS["chests"]),
        *(({"BodyPartExamined": word}, NOT_CHEST) for word in WORDS["other_parts"]),
        *(({"BodyPartExamined": word}, UNKNOWN) for word in WORDS["strange"]),
        *(({"ViewPosition": word}, LATERAL) for word in WORDS["slanted"]),
        *(({"ViewPosition": word}, READ) for word in WORDS["frontal"]),
        *(({"ViewPosition": word}, UNKNOWN) for word in WORDS["decubitus"]),
    ],
)
def test_every_attribute_of_a_header_is_decided_so(changes: dict[str, object], expected: Decision) -> None:
    assert choose(header(changes)) == expected


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
        ({"PatientAge": "40", "PatientBirthDate": "soon"}, read_with(Note.AGE_WITHOUT_UNIT)),
        ({"PatientAge": "forty", "PatientBirthDate": "soon"}, read_with(Note.AGE_UNKNOWN)),
        ({"PatientAge": None, "PatientBirthDate": "20990101"}, read_with(Note.AGE_UNKNOWN)),
    ],
)
def test_a_film_is_read_if_the_model_is_for_its_age(changes: dict[str, object], expected: Decision) -> None:
    rules = routing.rules_for(Ages(least=18, most=65))
    film = header({"PatientBirthDate": None, "StudyDate": "20040826"} | changes)

    assert routing.choose(parse_header(film), rules) == expected
    assert choose(film) == READ, "by a model for all ages"


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
def test_a_small_film_without_an_age_may_be_a_childs(changes: dict[str, object], is_noted: bool | None) -> None:
    film = header({"PatientBirthDate": None, "PatientAge": None, "Rows": 1955, "Columns": 1841} | changes)

    notes = routing.choose(parse_header(film), routing.rules_for(range(18, 130))).notes

    asked = () if is_noted is None else (Note.AGE_UNKNOWN, Note.MAYBE_CHILD) if is_noted else (Note.AGE_UNKNOWN,)
    assert notes == asked
    assert choose(film).notes == ()


@pytest.mark.parametrize(
    ("keyword", "text", "sets", "expected"),
    [
        ("BodyPartExamined", "TÓRAX".encode(), None, READ),
        ("BodyPartExamined", "TÓRAX".encode(), b"ISO_IR 100", READ),
        ("BodyPartExamined", "TÓRAX".encode("iso8859-1"), None, READ),
        ("BodyPartExamined", "TÓRAX".encode("iso8859-1"), b"ISO_IR 192", READ),
        ("BodyPartExamined", "грудная клетка".encode("iso8859-5"), b"ISO_IR 144", READ),
        ("BodyPartExamined", "колено".encode("iso8859-5"), b"ISO_IR 144", NOT_CHEST),
        ("BodyPartExamined", "胸部".encode("gb18030"), b"GB18030", READ),
        ("BodyPartExamined", "胸部".encode("gb18030"), None, UNKNOWN),
        ("BodyPartExamined", b"\xff\xfe\x00C", b"ISO_IR 192", UNKNOWN),
        ("BodyPartExamined", b"CHEST\x00", None, READ),
        ("BodyPartExamined", "GÖĞÜS".encode("iso8859-9"), b"ISO_IR 148", READ),
        ("SeriesDescription", "Tórax LAT".encode("iso8859-1"), None, LATERAL),
        ("SeriesDescription", "胸部 LAT".encode("gb18030"), None, LATERAL),
        ("ProtocolName", "Tórax LAT".encode("iso8859-1"), None, LATERAL),
        ("StudyDescription", "Rodilla, niño".encode("iso8859-1"), None, NOT_CHEST),
        ("PatientSpeciesDescription", "Canine, männlich".encode("iso8859-1"), None, SPECIES),
    ],
)
def test_words_are_read_in_the_set_of_their_bytes_and_count_beside_those_that_cannot_be_decoded(
    keyword: str, text: bytes, sets: bytes | None, expected: Decision, tmp_path: Path
) -> None:
    film = header({} if keyword == "BodyPartExamined" else {"ViewPosition": "", "BodyPartExamined": ""})
    path = films.saved(tmp_path, films.as_written(film, {"SpecificCharacterSet": sets, keyword: text}))

    assert choose(read_header(path)) == expected


def picture(*, mirrored: bool = False, rotated: bool = False, **probabilities: float) -> ViewReading:
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
    ("changes", "tag", "projection"),
    [
        ({"ViewPosition": "PA"}, "PA", View.PA),
        ({"ViewPosition": "ap"}, "AP", View.AP),
        ({"ViewPosition": "A.P."}, "AP", View.AP),
        ({"ViewPosition": "", "ViewCodeSequence": coded("272479007")}, "PA", View.PA),
        ({"ViewPosition": "", "ViewCodeSequence": coded("R-10206", "SRT")}, "AP", View.AP),
        ({"ViewPosition": "", "BodyPartExamined": "CHEST PA"}, "PA", View.PA),
        ({"ViewPosition": "AP", "BodyPartExamined": "CHEST PA"}, "frontal", None),
        ({"ViewPosition": "PA", "ViewCodeSequence": coded("399348003")}, "frontal", None),
        ({"ViewPosition": "FRONTAL"}, "frontal", None),
        ({"ViewPosition": "AP PA"}, "frontal", None),
        ({"ViewPosition": "LLD"}, "frontal", None),
        ({"ViewPosition": "AP LLD"}, "frontal", None),
        ({"ViewPosition": "LL"}, "lateral", None),
        ({"ViewPosition": "PERFIL"}, "lateral", None),
        ({"ViewPosition": "FACE"}, "frontal", None),
        ({"ViewPosition": "后前位", "SpecificCharacterSet": "ISO_IR 192"}, "PA", View.PA),
        ({"ViewPosition": "XQZ"}, None, None),
        ({"ViewPosition": ""}, None, None),
        ({"ViewPosition": "", "SeriesDescription": "CHEST PA"}, None, None),
    ],
)
def test_tag_and_projection_of_a_header(changes: dict[str, object], tag: str | None, projection: View | None) -> None:
    named = parse_header(header(changes))

    assert (view_check.tag_of(named), view_check.projection_of(named)) == (tag, projection)


@pytest.mark.parametrize(
    ("tag", "names_chest", "seen", "expected"),
    [
        ("PA", True, picture(AP=1.0), READ),
        ("AP", True, picture(PA=1.0), READ),
        ("PA", True, picture(lateral=0.6, PA=0.4), DISAGREES),
        ("frontal", True, picture(AP=0.5, PA=0.5), READ),
        ("frontal", True, picture(lateral=0.3, not_chest=0.3, AP=0.4), DISAGREES),
        ("AP", True, picture(AP=1.0, rotated=True), read_with(Note.ROTATED)),
        (None, True, None, READ),
        (None, True, picture(PA=1.0, mirrored=True), read_with(Note.MIRRORED)),
        (None, True, picture(lateral=0.4, AP=0.3, PA=0.3), READ),
        (None, True, picture(lateral=0.6, AP=0.4), LATERAL),
        (None, True, picture(not_chest=0.95), NOT_CHEST),
        (None, True, picture(lateral=0.5, not_chest=0.4, AP=0.1), LATERAL),
        (None, True, picture(lateral=0.3, not_chest=0.65, AP=0.05), NOT_CHEST),
        (None, True, picture(lateral=0.2, not_chest=0.25, AP=0.55), READ),
        ("PA", False, picture(not_chest=0.95, PA=0.05), NOT_CHEST),
        ("PA", False, picture(lateral=0.4, not_chest=0.5, PA=0.1), NOT_CHEST),
        ("PA", False, picture(lateral=0.5, not_chest=0.4, PA=0.1), LATERAL),
        ("PA", False, picture(lateral=0.4, not_chest=0.4, PA=0.2), DISAGREES),
    ],
)
def test_a_picture_confirms_doubts_or_stops(
    tag: TaggedView | None, names_chest: bool, seen: ViewReading | None, expected: Decision
) -> None:
    assert view_check.confirm(READ, tag, seen, names_chest=names_chest) == expected

    noted = view_check.confirm(read_with(Note.AGE_UNKNOWN), tag, seen, names_chest=names_chest)
    assert noted == replace(expected, notes=(Note.AGE_UNKNOWN, *expected.notes)), "notes of the header stay"


NO_VIEW, PA, XQZ = {"ViewPosition": ""}, {"ViewPosition": "PA"}, {"ViewPosition": "PA", "BodyPartExamined": "XQZ"}
BRUST = {"ViewPosition": "PA", "BodyPartExamined": "Brust"}
LATERAL_SEEN, OTHER_SEEN = {"lateral": 0.97}, {"not_chest": 0.97}


@pytest.mark.parametrize(
    ("changes", "seen", "reason", "notes", "view"),
    [
        (NO_VIEW, LATERAL_SEEN, Reason.LATERAL, [Note.VIEW_UNKNOWN], (None, "lateral", 0.97)),
        (NO_VIEW, OTHER_SEEN, Reason.NOT_CHEST, [Note.VIEW_UNKNOWN], (None, "not_chest", 0.97)),
        (NO_VIEW, None, None, [Note.VIEW_UNKNOWN], (None, None, None)),
        (PA, LATERAL_SEEN, None, [Note.VIEW_DISAGREES], ("PA", "lateral", 0.97)),
        (BRUST, OTHER_SEEN, None, [Note.VIEW_DISAGREES], ("PA", "not_chest", 0.97)),
        (XQZ, OTHER_SEEN, Reason.NOT_CHEST, [Note.VIEW_UNKNOWN], ("PA", "not_chest", 0.97)),
        (XQZ, {"not_chest": 0.4, "PA": 0.6}, None, [Note.VIEW_UNKNOWN], ("PA", "PA", 0.6)),
        (XQZ, LATERAL_SEEN, Reason.LATERAL, [Note.VIEW_UNKNOWN], ("PA", "lateral", 0.97)),
        (XQZ, {"lateral": 0.5, "not_chest": 0.47}, Reason.LATERAL, [Note.VIEW_UNKNOWN], ("PA", "lateral", 0.5)),
        ({"ViewPosition": "LL"}, {"lateral": 1.0}, Reason.LATERAL, [], ("lateral", None, None)),
    ],
)
def test_a_certain_picture_stops_a_film_without_a_view_or_part_and_is_spoken_of(
    tmp_path: Path,
    changes: dict[str, object],
    seen: dict[str, Any] | None,
    reason: Reason | None,
    notes: list[Note],
    view: tuple[str | None, str | None, float | None],
) -> None:
    film = answered(tmp_path, picture(**seen) if seen else None, {"StudyDescription": "", **changes})

    assert film.view is not None
    assert (film.reason, [*film.notes], (film.view.tag, film.view.seen, film.view.certainty)) == (reason, notes, view)
    if reason is not None:
        assert ("its picture" in wording.not_processed(film)) == (film.view.seen is not None)


def test_a_mirrored_film_keeps_its_boxes(tmp_path: Path) -> None:
    plain, mirrored = (answered(tmp_path, picture(PA=1.0, mirrored=flag)) for flag in (False, True))

    assert [finding.boxes for finding in mirrored.findings] == [finding.boxes for finding in plain.findings]
