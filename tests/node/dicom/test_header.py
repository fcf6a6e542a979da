"""Headers: those that would fill the memory are refused, and what is broken counts as absent."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path

import pytest
from pydicom import dcmwrite
from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_file_meta_info
from pydicom.tag import BaseTag, Tag
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)
from pydicom.valuerep import EXPLICIT_VR_LENGTH_32

from node.character_sets import LOST
from node.dicom import attributes
from node.dicom.file_head import FileMeta, read_head
from node.dicom.film_header import calibrated_spacing, has_oblong_pixels, parse_header, pixel_shape, place_in_study
from node.dicom.grayscale_header import LookUpTable, UnusableTable, parse_grayscale
from node.dicom.header import identify, read_meta
from node.dicom.header_reading import read_header
from node.errors import Refused, Undecodable
from node.store.incoming import has_other_pixels
from tests.node.dicom.test_grayscale import lut
from tests.support import films
from tests.support.decoded import picture_of

MIB = 1024 * 1024
BULK = 100 * MIB
SPARE = 40 * MIB
STUDY, FILM = b"1.2.3\0", b"1.2.3.4\0"
STUDY_TAG = b"\x20\0\x0d\0UI"
UNDEFINED = 0xFFFFFFFF
ITEM, SEQUENCE_END = struct.pack("<HHL", 0xFFFE, 0xE000, BULK), struct.pack("<HHL", 0xFFFE, 0xE0DD, 0)


CLASS, INSTANCE = "MediaStorageSOPClass", "MediaStorageSOPInstance"


def file_of(syntax: str, meta: Mapping[str, str], *, body: UID | None = None) -> bytes:
    """A file of the object 1.3 of the class 1.2; body: the syntax of its dataset, if it is another one than it says."""
    written, said, dataset = DicomBytesIO(), FileMetaDataset(), Dataset()
    with attributes.quiet():
        for name, uid in {"TransferSyntax": syntax, **meta}.items():
            setattr(said, f"{name}UID", uid)
        write_file_meta_info(written, said, enforce_standard=False)
    dataset.SOPClassUID, dataset.SOPInstanceUID, dataset.Modality = "1.2", "1.3", "DX"
    encoded, body = BytesIO(), body or UID(syntax)
    dcmwrite(encoded, dataset, implicit_vr=body.is_implicit_VR, little_endian=body.is_little_endian)
    return bytes(128) + b"DICM" + written.getvalue() + encoded.getvalue()


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian])
@pytest.mark.parametrize(
    ("meta", "sop_class_uid", "sop_instance_uid"),
    [
        ({}, "1.2", "1.3"),
        ({INSTANCE: "1.4"}, "1.2", "1.4"),
        ({CLASS: "1.5"}, "1.5", "1.3"),
        ({CLASS: "1.5", INSTANCE: "1.4"}, "1.5", "1.4"),
    ],
)
def test_a_dataset_names_what_its_file_does_not(
    syntax: UID, meta: dict[str, str], sop_class_uid: str, sop_instance_uid: str
) -> None:
    _, named = read_head(file_of(syntax, meta))

    said = FileMeta(sop_class_uid=sop_class_uid, sop_instance_uid=sop_instance_uid, transfer_syntax_uid=str(syntax))
    assert named == said


@pytest.mark.parametrize(
    "content",
    [
        file_of(ExplicitVRLittleEndian, {INSTANCE: "../1.4"}),
        file_of(ExplicitVRLittleEndian, {CLASS: "CR", INSTANCE: "1.4"}),
        file_of("deflated", {CLASS: "1.5", INSTANCE: "1.4"}, body=ExplicitVRLittleEndian),
        file_of(DeflatedExplicitVRLittleEndian, {}, body=ExplicitVRLittleEndian),
    ],
    ids=["instance", "class", "syntax", "not deflated"],
)
def test_a_file_whose_names_cannot_be_is_refused(content: bytes) -> None:
    with pytest.raises(Refused, match="names no object, or a UID that is not valid"):
        read_head(content)


def element(group: int, number: int, vr: bytes, length: int) -> bytes:
    if vr in (b"UI", b"SH"):
        return struct.pack("<HH2sH", group, number, vr, length)
    return struct.pack("<HH2sHL", group, number, vr, 0, length)


SOP_INSTANCE = element(0x0008, 0x0018, b"UI", len(FILM)) + FILM
STUDY_INSTANCE = element(0x0020, 0x000D, b"UI", len(STUDY)) + STUDY
SKIPPED = (element(0x0009, 0x1010, b"OB", BULK), b"")
IN_FRAGMENTS = (element(0x0009, 0x1010, b"OB", UNDEFINED) + ITEM, SEQUENCE_END)
IN_A_SEQUENCE = (
    element(0x0009, 0x1010, b"SQ", UNDEFINED)
    + struct.pack("<HHL", 0xFFFE, 0xE000, UNDEFINED)
    + element(0x0009, 0x1011, b"OB", BULK),
    struct.pack("<HHL", 0xFFFE, 0xE00D, 0) + SEQUENCE_END,
)
"""What stands before and after 100 MB of zeros."""


def many_elements(*groups: int) -> bytes:
    """Every private element that so many groups can have, 65,520 in each."""
    return b"".join(
        struct.pack("<HH2sH2s", group, number, b"LO", 2, b"ab") for group in groups for number in range(0x10, 0x10000)
    )


def with_bulk(path: Path, before: bytes, after: bytes) -> Path:
    """A file with a hole of 100 MB, which takes no room on the disk."""
    with path.open("wb") as file:
        file.write(before)
        file.seek(BULK, 1)
        file.write(after)
    return path


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < SPARE
    finally:
        tracemalloc.stop()


@contextmanager
def little_time() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < 4.0  # 0.4 to 0.8 s where it is quiet; 11 s without bounds


def test_what_has_a_length_is_skipped_on_the_way_to_the_uids_and_no_stated_length_is_believed(tmp_path: Path) -> None:
    start, end = SKIPPED
    behind = element(0x0021, 0x1010, b"OB", BULK)
    for before, after in ((SOP_INSTANCE + start, end + STUDY_INSTANCE), (SOP_INSTANCE + STUDY_INSTANCE + behind, b"")):
        path = with_bulk(tmp_path / "film", before, after)
        with path.open("rb") as file, little_memory():
            assert identify(file, ExplicitVRLittleEndian) == ("1.2.3", "1.2.3.4")
    content = films.file_bytes(films.thumbnail())
    path = with_bulk(tmp_path / "film", content[:140] + struct.pack("<L", BULK) + content[144:], b"end")
    with path.open("rb") as file, little_memory():
        assert read_meta(file).TransferSyntaxUID == ExplicitVRLittleEndian


AS_LONG_AS_A_FILM = struct.pack("<HHL", 0x0008, 0x0018, BULK)


@pytest.mark.parametrize(
    ("before", "after", "syntax"),
    [
        (SOP_INSTANCE + IN_FRAGMENTS[0], IN_FRAGMENTS[1] + STUDY_INSTANCE, ExplicitVRLittleEndian),
        (SOP_INSTANCE + IN_A_SEQUENCE[0], IN_A_SEQUENCE[1] + STUDY_INSTANCE, ExplicitVRLittleEndian),
        (AS_LONG_AS_A_FILM, struct.pack("<HHL", 0x0020, 0x000D, len(STUDY)) + STUDY, ImplicitVRLittleEndian),
    ],
    ids=["in fragments", "in a sequence", "a uid as long as a film"],
)
def test_what_would_have_to_be_loaded_to_be_skipped_is_refused(
    tmp_path: Path, before: bytes, after: bytes, syntax: UID
) -> None:
    path = with_bulk(tmp_path / "film", before, after)

    with path.open("rb") as file, little_memory(), pytest.raises(Refused):
        identify(file, syntax)


@pytest.mark.parametrize(("mib", "is_read"), [(15, True), (17, False)])
def test_values_of_unknown_length_are_loaded_up_to_16_mib(mib: int, is_read: bool) -> None:
    item = ITEM[:4] + struct.pack("<L", mib * MIB) + bytes(mib * MIB)
    content = SOP_INSTANCE + IN_FRAGMENTS[0][: -len(ITEM)] + item + SEQUENCE_END + STUDY_INSTANCE

    with nullcontext() if is_read else pytest.raises(Refused):
        assert identify(BytesIO(content), ExplicitVRLittleEndian) == ("1.2.3", "1.2.3.4")


def film_with(bulk: tuple[bytes, bytes], path: Path, *, repaint: Callable[[bytes], bytes] = bytes) -> Path:
    """A film with a large private element right before its rows."""
    content = films.file_bytes(films.thumbnail())
    rows = content.index(element(0x0028, 0x0010, b"US", 2)[:6])
    start, end = (part.replace(b"\x09\0\x10\x10", b"\x27\0\x10\x10") for part in bulk)
    return with_bulk(path, content[:rows] + start, end + repaint(content[rows:]))


def with_another_pixel(end: bytes) -> bytes:
    middle = len(end) // 2
    return end[:middle] + bytes([end[middle] ^ 1]) + end[middle + 1 :]


@pytest.mark.parametrize(("bulk", "is_found"), [(SKIPPED, True), (IN_FRAGMENTS, False), (IN_A_SEQUENCE, False)])
def test_pixels_are_compared_without_what_stands_before_them(
    tmp_path: Path, bulk: tuple[bytes, bytes], is_found: bool
) -> None:
    first = film_with(bulk, tmp_path / "first")
    second = film_with(bulk, tmp_path / "second", repaint=with_another_pixel)

    with little_memory():
        assert not has_other_pixels(first, first)
        assert has_other_pixels(first, second) is is_found


NUMBERS = {"US": "<H", "SS": "<h", "UL": "<L", "SL": "<l", "FL": "<f", "FD": "<d", "AT": "<HH", "UV": "<Q"}
TEXT_VRS = ["CS", "LO", "SH", "UI", "PN", "IS", "DS", "UT", "UC", "OB", "OW", "UN", "AS", "DA"]


@pytest.mark.parametrize(
    ("keyword", "vr"),
    [
        *(("SpecificCharacterSet", vr) for vr in (*TEXT_VRS, *NUMBERS)),
        *(("PatientAge", vr) for vr in ("LO", "DS", "UN")),
    ],
)
def test_text_under_another_value_representation_stops_no_film(keyword: str, vr: str, tmp_path: Path) -> None:
    path, text = tmp_path / "film.dcm", {"SpecificCharacterSet": b"ISO_IR 100", "PatientAge": b"007Y"}[keyword]
    numbers = [100] if vr != "AT" else [8, 5]
    value = struct.pack(NUMBERS[vr], *numbers) if vr in NUMBERS else text
    film = films.thumbnail({"SpecificCharacterSet": "ISO_IR 100", "PatientAge": "007Y", "PatientBirthDate": None})
    tag = struct.pack("<HH", *divmod(Tag(keyword), 0x10000))
    head, end = films.file_bytes(film).split(
        tag + dictionary_VR(keyword).encode() + struct.pack("<H", len(text)) + text
    )
    is_long = vr in EXPLICIT_VR_LENGTH_32
    path.write_bytes(
        head + tag + vr.encode() + struct.pack("<HL" if is_long else "<H", *[0] * is_long, len(value)) + value + end
    )
    header = read_header(path)

    assert attributes.text(header, "PatientName") == str(film.PatientName)
    assert (parse_header(header).sop_instance_uid, parse_header(header).age_years) == (film.SOPInstanceUID, 7)
    with path.open("rb") as file:
        file.seek(file.read().index(films.body_of(path.read_bytes())))
        assert identify(file, ExplicitVRLittleEndian) == (film.StudyInstanceUID, film.SOPInstanceUID)


def with_many(before: bytes = b"", after: bytes = b"") -> bytes:
    """The file of a film with private elements before its patient, and after the UIDs of its study and series."""
    content = films.file_bytes(films.thumbnail())
    start = content.index(STUDY_TAG)
    end = content.index(b"\x28\0\x02\0US")
    patient = content.index(b"\x10\0\x10\0PN")
    return content[:patient] + before + content[patient:start] + content[start:end] + after + content[end:]


def test_private_elements_by_the_hundred_thousand_cost_little_and_thousands_are_read(tmp_path: Path) -> None:
    path, nested, usual = tmp_path / "film.dcm", tmp_path / "nested.dcm", tmp_path / "usual.dcm"
    path.write_bytes(with_many(after=many_elements(*range(0x0021, 0x002F, 2))))
    around_uids = with_many(many_elements(*range(0x0009, 0x000F, 2), 0x000F), many_elements(0x0021, 0x0023, 0x0025))
    item = element(0x0021, 0x1010, b"SQ", UNDEFINED) + struct.pack("<HHL", 0xFFFE, 0xE000, UNDEFINED)
    item += many_elements(0x0023, 0x0025) + struct.pack("<HHL", 0xFFFE, 0xE00D, 0) + SEQUENCE_END
    nested.write_bytes(with_many(after=item))
    usual.write_bytes(with_many(after=many_elements(0x0021)[: 5_000 * 10]))

    with little_time():
        assert identify(BytesIO(films.body_of(path.read_bytes())), ExplicitVRLittleEndian)[1]
        assert has_other_pixels(path, path) is False
        with pytest.raises(Refused):
            identify(BytesIO(films.body_of(around_uids)), ExplicitVRLittleEndian)
        for refused in (path, nested):
            with pytest.raises(Undecodable):
                read_header(refused)
    assert picture_of(usual).any()


def broken(keyword: str) -> Dataset:
    """A header whose only attribute has three bytes where its value representation asks for two or four."""
    tag = BaseTag(tag_for_keyword(keyword) or 0)
    return Dataset({tag: RawDataElement(tag, "US", 3, b"abc", 0, False, True)})


@pytest.mark.parametrize(
    "keyword",
    [
        *("Rows", "NumberOfFrames", "Modality", "PatientOrientation", "ViewCodeSequence", "PixelPaddingValue"),
        *("PatientBirthDate", "PixelSpacing", "ImagerPixelSpacing"),
    ],
)
def test_a_broken_attribute_counts_as_absent(keyword: str) -> None:
    dataset, nothing = broken(keyword), Dataset()

    header, empty = parse_header(dataset), parse_header(nothing)

    assert header == empty
    assert calibrated_spacing(dataset) is None
    assert parse_header(broken("PatientAge")).age_years is None
    assert parse_grayscale(dataset, photometric_interpretation="") == parse_grayscale(
        nothing, photometric_interpretation=""
    )


def header(**values: object) -> Dataset:
    return films.changed(Dataset(), values)


@pytest.mark.parametrize(
    ("values", "spacing"),
    [
        ({"PixelSpacing": [0.2, 0.1]}, None),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "FIDUCIAL"}, (0.2, 0.1)),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "GUESS"}, None),
        ({"PixelSpacing": [0, 0], "PixelSpacingCalibrationType": "GEOMETRY"}, None),
        ({"ImagerPixelSpacing": [0.3, 0.15]}, None),
        ({"ImagerPixelSpacing": [0.3, 0.15], "EstimatedRadiographicMagnificationFactor": "1.5"}, (0.2, 0.1)),
        ({"ImagerPixelSpacing": [0.3, 0.15], "EstimatedRadiographicMagnificationFactor": "1"}, (0.3, 0.15)),
        ({"ImagerPixelSpacing": [0.3, 0.15], "EstimatedRadiographicMagnificationFactor": "0.5"}, None),
        (
            {
                "PixelSpacing": [0.3, 0.15],
                "ImagerPixelSpacing": [0.3, 0.15],
                "EstimatedRadiographicMagnificationFactor": "1.5",
            },
            (0.2, 0.1),
        ),
    ],
)
def test_a_spacing_counts_only_within_the_patient(
    values: Mapping[str, object], spacing: tuple[float, float] | None
) -> None:
    found = calibrated_spacing(header(**values))

    assert found == (None if spacing is None else pytest.approx(spacing))


@pytest.mark.parametrize(
    ("values", "is_oblong", "shape"),
    [
        ({}, False, (1, 1)),
        ({"PixelSpacing": [0.4, 0.4003]}, False, None),
        ({"PixelSpacing": [0.4, 0.4005]}, True, None),
        ({"PixelSpacing": [0.4, 0.2], "ImagerPixelSpacing": [0.2, 0.4]}, True, (400, 200)),
        ({"ImagerPixelSpacing": [0.2, 0.4], "PixelAspectRatio": ["3", "2"]}, True, (200, 400)),
        ({"PixelAspectRatio": ["3", "2"]}, True, (3000, 2000)),
        ({"PixelAspectRatio": ["1", "2"], "PixelSpacing": [0.4, 0.4]}, False, None),
        ({"PixelAspectRatio": ["1", "2"], "ImagerPixelSpacing": [0.4, 0.4]}, False, None),
        ({"PixelAspectRatio": ["1", "2"], "PixelSpacing": [0, 0]}, True, None),
        ({"PixelSpacing": [0.01, 0.2]}, True, (1, 1)),
        ({"PixelSpacing": [0.2, 100]}, True, (1, 1)),
    ],
)
def test_the_shape_of_a_pixel_is_its_height_to_its_width(
    values: Mapping[str, object], is_oblong: bool, shape: tuple[int, int] | None
) -> None:
    assert has_oblong_pixels(header(**values)) == is_oblong
    assert shape is None or pixel_shape(header(**values)) == shape


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ({"PixelSpacing": [0.2, 0.1], "ImagerPixelSpacing": [2, 3]}, 300),
        ({"ImagerPixelSpacing": [0.2, 0.1], "PatientOrientation": ["L", "F"]}, 300),
        ({"PixelSpacing": [0.2, 0.1], "PatientOrientation": ["F", "L"]}, 400),
        ({"PixelSpacing": [0.2, 0.1], "PatientOrientation": ["HL", "L"]}, 400),
        ({"PixelSpacing": [0.2, 0.1], "Rows": None}, None),
        ({}, None),
    ],
)
def test_a_film_is_as_wide_as_it_lies_across_the_patient(values: Mapping[str, object], width: float | None) -> None:
    found = parse_header(header(**{"Rows": 2000, "Columns": 3000, **values})).field_width

    assert found == (None if width is None else pytest.approx(width))


def test_a_value_of_another_kind_counts_as_absent_and_an_unusable_table_keeps_its_reason() -> None:
    odd = films.as_written(
        Dataset(), {"WindowCenter": b"inf ", "InstanceNumber": b"2.5 ", "SOPInstanceUID": b"1.2\\1.3", "Rows": b"\1\0"}
    )
    odd.StudyID = f"a{LOST}b"

    film = films.thumbnail({"ModalityLUTSequence": [Dataset()], "VOILUTSequence": lut(0, [0, 65535], bits=16)})
    tables = parse_grayscale(film, photometric_interpretation="MONOCHROME2")
    assert tables.modality_lut == UnusableTable(reason="a LUT needs a descriptor of three values")
    assert isinstance(tables.voi_lut, LookUpTable)
    assert attributes.number(odd, "WindowCenter") is None
    assert (attributes.whole(odd, "InstanceNumber"), attributes.whole(odd, "Rows")) == (None, 1)
    assert attributes.wholes(films.changed(odd, {"ImagerPixelSpacing": [1, 2.5]}), "ImagerPixelSpacing") == ()
    assert attributes.uid(odd, "SOPInstanceUID") == ""
    assert (attributes.text(odd, "StudyID"), attributes.text_with_gaps(odd, "StudyID")) == ("", f"a{LOST}b")


def test_a_description_keeps_the_words_beside_what_was_lost_and_a_film_without_a_number_comes_last() -> None:
    numbers = ({"SeriesNumber": 2, "InstanceNumber": 3}, {"SeriesNumber": 2}, {"InstanceNumber": 3})
    assert [place_in_study(header(**each)) for each in numbers] == [(2, 3), (2, math.inf), (math.inf, 3)]
    keywords = ("StudyDescription", "SeriesDescription", "ProtocolName", "PatientSpeciesDescription")
    text = f"thorax {LOST}"

    found = parse_header(header(**dict.fromkeys(keywords, text)))

    assert {found.study_description, found.series_description, found.protocol_name, found.species} == {text}
