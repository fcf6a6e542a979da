"""Files whose bytes have changed on disk, and disks that fail: found before anything is read or sent, and mended."""

from __future__ import annotations

import errno
import io
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
from pydicom import dcmread

from node.domain import DeliveryState
from node.errors import InputError, NodeError, where
from node.receive.intake import IncomingFile
from node.service import app
from node.store import database, files
from node.store.ledger import is_away
from tests.support import films, peers
from tests.support.damage import (
    FILM,
    OTHER,
    STUDY,
    Bench,
    benches,
    cut,
    flip,
    flip_a_pixel,
    flip_the_name,
    flip_the_transfer_syntax,
    interrupted,
)
from tests.support.fakes import ScriptedReader
from tests.support.listening import listening
from tests.support.service import settings_for


@pytest.mark.parametrize(
    ("damage", "is_named"),
    [
        (flip_a_pixel, True),
        (flip_the_name, True),
        (cut, True),
        (flip_the_transfer_syntax, False),  # not even its class is known any more
        (Path.unlink, False),
    ],
)
def test_a_damaged_film_is_parked_and_the_one_beside_it_answered(
    bench: Bench, damage: Callable[[Path], None], is_named: bool
) -> None:
    path, other = bench.keep(FILM), bench.keep(OTHER)
    plan = bench.plan()
    damage(path)

    assert [bench.steps.read(STUDY, each.name) for each in (other, path)] == ["read", "damaged"]
    written = bench.steps.write(plan)
    assert written is not None
    bench.steps.finish(plan, ["damaged", "read"], written)

    report = bench.output("sr").read_bytes()
    assert str(OTHER.PatientName).encode() in report
    assert (b"Not processed: its stored copy was damaged" in report) is is_named
    assert written.mark.parked == {path.name: "damaged"}
    (parked,) = bench.ledger.parked()
    assert (parked.study, parked.stage, parked.reason.partition(" ")[0]) == (STUDY, "read", "damaged:")


def test_a_damaged_film_sent_again_is_read_as_the_same_version(bench: Bench) -> None:
    path = bench.keep(FILM)
    flip_a_pixel(path)
    assert bench.round() == (["damaged"], [])
    assert not list(bench.folder.rglob("outputs/*"))
    assert bench.damaged("film") == 1

    kept = films.keep(bench.spool, FILM)

    assert (kept.instance.path, kept.instance.number, kept.is_new) == (path, 1, True)
    outcomes, deliveries = bench.round()
    assert (outcomes, sorted(delivery.kind for delivery in deliveries)) == (["read"], ["gsps", "sr"])
    assert bench.ledger.study_state(STUDY) == "finished"


def test_a_correction_of_a_damaged_film_is_no_conflict_with_it(bench: Bench) -> None:
    flip_a_pixel(bench.keep(FILM))

    kept = films.keep(bench.spool, films.changed(films.thumbnail(), {"PatientName": "Corrected^Name"}))

    assert (kept.is_conflict, kept.instance.number) == (False, 2)
    assert bench.round()[0] == ["read"]


def test_a_film_resent_in_the_round_that_parks_it_is_read_in_another_that_sends_nothing_twice(bench: Bench) -> None:
    path = bench.keep(FILM)
    bench.keep(OTHER)
    flip_a_pixel(path)
    _, deliveries = bench.round()
    assert sorted(delivery.kind for delivery in deliveries) == ["gsps", "sr", "sr"]  # on the film, on the study
    assert [bench.round()[1] for _ in range(2)] == [[], []]

    plan = bench.plan()
    outcomes = [str(bench.steps.read(STUDY, file)) for file in plan.files]
    written = bench.steps.write(plan)
    assert written is not None
    bench.keep(FILM)

    assert bench.steps.finish(plan, outcomes, written) is True
    assert set(bench.round()[0]) == {"read"}


def test_a_film_damaged_after_its_round_is_not_forgotten_later(bench: Bench) -> None:
    path = bench.keep(FILM)
    bench.round()
    first = bench.output("sr").read_bytes()
    flip_the_name(path)
    bench.keep(OTHER)

    outcomes, _ = bench.round()

    assert outcomes == ["damaged", "read"]
    second = bench.output("sr").read_bytes()
    assert second != first
    assert FILM.SOPInstanceUID.encode() in second
    assert b"its stored copy was damaged" in second
    assert [parked.stage for parked in bench.ledger.parked()] == ["read"]

    assert films.keep(bench.spool, FILM).is_new
    outcomes, deliveries = bench.round()
    assert outcomes == ["read", "read"]
    assert "sr" in [delivery.kind for delivery in deliveries]
    assert bench.ledger.parked() == []


