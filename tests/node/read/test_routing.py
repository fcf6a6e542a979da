"""Which received objects are read, answered or left alone."""

from __future__ import annotations

import tomllib

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

from node.dicom import attributes
from node.dicom.film_header import parse_header
from node.dicom.header_reading import read_header
from node.domain import Note, Reason
from node.errors import Undecodable
from node.read import routing
from node.read.routing import Action, Decision
from tests.paths import FIXTURES
from tests.support import films
from tests.support.decoded import load

READ = Decision(action=Action.READ)
READ_AGE_UNKNOWN = Decision(action=Action.READ, notes=(Note.AGE_UNKNOWN,))
READ_AGE_WITHOUT_UNIT = Decision(action=Action.READ, notes=(Note.AGE_WITHOUT_UNIT,))
READ_VIEW_UNKNOWN = Decision(action=Action.READ, notes=(Note.VIEW_UNKNOWN,))


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


def test_a_frontal_chest_film_is_read() -> None:
    assert choose(header()) == READ


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


@pytest.mark.parametrize(
    "name",
    [
        "chest/RG1_J2KI.dcm", "chest/RG1_J2KR.dcm", "chest/RG1_JLSN.dcm", "charset/chrJapMultiExplicitIR6.dcm",
        "charset/chrKoreanMulti.dcm", "not_chest/CT2_RLE.dcm", "not_chest/RG2_hip_JPEGlossless.dcm",
    ],
)  # fmt: skip
def test_real_files_in_other_encodings_are_decided_alike(name: str) -> None:
    kind = {"chest": "read", "charset": "no_pixels", "not_chest": "not_chest" if "RG2" in name else "modality"}

    decision = choose(read_header(films.shared(name)))

    assert str(decision.reason or "read") == kind[name.split("/")[0]]


@pytest.mark.parametrize("name", films.REFUSED)
def test_every_refused_film_has_its_reason_from_header_or_pixels(name: str) -> None:
    make, reason = films.REFUSED[name]
    film = make()

    decision = choose(film)

    if decision.action is Action.ANSWER:
        assert decision.reason is reason
    else:
        assert decision.action is Action.READ
        with pytest.raises(Undecodable) as refused:
            load(film, gray="voi", square=lambda columns, rows: (0, 0, columns, rows))
        assert refused.value.reason == reason


def test_own_objects_are_left_alone() -> None:
    assert choose(films.own_object()) == Decision(action=Action.LEAVE, reason=Reason.OWN_OBJECT)


@pytest.mark.parametrize("modality", films.NON_IMAGES)
def test_objects_that_are_no_images_are_left_alone(modality: str) -> None:
    assert choose(films.non_image(modality)) == Decision(action=Action.LEAVE, reason=Reason.MODALITY)


def test_an_object_of_a_private_class_with_a_size_is_an_image() -> None:
    image = films.of_class(header(), UID("1.2.3.4"))
    report = films.of_class(films.non_image("SR"), UID("1.2.3.4"))

    assert choose(image) == answer(Reason.MODALITY)
    assert choose(report) == Decision(action=Action.LEAVE, reason=Reason.MODALITY)


