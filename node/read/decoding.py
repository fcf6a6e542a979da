"""Decode DICOM pixels to upright gray values; a decoder's errors become `Undecodable`.

Every film that cannot be decoded to gray values raises `Undecodable` with its reason. A decoder may also fail without
an error, and the node must not then report "nothing found": so a picture with one gray value in the analyzed square is
refused too, and so is one that no person could read. Mapping boxes to the stored film needs no pixels;
`framing.Framing` does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydicom.dataset import Dataset
from pydicom.uid import (
    UID,
    RLELossless,
)

from models.contract import Box, Side
from node.dicom import attributes, header, header_reading, overlays
from node.dicom.film_header import FilmHeader, PixelFormat, has_oblong_pixels, parse_header
from node.dicom.grayscale_header import UNCHANGED, GrayscaleHeader, LookUpTable, parse_grayscale
from node.dicom.header_reading import read_header
from node.dicom.overlays import DisplayShutter, Mask
from node.domain import Note, Reason
from node.errors import ConfigError, Undecodable, is_of_disk
from node.read import decoder_processes, grayscale, pixel_format
from node.read.framing import Framing, Turn
from node.read.pixels import Cells, StoredPixels

GrayPicture = npt.NDArray[np.float32]
BytePicture = npt.NDArray[np.uint8]
Square = Callable[[int, int], tuple[float, float, float, float]]

_LONGEST_BYTES = 16 * 2**20
"""Of a value that is read at once, with a film that is decoded: twice the largest overlay plane."""
_MOST_ALLOCATED = 64
_SIDE_TOLERANCE = 0.05
_FINEST = 256
"""At least so many pixels of a thumbnail lie along the shorter side, if the film has as many and is no long strip."""
_MOST_PIXELS = 2**20
"""Of a thumbnail."""
_TURNS = {
    (row, column): Turn(
        transpose=row in "HF",
        mirror_columns="R" in (row, column),
        mirror_rows="H" in (row, column),
    )
    for row, column in ("LF", "LH", "RF", "RH", "FL", "FR", "HL", "HR")
}
"""Maps PatientOrientation (direction of rows and of columns; PS3.3 C.7.6.1.1.1) to the turn that makes it L, F."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Thumbnail:
    """Every `step`-th pixel of a film, of its rows and its columns: enough to place labels on it.

    A reading makes it, so that no writer decodes the film again.

    gray: [row, column] in stored orientation, as displayed, 0..255
    stretch: the gray value mapping, if the header has no legible one
    """

    gray: BytePicture
    step: int
    stretch: grayscale.Stretch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Radiograph:
    """One decoded film.

    gray: [row, column] of the *upright* film, 0..1; the input of the network's preprocessing
    framing: where the analyzed square lies, and how boxes are mapped to the stored film
    sides_known: whether the film names its sides
    notes: cautions about the pixels
    thumbnail: with which a presentation state is written; None for a picture without a header
    """

    gray: GrayPicture
    framing: Framing
    sides_known: bool = False
    notes: tuple[Note, ...] = ()
    thumbnail: Thumbnail | None = None


def load(path: Path, *, gray: str, square: Square) -> Radiograph:
    """Decode one film whose header has not been read yet; parameters and errors as in `decode`."""
    return decode(path, parse_header(read_header(path)), gray=gray, square=square)


