import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from node.config import StorageSettings, parse
from node.domain import STUDY_STATES, Delivery, DeliveryState
from node.errors import ConfigError, Stopped
from node.store import database
from node.store.database import connect
from node.store.ledger import Ledger, Parked, is_away
from node.store.ledger_queries import finished_after
from node.store.statistics import Rows, counted_studies, fill_counts
from node.store.worklist import ReviewRow, to_review
from tests.support.peers import wait_until
from tests.support.postgres import Postgres

UNCOUNTED = Rows(films=(), findings=())


def delivery(name: str = "pacs", uid: str = "1.2") -> Delivery:
    return Delivery(destination=name, study_uid="1", sop_instance_uid=uid, kind="sr")


def test_commits_survive_a_power_cut_and_writers_wait_in_line(tmp_path: Path) -> None:
    engine = connect(tmp_path / "ledger.sqlite")
    with engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar()
        patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    engine.dispose()

    assert (mode, synchronous) == ("wal", 2)
    assert patience >= 30_000, "in milliseconds; Python's default is 5 s"


def test_the_last_state_of_a_study_counts_and_lists_it_when_its_round_is_over(
    ledger: Ledger, storage: StorageSettings
) -> None:
    for state in STUDY_STATES:
        ledger.set_study(f"1.{state}", "receiving")
        ledger.set_study(f"1.{state}", state)

    assert ledger.overview().studies == dict.fromkeys(STUDY_STATES, 1)
    assert (ledger.study_state("1.finished"), ledger.study_state("3")) == ("finished", None)
    listed = finished_after(storage, (0.0, ""), before=time.time() + 1, limit=9)
    assert {study for study, _ in listed} == {"1.finished", "1.parked"}


def test_only_what_is_still_parked_waits_again(ledger: Ledger) -> None:
    ledger.set_study("1", "parked", stage="read", reason="why")
    ledger.set_delivery(delivery(), DeliveryState.PARKED, attempts=7, reason="why")
    assert ledger.unsent_deliveries("1") == [delivery()]

    ledger.unpark_study("1")
    ledger.unpark_delivery(delivery())

    record = ledger.delivery_record(delivery())
    assert record and (record.state, record.attempts, record.reason) == (DeliveryState.WAITING, 0, None)
    assert (ledger.study_state("1"), ledger.parked()) == ("receiving", [])

    ledger.set_study("1", "finished")
    ledger.set_sent(delivery(), attempts=1)
    ledger.unpark_study("1")
    ledger.unpark_delivery(delivery())
    ledger.end_delivery(delivery())

    assert (ledger.study_state("1"), ledger.delivery_state(delivery())) == ("finished", DeliveryState.SENT)


def test_a_state_is_recorded_unless_the_delivery_was_abandoned(ledger: Ledger) -> None:
    assert ledger.set_delivery(delivery(), DeliveryState.WAITING, attempts=0)
    assert ledger.set_delivery(delivery(), DeliveryState.SENDING, attempts=1)
    assert ledger.open_deliveries() == [delivery()]

    ledger.abandon("pacs")

    assert not ledger.set_delivery(delivery(), DeliveryState.SENDING, attempts=2)
    assert ledger.delivery_state(delivery()) is DeliveryState.ABANDONED


