"""What a person does with a study: what is queued for the service, and what the ledger says from then on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dbos import DBOSClient, run_dbos_database_migrations

from node.config import Settings
from node.domain import Delivery, DeliveryState
from node.errors import InputError
from node.jobs.study_actions import delete_study, read_again, retry, retry_all, retry_destination
from node.store import database, questions
from node.store.questions import SentAnswer
from tests.support import films
from tests.support.damage import FILM, STUDY, interrupted
from tests.support.finished import Finished

SECOND = films.as_another(films.thumbnail(), "second", study="second")
OTHER = str(SECOND.StudyInstanceUID)


@pytest.fixture
def node(tmp_path: Path) -> Finished:
    """Of two studies; the service that read them has stopped."""
    node = Finished(tmp_path)
    run_dbos_database_migrations(f"sqlite:///{tmp_path}/{database.EXECUTOR}")
    return node


def read(node: Finished) -> list[Delivery]:
    """Read both studies, and park both, the deliveries of one and a delivery of the other, which are returned."""
    parked = [*node.read(FILM), node.read(SECOND)[0]]
    for delivery in parked:
        node.ledger.set_study(delivery.study_uid, "parked", stage="read", reason="it failed")
        node.ledger.set_delivery(delivery, DeliveryState.PARKED, attempts=9, reason="no such object")
    interrupted(node.bench, next(node.spool.received_path(STUDY, "").glob("*.dcm")))
    return parked


def queued(node: Finished) -> list[tuple[str, str]]:
    """The work that waits for the service: its name, and the study or output that it is about."""
    sql = database.open_executor_database(node.settings.storage)
    client = DBOSClient(system_database_engine=sql)
    try:
        works = [(work.name, work.input["args"][0]) for work in client.list_workflows() if work.input]
    finally:
        client.destroy()
        sql.dispose()
    return sorted(
        (name, what["deliveries"][0]["sop_instance_uid"] if name == "deliver" else what) for name, what in works
    )


def states(node: Finished, *deliveries: Delivery) -> list[object]:
    return [(node.ledger.study_state(each.study_uid), node.ledger.delivery_state(each)) for each in deliveries]


@pytest.mark.parametrize("has_correction", [False, True])
def test_a_retry_queues_what_is_parked_of_a_study_and_lets_waiting_corrections_leave_later(
    node: Finished, has_correction: bool
) -> None:
    *own, other = read(node)
    if has_correction:
        node.correct(FILM, prompt="atelectasis")
        for release in (node.spool.directory / "studies" / STUDY / "released").iterdir():
            release.unlink()

    assert retry(node.settings, [STUDY]) == {STUDY: 3}

    works = [*(("deliver", each.sop_instance_uid) for each in own), ("quiet", STUDY)]
    assert queued(node) == sorted([*works, ("gather", STUDY)] if has_correction else works)
    assert states(node, *own, other) == [
        *2 * [("receiving", DeliveryState.WAITING)], ("parked", DeliveryState.PARKED)
    ]  # fmt: skip
    assert node.spool.count_begun_readings(STUDY) == 0, "each gets all its tries again"
    assert retry(node.settings, [STUDY]) == {STUDY: 0}


def test_a_retry_of_everything_takes_each_study_and_one_of_a_destination_its_deliveries(node: Finished) -> None:
    deliveries = read(node)

    assert retry_destination(node.settings, "archive") == {STUDY: 2, OTHER: 1}
    assert states(node, *deliveries) == [("parked", DeliveryState.WAITING)] * 3
    assert retry_all(node.settings) == {STUDY: 1, OTHER: 1}
    assert states(node, *deliveries) == [("receiving", DeliveryState.WAITING)] * 3
    assert retry_all(node.settings) == {}


@pytest.mark.parametrize(
    "ask",
    [lambda settings: retry(settings, [STUDY]), lambda settings: retry_destination(settings, "archive")],
    ids=["study", "destination"],
)
def test_a_retry_of_a_lost_output_has_its_study_read_again(node: Finished, ask: Callable[[Settings], object]) -> None:
    (delivery, *_) = node.read(FILM)
    node.ledger.set_delivery(delivery, DeliveryState.PARKED, attempts=9, reason="its output is lost")
    node.bench.output(delivery.kind).unlink()

    ask(node.settings)

    assert queued(node) == [("deliver", delivery.sop_instance_uid), ("quiet", STUDY)]
    assert len(node.spool.unread(STUDY)) == 1


def test_what_is_unknown_is_not_tried_again(node: Finished, tmp_path: Path) -> None:
    for unknown in ("1.2.3", "no UID"):
        with pytest.raises(InputError, match="no such study"):
            retry(node.settings, [unknown])
    with pytest.raises(InputError, match="no such destination"):
        retry_destination(node.settings, "nowhere")
    (tmp_path / database.EXECUTOR).unlink()
    with pytest.raises(InputError, match="never run"):
        retry_all(node.settings)


def test_a_study_is_read_again_unless_it_is_at_work(node: Finished) -> None:
    read(node)

    read_again(node.settings, node.spool, STUDY)

    assert (queued(node), node.ledger.study_state(STUDY)) == ([("quiet", STUDY)], "receiving")
    assert (len(node.spool.unread(STUDY)), node.spool.count_begun_readings(STUDY)) == (1, 0)
    with pytest.raises(InputError, match="wait until it is finished"):
        read_again(node.settings, node.spool, STUDY)
    with pytest.raises(InputError, match="wait until it is finished"):
        delete_study(node.settings, node.spool, STUDY, films=1, undelivered=1)
    with pytest.raises(InputError, match="no such study"):
        read_again(node.settings, node.spool, "1.2.3")


def test_a_study_with_an_answer_to_be_sent_is_not_deleted(node: Finished) -> None:
    node.read(FILM)
    answer = SentAnswer(question="a" * 32, requested_at=datetime.now(UTC))
    questions.keep_answer(node.spool, STUDY, answer)

    with pytest.raises(InputError, match="wait until it is finished"):
        delete_study(node.settings, node.spool, STUDY, films=1, undelivered=0)
    questions.keep_answer(node.spool, STUDY, replace(answer, reason="the film was rejected"))
    delete_study(node.settings, node.spool, STUDY, films=1, undelivered=0)

    assert node.spool.instances(STUDY) == ()
    assert node.ledger.studies() == set()
