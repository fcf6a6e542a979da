"""The header of an object as one value: each attribute is parsed once, and a broken one counts as absent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import cast

import pytest
from pydicom.datadict import tag_for_keyword
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag

from node.commands.explain.film import ABSENT, shown
from node.dicom.film_header import PixelFormat, calibrated_spacing, has_oblong_pixels, parse_header
from node.dicom.grayscale_header import LookUpTable, UnusableTable, parse_grayscale
from node.read import routing
from tests.repository.test_architecture import imports, is_allowed, name_of, python_files
from tests.support import films

# The parsers, the decoder and the writers; and files that look at other objects than a film on its way.
MAY_PARSE = (
    "node/dicom/",
    "node/read/decoding.py",
    "node/read/pixels.py",
    "node/outputs/",
    "node/deliver/commitment.py",  # the answer to a commitment request
    "node/commands/explain/film.py",  # what a person may see of a header
    "node/store/incoming.py",  # two versions of one object, compared while they are received
)
LOOKED_AT = sorted({keyword for rule in routing.rules_for(range(200)) for keyword in rule.looks_at})


class CountedDataset(Dataset):
    """A dataset that counts how often each of its attributes is looked at by its keyword."""

    def __init__(self, film: Dataset) -> None:
        super().__init__(film)
        self.file_meta = film.file_meta
        object.__setattr__(self, "looks", Counter[str]())

    def get(self, key: object, default: object | None = None) -> object:  # type: ignore[override] # pydicom overloads
        if isinstance(key, str):  # pydicom itself asks for the character set by its tag
            self.__dict__["looks"][key] += 1
            return super().get(key, default)
        return super().get(cast(BaseTag, key), default)


def lut(**values: object) -> Dataset:
    item = Dataset()
    item.add_new("LUTDescriptor", "US", [2, 0, 16])
    item.add_new("LUTData", "US", [0, 65535])
    return films.changed(item, values)


def broken(keyword: str) -> Dataset:
    """A header whose only attribute has three bytes where its value representation asks for two or four."""
    tag = BaseTag(tag_for_keyword(keyword) or 0)
    return Dataset({tag: RawDataElement(tag, "US", 3, b"abc", 0, False, True)})


def test_each_attribute_is_parsed_once() -> None:
    film = CountedDataset(films.thumbnail({"ModalityLUTSequence": [lut()], "VOILUTSequence": [lut()]}))

    header = parse_header(film)
    parse_grayscale(film, photometric_interpretation=header.pixels.photometric_interpretation)

    looks: Counter[str] = film.__dict__["looks"]
    assert looks["ViewPosition"] == looks["Rows"] == looks["VOILUTSequence"] == 1
    assert {keyword: count for keyword, count in looks.items() if count != 1} == {}


def test_only_parsers_decoder_and_writers_look_at_attributes() -> None:
    wrong = [
        name_of(path)
        for path in python_files("node")
        for found in imports(path)
        if found == "node.dicom.attributes" and not is_allowed(path, MAY_PARSE)
    ]

    assert wrong == []


@pytest.mark.parametrize("file", ["routing", "grayscale", "pixel_format", "framing", "findings"])
def test_decisions_and_gray_levels_know_no_dataset(file: str) -> None:
    modules = {found for path in python_files("node/read") if path.stem == file for found in imports(path)}

    assert modules
    assert "pydicom.dataset" not in modules


@pytest.mark.parametrize(
    "keyword", ["Rows", "NumberOfFrames", "Modality", "PatientOrientation", "ViewCodeSequence", "PixelPaddingValue"]
)
def test_a_broken_attribute_counts_as_absent(keyword: str) -> None:
    dataset, nothing = broken(keyword), Dataset()

    header, empty = parse_header(dataset), parse_header(nothing)

    assert header == empty
    assert parse_grayscale(dataset, photometric_interpretation="") == parse_grayscale(
        nothing, photometric_interpretation=""
    )


def test_an_empty_header_is_parsed() -> None:
    header = parse_header(Dataset())

    assert not header.has_age
    assert {getattr(header.pixels, field.name) for field in fields(PixelFormat)} == {False, None, ""}


def test_an_unusable_lut_is_kept_with_its_reason() -> None:
    film = films.thumbnail({"ModalityLUTSequence": [Dataset()], "VOILUTSequence": [lut()]})

    header = parse_grayscale(film, photometric_interpretation="MONOCHROME2")

    assert header.modality_lut == UnusableTable(reason="a LUT needs a descriptor of three values")
    assert isinstance(header.voi_lut, LookUpTable)


@pytest.mark.parametrize("keyword", LOOKED_AT)
def test_explain_can_show_every_attribute_that_a_rule_looks_at(keyword: str) -> None:
    tag = BaseTag(tag_for_keyword(keyword) or 0)
    dataset = Dataset({tag: RawDataElement(tag, None, 0, b"", 0, True, True)})

    assert shown(dataset, keyword) != ABSENT
    assert shown(Dataset(), keyword) == ABSENT


def header(**values: object) -> Dataset:
    return films.changed(Dataset(), values)


@pytest.mark.parametrize(
    ("values", "spacing"),
    [
        ({"PixelSpacing": [0.2, 0.1]}, None),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "FIDUCIAL"}, (0.2, 0.1)),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "GEOMETRY"}, (0.2, 0.1)),
        ({"PixelSpacing": [0.2, 0.1], "PixelSpacingCalibrationType": "GUESS"}, None),
        ({"PixelSpacing": [0, 0], "PixelSpacingCalibrationType": "GEOMETRY"}, None),
        ({"PixelSpacing": [0.2], "PixelSpacingCalibrationType": "GEOMETRY"}, None),
        ({"ImagerPixelSpacing": [0.3, 0.15]}, None),
        ({"ImagerPixelSpacing": [0.3, 0.15], "EstimatedRadiographicMagnificationFactor": "1.5"}, (0.2, 0.1)),
        ({"ImagerPixelSpacing": [0.3, 0.15], "EstimatedRadiographicMagnificationFactor": "0.5"}, None),
        ({"EstimatedRadiographicMagnificationFactor": "1.5"}, None),
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


@pytest.mark.parametrize("keyword", ["PixelSpacing", "ImagerPixelSpacing"])
def test_a_broken_attribute_counts_as_absent_spacing(keyword: str) -> None:
    tag = BaseTag(tag_for_keyword(keyword) or 0)
    dataset = Dataset({tag: RawDataElement(tag, "US", 3, b"abc", 0, False, True)})

    assert calibrated_spacing(dataset) is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, False),
        ({"PixelSpacing": [0.4, 0.4]}, False),
        ({"PixelSpacing": [0.4, 0.40001]}, False),
        ({"PixelSpacing": [0.4, 0.8]}, True),
        ({"PixelSpacing": [0.4, 0.4], "ImagerPixelSpacing": [0.4, 0.8]}, True),
        ({"PixelAspectRatio": ["1", "2"]}, True),
        ({"PixelAspectRatio": ["1", "2"], "PixelSpacing": [0.4, 0.4]}, False),
        ({"PixelAspectRatio": ["1", "2"], "ImagerPixelSpacing": [0.4, 0.4]}, False),
        ({"PixelAspectRatio": ["1", "2"], "PixelSpacing": [0, 0]}, True),
        ({"PixelSpacing": [0, 0.8]}, False),
    ],
)
def test_pixels_are_oblong_if_rows_and_columns_differ(values: Mapping[str, object], expected: bool) -> None:
    assert has_oblong_pixels(header(**values)) == expected