def test_what_is_withheld_was_never_sent_only_if_it_was_never_tried(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        ledger.add_delivery(numbered(number))
    ledger.set_delivery(numbered(2), WAITING, attempts=1, reason="timed out")
    ledger.set_sent(numbered(3), attempts=1)

    assert ledger.withhold("pacs", ["2.1", "2.2", "2.3"]) == {"2.1"}
    assert ledger.overview().deliveries == {("pacs", "abandoned"): 2, ("pacs", "sent"): 1}


def test_a_study_belongs_to_one_workflow_until_that_is_over_also_when_many_claim_it_at_once(ledger: Ledger) -> None:
    assert ledger.claim("1", holder="a") == "a"
    assert ledger.claim("1", holder="b") == "a"
    assert ledger.claim("1", holder="a") == "a"
    assert ledger.claim("2", holder="b") == "b"

    assert ledger.claim("1", holder="b", instead_of="a") == "b"
    assert ledger.claim("1", holder="c", instead_of="a") == "b"
    assert ledger.claim("1", holder="a") == "b"

    names = [str(number) for number in range(16)]
    with ThreadPoolExecutor(len(names)) as pool:
        first = set(pool.map(lambda name: ledger.claim("1", holder=name, instead_of="b"), names))
        fresh = set(pool.map(lambda name: ledger.claim("3", holder=name), names))

    assert (len(first), len(fresh)) == (1, 1)
    assert first | fresh <= set(names)


def test_a_study_is_delivered_when_nothing_of_it_waits_and_a_known_delivery_keeps_its_state(ledger: Ledger) -> None:
    assert ledger.is_delivered("1")
    ledger.add_delivery(delivery())
    assert not ledger.is_delivered("1")
    ledger.set_delivery(delivery(), DeliveryState.SENT, attempts=1)

    ledger.add_delivery(delivery())

    assert ledger.is_delivered("1")
    assert ledger.overview().deliveries == {("pacs", "sent"): 1}


@pytest.mark.parametrize("is_noted", [True, False])
def test_parked_work_is_listed_with_its_reason(ledger: Ledger, is_noted: bool) -> None:
    ledger.set_study("2", "parked", stage="write", reason="why")
    if is_noted:
        ledger.add_delivery(delivery())
    ledger.set_delivery(delivery(), DeliveryState.PARKED, attempts=3, reason="refused")

    assert ledger.parked() == [
        Parked(study="2", stage="write", reason="why"),
        Parked(study="1", stage="deliver pacs", reason="refused"),
    ]
    found = [ledger.parked_deliveries(**of) for of in ({"study_uid": "1"}, {"destination": "pacs"})]
    assert found == [[delivery()]] * 2
    assert ledger.parked_deliveries(destination="ris") == []


def numbered(number: int) -> Delivery:
    return Delivery(destination="pacs", study_uid=f"1.{number}", sop_instance_uid=f"2.{number}", kind="sr")


WAITING, SENDING, SENT, PARKED = (DeliveryState(name) for name in ("waiting", "sending", "sent", "parked"))
REFUSED_THEN_SENT = [(1, WAITING, 1), (2, SENT, 1)]


@pytest.mark.parametrize(
    ("course", "is_paused"),
    [
        ([(1, WAITING, 0)], False),
        ([(1, WAITING, 1)], True),
        ([(1, WAITING, 1), (1, SENDING, 2)], True),
        ([(1, WAITING, 1), (1, SENT, 2)], False),
        # a later success
        (REFUSED_THEN_SENT, False),
        ([(2, WAITING, 1), (1, SENT, 1)], False),
        ([*REFUSED_THEN_SENT, (1, SENDING, 2), (1, WAITING, 2)], False),
        ([(2, WAITING, 1), (1, SENT, 1), (2, SENDING, 2), (2, WAITING, 2)], False),
        # a failure after earlier success
        ([(1, SENT, 1), (2, SENDING, 1), (2, WAITING, 1)], True),
        ([(2, SENT, 1), (1, SENDING, 1), (1, WAITING, 1)], True),
        # parked work, which a person has tried again
        ([(1, WAITING, 1), (1, PARKED, 9), (2, SENT, 1), (1, WAITING, 0)], False),
        ([(1, WAITING, 1), (1, PARKED, 9), (2, SENT, 1), (1, WAITING, 0), (1, WAITING, 1)], True),
    ],
)
def test_a_destination_is_paused_from_a_failure_to_the_next_success(
    ledger: Ledger, course: list[tuple[int, DeliveryState, int]], is_paused: bool
) -> None:
    for number in (1, 2):
        ledger.add_delivery(numbered(number))
    ledger.add_delivery(delivery("up"))

    for number, state, attempts in course:
        if state is SENT:
            ledger.set_sent(numbered(number), attempts=attempts)
        else:
            ledger.set_delivery(numbered(number), state, attempts=attempts, reason="why" if attempts else None)

    assert set(ledger.overview().pauses) == ({"pacs"} if is_paused else set())


def test_a_pause_counts_from_its_first_failure_after_a_success_and_has_the_last_reason(ledger: Ledger) -> None:
    ledger.set_delivery(numbered(1), WAITING, attempts=1, reason="refused")
    ledger.set_sent(numbered(2), attempts=1)
    sent, found = time.time(), []
    assert ledger.overview().pauses == {}
    for number, attempts, reason in ((3, 1, "no 1"), (3, 2, "no 2"), (4, 1, "no other")):
        ledger.set_delivery(numbered(number), WAITING, attempts=attempts, reason=reason)
        found.append(ledger.overview().pauses["pacs"])

    assert sent <= found[0].since == found[1].since == found[2].since
    assert [pause.reason for pause in found] == ["no 1", "no 2", "no other"]

    ledger.set_sent(numbered(2), attempts=1)
    ledger.set_delivery(numbered(1), WAITING, attempts=2, reason="no connection", is_down=True)
    assert set(ledger.overview().pauses) == {"pacs"}, "also by an object that was refused before the success"


def test_an_answer_that_leaves_it_open_is_counted_until_a_person_looks(ledger: Ledger) -> None:
    ledger.add_delivery(delivery())
    counted = []
    for state, attempts in ((WAITING, 1), (WAITING, 2), (PARKED, 2)):
        ledger.set_delivery(delivery(), state, attempts=attempts, is_unclear=state is WAITING)
        record = ledger.delivery_record(delivery())
        counted.append(record and record.unclear)

    assert counted == [1, 2, 0]


def test_only_a_database_that_does_not_answer_holds_up_all_work() -> None:
    no_answer = [kind("", {}, Exception()) for kind in (sa.exc.OperationalError, sa.exc.InterfaceError)]

    assert [is_away(error) for error in (sa.exc.TimeoutError(), *no_answer)] == [True] * 3
    assert [is_away(error) for error in (sa.exc.IntegrityError("", {}, Exception()), TimeoutError())] == [False] * 2


def is_recent(moment: datetime | None) -> bool:
    return moment is not None and 0 <= (datetime.now(UTC) - moment).total_seconds() < 60


def test_the_overview_has_the_oldest_waiting_work_and_the_last_change(ledger: Ledger) -> None:
    ends = list[datetime]()
    ledger.set_study("1.0", "parked", stage="read", reason="why")
    before = ledger.overview()
    for number in (1, 2):
        ledger.set_study(f"1.{number}", "receiving")
        ledger.add_delivery(delivery("waiting", f"2.{number}"))
        ledger.set_sent(delivery("taken", f"3.{number}"), attempts=1, awaits_commitment=True)
        ends.append(datetime.now(UTC))

    found = ledger.overview()

    assert (before.oldest, before.oldest_deliveries) == (None, {})
    assert (found.oldest_deliveries.keys(), found.taken.keys()) == ({"waiting"}, {"taken"})
    oldest = (found.oldest, found.oldest_deliveries["waiting"], found.uncommitted["taken"][1])
    assert all(is_recent(at) and at <= ends[0] for at in oldest if at is not None) and None not in oldest
    assert found.last_change is not None and found.last_change > ends[0]
    assert found.taken["taken"] > ends[0].timestamp()


def test_sent_objects_count_as_uncommitted_until_committed(ledger: Ledger) -> None:
    first, second, other = delivery(uid="1.2"), delivery(uid="1.3"), delivery("archive")
    for sent in (first, second):
        ledger.set_sent(sent, attempts=1, awaits_commitment=True)
    ledger.set_sent(other, attempts=1)

    ((name, (count, since)),) = ledger.overview().uncommitted.items()

    assert (name, count) == ("pacs", 2)
    assert is_recent(since)
    ledger.add_transaction("2.25.1", [first])
    ledger.set_answered("2.25.1", kept=[first], failed={})
    assert ledger.overview().uncommitted["pacs"][0] == 1
    ledger.release(second)
    assert ledger.overview().uncommitted == {}


def test_of_two_deliveries_that_are_sent_at_once_one_is_the_last(ledger: Ledger) -> None:
    at_once = threading.Barrier(2)

    def send(sent: Delivery) -> bool:
        at_once.wait(timeout=30)
        return ledger.set_sent(sent, attempts=1)

    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            pair = [replace(delivery(uid=f"1.{number}.{uid}"), study_uid=f"2.{number}") for uid in (1, 2)]
            for waiting in pair:
                ledger.add_delivery(waiting)

            assert list(pool.map(send, pair)).count(True) == 1


def test_an_answer_counts_only_for_objects_that_were_asked_for(ledger: Ledger) -> None:
    for number, awaits in ((1, True), (2, True), (3, False), (4, True)):
        ledger.set_sent(numbered(number), attempts=1, awaits_commitment=awaits)
    ledger.add_transaction("2.25.1", [numbered(1), numbered(2), numbered(3)])
    ledger.add_transaction("2.25.1", [numbered(1)])  # a step that was cut short is run again
    assert not ledger.is_delivered("1.1")

    answered = [numbered(number) for number in (1, 3, 4)]
    assert ledger.set_answered("2.25.1", kept=answered, failed={numbered(2): "lost"}) == [numbered(1)]
    assert ledger.set_answered("2.25.1", kept=answered, failed={numbered(2): "lost"}) == []

    assert sorted(awaited.study_uid for awaited in ledger.transaction("2.25.1")) == ["1.1", "1.2", "1.3"]
    assert ledger.overview().deliveries == {("pacs", "committed"): 1, ("pacs", "waiting"): 1, ("pacs", "sent"): 2}
    assert [ledger.is_delivered(f"1.{number}") for number in (1, 2, 3, 4)] == [True, False, True, False]
    lost = ledger.delivery_record(numbered(2))
    assert lost and (lost.state, lost.attempts, lost.failures, lost.reason) == (DeliveryState.WAITING, 0, 1, "lost")
    assert lost.awaits_commitment
    assert ledger.open_deliveries() == [numbered(2), numbered(4)]


@pytest.mark.drill(part="processes")
def test_an_answer_locks_rows_in_the_order_of_a_delivery(postgres: Postgres) -> None:
    first, last = numbered(1), numbered(2)
    with closing(Ledger(connect(postgres.url))) as ledger, ThreadPoolExecutor(1) as pool:
        for sent in (first, last):
            ledger.set_sent(sent, attempts=1, awaits_commitment=True)
        ledger.add_transaction("2.25.1", [first, last])
        with psycopg.connect(postgres.url) as other:
            other.execute("SELECT * FROM chex.deliveries WHERE id = %s FOR UPDATE", (first.id,))
            answered = pool.submit(ledger.set_answered, "2.25.1", kept=[last, first], failed={})
            wait_until(lambda: bool(postgres.execute("SELECT 1 FROM pg_locks WHERE NOT granted")), what="it waits")
            free = postgres.execute("SELECT id FROM chex.deliveries FOR UPDATE SKIP LOCKED")

    assert free == [(last.id,)]
    assert set(answered.result()) == {first, last}


@pytest.mark.parametrize("is_first_released", [True, False])
def test_only_what_awaits_an_answer_is_released(ledger: Ledger, is_first_released: bool) -> None:
    ledger.set_sent(numbered(1), attempts=1, awaits_commitment=True)
    ledger.add_transaction("2.25.1", [numbered(1)])
    if is_first_released:
        ledger.release(numbered(1))
    assert ledger.set_answered("2.25.1", kept=[], failed={numbered(1): "lost"}) == []
    ledger.release(numbered(1))

    # nobody sends again what is released; what is to be sent again is not
    standing = ledger.delivery_record(numbered(1))
    assert standing and standing.awaits_commitment is not is_first_released
    assert ledger.is_delivered("1.1") is is_first_released
    assert ledger.open_deliveries() == ([] if is_first_released else [numbered(1)])


def test_a_study_that_is_forgotten_leaves_nothing(ledger: Ledger) -> None:
    ledger.set_study("1.1", "finished")
    ledger.claim("1.1", holder="a")
    fill_counts(ledger.tables, "1.1", UNCOUNTED, [waiting()])
    ledger.set_sent(numbered(1), attempts=1, awaits_commitment=True)
    ledger.add_transaction("2.25.1", [numbered(1)])
    assert ledger.overview().reviews == {"near_threshold": 1}

    ledger.forget("1.1")

    assert ledger.transaction("2.25.1") == []
    assert ledger.delivery_record(numbered(1)) is None
    assert (ledger.overview().reviews, ledger.overview().deliveries) == ({}, {})
    assert counted_studies(ledger.tables) == set()
    assert ledger.claim("1.1", holder="b") == "b"
    fill_counts(ledger.tables, "1.1", UNCOUNTED, [waiting()])
    assert ledger.overview().reviews == {}, "the study is unknown now"
    ledger.add_delivery(numbered(1))
    assert ledger.transaction("2.25.1") == [], "a study that comes again was not asked for"


def test_processes_that_share_a_ledger_count_a_film_once(request: pytest.FixtureRequest) -> None:
    postgres: Postgres = request.getfixturevalue("postgres")
    with closing(Ledger(connect(postgres.url))) as first, closing(Ledger(connect(postgres.url))) as second:
        first.set_study("1.1", "finished")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: (first, second)[number % 2].set_reviews("1.1", [waiting()]), range(16)))
        fill_counts(second.tables, "1.1", UNCOUNTED, [])  # older than what a round recorded

        assert first.overview().reviews == second.overview().reviews == {"near_threshold": 1}