def test_the_report_on_a_parked_film_is_written_again_and_named_by_the_answer(bench: Bench) -> None:
    interrupted(bench, bench.keep(FILM))
    outcomes, [report] = bench.round()
    assert outcomes == ["interrupted"]
    path = bench.output("sr")
    before = path.read_bytes()
    cut(path)
    assert bench.send(report) == "delayed"
    bench.steps.plan(STUDY)
    assert path.read_bytes() == before

    bench.spool.forget_interrupted_readings(STUDY)
    assert bench.round()[0] == ["read"]

    [study] = dcmread(bench.output("sr")).PredecessorDocumentsSequence
    [series] = study.ReferencedSeriesSequence
    assert [item.ReferencedSOPInstanceUID for item in series.ReferencedSOPSequence] == [report.sop_instance_uid]


def test_a_damaged_reading_is_made_again(bench: Bench) -> None:
    path = bench.keep(FILM)
    assert bench.steps.read(STUDY, path.name) == "read"
    (reading,) = bench.folder.rglob("readings/*.json")
    before = reading.read_bytes()
    flip(reading, before.index(b'"probability": 0.8') + len(b'"probability": 0.'))

    bench.round()

    assert reading.read_bytes() == before


def test_a_small_file_without_its_hash_counts_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    path.write_bytes(files.to_json({"number": 1}))
    assert files.read_json(path) == {"number": 1}

    path.write_text('{"number": 1}', encoding="utf-8")
    assert files.read_json(path) is None


@pytest.mark.parametrize("damage", [cut, lambda path: flip(path, 5000), Path.unlink])
def test_a_damaged_output_is_written_and_sent_with_equal_bytes(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with peers.ReceivingArchive() as archive, benches(tmp_path, archive) as bench:
        bench.keep(FILM)
        _, deliveries = bench.round()
        path = bench.output("sr")
        before = path.read_bytes()
        damage(path)

        outcomes = {delivery.kind: bench.send(delivery) for delivery in deliveries}

        assert outcomes == {"sr": "delayed", "gsps": "sent"}
        assert bench.asked == [STUDY]
        assert bench.steps.plan(STUDY) is None
        assert path.read_bytes() == before
        assert {bench.send(delivery, 2) for delivery in deliveries} == {"sent"}
        sent = next(received.dataset for received in archive.kept if received.dataset.Modality == "SR")
        assert sent == dcmread(path)


def test_a_lost_report_that_a_later_round_repeats_is_still_sent(bench: Bench) -> None:
    bench.keep(FILM)
    _, deliveries = bench.round()
    report = next(delivery for delivery in deliveries if delivery.kind == "sr")
    path, other = bench.output("sr"), bench.keep(OTHER)
    plan = bench.plan()
    cut(path)

    assert bench.steps.read(STUDY, other.name) == "read"
    written = bench.steps.write(plan)

    assert written is not None
    assert report.sop_instance_uid in str(written.mark.outputs)
    assert bench.ledger.delivery_state(report) is DeliveryState.WAITING


def test_a_damaged_output_of_another_model_is_parked(tmp_path: Path) -> None:
    with benches(tmp_path) as bench:
        bench.keep(FILM)
        _, deliveries = bench.round()
        cut(bench.output("sr"))
        report = next(delivery for delivery in deliveries if delivery.kind == "sr")
        assert bench.send(report) == "delayed"
    with benches(tmp_path, version="2") as bench:
        assert bench.steps.plan(STUDY) is None

        assert bench.send(report, 2) == "parked"

        assert bench.ledger.delivery_state(report) is DeliveryState.PARKED
        (parked,) = bench.ledger.parked()
        assert "cannot be written again" in parked.reason
        assert len(list(tmp_path.rglob("outputs/*.sr.dcm"))) == 1

        bench.spool.uncover(STUDY)  # as `retry` does
        _, renewed = bench.round()
        assert [delivery.kind for delivery in renewed if delivery.kind == "sr"] == ["sr"]
        assert bench.ledger.delivery_state(report) is DeliveryState.ABANDONED
        assert bench.ledger.parked() == []
        assert b"scripted 2" in bench.output("sr").read_bytes()


def test_an_output_that_was_sent_is_not_missed_here(tmp_path: Path) -> None:
    with benches(tmp_path) as bench:
        bench.keep(FILM)
        _, deliveries = bench.round()
        for delivery in deliveries:
            bench.ledger.set_sent(delivery, attempts=1, awaits_commitment=True)
        cut(bench.output("sr"))
    with benches(tmp_path, version="2") as bench:
        bench.keep(OTHER)
        bench.round()

        assert {bench.ledger.delivery_state(delivery) for delivery in deliveries} == {DeliveryState.SENT}


def test_a_disk_that_is_gone_parks_no_delivery(bench: Bench) -> None:
    bench.keep(FILM)
    _, deliveries = bench.round()
    (bench.folder / "studies").rename(bench.folder / "elsewhere")

    for delivery in deliveries:
        with pytest.raises(FileNotFoundError):
            bench.send(delivery)

    assert bench.ledger.parked() == []


OPEN: Final = os.open
TAKING_NOTHING: Final = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]


Lose = Callable[[str, str, int], None]


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Lose:
    """Let a method of `Path` fail, for files with an ending, as on a disk that has lost a part of them."""

    def lose(method: str, ending: str, number: int) -> None:
        real = getattr(Path, method)

        def lost(path: Path, *arguments: object, **named: object) -> object:
            if path.name.endswith(ending):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *arguments, **named)

        monkeypatch.setattr(Path, method, lost)

    return lose


