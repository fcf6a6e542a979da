"""The spool: what is kept survives, whatever comes with it, and what comes again under one UID is told apart."""

from __future__ import annotations

import os
import stat
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import Dataset
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)

from node.domain import OutputObject, is_uid
from node.errors import Refused, SpoolFull
from node.store.files import TEMPORARY, make_folder, make_private
from node.store.incoming import Incoming, has_other_pixels
from node.store.received import Kept, is_intact, with_hash
from node.store.rounds import RoundMark
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.listening import Node, listening

STUDY, FILM = "1.2.3", "1.2.3.4"
LIMIT_SECONDS = 20.0
FIRST, SECOND = "1.2.3", "1.2.4"
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


@given(st.text(max_size=70))
def test_a_text_is_a_uid_only_when_it_cannot_leave_its_folder(text: str) -> None:
    if is_uid(text):
        assert Path(text).name == text
        assert set(text) <= set("0123456789.")
        assert ".." not in text


@pytest.mark.parametrize("uid", ["../../etc", "1.2/3", "", "1..2", ".1", "1.2.", "1" * 65, "1.2\n", "1.2\0"])
def test_a_uid_with_a_path_in_it_is_refused(uid: str, spool: Spool) -> None:
    with pytest.raises(Refused, match="not a valid UID"):
        keep(spool, study=uid)
    with pytest.raises(Refused, match="not a valid UID"):
        keep(spool, film=uid)

    assert list(spool.studies()) == []


def test_below_the_reserve_nothing_is_kept(tmp_path: Path) -> None:
    spool = Spool(tmp_path, min_free_mib=10**9)

    with pytest.raises(SpoolFull) as caught:
        keep(spool)

    assert caught.value.status == 0xA700
    assert not spool.has_room


def test_an_object_that_meets_the_reserve_on_its_way_is_refused(tmp_path: Path) -> None:
    room = iter([True, False])
    incoming = Incoming(tmp_path, meta=films.META, has_room=lambda: next(room))

    with pytest.raises(SpoolFull, match="reserve"):
        for _ in range(3):
            incoming.write(bytes(2**20))

    assert list(tmp_path.iterdir()) == []


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


def test_a_study_has_unread_files_until_a_round_covers_each(spool: Spool) -> None:
    first = keep(spool).instance.path.name
    assert spool.has_unread(STUDY)

    spool.mark_round(STUDY, mark(first))
    assert not spool.has_unread(STUDY)

    late = keep(spool, film="1.2.3.5").instance.path.name
    assert spool.has_unread(STUDY)
    spool.mark_round(STUDY, mark(first, late, number=2))
    assert [round_mark.files for round_mark in spool.rounds(STUDY)] == [(first,), (first, late)]

    spool.keep_document(STUDY, "corrections", "c", {})
    assert spool.has_unread(STUDY) and not spool.remove_study(STUDY)

    spool.mark_round(STUDY, replace(mark(first, late, number=3), corrections=("c",)))
    assert not spool.has_unread(STUDY)


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


@pytest.mark.parametrize(("later", "found"), [(b"report", b"report"), (b"other", None)])
def test_a_damaged_output_is_replaced_by_its_own_bytes_only(spool: Spool, later: bytes, found: bytes | None) -> None:
    spool.keep_output(output(), b"report")
    (path,) = spool.directory.rglob("outputs/*")
    path.write_bytes(b"rep")

    spool.keep_output(output(), later)

    assert spool.output(output()) == found
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
    kept = keep(spool).instance.path
    spool.keep_output(output(), b"sr")
    spool.mark_round(STUDY, mark(kept.name))

    assert spool.remove_study(STUDY)

    assert [path.name for path in tmp_path.rglob("studies/**/*") if path.is_file()] == ["000001.json"]
    keep(spool)
    assert not spool.has_unread(STUDY)


def test_a_version_superseded_before_its_reading_delays_no_study(spool: Spool) -> None:
    keep(spool, b"first")
    spool.mark_round(STUDY, mark(keep(spool, b"second").instance.path.name))

    assert not spool.has_unread(STUDY)
    assert spool.remove_study(STUDY)


