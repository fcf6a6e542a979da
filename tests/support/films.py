"""Films for tests: the NEMA chest film RG1, a thumbnail of it for speed, and every way a film can be odd or broken.

RG1 is a real PA chest film (MONOCHROME1, 15 of 16 bits, L\\F) and comes with PyPI's pydicom-data. Every function
returns a fresh Dataset that may be edited; `file_bytes` makes the DICOM file of it.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Mapping
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.datadict import dictionary_VR
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.tag import Tag
from pydicom.uid import (
    UID,
    BasicTextSRStorage,
    CTImageStorage,
    DigitalMammographyXRayImageStorageForPresentation,
    EncapsulatedPDFStorage,
    ExplicitVRLittleEndian,
    GrayscaleSoftcopyPresentationStateStorage,
    JPEG2000Lossless,
    JPEGLSLossless,
    KeyObjectSelectionDocumentStorage,
    SegmentationStorage,
    TwelveLeadECGWaveformStorage,
    XRayRadiationDoseSRStorage,
)

from node.dicom import attributes, identity
from node.domain import Reason, derive_uid
from node.store.received import Kept
from node.store.spool import Spool
from tests.support.material import material

THUMBNAIL_STEP = 8

META = bytes(128) + b"DICM\x02\0\0\0UL\x04\0" + bytes(4)
"""Preamble and file meta information without any element but its length (PS3.10 7.1)."""

NON_IMAGES: dict[str, UID] = {
    "SR": BasicTextSRStorage,
    "dose report": XRayRadiationDoseSRStorage,
    "PR": GrayscaleSoftcopyPresentationStateStorage,
    "KO": KeyObjectSelectionDocumentStorage,
    "DOC": EncapsulatedPDFStorage,
    "ECG": TwelveLeadECGWaveformStorage,
    "SEG": SegmentationStorage,
}


def shared(name: str) -> Path:
    """Return a real file of the material beside the repository, such as `chest/RG1_JLSN.dcm`; skip without it."""
    return material(f"data/dicom/{name}")


@cache
def rg1_path(encoding: str = "UNCR") -> Path:
    """Return the file of RG1: UNCR (explicit little endian) or J2KR (JPEG 2000 lossless)."""
    found = get_testdata_file(f"RG1_{encoding}.dcm", download=False)
    assert found is not None, "install pydicom-data"
    return Path(str(found))


def rg1() -> Dataset:
    """Read RG1 at full size, 1955 x 1841."""
    return dcmread(rg1_path())


def thumbnail(changes: Mapping[str, object] | None = None) -> Dataset:
    """Return RG1 at an eighth of its size (245 x 231), 0.1 MB, with some attributes changed; None deletes one."""
    return changed(dcmread(BytesIO(_thumbnail())), changes or {})


@cache
def _thumbnail() -> bytes:
    film = rg1()
    with_pixels(film, film.pixel_array[::THUMBNAIL_STEP, ::THUMBNAIL_STEP], bits=15)
    return file_bytes(film)


def changed(film: Dataset, changes: Mapping[str, object]) -> Dataset:
    """Change attributes in place, to values that the standard forbids too; None deletes one."""
    with attributes.quiet():
        for keyword, value in changes.items():
            if value is not None:
                setattr(film, keyword, value)
            elif keyword in film:
                delattr(film, keyword)
    return film


def as_written(film: Dataset, values: Mapping[str, bytes | None]) -> Dataset:
    """Give a film attributes in the bytes that a device wrote, in place; None deletes one."""
    for keyword, value in values.items():
        if keyword in film:
            del film[keyword]
        if value is not None:
            tag = Tag(keyword)
            film[tag] = RawDataElement(tag, dictionary_VR(keyword), len(value), value, 0, False, True)
    is_implicit, is_little_endian = film.original_encoding
    with attributes.quiet():  # pydicom writes the bytes again only of a dataset in the set that it was read in
        film.set_original_encoding(is_implicit, is_little_endian, film._character_set)
    return film


def with_pixels(film: Dataset, pixels: npt.NDArray[np.integer], *, bits: int, signed: bool = False) -> Dataset:
    """Give a film other pixels, [row, column], in place; `bits` are stored in 8 or 16."""
    film.Rows, film.Columns = pixels.shape
    film.BitsAllocated, film.BitsStored, film.HighBit = 8 if bits <= 8 else 16, bits, bits - 1
    film.PixelRepresentation = int(signed)
    data = pixels.astype("<u1" if bits <= 8 else "<u2").tobytes()
    film.PixelData = data + b"\0" * (len(data) % 2)
    film["PixelData"].VR = "OW"
    film["PixelData"].is_undefined_length = False
    film.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    return film


def at_depth(bits: int, *, signed: bool = False) -> Dataset:
    """Return the thumbnail scaled to another bit depth; the window goes with it."""
    source = rg1().pixel_array[::THUMBNAIL_STEP, ::THUMBNAIL_STEP].astype(np.float64)
    lowest = -(2 ** (bits - 1)) if signed else 0
    pixels = np.rint(source / (2**15 - 1) * (2**bits - 1)).astype(np.int64) + lowest
    scale = 2.0 ** (bits - 15)
    window = {"WindowCenter": f"{15000 * scale + lowest:.6g}", "WindowWidth": f"{30000 * scale:.6g}"}
    return with_pixels(thumbnail(window), pixels, bits=bits, signed=signed)


def ramp(changes: Mapping[str, object] | None = None) -> Dataset:
    """Return a MONOCHROME2 film of 64 x 64 pixels with the values 0 to 4095, without window or rescale."""
    film = thumbnail({"PhotometricInterpretation": "MONOCHROME2", "WindowCenter": None, "WindowWidth": None})
    with_pixels(film, np.arange(4096).reshape(64, 64), bits=12)
    return changed(film, changes or {})


def compressed(film: Dataset, syntax: UID) -> Dataset:
    """Encode a film's pixels without loss (RLE, JPEG-LS or JPEG 2000), in place.

    The encoder is named because GDCM's, which pydicom takes first, ends the process on an odd number of bytes.
    """
    encoder = "pyjpegls" if syntax == JPEGLSLossless else "pylibjpeg"
    film.compress(syntax, encoding_plugin=encoder, generate_instance_uid=False)
    return film


def as_another(film: Dataset, name: str, *, study: str | None = None) -> Dataset:
    """Give a film another SOP Instance UID, and another study where one is named, in place."""
    film.SOPInstanceUID = derive_uid("test film", name)
    film.file_meta.MediaStorageSOPInstanceUID = film.SOPInstanceUID
    if study is not None:
        film.StudyInstanceUID = derive_uid("test study", study)
    return film


def of_class(film: Dataset, sop_class: UID) -> Dataset:
    """Give a film another storage class, in place."""
    film.SOPClassUID = sop_class
    film.file_meta.MediaStorageSOPClassUID = sop_class
    return film


def lateral() -> Dataset:
    """Return a lateral film: the thumbnail squeezed as a chest is from the side, and labeled as one."""
    film = thumbnail({"ViewPosition": "LL", "PatientOrientation": ["A", "F"]})
    return with_pixels(film, film.pixel_array[:, ::2], bits=15)


def color() -> Dataset:
    """Return a color photograph of the thumbnail."""
    film = thumbnail()
    gray = (film.pixel_array >> 7).astype(np.uint8)
    with_pixels(film, gray, bits=8)
    film.PixelData = np.repeat(gray[:, :, np.newaxis], 3, axis=2).tobytes() + b"\0"
    return changed(film, {"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB", "PlanarConfiguration": 0})


def constant(value: int = 0) -> Dataset:
    """Return a film whose every pixel has one value; 0 is what a decoder leaves that fails silently."""
    film = thumbnail()
    return with_pixels(film, np.full((film.Rows, film.Columns), value), bits=15)


def one_pixel() -> Dataset:
    """Return a film of one pixel."""
    return with_pixels(thumbnail(), np.array([[1000]]), bits=15)


def cut_short() -> Dataset:
    """Return a film that lost the second half of its pixel bytes."""
    film = thumbnail()
    film.PixelData = film.PixelData[: len(film.PixelData) // 4 * 2]
    return film


def two_frames() -> Dataset:
    """Return two films in one object."""
    film = thumbnail({"NumberOfFrames": 2})
    film.PixelData = film.PixelData * 2
    return film


def overlong() -> Dataset:
    """Return a film with a row more than its header says."""
    film = thumbnail()
    film.PixelData = film.PixelData + b"\0" * 2 * film.Columns
    return film


def mislabeled_codestream() -> Dataset:
    """Return a compressed film whose codestream is larger than its header says."""
    film = compressed(thumbnail(), JPEG2000Lossless)
    film.Rows -= 5
    return film


def non_image(modality: str) -> Dataset:
    """Return an object of RG1's study that is no image; `modality` is a key of NON_IMAGES."""
    source, header = thumbnail(), Dataset()
    for keyword in ("PatientID", "PatientName", "StudyInstanceUID", "StudyDate", "StudyTime", "AccessionNumber"):
        if keyword in source:
            header[keyword] = copy.deepcopy(source[keyword])
    header.SeriesInstanceUID = derive_uid("test series", modality)
    header.Modality = "SR" if modality == "dose report" else modality
    header.file_meta = FileMetaDataset()
    header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    of_class(header, NON_IMAGES[modality])
    return as_another(header, modality)


