"""The spool: what is kept survives and is found, and what comes again under one UID is told apart."""

from __future__ import annotations

import os
import shutil
import stat
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydicom import Dataset
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)

from node.domain import OutputObject
from node.errors import InputError, Refused, SpoolFull
from node.store import files, questions
from node.store.files import TEMPORARY, make_folder, make_private
from node.store.incoming import Incoming, has_other_pixels
from node.store.received import Instance, Kept, is_intact, with_hash
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.store.study_facts import elsewhere, films_of
from tests.support import films, peers
from tests.support.listening import Node, listening

STUDY, FILM = "1.2.3", "1.2.3.4"
LIMIT_SECONDS = 20.0

OnSync = Callable[[Callable[[Path], None]], None]


def keep(spool: Spool, body: bytes = b"film", *, study: str = STUDY, film: str = FILM) -> Kept:
    return films.keep_bytes(spool, study_uid=study, sop_instance_uid=film, meta=films.META, body=body)


def mark(*files: str, number: int = 1) -> RoundMark:
    return RoundMark(number=number, created_at=datetime.now(UTC), files=files, outputs=())


def output() -> OutputObject:
    return OutputObject(
        kind="sr", study_uid=STUDY, sop_class_uid="1.1", sop_instance_uid="1.2", series_instance_uid="1.3"
    )


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def test_a_kept_object_lies_byte_for_byte_under_its_final_name_once(spool: Spool) -> None:
    kept, again = keep(spool), keep(spool)

    assert (kept.is_new, again.is_new) == (True, False)
    assert again.instance == kept.instance
    assert kept.instance.path.read_bytes() == with_hash(films.META) + b"film"
    assert [path.name for path in kept.instance.path.parent.iterdir()] == [kept.instance.path.name]


@pytest.mark.parametrize("uid", ["../../etc", "1.2/3", "", "1..2", ".1", "1.2.", "1" * 65, "1.2\n", "1.2\0"])
def test_a_uid_with_a_path_in_it_is_refused(uid: str, spool: Spool) -> None:
    with pytest.raises(Refused, match="not a valid UID"):
        keep(spool, study=uid)
    with pytest.raises(Refused, match="not a valid UID"):
        keep(spool, film=uid)

    assert list(spool.studies()) == []


def test_below_the_reserve_nothing_is_kept_also_of_what_meets_it_on_its_way(tmp_path: Path) -> None:
    spool, room = Spool(tmp_path, min_free_mib=10**9), iter([True, False])
    (tmp_path / "incoming").mkdir()
    incoming = Incoming(tmp_path / "incoming", meta=films.META, has_room=lambda: next(room))

    with pytest.raises(SpoolFull) as caught:
        keep(spool)
    with pytest.raises(SpoolFull, match="reserve"):
        for _ in range(3):
            incoming.write(bytes(2**20))

    assert (caught.value.status, spool.has_room) == (0xA700, False)
    assert list((tmp_path / "incoming").iterdir()) == []


def test_half_written_files_are_swept_and_beside_other_processes_only_old_ones(spool: Spool) -> None:
    whole = keep(spool).instance.path
    young, old = (whole.parent / f".incoming-{name}" for name in ("young", "old"))
    for path in (young, old):
        path.write_bytes(b"half a film")
    os.utime(old, (1, 1))

    assert spool.sweep(is_shared=True) == 1
    assert (young.exists(), old.exists()) == (True, False)
    assert spool.sweep() == 1
    assert list(whole.parent.iterdir()) == [whole]