def test_stat_films_come_first_then_the_most_urgent_then_the_earliest(ledger: Ledger, storage: StorageSettings) -> None:
    ranks = [(True, 1, 9.0), (True, 2, 7.0), (True, 2, 8.0), (False, 1, 6.0), (False, 3, 5.0)]
    rows = [
        replace(waiting(), film=f"1.1.{place}", is_stat=is_stat, urgency=urgency, received_at=received_at)
        for place, (is_stat, urgency, received_at) in enumerate(ranks)
    ]
    ledger.set_study("1.1", "finished")
    ledger.set_reviews("1.1", rows[::-1])

    assert to_review(storage) == rows


def waiting() -> ReviewRow:
    return ReviewRow(
        study_uid="1.1", film="1.1.1", reason="near_threshold", is_stat=False, urgency=2, received_at=1_000.0
    )


SECRET = "correct-horse"


@pytest.mark.drill(part="processes")
def test_tables_are_created_by_many_at_once(postgres: Postgres) -> None:
    barrier = threading.Barrier(8)

    def create(_number: int) -> None:
        with closing(Ledger(database.connect(postgres.url))) as ledger:
            barrier.wait(timeout=30)
            ledger.set_study("1", "receiving")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))

    assert postgres.execute("SELECT uid, state FROM chex.studies") == [("1", "receiving")]


