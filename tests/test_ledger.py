import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.domain import Delivery, DeliveryState
from node.ledger import Ledger, Parked, connect


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(connect(tmp_path / "ledger.sqlite"))
    yield ledger
    ledger.close()


def delivery(name: str = "pacs", uid: str = "1.2") -> Delivery:
    return Delivery(destination=name, study_uid="1", sop_instance_uid=uid, kind="sr")


def test_commits_survive_a_power_cut(tmp_path: Path) -> None:
    engine = connect(tmp_path / "ledger.sqlite")
    with engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar()
        synchronous = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    engine.dispose()

    assert (mode, synchronous) == ("wal", 2)


def test_the_last_state_of_a_study_counts(ledger: Ledger) -> None:
    ledger.set_study("1", "receiving")
    ledger.set_study("1", "finished")
    ledger.set_study("2", "parked", stage="read", reason="why")

    assert ledger.study_counts() == {"finished": 1, "parked": 1}
    assert ledger.study_state("1") == "finished"
    assert ledger.study_state("3") is None


def test_a_delivery_that_is_known_keeps_its_state(ledger: Ledger) -> None:
    ledger.add_delivery(delivery())
    ledger.set_delivery(delivery(), DeliveryState.SENT, attempts=1)

    ledger.add_delivery(delivery())

    assert ledger.delivery_counts() == {("pacs", "sent"): 1}


def test_parked_work_is_listed_with_its_reason(ledger: Ledger) -> None:
    ledger.set_study("2", "parked", stage="write", reason="why")
    ledger.add_delivery(delivery())
    ledger.set_delivery(delivery(), DeliveryState.PARKED, attempts=3, reason="refused")

    assert ledger.parked() == [
        Parked(study="2", stage="write", reason="why"),
        Parked(study="1", stage="deliver pacs", reason="refused"),
    ]
    assert ledger.parked_deliveries("1") == [delivery()]


def test_a_destination_is_paused_while_a_delivery_waits_for_another_try(ledger: Ledger) -> None:
    ledger.add_delivery(delivery("down"))
    ledger.set_delivery(delivery("down"), DeliveryState.WAITING, attempts=1, reason="no answer")
    ledger.add_delivery(delivery("up"))
    assert ledger.delayed_destinations() == {"down"}

    ledger.set_delivery(delivery("down"), DeliveryState.SENDING, attempts=2)
    assert ledger.delayed_destinations() == {"down"}

    ledger.set_delivery(delivery("down"), DeliveryState.SENT, attempts=2)
    assert ledger.delayed_destinations() == set()


def numbered(number: int) -> Delivery:
    return Delivery(destination="pacs", study_uid=f"1.{number}", sop_instance_uid=f"2.{number}", kind="sr")


@pytest.mark.parametrize(("refused", "taken"), [(1, 2), (2, 1)])
def test_a_destination_that_took_another_delivery_since_is_not_delayed(
    ledger: Ledger, refused: int, taken: int
) -> None:
    for number in (1, 2):
        ledger.add_delivery(numbered(number))
    ledger.set_delivery(numbered(refused), DeliveryState.WAITING, attempts=1, reason="refused")
    assert ledger.delayed_destinations() == {"pacs"}

    ledger.set_sent(numbered(taken), attempts=1)
    assert ledger.delayed_destinations() == set()

    ledger.set_delivery(numbered(refused), DeliveryState.SENDING, attempts=2)
    ledger.set_delivery(numbered(refused), DeliveryState.WAITING, attempts=2, reason="refused")
    assert ledger.delayed_destinations() == set()


@pytest.mark.parametrize(("taken", "failed"), [(1, 2), (2, 1)])
def test_a_destination_that_took_a_delivery_before_is_delayed_all_the_same(
    ledger: Ledger, taken: int, failed: int
) -> None:
    for number in (1, 2):
        ledger.add_delivery(numbered(number))
    ledger.set_sent(numbered(taken), attempts=1)

    ledger.set_delivery(numbered(failed), DeliveryState.SENDING, attempts=1)
    ledger.set_delivery(numbered(failed), DeliveryState.WAITING, attempts=1, reason="no answer")

    assert ledger.delayed_destinations() == {"pacs"}


def test_parked_work_that_is_tried_anew_in_vain_delays_its_destination(ledger: Ledger) -> None:
    for state, attempts in ((DeliveryState.WAITING, 1), (DeliveryState.PARKED, 9)):
        ledger.set_delivery(numbered(1), state, attempts=attempts, reason="no answer")
    ledger.set_sent(numbered(2), attempts=1)

    ledger.set_delivery(numbered(1), DeliveryState.WAITING, attempts=0)
    assert ledger.delayed_destinations() == set()
    ledger.set_delivery(numbered(1), DeliveryState.WAITING, attempts=1, reason="no answer")

    assert ledger.delayed_destinations() == {"pacs"}


def test_a_refused_object_that_finds_its_destination_down_delays_it(ledger: Ledger) -> None:
    ledger.set_delivery(numbered(1), DeliveryState.WAITING, attempts=1, reason="refused")
    ledger.set_sent(numbered(2), attempts=1)

    ledger.set_delivery(numbered(1), DeliveryState.WAITING, attempts=2, reason="no connection", is_down=True)

    assert ledger.delayed_destinations() == {"pacs"}


def test_a_ledger_without_the_times_of_tries_goes_on_with_what_it_holds(tmp_path: Path) -> None:
    with closing(Ledger(connect(tmp_path / "node.sqlite"))) as ledger:
        ledger.set_delivery(numbered(1), DeliveryState.WAITING, attempts=3, reason="no answer")
    with closing(sqlite3.connect(tmp_path / "node.sqlite")) as database:
        database.execute("ALTER TABLE deliveries DROP COLUMN since")

    with closing(Ledger(connect(tmp_path / "node.sqlite"))) as ledger:
        assert ledger.delayed_destinations() == {"pacs"}
        ledger.set_sent(numbered(2), attempts=1)
        assert ledger.delayed_destinations() == set()


def test_a_study_is_delivered_when_nothing_of_it_waits(ledger: Ledger) -> None:
    assert ledger.is_delivered("1")
    ledger.add_delivery(delivery())
    assert not ledger.is_delivered("1")
    ledger.set_delivery(delivery(), DeliveryState.SENT, attempts=1)
    assert ledger.is_delivered("1")

    ledger.forget("1")

    assert ledger.delivery_counts() == {}


def test_the_oldest_waiting_work_has_an_age(ledger: Ledger) -> None:
    assert ledger.oldest_waiting_seconds() == {"studies": 0.0, "deliveries": 0.0}

    ledger.set_study("1", "receiving")

    assert 0.0 <= ledger.oldest_waiting_seconds()["studies"] < 60.0


def test_the_last_delivery_of_a_study_is_told_from_the_others(ledger: Ledger) -> None:
    for destination in ("first", "second"):
        ledger.add_delivery(delivery(destination))

    assert not ledger.set_sent(delivery("first"), attempts=1)
    assert ledger.set_sent(delivery("second"), attempts=1)

    assert ledger.delivery_state(delivery("second")) is DeliveryState.SENT


def test_each_destination_has_an_oldest_delivery_while_one_waits(ledger: Ledger) -> None:
    ledger.add_delivery(delivery("up"))
    ledger.add_delivery(delivery("down"))
    ledger.set_sent(delivery("up"), attempts=1)

    assert set(ledger.oldest_delivery_seconds()) == {"down"}
    assert 0.0 <= ledger.oldest_delivery_seconds()["down"] < 60.0