def test_a_study_is_not_removed_until_a_round_covers_each_file_and_correction(spool: Spool) -> None:
    first = keep(spool).instance.path
    assert spool.has_unread(STUDY)

    spool.mark_round(STUDY, mark(first.name))
    assert not spool.has_unread(STUDY)

    late = keep(spool, film="1.2.3.5").instance.path
    assert spool.has_unread(STUDY) and not spool.remove_study(STUDY)
    assert (first.exists(), late.exists()) == (True, True)
    spool.mark_round(STUDY, mark(first.name, late.name, number=2))
    assert [round_mark.files for round_mark in spool.rounds(STUDY)] == [(first.name,), (first.name, late.name)]

    spool.keep_document(STUDY, "corrections", "c", {})
    assert spool.has_unread(STUDY) and not spool.remove_study(STUDY)

    spool.mark_round(STUDY, replace(mark(first.name, late.name, number=3), corrections=("c",)))
    assert not spool.has_unread(STUDY)

    last = keep(spool, film="1.2.3.6").instance.path
    assert spool.remove_study(STUDY, although_unread=[last.name])


def test_the_mark_of_one_round_never_replaces_that_of_another(spool: Spool) -> None:
    spool.mark_round(STUDY, first := mark("a"))

    spool.mark_round(STUDY, second := mark("b"))
    spool.mark_round(STUDY, first)  # as after a crash
    spool.mark_round(STUDY, second)

    assert spool.rounds(STUDY) == [first, replace(second, number=2)]


def test_of_many_that_write_an_output_one_does(spool: Spool) -> None:
    ready = threading.Barrier(16)

    def write(number: int) -> bytes | None:
        ready.wait(timeout=60)
        spool.keep_output(output(), str(number).encode())
        return spool.output(output())

    with ThreadPoolExecutor(16) as pool:
        found = set(pool.map(write, range(16)))
    spool.keep_output(output(), b"later")

    assert found == {spool.output(output())}


def test_a_damaged_output_is_replaced_by_its_own_bytes_only(spool: Spool) -> None:
    spool.keep_output(output(), b"report")
    (path,) = spool.directory.rglob("outputs/*")
    path.write_bytes(b"rep")

    found = []
    for later in (b"other", b"report"):
        spool.keep_output(output(), later)
        found.append(spool.output(output()))

    assert found == [None, b"report"]
    assert list(spool.directory.rglob("outputs/*")) == [path]


def test_nobody_else_may_look_inside(tmp_path: Path) -> None:
    path = keep(Spool(tmp_path / "node")).instance.path
    folder, others = path.parent, tmp_path / "made by another program"
    others.touch(mode=0o644)
    make_private(others)

    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, others)} == {0o600}
    while folder != tmp_path:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        folder = folder.parent


def test_a_removed_study_leaves_only_the_marks_of_its_rounds(tmp_path: Path, spool: Spool) -> None:
    kept, other = keep(spool).instance.path, Spool(tmp_path)
    spool.keep_output(output(), b"sr")
    spool.mark_round(STUDY, mark(kept.name))

    assert other.remove_study(STUDY)
    assert not spool.remove_study(STUDY), "another process has removed it"

    assert [path.name for path in tmp_path.rglob("studies/**/*") if path.is_file()] == ["000001.json"]
    keep(spool)
    assert not spool.has_unread(STUDY)


def test_neither_a_superseded_version_nor_a_study_without_objects_delays_a_removal(spool: Spool) -> None:
    keep(spool, b"first")
    spool.mark_round(STUDY, mark(keep(spool, b"second").instance.path.name))
    keep(spool, study="1.2.4").instance.path.unlink()

    assert not spool.has_unread(STUDY)
    assert spool.remove_study(STUDY) and spool.remove_study("1.2.4")
    assert list(spool.studies()) == [STUDY]


@pytest.mark.parametrize("meanwhile", ["nothing", "the marks are back", "a film comes"])
def test_a_removal_that_was_cut_short_loses_nothing_unread(tmp_path: Path, spool: Spool, meanwhile: str) -> None:
    old = keep(spool).instance.path
    spool.mark_round(STUDY, mark(old.name))
    folder, aside = tmp_path / "studies" / STUDY, tmp_path / "studies" / f".removing-{STUDY}"
    folder.rename(aside)
    if meanwhile == "the marks are back":
        folder.mkdir()
        (aside / "rounds").rename(folder / "rounds")
    elif meanwhile == "a film comes":
        new = keep(spool, b"another", film="1.2.3.77").instance.path

    Spool(tmp_path).sweep(is_shared=meanwhile == "a film comes")

    assert not aside.exists()
    assert len(spool.rounds(STUDY)) == 1
    assert old.exists() is (meanwhile != "the marks are back")
    if meanwhile == "a film comes":
        bodies = [path.read_bytes().removeprefix(with_hash(films.META)) for path in (old, new)]
        assert (bodies, spool.has_unread(STUDY)) == ([b"film", b"another"], True)