def own_object() -> Dataset:
    """Return a film that this program would have written: a burnt-in overlay with its equipment."""
    film, equipment = as_another(thumbnail({"Modality": "DX"}), "own"), Dataset()
    equipment.Manufacturer, equipment.ManufacturerModelName = identity.MANUFACTURER, identity.PROGRAM
    film.ContributingEquipmentSequence = [equipment]
    return film


def file_bytes(film: Dataset) -> bytes:
    """Return the DICOM file of a dataset, with preamble and file meta."""
    buffer = BytesIO()
    with attributes.quiet():
        film.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def body_of(content: bytes) -> bytes:
    """Return the dataset of a DICOM file, byte for byte: what stands behind its file meta information (PS3.10 7.1)."""
    (group_length,) = struct.unpack_from("<L", content, 140)
    return content[144 + group_length :]


def saved(folder: Path, film: Dataset) -> Path:
    """Write the file of a film into a folder."""
    path = folder / "film.dcm"
    path.write_bytes(file_bytes(film))
    return path


def keep(spool: Spool, film: Dataset, *, study_uid: str | None = None) -> Kept:
    """Keep a film on a spool as the listener does, of another study if one is named."""
    content = file_bytes(film)
    body = body_of(content)
    return keep_bytes(
        spool,
        study_uid=study_uid or film.StudyInstanceUID,
        sop_instance_uid=film.SOPInstanceUID,
        meta=content[: -len(body)],
        body=body,
    )


