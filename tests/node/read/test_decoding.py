"""A film can hurt only itself: what ends, blocks or bloats a decoder makes this film undecodable, and no other."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
from pydicom import dcmread, dcmwrite
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, encapsulate_extended, generate_frames
from pydicom.uid import (
    UID,
    HTJ2KLossless,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from node.config import Settings
from node.dicom import attributes
from node.dicom.film_header import parse_header
from node.dicom.header_reading import read_header
from node.domain import Reason
from node.errors import Undecodable
from node.read import decoder_child, decoding, pixel_format, prompts
from node.read.decoder_processes import DecoderProcesses, of_this_process
from node.read.film import answer_film
from node.threads import Turns
from tests.node.read.test_imaging import deflated
from tests.paths import REPOSITORY
from tests.support import decoded, films, peers, processes
from tests.support.fakes import ScriptedReader
from tests.support.material import material
from tests.support.peers import ReceivingArchive
from tests.support.service import Service

PROMPTS = prompts.load("chexpert14")
HOSTILE = ("rle-panics", "lossless-aborts", "jpegls-blocks")


def hostile(name: str) -> Path:
    return material(f"data/hostile/{name}.dcm")


def with_frame(film: Dataset, frame: bytes | bytearray, syntax: UID) -> Dataset:
    """Give a film a codestream, whatever it holds."""
    film.PixelData = encapsulate([bytes(frame)])
    film["PixelData"].is_undefined_length = True
    film["PixelData"].VR = "OB"
    film.file_meta.TransferSyntaxUID = syntax
    return film


def with_frame_of(path: Path) -> Dataset:
    """The codestream of a damaged film in a film that a sender can encode."""
    damaged = dcmread(path)
    frame = next(generate_frames(damaged.PixelData, number_of_frames=1))
    return with_frame(films.thumbnail(), frame, damaged.file_meta.TransferSyntaxUID)


def long_fragment(folder: Path) -> Path:
    """A film whose one fragment has 600 MB, which take no room on the disk."""
    content = films.file_bytes(films.compressed(films.thumbnail(), RLELossless))
    path = folder / "film.dcm"
    with path.open("wb") as file:
        file.write(content[: content.rindex(b"\xe0\x7f\x10\0OB") + 12])
        file.write(b"\xfe\xff\0\xe0" + bytes(4) + b"\xfe\xff\0\xe0" + struct.pack("<L", 600_000_000))
        file.seek(600_000_000, os.SEEK_CUR)
        file.write(b"\xfe\xff\xdd\xe0" + bytes(4))
    return path


def run_lengths(segment: bytes) -> Dataset:
    """A film of two segments, each of which is half of this one."""
    header = struct.pack("<16L", 2, 64, 64 + len(segment) // 2, *[0] * 13)
    return with_frame(films.thumbnail(), header + segment, RLELossless)


def larger_than_it_says() -> Dataset:
    frame = imagecodecs.jpeg2k_encode(np.zeros((4000, 4000), dtype=np.uint16), codecformat="J2K", reversible=True)
    return with_frame(films.thumbnail(), frame, JPEG2000Lossless)


def deflated_zeros(folder: Path) -> Path:
    """0.6 MB of pixels that inflate to 500 MB, within what a file may inflate to."""
    content = films.file_bytes(films.thumbnail())
    body = films.body_of(content[: content.rindex(b"\xe0\x7f\x10\0OW")])
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    packed = packer.compress(body + b"\xe0\x7f\x10\0OW\0\0" + struct.pack("<L", 500 * 2**20))
    packed += b"".join(packer.compress(bytes(2**20)) for _ in range(500)) + packer.flush()
    return deflated(folder / "film.dcm", packed)


FILL_BYTES = b"\xff\xd8" + b"\xff" * (40 * 2**20) + b"\xd9"
GREEDY: dict[str, Callable[[Path], Path]] = {
    "a fragment of 600 MB": long_fragment,
    "RLE of no-ops": lambda folder: films.saved(folder, run_lengths(b"\x80" * (10 * 2**20))),
    "RLE of sixty times the film": lambda folder: films.saved(folder, run_lengths(b"\x81\0" * 2**19)),
    "JPEG fill bytes": lambda folder: films.saved(folder, with_frame(films.at_depth(8), FILL_BYTES, JPEGBaseline8Bit)),
    "a codestream of another size": lambda folder: films.saved(folder, larger_than_it_says()),
    "deflated zeros": deflated_zeros,
}
LONGEST, *OTHERS = GREEDY


@pytest.mark.parametrize("case", [pytest.param(LONGEST, marks=pytest.mark.drill(part="encodings")), *OTHERS])
def test_one_film_needs_no_more_than_its_size(case: str, tmp_path: Path) -> None:
    path, before = GREEDY[case](tmp_path), peak_mib()

    with pytest.raises(Undecodable):
        decoded.picture_of(path)

    assert peak_mib() - before < 64


def peak_mib() -> int:
    """The most memory that this process has had at once."""
    return processes.status_of(os.getpid(), "VmHWM") // 1024


SIDE = 60_000
HUGE = {"Rows": SIDE, "Columns": SIDE}
"""The smallest allocation for so large a film would be 3.6 GB."""


def declaring(codestream: bytes, syntax: UID, *, side: int | None = None) -> Dataset:
    """A film with a codestream that nothing made, and a header that declares another size or none of its own."""
    film = with_frame(films.thumbnail(), codestream + bytes(len(codestream) % 2), syntax)
    return film if side is None else films.changed(film, {"Rows": side, "Columns": side})


def jpeg_2000(side: int, components: int = 1) -> bytes:
    """The main header of a codestream (ISO 15444-1 A.5.1)."""
    sizes = struct.pack(">8L", side, side, 0, 0, side, side, 0, 0)
    size = struct.pack(">H", 0) + sizes + struct.pack(">H", components) + b"\x0f\1\1" * components
    return b"\xff\x4f\xff\x51" + struct.pack(">H", len(size) + 2) + size + bytes(100)


def jpeg(marker: int, side: int, components: int = 1) -> bytes:
    """A frame header (ISO 10918-1 B.2.2, 14495-1 C.2.2)."""
    frame = struct.pack(">BHHB", 8, side, side, components) + b"\1\x11\0" * components
    return b"\xff\xd8\xff" + bytes([marker]) + struct.pack(">H", len(frame) + 2) + frame + bytes(100)


def in_a_box(codestream: bytes, decoy: bytes) -> bytes:
    """A JP2 file (ISO 15444-1 I), which has no place in DICOM, with a decoy before its codestream."""
    box = struct.pack(">L", len(decoy) + 8) + b"uuid" + decoy
    return b"\0\0\0\x0cjP  \r\n\x87\n" + box + b"\0\0\0\0jp2c" + codestream


DECLARED: dict[str, Callable[[], Dataset]] = {
    "header": lambda: films.thumbnail(HUGE),
    "header of compressed pixels": lambda: films.changed(films.compressed(films.thumbnail(), JPEG2000Lossless), HUGE),
    "header of RLE": lambda: films.changed(films.compressed(films.thumbnail(), RLELossless), HUGE),
    "header and codestream": lambda: films.changed(declaring(jpeg_2000(SIDE), JPEG2000Lossless), HUGE),
    "JPEG 2000": lambda: declaring(jpeg_2000(SIDE), JPEG2000Lossless),
    "HTJ2K": lambda: declaring(jpeg_2000(SIDE), HTJ2KLossless),
    "JPEG 2000 in a box": lambda: declaring(in_a_box(jpeg_2000(SIDE), jpeg_2000(231)), JPEG2000Lossless, side=231),
    "JPEG 2000 of many components": lambda: declaring(jpeg_2000(8000, 16384), JPEG2000Lossless, side=8000),
    "JPEG": lambda: declaring(jpeg(0xC0, SIDE), JPEGBaseline8Bit),
    "JPEG of many components": lambda: declaring(jpeg(0xC0, 8000, 200), JPEGBaseline8Bit, side=8000),
    "lossless JPEG": lambda: declaring(jpeg(0xC3, SIDE), JPEGLosslessSV1),
    "JPEG-LS": lambda: declaring(jpeg(0xF7, SIDE), JPEGLSLossless),
}


def test_zeros_that_fill_up_a_run_length_segment_are_no_pixels() -> None:
    film = films.at_depth(8)
    segment = imagecodecs.packbits_encode(film.pixel_array.tobytes())
    frame = struct.pack("<16L", 1, 64, *[0] * 14) + segment + bytes(2)

    assert np.array_equal(decoded.load(with_frame(film, frame, RLELossless)).gray, decoded.load(films.at_depth(8)).gray)


def test_the_size_of_a_codestream_is_without_its_offset() -> None:
    frame = bytearray(jpeg_2000(100))
    struct.pack_into(">2L", frame, 16, 10, 20)

    assert pixel_format.coded_size(bytes(frame)) == (90, 80)


@pytest.mark.parametrize("name", DECLARED)
def test_an_impossible_size_is_refused_before_memory_is_taken(name: str, tmp_path: Path) -> None:
    path, before = films.saved(tmp_path, DECLARED[name]()), peak_mib()

    with pytest.raises(Undecodable) as refused:
        decoded.load(path)

    assert refused.value.reason == Reason.UNDECODABLE
    assert "cannot be decoded" not in str(refused.value), "a decoder was asked"
    assert peak_mib() - before < 64


@pytest.mark.parametrize("is_extended", [False, True])
def test_an_offset_table_leads_to_no_other_frame(is_extended: bool) -> None:
    film, other = films.compressed(films.thumbnail(), JPEG2000Lossless), np.zeros((4000, 4000), dtype=np.uint16)
    frame = next(generate_frames(film.PixelData, number_of_frames=1))
    large = bytes(imagecodecs.jpeg2k_encode(other, codecformat="J2K", reversible=True))
    if is_extended:
        film.PixelData, film.ExtendedOffsetTable, film.ExtendedOffsetTableLengths = encapsulate_extended([frame, large])
        film.ExtendedOffsetTable = film.ExtendedOffsetTable[8:]
        film.ExtendedOffsetTableLengths = film.ExtendedOffsetTableLengths[8:]
    else:
        film.PixelData = encapsulate([frame, large])

    try:
        gray = decoded.picture_of(film)
    except Undecodable:
        return
    assert np.array_equal(gray, decoded.picture_of(films.thumbnail()))


def test_a_lossless_jpeg_is_whole_or_refused() -> None:
    film, whole = films.thumbnail(), decoded.picture_of(films.thumbnail())
    frame = imagecodecs.jpeg8_encode(film.pixel_array, lossless=True, bitspersample=16, predictor=1)
    frame = frame.removesuffix(b"\xff\xd9")

    # only the marker is missing, and no pixel
    assert np.array_equal(decoded.picture_of(with_frame(film, frame, JPEGLosslessSV1)), whole)
    for lost in (4, 200):
        assert decoded.refusal(with_frame(film, frame[:-lost], JPEGLosslessSV1)) == Reason.UNDECODABLE


def test_damage_is_seen_wherever_a_zero_is_stuffed() -> None:
    """What is tried at the end of a codestream makes no marker of a byte and the zero that is stuffed behind it."""
    film, noise, tried = films.at_depth(16), np.random.default_rng(3), 8
    for _ in range(200):
        pixels = film.pixel_array.copy()
        pixels[-1] = noise.integers(0, 2**16, film.Columns)
        frame = imagecodecs.jpeg8_encode(pixels, lossless=True, bitspersample=16, predictor=1)
        if frame[-len(b"\xff\xd9") - tried - 1] == 0xFF:
            break
    else:
        pytest.fail("no codestream ends so")
    middle = len(frame) // 2
    damaged = frame[:middle] + bytes(512) + frame[middle + 512 :]

    assert decoded.refusal(with_frame(film, damaged, JPEGLosslessSV1)) == Reason.UNDECODABLE


@pytest.mark.drill(part="objects")
def test_a_film_that_takes_too_long_is_decoded_once(tmp_path: Path) -> None:
    path, decoders, seen = tmp_path / "film.dcm", DecoderProcesses(), set[int]()
    path.write_bytes(os.urandom(128) + hostile("jpegls-blocks").read_bytes()[128:])  # no film that was seen before
    header = parse_header(read_header(path))
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):  # the film is read, and two pages show it
            result = pool.submit(decoders.decode_film, path, header)
            while not result.done():
                seen |= set(decoders.children)
                time.sleep(0.005)
            with pytest.raises(Undecodable, match="processor time"):
                result.result()

    assert len(seen) == 1
    path.write_bytes(films.file_bytes(films.thumbnail()))
    assert decoders.decode_film(path, parse_header(read_header(path))).cells.any()
    decoders.close()


def test_others_go_between_two_that_work_alone() -> None:
    turns, order, go_on = Turns(), list[str](), threading.Event()

    def work(name: str) -> None:
        with turns.together() if name == "beside" else turns.alone():
            order.append(name)
            if name == "first":
                go_on.wait()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("first", "alone", "alone", *["beside"] * 3)]
    for thread in threads:
        thread.start()
        thread.join(0.1)  # until it waits
    go_on.set()
    for thread in threads:
        thread.join(30)

    assert order == ["first", "beside", "beside", "beside", "alone", "alone"]


def test_a_child_that_somebody_ended_is_replaced(tmp_path: Path) -> None:
    path, processes = films.saved(tmp_path, films.thumbnail()), of_this_process()
    decoded.picture_of(path)
    for child in tuple(processes.children):
        os.kill(child, signal.SIGKILL)
    time.sleep(0.2)

    assert decoded.picture_of(path).any()


def test_no_film_is_undecodable_where_no_decoder_starts(tmp_path: Path) -> None:
    """The step of the film is run again."""
    path = films.saved(tmp_path, films.thumbnail())
    of_this_process().close()
    of_this_process().start()
    tasks = Path("/proc/self/task").iterdir()
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    [server] = [pid for pid in children if b"forkserver import main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(server, signal.SIGKILL)
    multiprocessing.set_executable("/bin/false")
    try:
        with pytest.raises(OSError, match="decoder process"):
            answer_film(path, ScriptedReader(), PROMPTS)
    finally:
        multiprocessing.set_executable(sys.executable)


@pytest.mark.drill(part="kills")
def test_children_end_with_their_parent(tmp_path: Path) -> None:
    path = films.saved(tmp_path, films.thumbnail())
    program = (
        "import os, sys, pathlib; from node.read import decoding, decoder_processes\n"
        "decoding.stored_picture(pathlib.Path(sys.argv[1]))\n"
        "print(*decoder_processes.of_this_process().children, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )

    ended = subprocess.run([sys.executable, "-c", program, path], cwd=REPOSITORY, capture_output=True, text=True)

    assert ended.returncode == -signal.SIGKILL
    (child,) = ended.stdout.split()
    peers.wait_until(lambda: not Path(f"/proc/{child}").exists(), what="the child has ended")


@pytest.mark.drill(part="objects")
def test_a_large_film_on_busy_cores_is_read(tmp_path: Path) -> None:
    side = 4096
    values = (np.add.outer(np.arange(side), np.arange(side)) * 7 % 4096).astype(np.uint16)
    film = films.with_pixels(films.thumbnail(), values, bits=12)
    frame = imagecodecs.jpeg2k_encode(values, codecformat="J2K", reversible=True, level=0)
    path, busy = films.saved(tmp_path, with_frame(film, frame, JPEG2000Lossless)), "while True: pass"
    workers = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(os.cpu_count() or 2)]
    try:
        assert np.array_equal(decoding.stored_picture(path).indices, values)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("uid", ["1.2.3.x", "1" * 65_000, "1..2"])
def test_an_object_without_a_valid_uid_is_refused(uid: str, tmp_path: Path) -> None:
    film = films.as_written(films.thumbnail(), {"SOPInstanceUID": uid.encode() + b"\0" * (len(uid) % 2)})
    path = tmp_path / "film.dcm"
    with attributes.quiet():
        dcmwrite(path, film, enforce_file_format=False)

    with pytest.raises(Undecodable, match="SOP Instance UID"):
        answer_film(path, ScriptedReader(), PROMPTS)


def test_a_decoder_has_limits_that_grow_with_the_film_and_leaves_no_dump_of_it(tmp_path: Path) -> None:
    path, decoders = films.saved(tmp_path, films.thumbnail()), DecoderProcesses()
    decoders.decode_film(path, parse_header(read_header(path)))
    [child] = decoders.children
    limits = dict(re.findall(r"^Max ([a-z ]+?)  +(\S+)", Path(f"/proc/{child}/limits").read_text(), re.MULTILINE))
    decoders.close()

    assert limits["core file size"] == "0"
    assert "unlimited" not in (limits["cpu time"], limits["address space"])
    small, large = decoder_child.Limits.of(0), decoder_child.Limits.of(16_000_000)
    assert (small.processor_seconds, small.seconds) == (2, 20)
    assert (large.processor_seconds, large.seconds) == (18, 180)


@pytest.mark.drill(part="encodings")
def test_a_node_answers_hostile_films_and_goes_on(archive: ReceivingArchive, settings: Settings) -> None:
    sent = {name: with_frame_of(hostile(name)) for name in HOSTILE}
    sent |= {f"good {number}": films.thumbnail() for number in range(3)}
    for name, film in sent.items():
        films.as_another(film, name, study=name)
    studies, waits = {film.StudyInstanceUID for film in sent.values()}, list[float]()

    def is_answered() -> bool:
        """Whether every study is; notes how long the node takes to say that it lives."""
        began = time.monotonic()
        with urllib.request.urlopen(f"http://{peers.LOOPBACK}:{service.http_port}/live", timeout=30):
            waits.append(time.monotonic() - began)
        return studies <= {received.dataset.StudyInstanceUID for received in list(archive.kept)}

    with Service(settings) as service:
        before = processes.status_of(service.pid, "VmRSS")
        for film in sent.values():
            assert peers.send(film, port=service.dicom_port) == 0x0000
        peers.wait_until(is_answered, what="every study is answered", limit_seconds=200)
        decided = {line["sop_instance_uid"]: line["reason"] for line in service.logged("film.decided")}
        more = processes.status_of(service.pid, "VmRSS") - before
        assert service.stop() == 0

    for name, film in sent.items():
        assert decided[film.SOPInstanceUID] == (Reason.UNDECODABLE if name in HOSTILE else "read"), name
    assert max(waits) < 3.0  # other tests keep the cores busy; a decoder that holds the interpreter does so for 13 s
    assert more < 2**20  # KiB