def decode(path: Path, film_header: FilmHeader, *, gray: str, square: Square) -> Radiograph:
    """Decode one film, in a process of its own (`decoder_processes`), and turn it upright.

    film_header: its header, parsed
    gray: the manifest's mode, a key of `grayscale.TABLES`
    square: maps columns and rows of the upright film to left, top, right, bottom of the square to analyze
    Raises Undecodable with the film's reason: undecodable, no_pixels, blank, unreadable, too_small, color, or modality
    for several frames.
    """
    if gray not in grayscale.TABLES:
        raise ConfigError([f"gray = {gray!r} is not one of {', '.join(grayscale.TABLES)}"])
    dataset = _read_before_pixels(path)
    with _decoders():
        values = _decoded(path, film_header)
        stored = _stored_picture(dataset, film_header, values)
        seen = grayscale.TABLES[gray](stored.header, stored.levels)
        is_stretched = gray == grayscale.EQUALIZED and grayscale.has_outliers(stored.header, stored.levels)
    rows, columns = stored.indices.shape
    turn = _turn(film_header) or Turn()
    upright = turned(np.take(seen.astype(np.float32), stored.indices), turn)
    left, top, right, bottom = square(upright.shape[1], upright.shape[0])
    return Radiograph(
        gray=upright,
        framing=Framing(
            columns=columns, rows=rows, square=Box(left=left, top=top, right=right, bottom=bottom), turn=turn
        ),
        sides_known=sides_known(film_header),
        thumbnail=_thumbnail(dataset, stored, values.cells),
        notes=tuple(
            dict.fromkeys(
                (
                    *stored.notes,
                    *([Note.STRETCHED] if is_stretched else []),
                    *([Note.OBLONG_PIXELS] if has_oblong_pixels(dataset) else []),
                )
            )
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredPicture:
    """A decoded film in stored orientation, to be shown in any window.

    header: with which a person can read it (`grayscale.legible`)
    notes: cautions about the pixels
    shutter: hides a part of the film; None for a film without
    marks: where overlay planes draw something over it; None for a film without
    """

    indices: npt.NDArray[np.uint16]
    header: GrayscaleHeader
    levels: grayscale.Levels
    notes: tuple[Note, ...] = ()
    shutter: DisplayShutter | None = None
    marks: Mask | None = None

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        masks = (None if self.shutter is None else self.shutter.hidden, self.marks)
        return self.indices.nbytes + sum(mask.nbytes for mask in masks if mask is not None)

    @property
    def window(self) -> grayscale.Window:
        """The default window of its display."""
        return grayscale.window_of(self.header, self.levels)

    @property
    def stretch(self) -> grayscale.Stretch | None:
        """Gray value mapping for a film without VOI LUT and window in its header."""
        if self.header.voi_lut is not None or grayscale.usable_window(self.header) is not None:
            return None
        modality = (self.header.modality_lut, self.header.rescale_slope, self.header.rescale_intercept)
        return grayscale.Stretch(
            window=self.window,
            is_inverted=self.header.is_inverted,
            has_modality=any(part is not None for part in modality),
        )

    def displayed(self) -> GrayPicture:
        """Return the film alone as displayed, 0..1, [row, column]."""
        return np.take(grayscale.displayed(self.header, self.levels).astype(np.float32), self.indices)

    def shown(self, window: grayscale.Window | None = None, *, is_inverted: bool = False) -> BytePicture:
        """Return the film as displayed, or in a window, with its shutter and its overlay planes (PS3.4 N.2).

        0..255, [row, column]; overlay planes are white, as a presentation state draws them
        """
        picture = self.film(window, is_inverted=is_inverted)
        if self.shutter is not None:
            picture[self.shutter.hidden] = round(self.shutter.value / 257)
        if self.marks is not None:
            picture[self.marks] = 255
        return picture

    def thumbnail(self) -> Thumbnail:
        """Return the displayed film in a size that suffices for placing labels."""
        step = step_of(self.indices.shape)
        shutter = self.shutter and replace(self.shutter, hidden=self.shutter.hidden[::step, ::step])
        marks = None if self.marks is None else self.marks[::step, ::step]
        small = replace(self, indices=self.indices[::step, ::step], shutter=shutter, marks=marks)
        return Thumbnail(gray=small.shown(), step=step, stretch=self.stretch)

    def film(self, window: grayscale.Window | None = None, *, is_inverted: bool = False) -> BytePicture:
        """Return the film alone, as displayed or in a window, 0..255, [row, column]."""
        if window is None and not is_inverted:
            gray = grayscale.displayed(self.header, self.levels)
        else:
            gray = grayscale.windowed(self.header, self.levels, window or self.window, is_inverted=is_inverted)
        return np.take(np.rint(gray * 255).astype(np.uint8), self.indices)


def stored_picture(path: Path) -> StoredPicture:
    """Decode one film for display, in a process of its own; errors as in `decode`, and those of `read_header`."""
    film_header, dataset = parse_header(read_header(path)), _read_before_pixels(path)
    with _decoders():
        values = _decoded(path, film_header)
        return _with_graphics(dataset, _stored_picture(dataset, film_header, values), values.cells)


def stored_values(path: Path) -> StoredValues:
    """Decode one film to its stored values alone; errors as in `decode`, and those of `read_header`."""
    film_header = parse_header(read_header(path))
    with _decoders():
        return _values_of(_decoded(path, film_header), film_header)


def _with_graphics(dataset: Dataset, picture: StoredPicture, cells: Cells) -> StoredPicture:
    """Add the shutter and the overlay planes of a film."""
    return replace(picture, shutter=overlays.find_shutter(dataset), marks=_marks(dataset, cells))


def _thumbnail(dataset: Dataset, picture: StoredPicture, cells: Cells) -> Thumbnail | None:
    """Return the thumbnail of a film that is read; None if its graphics cannot be drawn, which its reading ignores."""
    try:
        with _decoders():
            return _with_graphics(dataset, picture, cells).thumbnail()
    except Undecodable:
        return None


def _marks(dataset: Dataset, cells: Cells) -> Mask | None:
    """Return the mask of the overlay planes of a film; None if it has none."""
    planes = overlays.find_planes(dataset)
    return overlays.drawn(planes, cells) if planes else None


def step_of(shape: tuple[int, ...]) -> int:
    """Return `Thumbnail.step` for a film of this shape, (rows, columns)."""
    return max(1, min(shape) // _FINEST, math.isqrt(math.prod(shape) // _MOST_PIXELS))


def picture_without_header(picture: BytePicture) -> StoredPicture:
    """Make a film of a picture without a header, with its own gray values unless they are illegible.

    picture: gray values, [row, column]
    Raises Undecodable: blank or unreadable.
    """
    return _legible(UNCHANGED, grayscale.levels_of(UNCHANGED, picture.astype(np.uint16), lowest=0, bits=8))


def turned(picture: GrayPicture, turn: Turn) -> GrayPicture:
    """Turn a stored picture upright; input and result are [row, column]."""
    upright = picture.T if turn.transpose else picture
    return np.ascontiguousarray(upright[:: -1 if turn.mirror_rows else 1, :: -1 if turn.mirror_columns else 1])


def sides_known(film_header: FilmHeader) -> bool:
    """Return whether the header states which side of the picture is the patient's left."""
    return _turn(film_header) is not None


def framing_of(film_header: FilmHeader, *, columns: int, rows: int, analyzed: Box, middle: float | None) -> Framing:
    """Return the framing of a film that was read before.

    columns, rows: the stored film's size; analyzed: the square on the stored film; middle: as in `Framing.about`
    """
    turn = _turn(film_header) or Turn()
    across, down = (rows, columns) if turn.transpose else (columns, rows)
    whole = Framing(columns=columns, rows=rows, square=Box(left=0, top=0, right=across, bottom=down), turn=turn)
    x, y, width, height = whole.to_unit(analyzed)
    left, top = (x - width / 2) * across, (y - height / 2) * down
    square = Box(left=left, top=top, right=left + width * across, bottom=top + height * down)
    return Framing(columns=columns, rows=rows, square=square, turn=turn).about(middle)


def side_of(box: Box, framing: Framing) -> Side | None:
    """Return on which side of the patient a box lies; only for a film with `sides_known`.

    The box must lie on one side of the patient's middle, and may cross it by 5 % of the square; otherwise None. The
    patient's right is on the left of an upright film.
    """
    x, _, width, _ = framing.to_unit(box)
    return side_of_square(x, width, middle=framing.middle)


def side_of_square(x: float, width: float, *, middle: float) -> Side | None:
    """Return the side of a box in the upright square, from its center and width, 0..1; see `side_of`."""
    is_right = x + width / 2 <= middle + _SIDE_TOLERANCE
    is_left = x - width / 2 >= middle - _SIDE_TOLERANCE
    if is_right == is_left:
        return None
    return Side.RIGHT if is_right else Side.LEFT


def _turn(film_header: FilmHeader) -> Turn | None:
    """Return the turn for PatientOrientation; None when its two directions are not those of a frontal film."""
    directions = film_header.patient_orientation
    return _TURNS.get((directions[0], directions[1])) if len(directions) == 2 else None


def _read_before_pixels(path: Path) -> Dataset:
    """Read the display attributes of the pixels now, so that an error of the disk is raised here and not later."""
    return header_reading.read(path, longest_bytes=_LONGEST_BYTES, stop_when=header.at_pixels)


@contextmanager
def _decoders() -> Iterator[None]:
    """Turn any error about the pixels into Undecodable."""
    try:
        yield
    except (Undecodable, MemoryError):  # lack of memory is no fault of the film
        raise
    except Exception as error:  # the boundary to pydicom and numpy, which meet any content of a header
        if is_of_disk(error):
            raise
        raise Undecodable(Reason.UNDECODABLE, f"the pixels cannot be decoded ({type(error).__name__})") from error


def _decoded(path: Path, film_header: FilmHeader) -> StoredPixels:
    """Decode the pixels in another process. Raises Undecodable, and OSError for an error of the disk."""
    pixels = film_header.pixels
    if (found := pixel_format.objection(pixels)) is not None:
        raise Undecodable(found.reason, f"the header declares no gray film that can be read ({found.reason})")
    _depth(pixels)
    for keyword, value in (
        ("PhotometricInterpretation", pixels.photometric_interpretation),
        ("PixelRepresentation", pixels.pixel_representation),
    ):
        if value in ("", None):
            raise Undecodable(Reason.UNDECODABLE, f"the header has no {keyword}; correct it at the sender")
    return decoder_processes.of_this_process().decode_film(path, film_header)


def _depth(pixels: PixelFormat) -> tuple[int, int]:
    """Return how many bits hold the value, and behind how many others. Raises Undecodable for impossible bits."""
    bits, high, allocated = pixels.bits_stored, pixels.high_bit, pixels.bits_allocated
    if bits is None or allocated is None or allocated > _MOST_ALLOCATED or not 1 <= bits <= min(allocated, 16):
        raise Undecodable(Reason.UNDECODABLE, "the header's bit depth is none that a film has")
    shift = 0 if high is None else high + 1 - bits
    if not 0 <= shift <= allocated - bits:
        raise Undecodable(Reason.UNDECODABLE, "the header's high bit does not fit its bit depth")
    return bits, shift


def _stored_picture(dataset: Dataset, film_header: FilmHeader, stored: StoredPixels) -> StoredPicture:
    """Settle how decoded pixels are displayed. Raises Undecodable."""
    values = _values_of(stored, film_header)
    with attributes.quiet():
        gray_header = parse_grayscale(dataset, photometric_interpretation=film_header.pixels.photometric_interpretation)
    levels = grayscale.levels_of(gray_header, values.indices, lowest=values.lowest, bits=values.bits)
    legible = _legible(gray_header, levels)
    disputed = (Note.POLARITY_UNCLEAR,) if gray_header.is_disputed else ()
    return replace(legible, notes=(*values.notes, *disputed, *legible.notes))


def _legible(header: GrayscaleHeader, levels: grayscale.Levels) -> StoredPicture:
    """Choose a legible display of a film. Raises Undecodable if there is none."""
    if levels.is_blank:
        raise Undecodable(Reason.BLANK, "the analyzed square shows one gray")
    legible = grayscale.legible(header, levels)
    if legible is None:
        raise Undecodable(Reason.UNREADABLE, "the stored values have too few grays, or are nearly all black and white")
    notes = []
    if levels.is_padding_ignored:
        notes.append(Note.PADDING_IGNORED)
    if legible is not header:
        notes.append(Note.STRETCHED)
    if isinstance(legible.voi_lut, LookUpTable) and legible.voi_lut.is_scaled:
        notes.append(Note.TABLE_SCALED)
    return StoredPicture(indices=levels.indices, header=legible, levels=levels, notes=tuple(notes))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredValues:
    """Decoded pixels, without the bits that are no value.

    indices: [row, column], the values minus the lowest that `bits` can hold
    """

    indices: npt.NDArray[np.uint16]
    lowest: int
    bits: int
    notes: tuple[Note, ...] = ()


def _values_of(stored: StoredPixels, film_header: FilmHeader) -> StoredValues:
    """Take the values out of decoded pixels."""
    bits, shift = _depth(film_header.pixels)
    is_signed, syntax = film_header.pixels.pixel_representation == 1, UID(film_header.transfer_syntax_uid)
    coded = stored.depth
    if coded is not None and coded.is_signed != is_signed and coded.bits <= 16:
        indices = _selected(stored.cells, shift=0, bits=coded.bits, is_signed=coded.is_signed)
        lowest = _lowest(coded.bits, is_signed=coded.is_signed)
        return StoredValues(indices=indices, lowest=lowest, bits=coded.bits, notes=(Note.SIGN_DISAGREES,))
    lowest = _lowest(bits, is_signed=is_signed)
    if syntax.is_encapsulated and syntax != RLELossless and shift == 0:
        # A lossy decoder may exceed the declared range; removing the high bits would turn white into black.
        return StoredValues(indices=_limited(stored.cells, lowest=lowest, bits=bits), lowest=lowest, bits=bits)
    # Bits outside HighBit and BitsStored hold overlays or nothing (PS3.5 8.1.1).
    indices = _selected(stored.cells, shift=shift, bits=bits, is_signed=is_signed)
    notes = (Note.PIXELS_CUT,) if stored.is_longer else ()
    return StoredValues(indices=indices, lowest=lowest, bits=bits, notes=notes)


def _lowest(bits: int, *, is_signed: bool) -> int:
    """Return the lowest value that some bits can hold."""
    return -(2 ** (bits - 1)) if is_signed else 0


def _limited(decoded: npt.NDArray[np.integer], *, lowest: int, bits: int) -> npt.NDArray[np.uint16]:
    """Clip values to those that the bits can hold, and count them from the lowest; computed in the decoded type."""
    holds = np.iinfo(decoded.dtype)
    low, high = max(lowest, int(holds.min)), min(lowest + 2**bits - 1, int(holds.max))
    inside: npt.NDArray[np.integer] = np.clip(decoded, low, high)
    # A negative value wraps around twice: the sum is below 2^16.
    return inside.astype(np.uint16) + np.array(-lowest, dtype=np.uint16)


def _selected(decoded: npt.NDArray[np.integer], *, shift: int, bits: int, is_signed: bool) -> npt.NDArray[np.uint16]:
    """Return the stored bits of each value, counted from the lowest value; computed in 16 bits where those suffice.

    Flipping the sign bit of a value in two's complement counts it from the lowest.
    """
    stored = decoded.astype(np.uint32 if decoded.dtype.itemsize > 2 else np.uint16, copy=False)
    indices = (np.right_shift(stored, shift) if shift else stored).astype(np.uint16, copy=False)
    if bits < 16:
        indices = indices & np.uint16(2**bits - 1)
    return indices ^ np.uint16(2 ** (bits - 1)) if is_signed else indices
