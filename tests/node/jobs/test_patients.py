"""Whom a study names on the worklist, as films come, rounds end, and the ledger is filled in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from models.contract import ChangeError
from node.answers.comparison import Obstacle
from node.config import SiteSettings, StorageSettings
from node.domain import JsonObject, ModelIdentity
from node.jobs.answered_film import AnsweredFilm
from node.jobs.patients import Patients, compare_films, note_patients, patients_of
from node.service.worker import LedgerFiller
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.received import Instance
from node.store.spool import Spool
from node.store.statistics import counted_studies
from node.store.worklist import WorklistFilter, without_patients, worklist
from node.store.worklist import patients_of as recorded_patients
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films, peers, samples
from tests.support.damage import STUDY, Bench
from tests.support.spoken import PROMPTS

NAMED = {
    **{"PatientName": "Adler^Anna", "PatientID": "7", "IssuerOfPatientID": "WARD", "AccessionNumber": "A1"},
    **{"StudyDate": "20261102", "Modality": "DX", "StationName": "ROOM 4"},
}


def filled(bench: Bench, ledger: Ledger, *, with_patients: bool, until: Callable[[], bool]) -> None:
    filler = LedgerFiller(
        bench.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=with_patients
    )
    peers.wait_until(until, what="the ledger is filled in")
    filler.close()


def names(bench: Bench) -> list[str]:
    return [each.name for each in recorded_patients(StorageSettings(directory=bench.folder), [STUDY]).get(STUDY, [])]


def found(bench: Bench, finding: str) -> list[str]:
    return list(worklist(StorageSettings(directory=bench.folder), WorklistFilter(finding=finding), limit=5).studies)


def test_a_film_names_patient_request_and_station(bench: Bench) -> None:
    path = bench.keep(films.changed(films.thumbnail(), NAMED))
    (row,) = patients_of(bench.spool, STUDY)
    path.write_bytes(b"\0" * 100)
    (unreadable,) = patients_of(bench.spool, STUDY)

    assert (row.name, row.patient_id, row.issuer, row.accession) == ("Adler^Anna", "7", "WARD", "A1")
    assert (row.study_date, row.modality, row.station) == ("20261102", "DX", "ROOM 4")
    assert row.search == "adler anna 7 a1 dx room 4 20261102 2026-11-02"
    assert (unreadable.name, unreadable.search) == ("", "")


def test_the_newest_film_is_named_first_and_each_patient_once(bench: Bench) -> None:
    for number, name in enumerate(("Adler", "Adler", "Bauer")):
        bench.keep(films.as_another(films.thumbnail({"PatientName": name}), f"film {number}"))

    assert [(row.name, row.number) for row in patients_of(bench.spool, STUDY)] == [("Bauer", 0), ("Adler", 1)]


@pytest.mark.parametrize("has_users", [True, False])
def test_the_end_of_a_round_records_findings_and_for_users_the_patient(bench: Bench, has_users: bool) -> None:
    if has_users:
        bench.steps = replace(bench.steps, note_patients=partial(note_patients, bench.spool, bench.ledger))
    bench.keep(films.changed(films.thumbnail(), NAMED))

    bench.round()

    assert names(bench) == (["Adler^Anna"] if has_users else [])
    assert found(bench, "atelectasis") == [STUDY]
    assert found(bench, "pneumothorax") == []


def test_a_lost_ledger_is_filled_in_at_the_start_and_patients_deleted_when_nobody_may_see_them(bench: Bench) -> None:
    bench.keep(films.changed(films.thumbnail(), {**NAMED, "PatientName": "Qzvxwkjp"}))
    bench.round()
    bench.ledger.forget(STUDY)

    with closing(Ledger(connect(bench.folder / "ledger.sqlite"))) as ledger:
        ledger.add_finished_study(STUDY)
        assert without_patients(ledger.tables) == [STUDY]
        filled(bench, ledger, with_patients=True, until=lambda: counted_studies(ledger.tables) == {STUDY})
    assert (names(bench), found(bench, "atelectasis")) == (["Qzvxwkjp"], [STUDY])

    filled(bench, bench.ledger, with_patients=False, until=lambda: names(bench) == [])

    assert found(bench, "atelectasis") == [STUDY]
    files = [path for path in bench.folder.glob("ledger.sqlite*") if b"qzvxwkjp" in path.read_bytes().lower()]
    assert files == []


Header = dict[str, object]

MODEL = ModelIdentity(
    name="m", version="1", weights_sha256="w", engine="onnx", manifest_sha256="ab", trusted="phantoms"
)
ERROR = ChangeError(measured_on="phantoms", films=100, extent=0.2, probability=0.3)


ORIGIN: JsonObject = {
    **{"model": "phantom 1", "engine": "onnx", "weights_sha256": "w", "manifest_sha256": "ab", "trusted": "phantoms"},
    "prompts_sha256": "cd",
}

NONE: Header = dict.fromkeys(
    ("AcquisitionDate", "AcquisitionTime", "AcquisitionDateTime", "ContentDate", "ContentTime", "IssuerOfPatientID")
)
FIRST: Header = {**NONE, "PatientID": "4711", "StudyDate": "20261101", "StudyTime": "0930"}
SECOND: Header = {**FIRST, "StudyTime": "093001.5"}


def stored(folder: Path, header: Header, name: str) -> Instance:
    path = folder / f"{name}.dcm"
    films.as_another(films.thumbnail(header), name).save_as(path)
    uid = samples.film_uid(len(name))
    return Instance(
        study_uid="1.2", sop_instance_uid=uid, number=1, sha256="", path=path, received_at=datetime.now(UTC)
    )


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (FIRST, SECOND, True),
        (SECOND, FIRST, False),
        (FIRST, FIRST, False),
        (FIRST, {**SECOND, "PatientID": "4712"}, False),
        (FIRST, {**SECOND, "IssuerOfPatientID": "B"}, False),
        ({**FIRST, "IssuerOfPatientID": "B"}, {**SECOND, "IssuerOfPatientID": "B"}, True),
        ({**FIRST, "PatientID": ""}, {**SECOND, "PatientID": ""}, False),
        ({**FIRST, "StudyDate": ""}, SECOND, False),
        ({**FIRST, "StudyTime": ""}, FIRST, True),
        ({**FIRST, "ContentDate": "20261102"}, SECOND, False),
        ({**SECOND, "AcquisitionDate": "20261031", "AcquisitionTime": "2359"}, FIRST, True),
        ({**FIRST, "PatientBirthDate": "19500101"}, {**SECOND, "PatientBirthDate": "19900101"}, False),
        ({**FIRST, "PatientBirthDate": "19500101"}, {**SECOND, "PatientBirthDate": "1950.01.01"}, True),
        ({**FIRST, "PatientBirthDate": ""}, {**SECOND, "PatientBirthDate": "19900101"}, True),
        ({**FIRST, "PatientBirthDate": "unknown"}, {**SECOND, "PatientBirthDate": "19900101"}, True),
        ({**FIRST, "PatientSex": "M"}, {**SECOND, "PatientSex": "F"}, False),
        ({**FIRST, "PatientSex": "m "}, {**SECOND, "PatientSex": "M"}, True),
        ({**FIRST, "PatientSex": None}, {**SECOND, "PatientSex": "F"}, True),
        ({**FIRST, "PatientSex": "U"}, {**SECOND, "PatientSex": "F"}, True),
        *(
            ({**FIRST, "PatientID": number}, {**SECOND, "PatientID": number}, is_patients)
            for number, is_patients in (("UNKNOWN", False), ("unknown ", False), ("0", False), ("00", True))
        ),
    ],
)
def test_films_of_one_patient_are_in_order(tmp_path: Path, earlier: Header, later: Header, expected: bool) -> None:
    pair = stored(tmp_path, earlier, "earlier"), stored(tmp_path, later, "later")

    assert Patients(nobodys=SiteSettings().nobodys).are_in_order(*pair) is expected


def test_a_file_that_is_no_film_is_of_nobody_and_a_search_remembers_no_number(tmp_path: Path) -> None:
    patients, spool = Patients(), Spool(tmp_path / "spool")
    folder = tmp_path / "spool" / "studies" / "1.2" / "received"
    folder.mkdir(parents=True)
    film = stored(folder, FIRST, f"{samples.film_uid(5)}~1~{'0' * 64}")

    patients.earlier(stored(tmp_path, SECOND, "later"), spool)

    remembered = repr(vars(patients)["_known"])
    assert "patient=b" in remembered and "4711" not in remembered
    film.path.write_bytes(b"no film")
    assert Patients().time_of(film) is None


def test_a_film_that_the_archive_rejected_is_no_earlier_one(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    taken = [
        films.as_another(films.thumbnail(header), str(n), study=str(n)) for n, header in enumerate((FIRST, SECOND))
    ]
    first, second = (films.keep(spool, film).instance for film in taken)
    spool.keep_reading(first.study_uid, "1", {"file": first.path.name})
    before = Patients().earlier(second, spool)

    films.keep(spool, highdicom_note(taken[0]))

    assert [found.instance.sop_instance_uid for found in before] == [first.sop_instance_uid]
    assert Patients().earlier(second, spool) == []


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (ORIGIN, ORIGIN, Obstacle.VIEW_UNKNOWN),  # what is asked last: nothing speaks against the models
        (ORIGIN, {**ORIGIN, "weights_sha256": "x"}, Obstacle.OTHER_MODEL),
        ({**ORIGIN, "manifest_sha256": "x"}, {**ORIGIN, "manifest_sha256": "x"}, Obstacle.OTHER_MODEL),
        (ORIGIN, {**ORIGIN, "prompts_sha256": "x"}, Obstacle.OTHER_PROMPTS),
    ],
    ids=["same", "other weights", "of a replaced model", "other prompts"],
)
def test_only_readings_of_the_open_model_are_compared(
    tmp_path: Path, earlier: JsonObject, later: JsonObject, expected: Obstacle
) -> None:
    pair = [
        AnsweredFilm(instance=stored(tmp_path, FIRST, name), answer=samples.film(), header=samples.cr(), stored=content)
        for name, content in (("one", earlier), ("two", later))
    ]

    compared = compare_films(*pair, spool=Spool(tmp_path / "spool"), prompts=PROMPTS, error=ERROR, model=MODEL)

    assert compared.obstacle is expected
