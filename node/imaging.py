"""DICOM pixels to upright gray, and nothing that a decoder may raise.

Every film that cannot become gray values raises `Undecodable` with its reason: a decoder that fails silently must not
let the node say "nothing found", so a picture that is constant, or that shows nothing in the analyzed square, is
refused too. Boxes never need the pixels: the way back is in `framing.Framing`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from pydicom import dcmread
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import generate_frames
from pydicom.filereader import read_dataset, read_preamble
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.utils import pixel_array
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    RLELossless,
)

from node import attributes, grayscale, pixel_format
from node.domain import Box, Reason, Side
from node.errors import ConfigError, Undecodable, is_of_disk
from node.framing import Framing, Turn

GrayPicture = npt.NDArray[np.float32]
BytePicture = npt.NDArray[np.uint8]

_LONG_BYTES = 4096
_CHUNK_BYTES = 2**20
_MOST_INFLATED_BYTES = 512 * 2**20
"""Four times the largest film that is decoded (`pixel_format.MAX_PIXELS`, 16 bits); pydicom inflates all at once."""
_PLUGINS = ("pylibjpeg", "pyjpegls", "pydicom", "pillow", "gdcm")
_SIDE_TOLERANCE = 0.05
_LEAST_CONTRAST = 1 / 255
_TURNS = {
    (row, column): Turn(
        transpose=row in "HF",
        mirror_columns="R" in (row, column),
        mirror_rows="H" in (row, column),
    )
    for row, column in ("LF", "LH", "RF", "RH", "FL", "FR", "HL", "HR")
}
"""PatientOrientation (direction of the rows, of the columns; PS3.3 C.7.6.1.1.1) to the turn that makes it L, F."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Radiograph:
    """One decoded film.

    gray: [row, column] of the *upright* film, 0..1, what the network's preparation starts from
    picture: [row, column] of the *stored* film, as displayed, 0..255
    framing: where the analyzed square lies, and how boxes come back to the stored film
    """

    gray: GrayPicture
    picture: BytePicture
    framing: Framing


def read_header(path: Path) -> Dataset:
    """Read one DICOM file, with or without preamble and file meta, for everything but its pixels.

    PixelData is there when the file has any, so that `routing.choose` can tell; long values are fetched from the file
    when first looked at. Raises Undecodable for what names no class and instance, and OSError as the disk does.
    """
    return _read(path, longest_bytes=_LONG_BYTES)


def read_file(path: Path) -> Dataset:
    """Read one DICOM file with its pixels, for `load`; raises as `read_header` does.

    In a file that ends within its pixel data these are present but short or empty.
    """
    return _read(path, longest_bytes=None)


def load(dataset: Dataset, *, gray: str, square: Callable[[int, int], tuple[float, float, float, float]]) -> Radiograph:
    """Decode one film and turn it upright.

    gray: the manifest's mode, a key of `grayscale.TABLES`
    square: columns and rows of the upright film to left, top, right, bottom of the square that will be analyzed
    Raises Undecodable with the film's reason: undecodable, no_pixels, blank, too_small, color (modality: many frames).
    """
    if gray not in grayscale.TABLES:
        raise ConfigError([f"gray = {gray!r} is not one of {', '.join(grayscale.TABLES)}"])
    if (reason := pixel_format.reason_against(dataset)) is not None:
        raise Undecodable(reason, f"the header declares no gray film that can be read ({reason})")
    try:
        with attributes.quiet():
            indices, lowest, bits = _stored_values(dataset)
        levels = grayscale.count_levels(dataset, indices, lowest=lowest, bits=bits)
        if np.count_nonzero(levels.exposed) < 2:
            raise Undecodable(Reason.BLANK, "all pixels have one value")
        shown = grayscale.displayed(dataset, levels)
        seen = shown if gray == "voi" else grayscale.TABLES[gray](dataset, levels)
    except Undecodable:
        raise
    except Exception as error:  # the boundary to the decoders and to whatever a header can say
        raise Undecodable(Reason.UNDECODABLE, f"the pixels cannot be decoded ({type(error).__name__})") from error
    rows, columns = indices.shape
    turn = _turn(dataset) or Turn()
    upright = turned(seen.astype(np.float32)[indices], turn)
    left, top, right, bottom = square(upright.shape[1], upright.shape[0])
    analyzed = Box(left=left, top=top, right=right, bottom=bottom)
    refuse_blank(upright, analyzed)
    return Radiograph(
        gray=upright,
        picture=np.rint(shown * 255).astype(np.uint8)[indices],
        framing=Framing(columns=columns, rows=rows, square=analyzed, turn=turn),
    )