def test_a_study_with_something_unread_is_not_removed(spool: Spool) -> None:
    kept = keep(spool).instance.path
    spool.mark_round(STUDY, mark(kept.name))
    late = keep(spool, film="1.2.3.5").instance.path

    assert not spool.remove_study(STUDY)

    assert (kept.exists(), late.exists()) == (True, True)
    assert spool.remove_study(STUDY, although_unread=[late.name])


@pytest.mark.parametrize("moved", [False, True])
def test_a_removal_that_was_cut_short_loses_nothing_unread(tmp_path: Path, moved: bool, spool: Spool) -> None:
    kept = keep(spool).instance.path
    spool.mark_round(STUDY, mark(kept.name))
    folder, aside = tmp_path / "studies" / STUDY, tmp_path / "studies" / f".removing-{STUDY}"
    folder.rename(aside)
    if moved:
        folder.mkdir()
        (aside / "rounds").rename(folder / "rounds")

    spool.sweep()

    assert not aside.exists()
    assert kept.exists() is not moved
    assert len(spool.rounds(STUDY)) == 1


def test_a_film_that_follows_an_interrupted_removal_is_kept(tmp_path: Path, spool: Spool) -> None:
    old = keep(spool).instance.path
    spool.mark_round(STUDY, mark(old.name))
    (tmp_path / "studies" / STUDY).rename(tmp_path / "studies" / f".removing-{STUDY}")
    new = keep(spool, b"another", film="1.2.3.77").instance.path

    Spool(tmp_path).sweep(is_shared=True)

    assert old.read_bytes() == with_hash(films.META) + b"film"
    assert new.read_bytes() == with_hash(films.META) + b"another"
    assert spool.has_unread(STUDY)


def test_a_study_removed_by_another_process_is_left_alone(tmp_path: Path) -> None:
    spool, other = Spool(tmp_path), Spool(tmp_path)
    spool.mark_round(STUDY, mark(keep(spool).instance.path.name))

    assert other.remove_study(STUDY)
    assert not spool.remove_study(STUDY)
    assert len(spool.rounds(STUDY)) == 1


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


def test_a_damaged_mark_counts_as_none(tmp_path: Path, spool: Spool) -> None:
    kept = keep(spool).instance.path
    spool.mark_round(STUDY, mark(kept.name))
    next(tmp_path.rglob("000001.json")).write_text("", encoding="utf-8")

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


class Slow(Incoming):
    """An object that, once its place is chosen, lets others try to overtake it before it takes it."""

    def __init__(self, folder: Path, overtake: Callable[[], None]) -> None:
        super().__init__(folder, meta=films.META, has_room=lambda: True)
        self._overtake = overtake

    def publish(self, path: Path) -> None:
        self._overtake()
        super().publish(path)


def test_two_processes_number_versions_of_one_uid_apart(tmp_path: Path) -> None:
    first, other = Spool(tmp_path), Spool(tmp_path)
    is_kept = threading.Event()

    def keep_other() -> Kept:
        kept = keep(other, b"second")
        is_kept.set()
        return kept

    with ThreadPoolExecutor(1) as pool:
        seconds: list[Future[Kept]] = []

        def overtake() -> None:
            seconds.append(pool.submit(keep_other))
            is_kept.wait(timeout=0.5)  # as long as it may take to go wrong

        incoming = Slow(tmp_path / "studies", overtake)
        incoming.write(b"first")
        kept = first.settle(incoming, study_uid=STUDY, sop_instance_uid=FILM)
        overtaker = seconds[0].result(timeout=60)

    assert (kept.instance.number, overtaker.instance.number) == (1, 2)
    assert first.instances(STUDY) == (overtaker.instance,)


def test_a_study_without_any_kept_object_leaves_no_folder(tmp_path: Path, spool: Spool) -> None:
    keep(spool).instance.path.unlink()

    assert spool.remove_study(STUDY)

    assert list(spool.studies()) == []
    assert not list((tmp_path / "studies").iterdir())


