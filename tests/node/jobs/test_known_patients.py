"""Whom a study names on the worklist, as films come, rounds end, and the ledger is filled in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from zoneinfo import ZoneInfo

from node.jobs.patients import note_patients, patients_of
from node.service.worker import LedgerFiller
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.worklist import WorklistFilter, worklist
from node.store.worklist import patients_of as recorded_patients
from tests.support import films, peers
from tests.support.damage import FILM, STUDY, Bench
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS

NAMED = {
    "PatientName": "Adler^Anna",
    "PatientID": "7",
    "IssuerOfPatientID": "WARD",
    "AccessionNumber": "A1",
    "StudyDate": "20261102",
    "Modality": "DX",
    "StationName": "ROOM 4",
}


def filled(bench: Bench, ledger: Ledger, *, with_patients: bool, until: Callable[[], bool]) -> None:
    filler = LedgerFiller(
        bench.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=with_patients
    )
    peers.wait_until(until, what="the ledger is filled in")
    filler.close()


def names(bench: Bench) -> list[str]:
    storage = settings_for(bench.folder, archive_port=104).storage
    return [each.name for each in recorded_patients(storage, [STUDY]).get(STUDY, [])]


def found(bench: Bench, finding: str) -> list[str]:
    storage = settings_for(bench.folder, archive_port=104).storage
    return list(worklist(storage, WorklistFilter(finding=finding), limit=5).studies)


def test_a_film_names_patient_request_and_station(bench: Bench) -> None:
    bench.keep(films.changed(films.thumbnail(), NAMED))

    (row,) = patients_of(bench.spool, STUDY)

    assert (row.name, row.patient_id, row.issuer, row.accession) == ("Adler^Anna", "7", "WARD", "A1")
    assert (row.study_date, row.modality, row.station) == ("20261102", "DX", "ROOM 4")
    assert row.search == "adler anna 7 a1 dx room 4 20261102 2026-11-02"


def test_the_newest_film_is_named_first_and_each_patient_once(bench: Bench) -> None:
    for number, name in enumerate(("Adler", "Adler", "Bauer")):
        film = films.as_another(films.thumbnail({"PatientName": name}), f"film {number}", study="x")
        film.StudyInstanceUID = STUDY
        bench.keep(film)

    assert [row.name for row in patients_of(bench.spool, STUDY)] == ["Bauer", "Adler"]
    assert [row.number for row in patients_of(bench.spool, STUDY)] == [0, 1]


def test_a_study_without_a_readable_header_has_a_blank_row(bench: Bench) -> None:
    path = bench.keep(FILM)
    path.write_bytes(b"\0" * 100)

    (row,) = patients_of(bench.spool, STUDY)

    assert (row.name, row.search) == ("", "")


def test_the_end_of_a_round_records_whom_it_knows(bench: Bench) -> None:
    bench.steps = replace(bench.steps, note_patients=partial(note_patients, bench.spool, bench.ledger))
    bench.keep(films.changed(films.thumbnail(), NAMED))

    bench.round()

    assert names(bench) == ["Adler^Anna"]
    assert found(bench, "atelectasis") == [STUDY]
    assert found(bench, "pneumothorax") == []


def test_a_node_without_users_records_no_patient(bench: Bench) -> None:
    bench.keep(films.changed(films.thumbnail(), NAMED))
    bench.round()

    assert names(bench) == []
    assert found(bench, "atelectasis") == [STUDY]


def test_a_lost_ledger_is_filled_in_at_the_start(bench: Bench) -> None:
    bench.keep(films.changed(films.thumbnail(), NAMED))
    bench.round()
    bench.ledger.forget(STUDY)

    with closing(Ledger(connect(bench.folder / "ledger.sqlite"))) as ledger:
        ledger.add_finished_study(STUDY)
        assert ledger.searchable.without_patients() == [STUDY]
        filled(bench, ledger, with_patients=True, until=lambda: ledger.statistics.recorded() == {STUDY})

    assert names(bench) == ["Adler^Anna"]
    assert found(bench, "atelectasis") == [STUDY]


def test_patients_are_deleted_when_nobody_may_see_them(bench: Bench) -> None:
    bench.keep(films.changed(films.thumbnail(), {**NAMED, "PatientName": "Qzvxwkjp"}))
    bench.round()
    note_patients(bench.spool, bench.ledger, STUDY)
    assert names(bench) == ["Qzvxwkjp"]

    filled(bench, bench.ledger, with_patients=False, until=lambda: names(bench) == [])

    assert found(bench, "atelectasis") == [STUDY]
    files = [path for path in bench.folder.glob("ledger.sqlite*") if b"qzvxwkjp" in path.read_bytes().lower()]
    assert files == []