def keep_bytes(spool: Spool, *, study_uid: str, sop_instance_uid: str, meta: bytes, body: bytes) -> Kept:
    """Keep the bytes of an object on a spool; like `Spool.settle`."""
    incoming = spool.receive(meta)
    try:
        incoming.write(body)
        return spool.settle(incoming, study_uid=study_uid, sop_instance_uid=sop_instance_uid)
    finally:
        incoming.discard()


def headerless_bytes(film: Dataset) -> bytes:
    """Return the bare dataset, as some archives store it."""
    bare, buffer = copy.deepcopy(film), BytesIO()
    bare.file_meta = FileMetaDataset()
    bare.save_as(buffer, implicit_vr=True, little_endian=True, enforce_file_format=False)
    return buffer.getvalue()


REFUSED: dict[str, tuple[Callable[[], Dataset], Reason]] = {
    "a CT slice": (lambda: of_class(thumbnail({"Modality": "CT"}), CTImageStorage), Reason.MODALITY),
    "a mammogram": (
        lambda: of_class(thumbnail({"Modality": "MG"}), DigitalMammographyXRayImageStorageForPresentation),
        Reason.MODALITY,
    ),
    "two frames": (two_frames, Reason.MODALITY),
    "raw detector values": (lambda: thumbnail({"PresentationIntentType": "FOR PROCESSING"}), Reason.FOR_PROCESSING),
    "a hip": (lambda: thumbnail({"BodyPartExamined": "HIP"}), Reason.NOT_CHEST),
    "a lateral film": (lateral, Reason.LATERAL),
    "no pixel data": (lambda: thumbnail({"PixelData": None}), Reason.NO_PIXELS),
    "a color film": (color, Reason.COLOR),
    "one pixel": (one_pixel, Reason.TOO_SMALL),
    "an absurd size": (lambda: thumbnail({"Rows": 60000, "Columns": 60000}), Reason.UNDECODABLE),
    "all zero": (constant, Reason.BLANK),
    "cut short": (cut_short, Reason.UNDECODABLE),
    "overlong": (overlong, Reason.UNDECODABLE),
    "a mislabeled codestream": (mislabeled_codestream, Reason.UNDECODABLE),
}
"""Films that are not read, each with the reason that the first of routing and decoding must give."""
