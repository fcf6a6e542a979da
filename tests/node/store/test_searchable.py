"""What the worklist finds: studies by whom they name and what is reported on them, in every order, and how fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from models.contract import FindingState
from node.config import StorageSettings
from node.domain import Delivery, DeliveryState
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.ledger_queries import finished_after
from node.store.statistics import FilmRow, FindingCount, FindingRow, Rows, counts, fill_counts, write_counts
from node.store.tables import DELIVERIES, PATIENTS, STUDIES
from node.store.worklist import (
    CRITICAL,
    PATIENT_ORDERS,
    URGENT,
    PatientRow,
    ReviewRow,
    WorklistFilter,
    folded,
    patients_of,
    set_patients,
    studies_of_patient,
    without_patients,
    worklist,
)

FIRST, SECOND, THIRD = "1.2.1", "1.2.2", "1.2.3"


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    """A ledger that knows three studies."""
    for uid in (FIRST, SECOND, THIRD):
        ledger.set_study(uid, "finished")
    return ledger


def row(study_uid: str, name: str = "", *, number: int = 0, **values: str) -> PatientRow:
    blank = {"patient_id": "", "issuer": "", "accession": "", "study_date": "", "modality": "", "station": ""}
    said = {**blank, "name": name, **values}
    return PatientRow(study_uid=study_uid, number=number, search=folded(" ".join(said.values())), **said)


def listed(storage: StorageSettings, wanted: WorklistFilter) -> list[str]:
    return list(worklist(storage, wanted, limit=50).studies)


def found(study_uid: str, **states: FindingState) -> Rows:
    """What is found on a film of a study, by prompt."""
    rows = (
        FindingRow(study_uid=study_uid, film=f"{study_uid}.1", prompt=prompt, state=str(state), reader="")
        for prompt, state in states.items()
    )
    return Rows(films=(), findings=tuple(rows))


def film_row(film: str, *, received_at: float) -> FilmRow:
    """A read film of the first study with a present finding."""
    return FilmRow(
        study_uid=FIRST,
        film=film,
        received_at=received_at,
        day="2026-11-02",
        scanner="unknown",
        station="unknown",
        outcome="read",
        has_present=True,
        has_open=False,
    )


def record(ledger: Ledger, *rows: PatientRow) -> None:
    for each in rows:
        set_patients(ledger.tables, each.study_uid, [each])


def execute(storage: StorageSettings, statement: sa.Executable, rows: Sequence[dict[str, object]] = ()) -> None:
    """Change the tables by hand."""
    sql = connect(storage.database_url or storage.directory / "ledger.sqlite")
    with sql.begin() as connection:
        connection.execute(statement, rows or None)
    sql.dispose()


@pytest.mark.parametrize(
    ("text", "uids"),
    [
        ("muller", [FIRST]),
        ("MÜLLER, anna", [FIRST]),
        ("anna^müller", [FIRST]),
        ("太郎", [SECOND]),
        ("PID-7", [SECOND]),
        ("acc9", [FIRST]),
        ("2026-11-02", [FIRST]),
        ("dx room4", [SECOND]),
        ("anna room4", []),
        ("11", []),
        ("110", [FIRST]),
        ("ya", [SECOND]),
        ("%", []),
        ("1.2.3", [THIRD]),
    ],
)
def test_a_study_is_found_by_any_value_that_it_names(
    ledger: Ledger, storage: StorageSettings, text: str, uids: Sequence[str]
) -> None:
    first = row(FIRST, "Müller^Anna", accession="ACC9", study_date="20261102")
    record(
        ledger,
        replace(first, search=f"{first.search} 2026-11-02"),
        row(SECOND, "Yamada^Tarou=山田^太郎", patient_id="pid-7", modality="DX", station="ROOM4"),
    )

    assert listed(storage, WorklistFilter(text=text)) == uids


def test_every_patient_of_a_known_study_is_recorded_and_searched(ledger: Ledger, storage: StorageSettings) -> None:
    set_patients(ledger.tables, FIRST, [row(FIRST, "Recent"), row(FIRST, "Older", number=1)])
    record(ledger, row(SECOND, "Philips"), row("1.9", "Nobody"))

    assert listed(storage, WorklistFilter(text="older")) == [FIRST]
    assert listed(storage, WorklistFilter(text="recent older")) == [], "one patient is meant, not two"
    found = patients_of(storage, [FIRST, SECOND, "1.9"])
    assert (found.keys(), [each.name for each in found[FIRST]]) == ({FIRST, SECOND}, ["Recent", "Older"])
    assert listed(storage, WorklistFilter(order="patient")) == [SECOND, FIRST, THIRD], "by that of the newest film"
    assert without_patients(ledger.tables) == [THIRD]


def test_studies_are_found_newest_first_by_date_and_reported_finding(ledger: Ledger, storage: StorageSettings) -> None:
    present, absent = FindingState.PRESENT, FindingState.ABSENT
    assert listed(storage, WorklistFilter()) == without_patients(ledger.tables) == [THIRD, SECOND, FIRST]
    record(ledger, row(FIRST, study_date="20261031"), row(SECOND, study_date="20261101"), row(THIRD))
    write_counts(ledger.tables, FIRST, found(FIRST, edema=present, pneumothorax=present))
    write_counts(ledger.tables, FIRST, found(FIRST, edema=present))
    write_counts(ledger.tables, SECOND, found(SECOND, edema=absent))

    for wanted, uids in (
        (WorklistFilter(is_reversed=True), [FIRST, SECOND, THIRD]),
        (WorklistFilter(since="20261101"), [SECOND]),
        (WorklistFilter(until="20261031"), [FIRST]),
        (WorklistFilter(since="20261001", until="20261130"), [SECOND, FIRST]),
        (WorklistFilter(finding="edema"), [FIRST]),
        (WorklistFilter(finding="pneumothorax"), []),
    ):
        assert listed(storage, wanted) == uids, wanted


def test_a_destination_narrows_what_is_not_delivered(ledger: Ledger, storage: StorageSettings) -> None:
    waiting, parked = DeliveryState.WAITING, DeliveryState.PARKED
    for number, (uid, name, state, reason) in enumerate(
        (
            (FIRST, "pacs", DeliveryState.SENT, None),
            (FIRST, "ris", waiting, "timed out"),
            (FIRST, "ris", waiting, "refused"),
            (SECOND, "pacs", parked, None),
        )
    ):
        delivery = Delivery(destination=name, study_uid=uid, sop_instance_uid=f"{uid}.{number}", kind="sr")
        ledger.set_delivery(delivery, state, attempts=1, reason=reason)

    for wanted, uids in (
        (WorklistFilter(destination="pacs"), [SECOND, FIRST]),
        (WorklistFilter(state="not_delivered", destination="pacs"), [SECOND]),
        (WorklistFilter(state="not_delivered", destination="ris"), [FIRST]),
        (WorklistFilter(state="not_delivered"), [SECOND]),
        (WorklistFilter(state="parked", destination="ris"), []),
        (WorklistFilter(state="parked", destination="pacs"), [SECOND]),
    ):
        assert listed(storage, wanted) == uids, wanted
    assert worklist(storage, WorklistFilter(), limit=50).waits[FIRST] == {"ris": "refused"}, "the newest reason"


def test_a_film_waits_from_its_arrival_to_the_first_result_after_it(ledger: Ledger, storage: StorageSettings) -> None:
    film = film_row("1", received_at=100.0)
    later = replace(film, film="2", received_at=300.0, has_open=True)
    of_other_days = [replace(film, film=day, day=day) for day in ("2026-11-01", "2026-11-03")]
    edema = FindingRow(study_uid=FIRST, film="1", prompt="edema", state="present", reader="")
    write_counts(ledger.tables, FIRST, Rows(films=(film, later, *of_other_days), findings=(edema,)))
    write_counts(ledger.tables, SECOND, Rows(films=(), findings=(replace(edema, study_uid=SECOND),)))
    for sent_at in (50.0, 160.0, 460.0, 470.0):
        sent = Delivery(destination="pacs", study_uid=FIRST, sop_instance_uid=f"{FIRST}.{sent_at}", kind="sr")
        ledger.set_delivery(sent, DeliveryState.SENT, attempts=1)
        execute(storage, sa.update(DELIVERIES).where(DELIVERIES.c.id == sent.id).values(since=sent_at))

    counted = counts(storage, first="2026-11-02", last="2026-11-02")

    assert sorted(each.seconds for each in counted.turnarounds) == [60.0, 160.0]
    assert [(each.films, each.present, each.open) for each in counted.films] == [(2, 2, 1)]
    assert counted.findings == (FindingCount(prompt="edema", state="present", reader="", films=1),)


def test_studies_are_sorted_by_the_value_that_is_asked_for_and_those_without_it_come_last(
    ledger: Ledger, storage: StorageSettings
) -> None:
    record(ledger, row(FIRST, "de Souza"), row(SECOND, "Adler"))
    assert listed(storage, WorklistFilter(order="patient")) == [SECOND, FIRST, THIRD]
    assert listed(storage, WorklistFilter(order="patient", is_reversed=True)) == [FIRST, SECOND, THIRD]

    record(
        ledger,
        row(FIRST, patient_id="1", accession="1", study_date="2", modality="3", station="2"),
        row(SECOND, patient_id="2", accession="3", study_date="1", modality="1", station="3"),
        row(THIRD, patient_id="3", accession="2", study_date="3", modality="2", station="1"),
    )
    assert {order: listed(storage, WorklistFilter(order=order)) for order in PATIENT_ORDERS - {"patient"}} == {
        "id": [FIRST, SECOND, THIRD],
        "accession": [FIRST, THIRD, SECOND],
        "date": [SECOND, FIRST, THIRD],
        "modality": [SECOND, THIRD, FIRST],
        "station": [THIRD, FIRST, SECOND],
    }


def test_the_most_urgent_finding_decides_and_a_present_one_comes_before_a_possible_one(
    ledger: Ledger, storage: StorageSettings
) -> None:
    present, possible = FindingState.PRESENT, FindingState.INDETERMINATE
    ledger.set_study("1.2.4", "finished")
    write_counts(ledger.tables, FIRST, found(FIRST, pneumothorax=possible))
    write_counts(ledger.tables, SECOND, found(SECOND, edema=present, pneumothorax=present))
    write_counts(ledger.tables, THIRD, found(THIRD, edema=present, pneumothorax=FindingState.ABSENT))
    wanted = WorklistFilter(order=URGENT, urgencies={"pneumothorax": 1, "edema": 2})

    assert listed(storage, wanted) == [SECOND, FIRST, THIRD, "1.2.4"]
    assert listed(storage, replace(wanted, state=CRITICAL)) == [SECOND]


@pytest.mark.parametrize(
    "wanted",
    [WorklistFilter(), WorklistFilter(is_reversed=True), WorklistFilter(order=URGENT), WorklistFilter(order="patient")],
)
def test_studies_of_one_time_come_in_one_order(
    ledger: Ledger, storage: StorageSettings, wanted: WorklistFilter
) -> None:
    ledger.set_study("1.1", "finished")
    execute(storage, sa.update(STUDIES).values(changed_at=1.0))

    assert listed(storage, wanted) == ["1.1", FIRST, SECOND, THIRD]
    assert finished_after(storage, (0.0, ""), before=2.0, limit=2) == [("1.1", 1.0), (FIRST, 1.0)]
    assert finished_after(storage, (1.0, FIRST), before=2.0, limit=1) == [(SECOND, 1.0)]
    assert finished_after(storage, (0.0, ""), before=0.5, limit=1) == []


def test_the_studies_of_a_patient_share_number_and_issuer(ledger: Ledger, storage: StorageSettings) -> None:
    record(
        ledger,
        row(FIRST, patient_id="7", issuer="A", study_date="20260101"),
        row(SECOND, patient_id="7", issuer="A", study_date="20260201"),
        row(THIRD, patient_id="7", issuer="B"),
    )

    assert studies_of_patient(storage, "7", "A", limit=5) == [SECOND, FIRST]
    assert studies_of_patient(storage, "7", "A", limit=1) == [SECOND]


@pytest.mark.parametrize("forget", [Ledger.forget, Ledger.forget_content])
def test_a_forgotten_study_leaves_no_patient_in_any_file(forget: Callable[[Ledger, str], None], tmp_path: Path) -> None:
    finding = FindingRow(study_uid=FIRST, film="qzvxwkjp", prompt="edema", state="present", reader="")
    waiting = ReviewRow(
        study_uid=FIRST, film="qzvxwkjp", reason="near_threshold", is_stat=False, urgency=2, received_at=1_000.0
    )
    counted = film_row("qzvxwkjp", received_at=1_000.0)
    with closing(Ledger(connect(tmp_path / "ledger.sqlite"))) as ledger:
        ledger.set_study(FIRST, "finished")
        record(ledger, row(FIRST, "Qzvxwkjp^Anna", patient_id="QZVXWKJP-7"))
        fill_counts(ledger.tables, FIRST, Rows(films=(counted,), findings=(finding,)), [waiting])
        assert traces(tmp_path)

        forget(ledger, FIRST)
        ledger.wipe()

        assert traces(tmp_path) == []


def test_twenty_thousand_studies_are_searched_in_a_moment(tmp_path: Path) -> None:
    storage = StorageSettings(directory=tmp_path)
    with closing(Ledger(connect(tmp_path / "ledger.sqlite"))) as ledger:
        ledger.set_study("1.1", "finished")
    places = range(20_000)
    named = [
        row(f"1.2.{place}", f"Name{place % 977}^Given{place % 91}", patient_id=f"P{place % 5000}") for place in places
    ]
    known = [{"uid": f"1.2.{place}", "state": "finished", "changed_at": float(place)} for place in places]
    execute(storage, sa.insert(STUDIES), known)
    execute(storage, sa.insert(PATIENTS), [asdict(each) for each in named])

    before = time.process_time()
    for wanted in (WorklistFilter(), WorklistFilter(text="name976 given6"), WorklistFilter(order="patient")):
        assert worklist(storage, wanted, limit=50).studies
    assert len(studies_of_patient(storage, "P17", "", limit=20)) == 4
    assert time.process_time() - before < 2.0, "0.1 s were measured on two busy cores"


def traces(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if b"qzvxwkjp" in path.read_bytes().lower()]