@pytest.mark.drill(part="processes")
def test_an_engine_with_unfinished_tables_knows_no_queue(postgres: Postgres) -> None:
    postgres.execute("CREATE SCHEMA dbos")
    postgres.execute("CREATE TABLE dbos.workflow_status (workflow_uuid TEXT)")  # the first table of many
    sql = database.connect(postgres.url)

    assert database.queues(sql) == []
    assert not database.has_executor_tables(sql)
    sql.dispose()


def test_a_start_waits_for_an_absent_server_until_it_is_stopped() -> None:
    stop = threading.Event()
    sql = database.connect(f"postgresql://node:{SECRET}@127.0.0.1:1/chex")

    with capture_logs() as said:
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        with pytest.raises(Stopped):
            database.wait_for(sql, stop=stop)

    assert time.monotonic() - began < 20
    assert [line["event"] for line in said] == ["database.waiting"]
    assert SECRET not in str(said)


@pytest.mark.drill(part="processes")
def test_a_start_waits_for_a_server_until_it_answers() -> None:
    with Postgres() as server:
        server.stop()
        sql = database.connect(server.url)
        with capture_logs() as said, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(database.wait_for, sql, stop=threading.Event())
            server.start()
            waiting.result(timeout=60)
        sql.dispose()

    assert {line["event"] for line in said} <= {"database.waiting"}


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://node:{SECRET}@db/chex",
        f"postgresql+psycopg://node:{SECRET}@db/chex",
        f"postgresql://node:{SECRET}@db",
        f"postgresql://node:{SECRET}@db:port/chex",
        "chex",
    ],
)
def test_a_wrong_database_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"storage": {"directory": "spool", "database_url": url}})

    mistakes = [mistake for mistake in caught.value.mistakes if mistake.startswith("storage.database_url:")]
    assert len(mistakes) == 1
    assert SECRET not in str(caught.value)