def test_a_removal_succeeds_while_a_starting_process_sweeps(tmp_path: Path) -> None:
    spool, starting = Spool(tmp_path), Spool(tmp_path)
    is_over = threading.Event()

    def sweep_all_the_time() -> None:
        while not is_over.is_set():
            starting.sweep(is_shared=True)

    with ThreadPoolExecutor(1) as pool:
        sweeping = pool.submit(sweep_all_the_time)
        try:
            for number in range(20):
                study = f"1.2.{number}"
                spool.mark_round(study, mark(keep(spool, study=study).instance.path.name))
                for film in range(30):
                    (tmp_path / "studies" / study / "readings").mkdir(exist_ok=True)
                    (tmp_path / "studies" / study / "readings" / f"{film}.json").write_text("{}", encoding="utf-8")
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


def hold_first(on_sync: OnSync) -> tuple[threading.Event, threading.Event]:
    """Hold a thread named "first" where it syncs the folder of studies; it is there, and it may go on."""
    is_there, may_go_on = threading.Event(), threading.Event()

    def hold(path: Path) -> None:
        if threading.current_thread().name.startswith("first") and path.name == "studies":
            is_there.set()
            assert may_go_on.wait(LIMIT_SECONDS)

    on_sync(hold)
    return is_there, may_go_on


def test_new_folders_do_not_wait_for_the_syncs_of_another_study(spool: Spool, on_sync: OnSync) -> None:
    is_first_there, may_go_on = hold_first(on_sync)

    with ThreadPoolExecutor(1, thread_name_prefix="first") as first, ThreadPoolExecutor(1) as second:
        held = first.submit(keep, spool, study=FIRST)
        assert is_first_there.wait(LIMIT_SECONDS)
        try:
            kept = second.submit(keep, spool, study=SECOND).result(LIMIT_SECONDS)
        finally:
            may_go_on.set()

        assert kept.is_new
        assert held.result(LIMIT_SECONDS).is_new


def test_a_second_object_waits_until_its_folders_are_synced(spool: Spool, on_sync: OnSync) -> None:
    is_first_there, may_go_on = hold_first(on_sync)

    with ThreadPoolExecutor(1, thread_name_prefix="first") as first, ThreadPoolExecutor(1) as second:
        held = first.submit(spool.keep_reading, FIRST, "key", {})
        assert is_first_there.wait(LIMIT_SECONDS)
        waiting = second.submit(keep, spool, study=FIRST)

        assert not waiting.done()
        with pytest.raises(TimeoutError):
            waiting.result(0.2)

        may_go_on.set()
        held.result(LIMIT_SECONDS)
        assert waiting.result(LIMIT_SECONDS).is_new


@pytest.mark.parametrize("folder", ["studies", FIRST])
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
    assert (tmp_path / "studies" / FIRST).is_dir()
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
    other = deepcopy(film)
    other.PatientName = "Corrected^Name^Which^Is^Longer"
    return other


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


@pytest.mark.parametrize(
    ("known", "arrived"),
    [
        *(
            (syntax, syntax)
            for syntax in (ImplicitVRLittleEndian, ExplicitVRLittleEndian, RLELossless, JPEG2000Lossless)
        ),
        (ExplicitVRLittleEndian, ImplicitVRLittleEndian),
    ],
)
def test_changed_pixels_are_told_from_changed_patient_data(tmp_path: Path, known: UID, arrived: UID) -> None:
    film = films.thumbnail()

    assert not has_other(tmp_path, in_syntax(film, known), in_syntax(renamed(film), arrived))
    assert has_other(tmp_path, in_syntax(film, known), in_syntax(repainted(film), arrived))


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, RLELossless, DeflatedExplicitVRLittleEndian])
def test_what_only_a_decoder_could_tell_is_no_conflict(tmp_path: Path, syntax: UID) -> None:
    film = films.thumbnail()
    other = in_syntax(repainted(film), syntax)

    assert not has_other(tmp_path, film, other)
    assert not has_other(tmp_path, other, film)


@pytest.mark.parametrize("side", ["Rows", "Columns"])
def test_another_size_is_another_picture_in_every_syntax(tmp_path: Path, side: str) -> None:
    film = films.thumbnail()
    cut = deepcopy(film)
    cut[side].value -= 1
    cut.PixelData = cut.PixelData[: cut.Rows * cut.Columns * 2]

    assert has_other(tmp_path, film, in_syntax(cut, JPEG2000Lossless))


