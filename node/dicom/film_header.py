"""The header of a received object as one frozen value, parsed once from the Dataset.

Routing and the checks before decoding use this value and never the Dataset, so each attribute is parsed
once. Only the decoder and the writers of outputs use the Dataset: the decoder for the pixels, the writers to copy
patient attributes with their character set, and for the size of the pixels in the patient. The grayscale attributes
have a value of their own (`grayscale_header.GrayscaleHeader`), because a LUT may have 65536 entries and only a decoded
film needs it.

A broken attribute counts as absent and raises no error. Only a routing rule that needs it refuses the object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sr.coding import Code

from node.dicom import attributes, identity
from node.dicom.dates import patient_age

_CALIBRATED: Final = ("GEOMETRY", "FIDUCIAL")
_ALIKE: Final = 1e-3
_SPACINGS: Final = ("PixelSpacing", "ImagerPixelSpacing")


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelFormat:
    """The Image Pixel module (PS3.3 C.7.6.3) and the number of frames; a number that is absent or broken is None.

    has_pixel_data: whether the header has PixelData, which may be empty
    """

    has_pixel_data: bool
    rows: int | None
    columns: int | None
    number_of_frames: int | None
    samples_per_pixel: int | None
    photometric_interpretation: str
    bits_allocated: int | None
    bits_stored: int | None
    high_bit: int | None
    pixel_representation: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmHeader:
    """The attributes of a header, as text without surrounding blanks; "" where an attribute is absent or broken.

    is_own: whether this program wrote the object (`identity.is_own`)
    image_type: the values of ImageType (PS3.3 C.7.6.1.1.2)
    species: PatientSpeciesDescription
    species_codes, anatomic_region_codes, view_codes: the codes of the items of PatientSpeciesCodeSequence,
        AnatomicRegionSequence and ViewCodeSequence, without meanings
    patient_orientation: the direction of the rows, then of the columns, as written (PS3.3 C.7.6.1.1.1)
    age_years: completed years at the time of the study; the lower one if age and date of birth disagree; None if
        neither can be read
    has_age: whether the header has PatientAge, with any value
    age_has_unit: false if PatientAge is a number alone, which was taken as years
    field_width: the film's width in the patient, in mm; None without a spacing
    sex: the patient's sex as written: M, F or O, if it keeps to the standard
    study_description, series_description, protocol_name: with U+FFFD where they could not be decoded
    """

    study_instance_uid: str
    series_instance_uid: str
    sop_instance_uid: str
    sop_class_uid: str
    transfer_syntax_uid: str
    is_own: bool
    modality: str
    image_type: tuple[str, ...]
    species: str
    species_codes: tuple[Code, ...]
    conversion_type: str
    presentation_intent_type: str
    body_part_examined: str
    anatomic_region_codes: tuple[Code, ...]
    view_position: str
    view_codes: tuple[Code, ...]
    patient_orientation: tuple[str, ...]
    age_years: int | None
    has_age: bool
    age_has_unit: bool
    field_width: float | None
    sex: str
    study_description: str
    series_description: str
    protocol_name: str
    pixels: PixelFormat


def parse_header(dataset: Dataset) -> FilmHeader:
    """Parse the header of one object, as `header_reading.read_header` returns it; reads each attribute once."""
    age = patient_age(dataset)
    orientation = tuple(str(value) for value in attributes.values(dataset, "PatientOrientation"))
    pixels = _pixel_format(dataset)
    return FilmHeader(
        study_instance_uid=attributes.text(dataset, "StudyInstanceUID"),
        series_instance_uid=attributes.text(dataset, "SeriesInstanceUID"),
        sop_instance_uid=attributes.text(dataset, "SOPInstanceUID"),
        sop_class_uid=attributes.text(dataset, "SOPClassUID"),
        transfer_syntax_uid=attributes.text(getattr(dataset, "file_meta", FileMetaDataset()), "TransferSyntaxUID"),
        is_own=identity.is_own(dataset),
        modality=attributes.text(dataset, "Modality"),
        image_type=tuple(str(value).strip() for value in attributes.values(dataset, "ImageType")),
        species=attributes.text_with_gaps(dataset, "PatientSpeciesDescription"),
        species_codes=_codes(dataset, "PatientSpeciesCodeSequence"),
        conversion_type=attributes.text(dataset, "ConversionType"),
        presentation_intent_type=attributes.text(dataset, "PresentationIntentType"),
        body_part_examined=attributes.text(dataset, "BodyPartExamined"),
        anatomic_region_codes=_codes(dataset, "AnatomicRegionSequence"),
        view_position=attributes.text(dataset, "ViewPosition"),
        view_codes=_codes(dataset, "ViewCodeSequence"),
        patient_orientation=orientation,
        age_years=age.years,
        has_age="PatientAge" in dataset,
        age_has_unit=age.has_unit,
        field_width=_field_width(pixel_size(dataset), pixels, orientation),
        sex=attributes.text(dataset, "PatientSex"),
        study_description=attributes.text_with_gaps(dataset, "StudyDescription"),
        series_description=attributes.text_with_gaps(dataset, "SeriesDescription"),
        protocol_name=attributes.text_with_gaps(dataset, "ProtocolName"),
        pixels=pixels,
    )


def _pixel_format(dataset: Dataset) -> PixelFormat:
    """Parse the attributes that describe the pixels; checks whether PixelData exists, but does not read its value."""
    return PixelFormat(
        has_pixel_data="PixelData" in dataset,
        rows=attributes.whole(dataset, "Rows"),
        columns=attributes.whole(dataset, "Columns"),
        number_of_frames=attributes.whole(dataset, "NumberOfFrames"),
        samples_per_pixel=attributes.whole(dataset, "SamplesPerPixel"),
        photometric_interpretation=attributes.text(dataset, "PhotometricInterpretation"),
        bits_allocated=attributes.whole(dataset, "BitsAllocated"),
        bits_stored=attributes.whole(dataset, "BitsStored"),
        high_bit=attributes.whole(dataset, "HighBit"),
        pixel_representation=attributes.whole(dataset, "PixelRepresentation"),
    )


def _field_width(size: tuple[float, float] | None, pixels: PixelFormat, orientation: tuple[str, ...]) -> float | None:
    """Return the width of a film across the patient, in mm; of one that lies on its side, that is its height."""
    if size is None or pixels.rows is None or pixels.columns is None:
        return None
    lies = bool(orientation) and orientation[0][:1] in ("H", "F")
    return pixels.rows * size[0] if lies else pixels.columns * size[1]


def _codes(dataset: Dataset, keyword: str) -> tuple[Code, ...]:
    return tuple(
        Code(attributes.text(item, "CodeValue"), attributes.text(item, "CodingSchemeDesignator"), "")
        for item in attributes.items(dataset, keyword)
    )


def place_in_study(header: Dataset) -> tuple[float, ...]:
    """Return the numbers of a film's series and of the film in it (PS3.3 C.7.3.1, C.7.6.1); infinity if not known."""
    numbers = (attributes.number(header, keyword) for keyword in ("SeriesNumber", "InstanceNumber"))
    return tuple(math.inf if number is None else number for number in numbers)


