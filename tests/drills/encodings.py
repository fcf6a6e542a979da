"""Runnable: good films of every encoder at hand, read as the node reads them; the last line is one JSON object.

    python -m tests.drills.encodings [--only gdcm]

A whole film and small ones of 8 to 16 bits, of odd and even sizes, in one and several fragments, with and without a
table of offsets, with markers that are padded with fill bytes. Each is decoded as in a node, with all that may refuse
it. A lossless one must give the pixels that were encoded, a lossy one those that a decoder of others gives. What the
encoder or that decoder does not take is counted as `not made`. Some minutes.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import cv2
import imagecodecs
import numpy as np
import numpy.typing as npt
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, encapsulate_extended, generate_frames
from pydicom.uid import (
    HTJ2K,
    JPEG2000,
    UID,
    HTJ2KLossless,
    JPEG2000Lossless,
    JPEG2000TransferSyntaxes,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    JPEGLSTransferSyntaxes,
    JPEGTransferSyntaxes,
    RLELossless,
)

from models import progress
from models.progress import ProgressReport
from node.errors import Undecodable
from node.read import decoding
from tests.drills.fuzz import Tally
from tests.support import films, peers

Pixels = npt.NDArray[np.integer]
Encode = Callable[[Pixels, int], bytes | bytearray]

DEPTHS: Final = ((8, False), (10, False), (12, False), (12, True), (15, False), (16, False), (16, True))
"""Stored bits, and whether they have a sign."""
SIZES: Final = ((245, 231), (97, 131), (96, 130))
"""Rows and columns."""

_FRAGMENTS: Final = 3
_EVERY: Final = range(8, 17)
_EIGHT: Final = range(8, 9)
_TO_TWELVE: Final = range(8, 13)
_MARKED: Final = (*JPEGTransferSyntaxes, *JPEGLSTransferSyntaxes)
_START_OF_SCAN: Final = 0xDA
_ROUNDING: Final = 2
"""By how much two decoders may differ on what is lossy: the transforms are not exact (ISO 10918-2, 15444-4)."""
_LEFT_OUT: Final = (0x0010, 0x0018, 0x0020, 0x0032, 0x0040)
"""Groups of a header that say nothing of pixels; without them a film is read in half of the time."""


class NotMade(Exception):
    """An encoder does not take a film, or the other decoder does not take what it wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Writes a film in one transfer syntax.

    bits: the depths that the syntax or the encoder has
    encode: returns the film encoded; raises NotMade
    other: decodes what is lossy, from one file to another; None for what is lossless
    """

    name: str
    bits: range
    encode: Callable[[Dataset], Dataset]
    other: Callable[[Path, Path], None] | None = None


def source(bits: int, rows: int, columns: int, *, signed: bool = False) -> Dataset:
    """Make the film that is encoded: the upper left part of the tests' chest film, with a short header."""
    film = short(films.at_depth(bits, signed=signed))
    return films.with_pixels(film, film.pixel_array[:rows, :columns], bits=bits, signed=signed)


def short(film: Dataset) -> Dataset:
    """Take what says nothing of pixels out of a film's header, in place."""
    for element in [element for element in film if element.tag.group in _LEFT_OUT or element.tag.is_private]:
        del film[element.tag]
    return film


def by_program(film: Dataset, *, command: str) -> Dataset:
    """Encode a film by a program that takes one file and writes another."""
    with tempfile.TemporaryDirectory() as name:
        plain, encoded = Path(name) / "plain.dcm", Path(name) / "encoded.dcm"
        plain.write_bytes(films.file_bytes(film))
        _run(*command.split(), str(plain), str(encoded))
        made = dcmread(BytesIO(encoded.read_bytes()))
    if not made.file_meta.TransferSyntaxUID.is_encapsulated:
        raise NotMade
    return made


def _run(program: str, *arguments: str) -> None:
    if subprocess.run([peers.require(program), *arguments], capture_output=True, check=False).returncode:
        raise NotMade


def by_pydicom(film: Dataset, *, syntax: UID, plugin: str) -> Dataset:
    """Encode a film by one of pydicom's encoders."""
    film.compress(syntax, encoding_plugin=plugin, generate_instance_uid=False)
    return film


def by_function(film: Dataset, *, syntax: UID, encode: Encode) -> Dataset:
    """Encode a film's pixels by a function of values and bits."""
    pixels = film.pixel_array
    if syntax not in JPEG2000TransferSyntaxes:  # the others know no sign
        pixels = pixels.view(f"u{pixels.itemsize}")
    return with_frame(film, bytes(encode(pixels, film.BitsStored)), syntax)