def turned(picture: GrayPicture, turn: Turn) -> GrayPicture:
    """Turn a stored picture upright; [row, column] both."""
    upright = picture.T if turn.transpose else picture
    return np.ascontiguousarray(upright[:: -1 if turn.mirror_rows else 1, :: -1 if turn.mirror_columns else 1])


def sides_known(dataset: Dataset) -> bool:
    """Say whether the film tells which side of the picture is the patient's left."""
    return _turn(dataset) is not None


def side_of(box: Box, framing: Framing) -> Side | None:
    """Say on which side of the patient a box lies; only for a film whose `sides_known`.

    The box must lie on one side of the middle of the analyzed square, which it may pass by 5 % of the square; None
    otherwise. The patient's right is on the left of an upright film.
    """
    x, _, width, _ = framing.to_unit(box)
    is_right = x + width / 2 <= 0.5 + _SIDE_TOLERANCE
    is_left = x - width / 2 >= 0.5 - _SIDE_TOLERANCE
    if is_right == is_left:
        return None
    return Side.RIGHT if is_right else Side.LEFT


def _turn(dataset: Dataset) -> Turn | None:
    """Return the turn that PatientOrientation asks for; None when it is not exactly a frontal pair."""
    directions = tuple(str(direction) for direction in attributes.values(dataset, "PatientOrientation"))
    return _TURNS.get(directions) if len(directions) == 2 else None


def _read(path: Path, *, longest_bytes: int | None) -> Dataset:
    try:
        with attributes.quiet():
            _refuse_bomb(path)
            dataset = dcmread(path, force=True, defer_size=longest_bytes)
            if not dataset:
                # pydicom 3.0.2 drops everything it read when an encapsulated value never ends.
                dataset = dcmread(path, force=True, stop_before_pixels=True)
                if dataset:
                    dataset.add_new("PixelData", "OB", b"")
    except Undecodable:
        raise
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        if is_of_disk(error):
            raise
        raise Undecodable(Reason.UNDECODABLE, f"not readable as DICOM ({type(error).__name__})") from error
    if not (attributes.text(dataset, "SOPClassUID") and attributes.text(dataset, "SOPInstanceUID")):
        raise Undecodable(Reason.UNDECODABLE, "no DICOM object: it names no SOP class or no SOP instance")
    _complete_meta(dataset)
    return dataset


def _refuse_bomb(path: Path) -> None:
    """Refuse a deflated file (PS3.5 A.5) that is too large once inflated: 0.5 MB may become gigabytes."""
    with path.open("rb") as file:
        if not _is_deflated(file):
            return
        inflater, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while not inflater.eof and (waiting := inflater.unconsumed_tail or file.read(_CHUNK_BYTES)):
            size += len(inflater.decompress(waiting, _CHUNK_BYTES))
            if size > _MOST_INFLATED_BYTES:
                raise Undecodable(Reason.UNDECODABLE, f"inflates to more than {_MOST_INFLATED_BYTES} bytes")


def _is_deflated(file: BinaryIO) -> bool:
    """Read the file meta information as pydicom 3.0.2 does, and leave the file at what follows it."""
    read_preamble(file, force=True)
    start = file.tell()
    for is_implicit in (False, True):  # the second is wrong (PS3.10 7.1), but read all the same
        file.seek(start)
        meta = read_dataset(
            file, is_implicit, is_little_endian=True, stop_when=lambda tag, _vr, _length: tag >> 16 != 2
        )
        if syntax := attributes.text(meta, "TransferSyntaxUID"):
            return syntax == DeflatedExplicitVRLittleEndian
    return False