def calibrated_spacing(dataset: Dataset) -> tuple[float, float] | None:
    """Return mm from row to row and from column to column, in the patient; None if uncalibrated (PS3.3 10.7.1).

    Pixel Spacing counts if Pixel Spacing Calibration Type says how it was corrected. Imager Pixel Spacing is that of
    the detector, on which the heart is magnified: it counts only with an estimated magnification.
    """
    spacing, calibration = _spacing(dataset, "PixelSpacing"), attributes.text(dataset, "PixelSpacingCalibrationType")
    if spacing is not None and calibration.upper() in _CALIBRATED:
        return spacing
    imager = _spacing(dataset, "ImagerPixelSpacing")
    magnification = attributes.number(dataset, "EstimatedRadiographicMagnificationFactor")
    if imager is None or magnification is None or magnification < 1:
        return None
    return imager[0] / magnification, imager[1] / magnification


def has_oblong_pixels(dataset: Dataset) -> bool:
    """Return whether a film's pixels are not square, by more than a thousandth (PS3.3 10.7.1.3)."""
    return any(not math.isclose(*shape, rel_tol=_ALIKE) for shape in _shapes(dataset))


def pixel_shape(dataset: Dataset) -> tuple[int, int]:
    """Return the ratio of a pixel's height to its width (PS3.3 C.10.4); 1 to 1 if the film has no usable value."""
    for height, width in _shapes(dataset):
        if 0.01 < height < 100 and 0.01 < width < 100:
            return (1, 1) if height == width else (round(1000 * height), round(1000 * width))
    return (1, 1)


def pixel_size(dataset: Dataset) -> tuple[float, float] | None:
    """Return mm from row to row and from column to column, in the patient or on the detector; None if unknown."""
    return next((found for keyword in _SPACINGS if (found := _spacing(dataset, keyword)) is not None), None)


def _shapes(dataset: Dataset) -> list[tuple[float, float]]:
    """Return the shape of pixels by a header: the aspect ratio only without a spacing (C.7.6.3.1.7)."""
    spacings = [found for keyword in _SPACINGS if (found := _spacing(dataset, keyword)) is not None]
    ratio = _spacing(dataset, "PixelAspectRatio")
    return spacings or ([] if ratio is None else [ratio])


def _spacing(dataset: Dataset, keyword: str) -> tuple[float, float] | None:
    """Read row spacing and column spacing; None unless both are above 0 (PS3.3 10.7.1.3)."""
    try:
        row, column = (float(str(value)) for value in attributes.values(dataset, keyword))
    except ValueError:
        return None
    return (row, column) if 0 < row < float("inf") and 0 < column < float("inf") else None