def with_frame(film: Dataset, frame: bytes, syntax: UID) -> Dataset:
    """Give a film a codestream, in one fragment, with an empty table of offsets."""
    return _with_pixel_data(film, encapsulate([frame], has_bot=False), syntax)


def _with_pixel_data(film: Dataset, value: bytes, syntax: UID) -> Dataset:
    film.PixelData = value
    film["PixelData"].is_undefined_length, film["PixelData"].VR = True, "OB"
    film.file_meta.TransferSyntaxUID = syntax
    return film


def _lossless_jpeg(pixels: Pixels, bits: int, *, predictor: int) -> bytes | bytearray:
    return imagecodecs.jpeg8_encode(pixels & (2**bits - 1), lossless=True, bitspersample=bits, predictor=predictor)


def _jpeg(pixels: Pixels, _bits: int, *, precision: int) -> bytes | bytearray:
    return imagecodecs.jpeg8_encode(pixels, 95, bitspersample=precision)


def _ljpeg(pixels: Pixels, bits: int) -> bytes | bytearray:
    return imagecodecs.ljpeg_encode((pixels & (2**bits - 1)).astype(np.uint16), bitspersample=bits)


def _jpeg_ls(pixels: Pixels, _bits: int, *, level: int = 0) -> bytes | bytearray:
    return imagecodecs.jpegls_encode(pixels, level)


def _by_pillow(pixels: Pixels, _bits: int, *, kind: str) -> bytes | bytearray:
    if pixels.dtype.kind == "i":
        raise NotMade
    buffer, options = BytesIO(), {"quality": 95} if kind == "JPEG" else {"no_jp2": True}
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def _by_opencv(pixels: Pixels, _bits: int) -> bytes | bytearray:
    return cv2.imencode(".jpg", pixels)[1].tobytes()


def _jpeg_2000(pixels: Pixels, bits: int, *, level: int | None = None) -> bytes | bytearray:
    return imagecodecs.jpeg2k_encode(pixels, level, codecformat="J2K", reversible=level is None, bitspersample=bits)


def _ht(pixels: Pixels, _bits: int, *, level: float | None = None) -> bytes | bytearray:
    return imagecodecs.htj2k_encode(pixels, level, reversible=level is None)


def _by_dcmtk(encoded: Path, plain: Path, *, program: str = "dcmdjpeg") -> None:
    _run(program, str(encoded), str(plain))


def _by_pylibjpeg(encoded: Path, plain: Path) -> None:
    film = dcmread(encoded)
    film.decompress(decoding_plugin="pylibjpeg", generate_instance_uid=False)
    plain.write_bytes(films.file_bytes(film))


def _by_openjph(encoded: Path, plain: Path) -> None:
    film = dcmread(encoded)
    pixels = imagecodecs.htj2k_decode(next(generate_frames(film.PixelData, number_of_frames=1)))
    plain.write_bytes(
        films.file_bytes(films.with_pixels(film, pixels, bits=film.BitsStored, signed=film.PixelRepresentation == 1))
    )


_DCMDJPLS: Final = partial(_by_dcmtk, program="dcmdjpls")


Other = Callable[[Path, Path], None]


def _programs() -> Iterator[tuple[str, range, Other | None]]:
    """Yield commands that take the names of two files, their depths, and what else decodes what is lossy."""
    for value in range(1, 8):
        yield f"dcmcjpeg +el +sv {value}", _EVERY, None
    yield "dcmcjpeg +e1", _EVERY, None
    yield "dcmcjpeg +e1 +fs 1", _EVERY, None
    yield "dcmcjpeg +el +pt 2", _EVERY, _by_dcmtk
    yield "dcmcjpeg +eb", _EIGHT, _by_dcmtk
    yield "dcmcjpeg +ee", _TO_TWELVE, _by_dcmtk
    yield "dcmcjpeg +ee -ho", _TO_TWELVE, _by_dcmtk
    yield "dcmcjpeg +ee +bt", _EVERY, _by_dcmtk
    for padding in ("+ps", "+pz"):
        yield f"dcmcjpls +el {padding}", _EVERY, None
        yield f"dcmcjpls +el +pc {padding}", _EVERY, None
        yield f"dcmcjpls +en {padding}", _EVERY, _DCMDJPLS
    yield "dcmcjpls +el +fs 1", _EVERY, None
    yield "dcmcrle", _EVERY, None
    yield "dcmcrle +fs 1", _EVERY, None
    yield "gdcmconv --jpeg", _EVERY, None
    yield "gdcmconv --jpeg --lossy -q 90", _TO_TWELVE, _by_dcmtk
    yield "gdcmconv --jpegls", _EVERY, None
    yield "gdcmconv --jpegls --lossy -e 2", _EVERY, _DCMDJPLS
    yield "gdcmconv --j2k", _EVERY, None
    yield "gdcmconv --j2k -t 64,64", _EVERY, None
    yield "gdcmconv --j2k --lossy -r 8", _EVERY, _by_pylibjpeg
    yield "gdcmconv --j2k --lossy --irreversible -r 8", _EVERY, _by_pylibjpeg
    yield "gdcmconv --rle", _EVERY, None