def test_the_newest_version_is_the_last_received_at_any_clock(spool: Spool) -> None:
    first = keep(spool, b"first").instance
    os.utime(first.path, (2**31, 2**31))

    keep(spool, b"second")
    assert spool.instances(STUDY)[0].number == 2
    assert first.path.exists()

    again = keep(spool, b"first")
    assert again.is_new
    assert spool.instances(STUDY) == (again.instance,)

    newest = [keep(spool, bytes([body])).instance for body in range(7)][-1]  # 10 is after 9
    assert spool.instances(STUDY) == (newest,)
    assert [instance.number for instance in spool.versions(STUDY)] == [*range(2, 11), 1]

    newest.path.write_bytes(b"damaged")
    mended = keep(spool, bytes([6]))
    assert mended.is_new and mended.instance.number == newest.number


def test_objects_come_in_the_order_of_their_arrival(spool: Spool) -> None:
    for film, arrived in (("1.2.4", 9), ("1.2.3", 8), ("1.2.5", 7)):
        os.utime(keep(spool, film=film).instance.path, (arrived, arrived))

    assert [instance.sop_instance_uid for instance in spool.instances(STUDY)] == ["1.2.5", "1.2.3", "1.2.4"]


def test_a_film_is_not_damaged_because_its_disk_is_away(spool: Spool) -> None:
    path = keep(spool).instance.path
    path.unlink()

    assert not is_intact(path)
    path.parent.rename(path.parent.with_name("away"))
    with pytest.raises(FileNotFoundError):
        is_intact(path)


@pytest.mark.parametrize("content", [b"", b'{"number": 1}', files.to_json({"number": "first"})])
def test_a_damaged_mark_counts_as_none(tmp_path: Path, spool: Spool, content: bytes) -> None:
    spool.mark_round(STUDY, mark(keep(spool).instance.path.name))
    next(tmp_path.rglob("000001.json")).write_bytes(content)

    assert spool.rounds(STUDY) == []
    assert spool.has_unread(STUDY)


def test_only_readings_that_never_ended_are_counted(tmp_path: Path, spool: Spool) -> None:
    with suppress(KeyError), spool.counted(STUDY, "key"):
        raise KeyError
    returned = spool.interruptions(STUDY, "key")
    ended_by_the_process = [Spool(tmp_path).counted(STUDY, "key") for _ in range(3)]
    for reading in ended_by_the_process:
        reading.__enter__()

    assert (returned, spool.interruptions(STUDY, "key")) == (0, 3)
    spool.forget_interrupted_readings(STUDY)
    assert spool.interruptions(STUDY, "key") == 0


def test_two_processes_number_versions_of_one_uid_apart(tmp_path: Path) -> None:
    first, other, seconds = Spool(tmp_path), Spool(tmp_path), list[Future[Kept]]()

    class Slow(Incoming):
        """An object that, once its place is chosen, lets another try to overtake it before it takes it."""

        def publish(self, path: Path) -> None:
            seconds.append(pool.submit(keep, other, b"second"))
            wait(seconds, timeout=0.5)  # as long as it may take to go wrong
            super().publish(path)

    with ThreadPoolExecutor(1) as pool:
        incoming = Slow(tmp_path / "studies", meta=films.META, has_room=lambda: True)
        incoming.write(b"first")
        kept = first.settle(incoming, study_uid=STUDY, sop_instance_uid=FILM)
        overtaker = seconds[0].result(timeout=60)

    assert (kept.instance.number, overtaker.instance.number) == (1, 2)
    assert first.instances(STUDY) == (overtaker.instance,)