def _complete_meta(dataset: Dataset) -> None:
    """Add the transfer syntax to a file without meta information, as pydicom found the bytes to be."""
    meta = getattr(dataset, "file_meta", None) or FileMetaDataset()
    if not meta.get("TransferSyntaxUID"):
        is_implicit, is_little_endian = dataset.original_encoding
        explicit = ExplicitVRLittleEndian if is_little_endian else ExplicitVRBigEndian
        meta.TransferSyntaxUID = ImplicitVRLittleEndian if is_implicit else explicit
    dataset.file_meta = meta


def _stored_values(dataset: Dataset) -> tuple[npt.NDArray[np.uint16], int, int]:
    """Decode the pixels; return [row, column] stored values less the lowest possible one, that one, and the bits."""
    bits, high = attributes.whole(dataset, "BitsStored"), attributes.whole(dataset, "HighBit")
    allocated = attributes.whole(dataset, "BitsAllocated")
    if bits is None or allocated is None or not 1 <= bits <= min(allocated, 16):
        raise Undecodable(Reason.UNDECODABLE, "the header's bit depth is none that a film has")
    syntax = UID(str(dataset.file_meta.TransferSyntaxUID))
    _check_length(dataset, syntax, allocated=allocated)
    plugin = _plugin(syntax)
    decoded = pixel_array(dataset, index=0, raw=True, correct_unused_bits=False, decoding_plugin=plugin)
    decoded = decoded.astype(np.int64)
    lowest = -(2 ** (bits - 1)) if attributes.whole(dataset, "PixelRepresentation") == 1 else 0
    shift = 0 if high is None else high + 1 - bits
    if not 0 <= shift <= allocated - bits:
        raise Undecodable(Reason.UNDECODABLE, "the header's high bit does not fit its bit depth")
    if syntax.is_encapsulated and syntax != RLELossless and shift == 0:
        # A lossy decoder may overshoot the declared range; cutting bits off would turn white into black.
        indices = np.clip(decoded - lowest, 0, 2**bits - 1)
    else:
        # Bits outside HighBit and BitsStored belong to overlays or to nobody (PS3.5 8.1.1).
        stored = (decoded >> shift) & (2**bits - 1)
        indices = (stored - lowest) & (2**bits - 1)
    return indices.astype(np.uint16), lowest, bits


def _plugin(syntax: UID) -> str:
    """Name the one decoder to use; none for plain pixels.

    pydicom would try one after the other, beginning with GDCM, whose checks end the whole process (seen: python-gdcm
    3.2.6, an odd number of bytes). So GDCM gets only what nothing else decodes: lossless JPEG.
    """
    if not syntax.is_encapsulated:
        return ""
    available = get_decoder(syntax).available_plugins
    return next(plugin for plugin in _PLUGINS if plugin in available)


def _check_length(dataset: Dataset, syntax: UID, *, allocated: int) -> None:
    """Refuse pixel data that is not as long, or not as large, as the header says."""
    rows, columns = attributes.whole(dataset, "Rows") or 0, attributes.whole(dataset, "Columns") or 0
    data = dataset["PixelData"].value or b""
    if not data:
        raise Undecodable(Reason.UNDECODABLE, "the pixel data is empty or cut off")
    if syntax.is_encapsulated:
        frame = next(generate_frames(data, number_of_frames=1))
        is_whole = (
            pixel_format.rle_length(frame) == rows * columns
            if syntax == RLELossless
            else pixel_format.coded_size(frame) == (columns, rows)
        )
        if not is_whole:
            raise Undecodable(Reason.UNDECODABLE, "codestream and header differ in size")
        return
    expected = (rows * columns * allocated + 7) // 8
    if len(data) not in (expected, expected + expected % 2):
        raise Undecodable(Reason.UNDECODABLE, f"{len(data)} bytes of pixel data, the header says {expected}")


def refuse_blank(upright: GrayPicture, analyzed: Box) -> None:
    """Refuse a film whose analyzed square shows one gray, apart from the outermost 0.5 % of its pixels.

    Raises Undecodable (blank).
    """
    left, top, right, bottom = (int(edge) for edge in analyzed.edges)
    inside = upright[max(top, 0) : bottom, max(left, 0) : right]
    stride = max(1, min(inside.shape) // 256)
    low, high = np.quantile(inside[::stride, ::stride], (0.005, 0.995))
    if high - low < _LEAST_CONTRAST:
        raise Undecodable(Reason.BLANK, "the analyzed square shows one gray")