def _functions() -> Iterator[tuple[str, range, UID, Encode, Other | None]]:
    """Yield functions of values and bits."""
    for value in range(1, 8):
        syntax = JPEGLosslessSV1 if value == 1 else JPEGLossless
        yield f"imagecodecs jpeg8 {value}", _EVERY, syntax, partial(_lossless_jpeg, predictor=value), None
    yield "imagecodecs ljpeg", _EVERY, JPEGLosslessSV1, _ljpeg, None
    yield "imagecodecs jpeg8 baseline", _EIGHT, JPEGBaseline8Bit, partial(_jpeg, precision=8), _by_dcmtk
    yield "imagecodecs jpeg8 extended", range(9, 13), JPEGExtended12Bit, partial(_jpeg, precision=12), _by_dcmtk
    yield "imagecodecs jpegls", _EVERY, JPEGLSLossless, _jpeg_ls, None
    yield "imagecodecs jpegls near", _EVERY, JPEGLSNearLossless, partial(_jpeg_ls, level=2), _DCMDJPLS
    yield "imagecodecs jpeg2k", _EVERY, JPEG2000Lossless, _jpeg_2000, None
    yield "imagecodecs jpeg2k lossy", _EVERY, JPEG2000, partial(_jpeg_2000, level=50), _by_pylibjpeg
    yield "imagecodecs htj2k", _EVERY, HTJ2KLossless, _ht, None
    yield "imagecodecs htj2k lossy", _EVERY, HTJ2K, partial(_ht, level=0.001), _by_openjph
    yield "pillow jpeg", _EIGHT, JPEGBaseline8Bit, partial(_by_pillow, kind="JPEG"), _by_dcmtk
    yield "pillow jpeg2k", _EVERY, JPEG2000Lossless, partial(_by_pillow, kind="JPEG2000"), None
    yield "opencv jpeg", _EIGHT, JPEGBaseline8Bit, _by_opencv, _by_dcmtk


def encoders() -> list[Encoder]:
    """Return every encoder at hand, in each of its ways."""
    found = [
        Encoder(name=command, bits=bits, encode=partial(by_program, command=command), other=other)
        for command, bits, other in _programs()
    ]
    found += [
        Encoder(name=name, bits=bits, encode=partial(by_function, syntax=syntax, encode=encode), other=other)
        for name, bits, syntax, encode, other in _functions()
    ]
    for plugin, syntax in (
        ("pyjpegls", JPEGLSLossless),
        ("pylibjpeg", JPEG2000Lossless),
        ("pylibjpeg", RLELossless),
        ("pydicom", RLELossless),
    ):
        name, encode = f"{plugin} {syntax.keyword}", partial(by_pydicom, syntax=syntax, plugin=plugin)
        found.append(Encoder(name=name, bits=_EVERY, encode=encode))
    return found


def wrappings(encoded: Dataset) -> dict[str, Callable[[], Dataset]]:
    """Return in which other fragments, tables of offsets and padding the codestream of a film may be, by name."""
    syntax, frame = encoded.file_meta.TransferSyntaxUID, next(generate_frames(encoded.PixelData, number_of_frames=1))

    def of(value: Callable[[], bytes]) -> Callable[[], Dataset]:
        return lambda: _as(encoded, value())

    def extended() -> Dataset:
        value, table, lengths = encapsulate_extended([frame])
        film = _as(encoded, value)
        film.ExtendedOffsetTable, film.ExtendedOffsetTableLengths = table, lengths
        return film

    ways = {
        "as written": lambda: encoded,
        "no table": of(lambda: encapsulate([frame], has_bot=False)),
        "a table": of(lambda: encapsulate([frame], has_bot=True)),
        "an extended table": extended,
        "fragments": of(lambda: encapsulate([frame], fragments_per_frame=_FRAGMENTS, has_bot=False)),
        "fragments and a table": of(lambda: encapsulate([frame], fragments_per_frame=_FRAGMENTS, has_bot=True)),
    }
    if syntax != RLELossless:
        ways["zeros behind its end"] = of(lambda: encapsulate([frame + bytes(6)]))
    if syntax in _MARKED:
        ways["a fill byte before its end"] = of(lambda: encapsulate([filled(frame, 1, only_end=True)]))
        ways["a fill byte before each marker"] = of(lambda: encapsulate([filled(frame, 1)]))
        ways["two fill bytes before each marker"] = of(lambda: encapsulate([filled(frame, 2)]))
    return ways