@pytest.mark.parametrize(
    ("storage_class", "changes", "expected"),
    [
        (DigitalXRayImageStorageForPresentation, {"Modality": "DX"}, READ),
        (DigitalXRayImageStorageForPresentation, {"Modality": ""}, READ),
        (DigitalXRayImageStorageForPresentation, {"Modality": "PX"}, answer(Reason.MODALITY)),
        (DigitalXRayImageStorageForProcessing, {"Modality": "DX"}, answer(Reason.FOR_PROCESSING)),
        (SecondaryCaptureImageStorage, {}, READ),
        (SecondaryCaptureImageStorage, {"Modality": "RG", "ConversionType": "DF"}, READ),
        (SecondaryCaptureImageStorage, {"Modality": "CR", "ConversionType": "SD"}, answer(Reason.MODALITY)),
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


@pytest.mark.parametrize("part", ["CHEST", "chest", "CHEST PA", "THORAX AP", "CHEST_1", "LUNG", "TORAX", "CHESTPA"])
def test_vendor_spellings_of_the_chest_are_known(part: str) -> None:
    assert choose(header({"BodyPartExamined": part})) == READ


@pytest.mark.parametrize("part", ["CHESTABDOMEN", "CHEST ABDOMEN", "RIB", "TSPINE", "ABDOMEN", "HAND", "WHOLEBODY"])
def test_other_body_parts_are_not_the_chest(part: str) -> None:
    assert choose(header({"BodyPartExamined": part})) == answer(Reason.NOT_CHEST)


@pytest.mark.parametrize("part", [None, "", "UNKNOWN"])
def test_an_unnamed_body_part_is_read_with_a_note(part: str | None) -> None:
    assert choose(header({"BodyPartExamined": part, "StudyDescription": ""})) == READ_VIEW_UNKNOWN


def test_the_anatomic_region_stands_in_for_the_body_part() -> None:
    chest = header({"BodyPartExamined": "", "AnatomicRegionSequence": coded("816094009")})
    older = header({"BodyPartExamined": "", "AnatomicRegionSequence": coded("T-D3000", "SRT")})
    knee = header({"BodyPartExamined": "", "AnatomicRegionSequence": coded("72696002")})

    assert [choose(film) for film in (chest, older, knee)] == [READ, READ, answer(Reason.NOT_CHEST)]


def test_descriptions_count_only_when_they_name_one_kind_of_part() -> None:
    hip = header({"BodyPartExamined": "", "StudyDescription": "Hip, left"})
    both = header({"BodyPartExamined": "", "StudyDescription": "Chest and abdomen"})

    assert choose(hip) == answer(Reason.NOT_CHEST)
    assert choose(both) == READ_VIEW_UNKNOWN


@pytest.mark.parametrize(
    "changes",
    [
        {"ViewPosition": "LL"},
        {"ViewPosition": "RL"},
        {"ViewPosition": "LATERAL"},
        {"ViewPosition": "LLO"},
        {"ViewPosition": "RAO"},
        {"ViewCodeSequence": coded("399067008")},
        {"ViewCodeSequence": coded("399173006")},
        {"ViewCodeSequence": coded("R-10232", "SRT")},
        {"PatientOrientation": ["A", "F"]},
        {"PatientOrientation": ["P", "F"]},
        {"PatientOrientation": ["F", "A"]},
        {"BodyPartExamined": "CHEST LAT"},
        {"ViewPosition": "", "SeriesDescription": "Thorax lat."},
    ],
)
def test_one_attribute_that_says_lateral_or_oblique_is_enough(changes: dict[str, object]) -> None:
    assert choose(header(changes)) == answer(Reason.LATERAL)


def test_a_protocol_puts_no_film_with_a_frontal_header_in_doubt() -> None:
    """Modalities keep the name of the protocol that was chosen first."""
    assert choose(header({"ViewPosition": "AP", "ProtocolName": "Chest lateral"})) == READ


def test_a_description_of_both_views_makes_no_film_lateral() -> None:
    assert choose(header({"ViewPosition": "", "SeriesDescription": "CHEST PA AND LATERAL"})) == READ_VIEW_UNKNOWN


@pytest.mark.parametrize(
    "changes",
    [
        {"ViewPosition": "PA", "SeriesDescription": "Thorax LAT"},
        {"ViewPosition": "", "ViewCodeSequence": coded("399348003"), "SeriesDescription": "CHEST LAT"},
    ],
)
def test_a_lateral_series_beside_a_frontal_header_is_noted(changes: dict[str, object]) -> None:
    assert choose(header(changes)) == Decision(action=Action.READ, notes=(Note.TWO_VIEWS,))


@pytest.mark.parametrize(
    ("values", "notes"),
    [
        (["DERIVED", "PRIMARY", "BONE"], (Note.IMAGE_TYPE,)),
        (["DERIVED", "PRIMARY", "", "SUBTRACTION"], (Note.IMAGE_TYPE,)),
        (["ORIGINAL", "PRIMARY", "TOMO"], (Note.IMAGE_TYPE,)),
        (["ORIGINAL", "PRIMARY", "LOCALIZER"], (Note.IMAGE_TYPE,)),
        (["ORIGINAL", "PRIMARY", "", "", "BONE"], ()),
        (["DERIVED", "PRIMARY", "POST_PROCESSED", "", "100000"], ()),
        (["DERIVED", "PRIMARY", "RT", "STANDARD"], ()),
        (["ORIGINAL", "PRIMARY"], ()),
        (None, ()),
    ],
)
def test_an_image_type_that_is_no_plain_film_is_noted(values: list[str] | None, notes: tuple[Note, ...]) -> None:
    assert choose(header({"ImageType": values})).notes == notes


@pytest.mark.parametrize("text", ["Thorax BONE enhanced", "TOMO off", "Chest localizer", "subtraction none"])
def test_words_of_a_series_say_nothing_of_its_image_type(text: str) -> None:
    assert choose(header({"SeriesDescription": text, "ProtocolName": text})) == READ


@pytest.mark.parametrize(
    "changes",
    [
        *({"PatientSpeciesDescription": word} for word in ("Human", "HOMO SAPIENS", "Mensch", "humain", "ヒト", "")),
        *({"PatientSpeciesDescription": word} for word in ("UNKNOWN", "n/a", "Homo sapiens (organism)", "unspecified")),
        *({"PatientSpeciesDescription": word} for word in ("NOT SPECIFIED", "Man", "Adult", "Male", "Patient", "H")),
        *(
            {"PatientSpeciesDescription": word}
            for word in ("Default", "Human, non-pregnant", "Мужчина", "M\N{REPLACEMENT CHARACTER}nniska")
        ),
        *({"PatientSpeciesCodeSequence": coded(*code)} for code in (("337915000",), ("L-85B00", "SRT"), ("", ""))),
        {"PatientSpeciesCodeSequence": coded("337915000"), "PatientSpeciesDescription": "Adult"},
        {"PatientSpeciesCodeSequence": coded("HUM", "99LOCAL")},
    ],
)
def test_films_of_people_are_read_however_their_species_is_named(changes: dict[str, object]) -> None:
    assert choose(header(changes)) == READ


@pytest.mark.parametrize(
    "changes",
    [
        *({"PatientSpeciesDescription": word} for word in ("Canine", "FELINE", "non-human primate", "Hund", "馬")),
        *(
            {"PatientSpeciesDescription": word}
            for word in ("Canis lupus familiaris", "Cat, domestic", "Macaca mulatta")
        ),
        *({"PatientSpeciesDescription": word} for word in ("Genus Mus", "non-human", "BOVINE/ADULT", "Kaninchen")),
        *({"PatientSpeciesCodeSequence": coded(*code)} for code in (("448771007",), ("L-80700", "SRT"))),
        {"PatientSpeciesCodeSequence": coded("448771007"), "PatientSpeciesDescription": "Human"},
    ],
)
def test_films_of_animals_are_not_read(changes: dict[str, object]) -> None:
    assert choose(header(changes)) == answer(Reason.SPECIES)


@pytest.mark.parametrize("view", [None, "", "ERECT", "LLD", "RLD", "LEFT LATERAL DECUBITUS"])
def test_unnamed_views_and_decubitus_films_are_read_with_a_note(view: str | None) -> None:
    assert choose(header({"ViewPosition": view})) == READ_VIEW_UNKNOWN


@pytest.mark.parametrize("code", ["399033003", "272479007", "399348003"])
def test_a_view_code_stands_in_for_the_view_position(code: str) -> None:
    assert choose(header({"ViewPosition": "", "ViewCodeSequence": coded(code)})) == READ


def test_a_broken_value_counts_as_absent() -> None:
    film = header()
    film.add_new("Rows", "US", None)
    film.add_new("WindowCenter", "DS", None)

    assert choose(film) == answer(Reason.NO_PIXELS)


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
    rules = routing.rules_for(range(18, 66))
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