@pytest.mark.parametrize(
    ("method", "number", "outcomes"), [("open", errno.EIO, {"damaged", "read"}), ("stat", errno.EUCLEAN, {"read"})]
)
def test_a_film_that_the_disk_has_lost_delays_no_other(
    bench: Bench, lose: Lose, method: str, number: int, outcomes: set[str]
) -> None:
    path = bench.keep(FILM)
    bench.keep(OTHER)
    lose(method, path.name, number)

    assert bench.steps.place(STUDY) is not None
    assert set(bench.round()[0]) >= outcomes


def test_a_read_error_after_hashing_is_no_fault_of_the_film(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.keep(FILM)
    with monkeypatch.context() as patch:

        def lost(*_arguments: object, **_named: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(io, "FileIO", lost)
        assert bench.steps.read(STUDY, path.name) == "damaged"

    assert bench.steps.read(STUDY, path.name) == "read"


@pytest.mark.parametrize("ending", [".begun", "000001.json"])
def test_a_small_file_that_the_disk_has_lost_ends_no_round(bench: Bench, lose: Lose, ending: str) -> None:
    path = bench.keep(FILM)
    bench.round()
    interrupted(bench, path)
    bench.keep(OTHER)
    lose("read_bytes", ending, errno.EIO)

    assert "read" in bench.round()[0]


Fail = Callable[..., None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fail:
    """Let calls of `os` about the folder's files fail with a number; a file may still be opened to read."""

    def failing(real: Callable[..., object], number: int) -> Callable[..., object]:
        def call(target: object, *arguments: object, **named: object) -> object:
            place = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
            is_reading = real is OPEN and arguments[:1] == (os.O_RDONLY,)
            if place.startswith(str(tmp_path)) and not is_reading:
                raise OSError(number, os.strerror(number), place)
            return real(target, *arguments, **named)

        return call

    def fail(number: int, *calls: str) -> None:
        for name in calls:
            monkeypatch.setattr(os, name, failing(getattr(os, name), number))

    return fail


@pytest.mark.parametrize(
    ("call", "number", "said"),
    [
        *(("open", number, f"not writable now .{os.strerror(number)}") for number in TAKING_NOTHING),
        *(("write", number, f"not writable now .{os.strerror(number)}") for number in (errno.ENOSPC, errno.EROFS)),
        ("open", errno.EACCES, "cannot be used"),
    ],
)
def test_a_start_on_such_a_disk_is_no_fault_of_settings_unless_the_folder_may_not_be_used(
    tmp_path: Path, fail: Fail, call: str, number: int, said: str
) -> None:
    fail(number, call)

    with (
        pytest.raises(NodeError, match=said) as raised,
        app.run(settings_for(tmp_path / "node", archive_port=104), reader=ScriptedReader),
    ):
        pass

    assert isinstance(raised.value, InputError) is (number == errno.EACCES)


@pytest.mark.parametrize(
    ("number", "calls"),
    [
        *((number, ("open",)) for number in TAKING_NOTHING),
        *((errno.ENOSPC, calls) for calls in (("write",), ("fsync",), ("rename",), ("write", "unlink"))),
    ],
)
def test_a_sender_is_told_to_send_again_later_also_over_http(
    tmp_path: Path, fail: Fail, number: int, calls: tuple[str, ...]
) -> None:
    with listening(tmp_path) as node:
        fail(number, *calls)

        assert peers.send(films.thumbnail(), port=node.listener.port) == 0xA700
        assert node.told == []
        file = IncomingFile(node.listener.intake)
        with pytest.raises(NodeError) as raised:
            file.write(films.file_bytes(films.thumbnail()))
            file.keep(is_stat=False, tell=lambda _reason: None)
        file.discard()
        assert getattr(raised.value, "status", None) == 0xA700


def test_a_database_without_room_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(b"no database" * 1000)
    errors = list[sqlite3.Error]()
    for name in ("small", "damaged"):
        with closing(sqlite3.connect(tmp_path / name)) as connection, pytest.raises(sqlite3.Error) as raised:
            connection.execute("pragma max_page_count = 2")
            connection.executescript("create table a (b); create table c (d); create table e (f); create table g (h)")
        errors.append(raised.value)
    errors.append(sqlite3.OperationalError("database is locked"))

    assert [database.is_not_writable(error) for error in errors] == [True, False, False]
    assert [database.is_damaged(error) for error in errors] == [False, True, False]
    assert [is_away(error) for error in errors] == [False, True, False]
    assert database.is_not_writable(sa.exc.OperationalError("", None, errors[0]))


def test_what_the_log_says_of_a_full_disk_names_it(tmp_path: Path, fail: Fail) -> None:
    fail(errno.ENOSPC, "write")

    with pytest.raises(OSError, match="No space") as raised:
        files.write(tmp_path / "file", b"content")

    assert "No space left on device" in where(raised.value)
    assert str(tmp_path) not in where(raised.value)