def _as(film: Dataset, value: bytes) -> Dataset:
    return _with_pixel_data(copy.deepcopy(film), value, film.file_meta.TransferSyntaxUID)


def filled(frame: bytes, count: int, *, only_end: bool = False) -> bytes:
    """Put fill bytes before the markers of a JPEG or JPEG-LS codestream of one scan (ISO 10918-1 B.1.1.2)."""
    at, parts, fill = 2, [frame[:2]], b"\xff" * count
    while frame[at] == 0xFF:
        if frame[at + 1] == 0xFF:
            at += 1
            continue
        end = at + 2 + int.from_bytes(frame[at + 2 : at + 4], "big")
        parts += [b"" if only_end else fill, frame[at:end]]
        if frame[at + 1] == _START_OF_SCAN:
            break
        at = end
    last = frame.rindex(b"\xff\xd9")
    return b"".join((*parts, frame[end:last], fill, frame[last:]))


class Case(NamedTuple):
    """A film that an encoder is to encode; turn: the number of the other wrapping that it gets; None for all."""

    encoder: Encoder
    film: Dataset
    turn: int | None


def all_cases(chosen: Sequence[Encoder]) -> list[Case]:
    """Let each encoder have all films in every wrapping, and a whole film in two."""
    whole = short(films.rg1())
    made = [source(bits, *size, signed=signed) for bits, signed in DEPTHS for size in SIZES]
    return [
        Case(encoder, film, turn if film is whole else None)
        for turn, encoder in enumerate(chosen)
        for film in (whole, *made)
        if film.BitsStored in encoder.bits
    ]


def run(cases: Sequence[Case], say: ProgressReport = progress.quiet) -> Tally:
    """Have films decoded as a node does."""
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        for number, case in enumerate(cases, start=1):
            _try(case, tally, Path(name))
            say("films", number, len(cases))
    return tally


def _try(case: Case, tally: Tally, folder: Path) -> None:
    (encoder, film, turn), plain, path = case, folder / "plain.dcm", folder / "film.dcm"
    label = f"{encoder.name}, {film.BitsStored} bits{' signed' if film.PixelRepresentation else ''}"
    plain.write_bytes(films.file_bytes(film))
    try:
        encoded = encoder.encode(copy.deepcopy(film))
        path.write_bytes(films.file_bytes(encoded))
        if encoder.other is not None:
            encoder.other(path, plain)
        expected = decoding.stored_picture(plain).indices
    except (NotMade, Undecodable, ValueError, RuntimeError, OSError) as error:  # whatever an encoder says
        tally.counts[f"not made: {label}: {getattr(error, 'reason', type(error).__name__)}"] += 1
        return
    frame = next(generate_frames(encoded.PixelData, number_of_frames=1))
    tally.counts["odd codestreams" if len(frame.rstrip(b"\0")) % 2 else "even codestreams"] += 1
    ways = wrappings(encoded)
    names = list(ways) if turn is None else ["as written", list(ways)[1 + turn % (len(ways) - 1)]]
    for name in names:
        path.write_bytes(films.file_bytes(ways[name]()))
        fault = _fault(path, expected, 0 if encoder.other is None else _ROUNDING)
        if fault is None:
            tally.counts.update(["films read", f"read: {encoder.name}"])
        else:
            tally.faults[f"{label}, {film.Rows} x {film.Columns}, {name}"] = fault


def _fault(path: Path, expected: Pixels, rounding: int) -> str | None:
    """Decode a film as a node does; say what is wrong with its pixels, or None."""
    try:
        picture = decoding.stored_picture(path)
    except Undecodable as error:
        return f"{error.reason}: {error}"
    if picture.notes:
        return f"noted {', '.join(picture.notes)}"
    furthest = np.abs(picture.indices.astype(np.int32) - expected).max()
    return None if furthest <= rounding else f"other pixels, by up to {furthest}"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="tests.drills.encodings", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="only encoders whose name begins so")
    arguments = parser.parse_args()
    begun = monotonic()
    with progress.on(sys.stdout) as say:
        chosen = [encoder for encoder in encoders() if encoder.name.startswith(arguments.only)]
        tally = run(all_cases(chosen), say)
        tally.lacks("films read")
    sys.stdout.write(json.dumps({**tally.figures, "seconds": round(monotonic() - begun)}) + "\n")
    return 0 if tally.passed else 1


if __name__ == "__main__":
    sys.exit(main())