def test_pixels_are_compared_to_their_end_and_by_their_length(tmp_path: Path) -> None:
    film = films.thumbnail()
    film.Rows = film.Columns = 1024
    film.PixelData = bytes(2 * 2**20)
    longer = deepcopy(film)
    longer.PixelData += bytes(2)

    assert has_other(tmp_path, film, repainted(film))
    assert has_other(tmp_path, film, longer)


def test_objects_without_pixels_never_conflict_with_each_other(tmp_path: Path) -> None:
    report = films.thumbnail()
    del report.PixelData, report.Rows, report.Columns

    assert not has_other(tmp_path, report, renamed(report))
    assert has_other(tmp_path, films.thumbnail(), report)


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


def test_a_length_beyond_the_end_of_the_file_ends_the_reading(tmp_path: Path) -> None:
    content = bytearray(films.file_bytes(films.thumbnail()))
    place = content.rindex(b"\xe0\x7f\x10\x00OW") + 8
    content[place : place + 4] = struct.pack("<L", 0xFFFFFFFE)

    assert not has_other(tmp_path, bytes(content), bytes(content))


def test_changed_pixels_are_kept_aside_reported_and_not_read(tmp_path: Path) -> None:
    film = films.thumbnail()
    with listening(tmp_path) as node:
        assert send(node, film) == 0x0000
        node.told.clear()

        assert send(node, repainted(film)) == 0x0000
        assert send(node, repainted(film)) == 0x0000

        (conflict,) = node.spool.conflicts(film.StudyInstanceUID)
        (instance,) = node.spool.instances(film.StudyInstanceUID)
        assert instance.number == 1
        assert node.told == []
        assert conflict.path.read_bytes()[-200:] == films.file_bytes(repainted(film))[-200:]
        assert node.count("cxr_instances_total", outcome="conflict") == 1
        assert node.count("cxr_instances_total", outcome="repeated") == 1


def test_each_of_several_conflicts_is_kept_once(tmp_path: Path) -> None:
    film = films.thumbnail()
    first, second = repainted(film), repainted(renamed(film))
    with listening(tmp_path) as node:
        for version in (film, first, second, first):
            assert send(node, version) == 0x0000

        assert len(node.spool.conflicts(film.StudyInstanceUID)) == 2
        assert node.count("cxr_instances_total", outcome="repeated") == 1


def test_a_correction_that_is_taken_back_is_a_third_version(tmp_path: Path) -> None:
    film = films.thumbnail()
    with listening(tmp_path) as node:
        for version in (film, renamed(film), film):
            assert send(node, version) == 0x0000

        (newest,) = node.spool.instances(film.StudyInstanceUID)
        assert newest.number == 3
        assert node.count("cxr_instances_total", outcome="kept") == 3
        assert node.spool.conflicts(film.StudyInstanceUID) == []


def test_a_conflict_with_the_newest_version_survives_a_crash(tmp_path: Path) -> None:
    film = films.thumbnail()
    with listening(tmp_path) as node:
        send(node, film)
        send(node, repainted(film))
        (conflict,) = node.spool.conflicts(film.StudyInstanceUID)
        conflict.path.unlink()  # as if the power had gone before it had its name

        assert send(node, repainted(film)) == 0x0000

        assert [kept.sha256 for kept in node.spool.conflicts(film.StudyInstanceUID)] == [conflict.sha256]
        assert len(node.spool.instances(film.StudyInstanceUID)) == 1


def test_a_conflict_is_one_with_the_newest_version(spool: Spool) -> None:
    film = films.thumbnail()
    study, uid = str(film.StudyInstanceUID), str(film.SOPInstanceUID)
    keep(spool, b"nothing that could be compared", study=study, film=uid)

    kept = [films.keep(spool, version) for version in (film, repainted(film))]

    assert [each.is_conflict for each in kept] == [False, True]


def send(node: Node, film: Dataset) -> int | None:
    return peers.send(film, port=node.listener.port)