def test_a_removal_succeeds_while_a_starting_process_sweeps(tmp_path: Path) -> None:
    spool, starting, is_over = Spool(tmp_path), Spool(tmp_path), threading.Event()

    def sweep_all_the_time() -> None:
        while not is_over.is_set():
            starting.sweep(is_shared=True)

    with ThreadPoolExecutor(1) as pool:
        sweeping = pool.submit(sweep_all_the_time)
        try:
            for number in range(20):
                study = f"1.2.{number}"
                spool.mark_round(study, mark(keep(spool, study=study).instance.path.name))
                (readings := tmp_path / "studies" / study / "readings").mkdir()
                for film in range(30):
                    (readings / f"{film}.json").touch()
                assert spool.remove_study(study)
        finally:
            is_over.set()
        sweeping.result(timeout=60)

    spool.sweep()
    assert not list((tmp_path / "studies").glob(".removing-*"))


@pytest.fixture
def on_sync(monkeypatch: pytest.MonkeyPatch) -> OnSync:
    """Have a function called with the path of all that is synced, before it is."""
    functions: list[Callable[[Path], None]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        for function in functions:
            function(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return functions.append


KEPT: dict[str, Callable[[Spool], object]] = {
    "received": keep,
    "readings": lambda spool: spool.keep_reading(STUDY, "key", {}),
    "outputs": lambda spool: spool.keep_output(output(), b"report"),
    "rounds": lambda spool: spool.mark_round(STUDY, mark("film")),
    "corrections": lambda spool: spool.keep_document(STUDY, "corrections", "1", {}),
    STUDY: lambda spool: spool.mark_stat(STUDY),
}


@pytest.mark.parametrize("folder", KEPT)
def test_content_is_synced_before_it_has_its_name_and_the_folder_after(
    spool: Spool, on_sync: OnSync, folder: str
) -> None:
    study, synced = spool.directory / "studies" / STUDY, list[tuple[str, bool]]()
    place = study if folder == STUDY else study / folder
    if folder == "corrections":  # of a study that is here
        keep(spool)
    on_sync(lambda path: synced.append((path.name, any(place.glob("[!.]*")))))

    KEPT[folder](spool)

    assert [has_name for name, has_name in synced if name.startswith(TEMPORARY)] == [False]
    assert (folder, True) in synced
    if folder in ("received", STUDY):  # the sender of a repeated object, too, may be told only of what is synced
        synced.clear()
        KEPT[folder](spool)
        assert (folder, True) in synced
    if folder == "corrections":
        spool.drop_document(STUDY, "corrections", "1")
        assert synced[-1] == (folder, False)


def test_the_entry_of_each_new_folder_is_synced(tmp_path: Path, on_sync: OnSync) -> None:
    synced: list[Path] = []
    on_sync(synced.append)

    make_folder(tmp_path / "orders" / "by-name")

    assert synced == [tmp_path, tmp_path / "orders"]


def test_an_object_waits_until_its_own_folders_are_synced_not_those_of_another_study(
    spool: Spool, on_sync: OnSync
) -> None:
    is_there, may_go_on = threading.Event(), threading.Event()

    def hold(path: Path) -> None:
        if threading.current_thread().name.startswith("first") and path.name == "studies":
            is_there.set()
            assert may_go_on.wait(LIMIT_SECONDS)

    on_sync(hold)
    with ThreadPoolExecutor(1, thread_name_prefix="first") as first, ThreadPoolExecutor(2) as others:
        held = first.submit(spool.keep_reading, STUDY, "key", {})
        assert is_there.wait(LIMIT_SECONDS)
        waiting = others.submit(keep, spool)
        try:
            assert others.submit(keep, spool, study="1.2.4").result(LIMIT_SECONDS).is_new
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
        finally:
            may_go_on.set()
        held.result(LIMIT_SECONDS)

        assert waiting.result(LIMIT_SECONDS).is_new


@pytest.mark.parametrize("folder", ["studies", STUDY])
def test_a_folder_its_maker_did_not_sync_is_synced_by_the_next(tmp_path: Path, on_sync: OnSync, folder: str) -> None:
    synced, failures = list[str](), [folder]

    def fail_once(path: Path) -> None:
        if path.name in failures:
            failures.remove(path.name)
            raise OSError(5, "the disk had an error")
        synced.append(path.name)

    on_sync(fail_once)
    with pytest.raises(SpoolFull):
        keep(Spool(tmp_path), film="1.2.3.4")
    assert (tmp_path / "studies" / STUDY).is_dir()
    synced.clear()

    keep(Spool(tmp_path), film="1.2.3.5")

    assert folder in synced
    synced.clear()
    keep(Spool(tmp_path), film="1.2.3.6")
    assert folder not in synced


def test_a_note_that_a_power_cut_has_damaged_stops_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for path in map("keeping/{:02d}.folders".format, range(64)):
        (tmp_path / path).write_bytes(b"studies/1.2.9\n\0\0\xff")

    assert keep(spool).is_new


def has_other(folder: Path, known: Dataset | bytes, other: Dataset | bytes) -> bool:
    """Whether one object has other pixels than a known one; each as a film, or as the bytes of its file."""
    for name, film in (("known", known), ("other", other)):
        (folder / name).write_bytes(film if isinstance(film, bytes) else films.file_bytes(film))
    return has_other_pixels(folder / "known", folder / "other")


def renamed(film: Dataset) -> Dataset:
    """The same picture of a patient whose name was corrected."""
    return films.changed(deepcopy(film), {"PatientName": "Corrected^Name^Which^Is^Longer"})


def repainted(film: Dataset) -> Dataset:
    """Another picture under the same UID; one pixel near the end."""
    other = deepcopy(film)
    pixels = bytearray(other.PixelData)
    pixels[-10] ^= 1
    other.PixelData = bytes(pixels)
    return other


def in_syntax(film: Dataset, syntax: UID) -> Dataset:
    if syntax in (JPEG2000Lossless, RLELossless):
        return films.compressed(deepcopy(film), syntax)
    other = deepcopy(film)
    other.file_meta.TransferSyntaxUID = syntax
    return other


PLAIN, DECODED = ExplicitVRLittleEndian, (JPEG2000Lossless, RLELossless, DeflatedExplicitVRLittleEndian)


@pytest.mark.parametrize(
    ("known", "arrived", "is_told"),
    [
        *((same, same, True) for same in (ImplicitVRLittleEndian, PLAIN, RLELossless, JPEG2000Lossless)),
        (PLAIN, ImplicitVRLittleEndian, True),
        *((PLAIN, syntax, False) for syntax in DECODED),  # only a decoder could tell
        *((syntax, PLAIN, False) for syntax in DECODED),
    ],
)
def test_changed_pixels_are_told_from_changed_patient_data(
    tmp_path: Path, known: UID, arrived: UID, is_told: bool
) -> None:
    film = films.thumbnail()

    assert not has_other(tmp_path, in_syntax(film, known), in_syntax(renamed(film), arrived))
    assert has_other(tmp_path, in_syntax(film, known), in_syntax(repainted(film), arrived)) is is_told


def test_pictures_differ_by_size_length_and_to_their_last_pixels(tmp_path: Path) -> None:
    film = films.thumbnail()
    for side in ("Rows", "Columns"):
        cut = deepcopy(film)
        cut[side].value -= 1
        cut.PixelData = cut.PixelData[: cut.Rows * cut.Columns * 2]
        assert has_other(tmp_path, film, in_syntax(cut, JPEG2000Lossless)), side
    film.Rows = film.Columns = 1024
    film.PixelData = bytes(2 * 2**20)
    longer = deepcopy(film)
    longer.PixelData += bytes(2)

    assert has_other(tmp_path, film, repainted(film))
    assert has_other(tmp_path, film, longer)


def test_objects_whose_pixels_are_absent_or_cannot_be_found_do_not_conflict(tmp_path: Path) -> None:
    report = films.thumbnail()
    del report.PixelData, report.Rows, report.Columns
    overlong = bytearray(films.file_bytes(films.thumbnail()))
    place = overlong.rindex(b"\xe0\x7f\x10\x00OW") + 8
    overlong[place : place + 4] = struct.pack("<L", 0xFFFFFFFE)  # a length beyond the end of the file

    assert not has_other(tmp_path, report, renamed(report))
    assert has_other(tmp_path, films.thumbnail(), report)
    assert not has_other(tmp_path, bytes(overlong), bytes(overlong))


@pytest.mark.parametrize(
    ("syntax", "kept", "is_other"),
    [
        *((JPEG2000Lossless, kept, False) for kept in (0, 10, 200, -1)),
        *((JPEG2000Lossless, kept, True) for kept in (2000, -1000)),
        (ExplicitVRLittleEndian, -1000, True),
    ],
)
def test_a_whole_film_mends_a_truncated_one_never_vice_versa(
    tmp_path: Path, syntax: UID, kept: int, is_other: bool
) -> None:
    whole = films.file_bytes(in_syntax(films.thumbnail(), syntax))

    assert has_other(tmp_path, whole, whole[:kept]) is is_other
    assert not has_other(tmp_path, whole[:kept], whole)


def test_changed_pixels_are_kept_aside_once_reported_and_not_read(tmp_path: Path) -> None:
    film = films.thumbnail()
    study, first, second = str(film.StudyInstanceUID), repainted(film), repainted(renamed(film))
    with listening(tmp_path) as node:
        assert send(node, film) == 0x0000
        node.told.clear()

        assert [send(node, version) for version in (first, first)] == [0x0000, 0x0000]
        (conflict,) = node.spool.conflicts(study)
        assert conflict.path.read_bytes()[-200:] == films.file_bytes(first)[-200:]
        conflict.path.unlink()  # as if the power had gone before it had its name
        assert [send(node, version) for version in (first, second, first)] == [0x0000] * 3

        (instance,) = node.spool.instances(study)
        assert (instance.number, node.told) == (1, [])
        assert conflict.sha256 in {kept.sha256 for kept in node.spool.conflicts(study)}
        assert len(node.spool.conflicts(study)) == 2
        assert node.count("cxr_instances_total", outcome="conflict") == 3
        assert node.count("cxr_instances_total", outcome="repeated") == 2


def test_a_correction_that_is_taken_back_is_a_third_version(tmp_path: Path) -> None:
    film = films.thumbnail()
    with listening(tmp_path) as node:
        for version in (film, renamed(film), film):
            assert send(node, version) == 0x0000

        (newest,) = node.spool.instances(film.StudyInstanceUID)
        assert (newest.number, node.spool.conflicts(film.StudyInstanceUID)) == (3, [])
        assert node.count("cxr_instances_total", outcome="kept") == 3


def test_a_conflict_is_one_with_the_newest_version(spool: Spool) -> None:
    film = films.thumbnail()
    keep(spool, b"nothing that could be compared", study=film.StudyInstanceUID, film=film.SOPInstanceUID)

    assert [films.keep(spool, version).is_conflict for version in (film, repainted(film))] == [False, True]


def send(node: Node, film: Dataset) -> int | None:
    return peers.send(film, port=node.listener.port)


@pytest.fixture
def film(spool: Spool) -> Instance:
    return films.keep(spool, films.thumbnail()).instance


def remove(spool: Spool, film: Instance) -> None:
    spool.mark_round(film.study_uid, mark(film.path.name))
    assert spool.remove_study(film.study_uid)


def test_a_film_of_another_process_is_found_at_once_and_no_entry_without_its_file(tmp_path: Path, spool: Spool) -> None:
    assert spool.find_studies("1.9.9") == []

    kept = films.keep(Spool(tmp_path), films.thumbnail()).instance
    spool.index.add("1.3.5", kept.study_uid)  # the process was killed before it wrote the object
    spool.index.add("1.3.6", "1.2.99")  # before it made the folder of the study

    assert films_of(spool, kept.sop_instance_uid) == [kept]
    assert (films_of(spool, "1.3.5"), spool.find_studies("1.3.6")) == ([], [])
    assert [spool.index.find(name) for name in ("", "..", "../studies", "1~2")] == [[]] * 4, "no way out of the index"


def test_what_a_power_cut_took_from_the_index_comes_back(tmp_path: Path, spool: Spool, film: Instance) -> None:
    spool.keep_document(film.study_uid, "questions", "a" * 32, {})
    shutil.rmtree(tmp_path / "index")

    started = Spool(tmp_path)

    assert films_of(started, film.sop_instance_uid) == [film]
    assert questions.study_of(started, "a" * 32) == film.study_uid

    remove(started, film)
    shutil.rmtree(tmp_path / "index")
    for known in (started, Spool(tmp_path)):
        assert films_of(known, film.sop_instance_uid) == []
    assert Spool(tmp_path).find_studies(film.sop_instance_uid) == [film.study_uid], "a removed object names its study"


def test_of_two_studies_both_are_found_until_one_is_removed_with_its_questions(spool: Spool, film: Instance) -> None:
    again = films.keep(spool, films.thumbnail(), study_uid=f"{film.study_uid}.1").instance
    spool.keep_document(film.study_uid, "questions", "b" * 32, {})
    assert questions.study_of(spool, "b" * 32) == film.study_uid
    both, others = films_of(spool, film.sop_instance_uid), elsewhere(spool, film)
    remove(spool, film)

    assert (both, others) == ([film, again], [again])
    assert (films_of(spool, film.sop_instance_uid), elsewhere(spool, again)) == ([again], [])
    with pytest.raises(InputError, match="removed"):
        questions.study_of(spool, "b" * 32)


FOLDERS = ("received", "conflicts", "readings", "corrections", "questions", "rounds")
LOOKS: dict[str, Callable[[Spool], int]] = {
    "study": lambda spool: len(spool.instances(STUDY)),
    "versions": lambda spool: len(spool.versions(STUDY)),
    "conflicts": lambda spool: len(spool.conflicts(STUDY)),
    "readings": lambda spool: len(spool.readings(STUDY).intact),
    "corrections": lambda spool: len(spool.documents(STUDY, "corrections")),
    "questions": lambda spool: len(spool.documents(STUDY, "questions")),
    "rounds": lambda spool: len(spool.rounds(STUDY)),
    "begun readings": lambda spool: spool.count_begun_readings(STUDY),
    "sent answers": lambda spool: len(questions.answers_of(spool, STUDY)),
}


@pytest.mark.parametrize("is_after", [False, True], ids=["removed before", "removed after"])
@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("look", list(LOOKS))
def test_a_look_at_a_study_that_retention_removes_meanwhile_sees_less_and_never_fails(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, look: str, folder: str, is_after: bool
) -> None:
    kept = keep(spool).instance
    spool.keep_reading(STUDY, "1", {"file": kept.path.name})
    spool.mark_round(STUDY, mark(kept.path.name))
    place, scan, before = spool.directory / "studies" / STUDY, os.scandir, LOOKS[look](spool)
    for name in FOLDERS:
        (place / name).mkdir(exist_ok=True)

    def scan_and_remove(path: str | Path) -> AbstractContextManager[object]:
        """Remove the study before the folder is listed, or right after it."""
        if path != place / folder:
            return scan(path)
        monkeypatch.undo()
        with scan(path) as entries:
            listed = list(entries)
        assert spool.remove_study(STUDY)
        return nullcontext(listed) if is_after else scan(path)

    monkeypatch.setattr(os, "scandir", scan_and_remove)

    assert LOOKS[look](spool) <= before
