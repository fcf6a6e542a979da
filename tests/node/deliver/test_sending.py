"""The steps of a delivery with a real archive, and what it says later of the objects it was sent: who is believed."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import Dataset
from pydicom.uid import ComprehensiveSRStorage
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from node.deliver import delivery as delivery_steps
from node.deliver.commitment import MOST_FAILURES, Commitments, Next, decide, read_report
from node.deliver.delivery import Pauses, Sending
from node.deliver.results import Outcome, Sent
from node.domain import Delivery, DeliveryState, OutputObject
from node.errors import DestinationDown
from node.metrics import Metrics
from node.settings.destinations import DestinationTable, DicomDestination, Hl7Destination
from node.store import questions, received
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.ledger_queries import DeliveryRow, moment
from node.store.questions import SentAnswer
from node.store.spool import Spool
from tests.support import films, peers, senders
from tests.support.committing import Answer, Committing, uids

STUDY = films.thumbnail().StudyInstanceUID
HOUR = 3600.0


class Bench:
    """One study with two outputs on a spool, and one archive that offers storage commitment."""

    def __init__(self, folder: Path) -> None:
        self.committing = Committing()
        self.archive = peers.ReceivingArchive(handlers=self.committing.handlers)
        self.spool, self.ledger = Spool(folder), Ledger(connect(folder / "ledger.sqlite"))
        films.keep(self.spool, films.thumbnail())
        self.settings = DicomDestination(
            name="archive", ae_title=self.archive.ae_title, host=peers.LOOPBACK, port=self.archive.port
        )
        self.sending = self.with_settings()
        self.deliveries = (self._written("first"), self._written("second"))

    def with_settings(self, **changes: object) -> Sending:
        """Never wait for an answer that does not come."""
        seconds = 60.0 if self.committing.answer in (Answer.AT_ONCE, Answer.FAIL) else 0.0
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        return senders.sending(self.spool, self.ledger, settings, report_seconds=seconds)

    def state(self, delivery: Delivery) -> DeliveryState | None:
        return self.ledger.delivery_state(delivery)

    def _written(self, name: str) -> Delivery:
        film = films.as_another(films.thumbnail(), name)
        delivery = Delivery(destination="archive", study_uid=STUDY, sop_instance_uid=film.SOPInstanceUID, kind="sr")
        self.spool.keep_output(delivery, films.file_bytes(film))
        self.ledger.add_delivery(delivery)
        return delivery


class BrieflyAway(Ledger):
    """Its database is away for one look, once something was asked; error: what that look raises."""

    error: Exception = OperationalError("SELECT", {}, ConnectionError())
    _is_away = False

    def add_transaction(self, uid: str, deliveries: Iterable[Delivery]) -> None:
        super().add_transaction(uid, deliveries)
        self._is_away = True

    def delivery_record(self, delivery: Delivery) -> DeliveryRow | None:
        if self._is_away:
            self._is_away = False
            raise self.error
        return super().delivery_record(delivery)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    with bench.archive:
        yield bench
    bench.ledger.close()


def counted(sending: Sending, name: str, **labels: str) -> float:
    return sending.metrics.registry.get_sample_value(name, labels) or 0.0


def test_an_object_that_was_sent_is_not_sent_again(bench: Bench) -> None:
    with capture_logs() as lines:
        assert bench.sending.send(bench.deliveries[0], 1, time.time()) == Sent(outcome=Outcome.SENT)

    assert bench.sending.send(bench.deliveries[0], 1, time.time()) == Sent(outcome=Outcome.SENT)

    assert len(bench.archive.requests) == 1
    assert [line["event"] for line in lines] == ["delivery.begun", "delivery.sent"]
    assert {(line["called_aet"], line["host"]) for line in lines} == {("ARCHIVE", peers.LOOPBACK)}, (
        "for the audit trail"
    )


def test_a_refused_object_is_told_from_an_archive_that_is_down(bench: Bench) -> None:
    delivery = bench.deliveries[0]
    bench.archive.refuse(0xA700)
    busy = bench.sending.send(delivery, 1, time.time())
    bench.ledger.set_sent(replace(delivery, sop_instance_uid="1.2"), attempts=1)
    assert bench.ledger.overview().pauses == {}
    with bench.archive.down():
        down = bench.sending.send(delivery, 3, time.time())

    assert busy == Sent(outcome=Outcome.DELAYED, wait_seconds=1.0)
    assert down == Sent(outcome=Outcome.DOWN, wait_seconds=4.0)
    assert set(bench.ledger.overview().pauses) == {"archive"}
    for reason in ("busy", "down"):
        assert counted(bench.sending, "cxr_failures_total", stage="deliver", reason=reason) == 1, reason
    assert counted(bench.sending, "cxr_step_duration_seconds_count", step="deliver") == 0


@pytest.mark.parametrize(
    ("attempt", "hours", "shortest", "longest"),
    [
        (1, 0, 1.0, 1.0),
        (2, 0, 2.0, 2.0),
        (12, 0, 2048.0, 2048.0),
        (13, 0, HOUR, HOUR),
        (99, 0, HOUR, HOUR),
        (99, 72 - 1 / 60, 1.0, 60.0),  # not long past the time to give up
    ],
)
def test_each_retry_waits_twice_as_long_but_at_most_an_hour(
    bench: Bench, attempt: int, hours: float, shortest: float, longest: float
) -> None:
    bench.archive.refuse(0xA700)

    sent = bench.sending.send(bench.deliveries[0], attempt, time.time() - hours * HOUR)

    assert shortest <= sent.wait_seconds <= longest


@pytest.mark.parametrize(
    ("status", "hours", "reason", "said"),
    [(0xA700, 73, "expired", "gave up after 72 hours"), (0xA900, 0, "rejected", "")],
)
def test_a_delivery_that_failed_too_long_or_for_good_is_parked(
    bench: Bench, status: int, hours: int, reason: str, said: str
) -> None:
    bench.archive.refuse(status)

    outcome = bench.sending.send(bench.deliveries[0], 4, time.time() - hours * HOUR)

    assert outcome == Sent(outcome=Outcome.PARKED)
    assert said in bench.ledger.parked()[0].reason
    assert counted(bench.sending, "cxr_failures_total", stage="deliver", reason=reason) == 1


def test_an_output_that_is_lost_or_no_object_and_a_destination_that_is_gone_are_parked_with_their_reason(
    bench: Bench,
) -> None:
    lost, odd = (replace(bench.deliveries[0], sop_instance_uid=uid) for uid in ("1.2", "1.3"))
    elsewhere = replace(bench.deliveries[0], destination="elsewhere")
    bench.spool.keep_output(odd, b"no object")

    cases = [(lost, 71), (lost, 73), (odd, 0), (elsewhere, 0)]
    outcomes = [bench.sending.send(each, 1, time.time() - hours * HOUR).outcome for each, hours in cases]

    assert outcomes == [Outcome.DELAYED, Outcome.PARKED, Outcome.PARKED, Outcome.PARKED]
    assert set(received.found_damaged(bench.spool.directory)) == {"output"}
    reasons = [parked.reason for parked in bench.ledger.parked()]
    assert "gave up after 72 hours" in reasons[0]
    assert re.fullmatch(r"InvalidDicomError at \w+\.py:\d+", reasons[1]), "without its text"
    assert counted(bench.sending, "cxr_failures_total", stage="deliver", reason="unforeseen") == 1
    assert bench.state(elsewhere) is DeliveryState.PARKED
    assert bench.sending.probe("elsewhere", time.time())


def test_a_delivery_that_a_person_ended_is_not_sent(bench: Bench) -> None:
    bench.ledger.abandon("archive")

    assert bench.sending.send(bench.deliveries[0], 1, time.time()) == Sent(outcome=Outcome.ABANDONED)
    assert replace(bench.sending, destinations={}).send(bench.deliveries[1], 1, time.time()) == Sent(
        outcome=Outcome.ABANDONED
    )

    assert bench.archive.requests == []
    assert bench.ledger.parked() == []


@pytest.mark.parametrize(("said", "seconds"), [((), HOUR), ((2, 1, -9), 60.0)], ids=["of a film", "of a person"])
def test_the_last_delivery_of_a_round_ends_its_turnaround_from_the_film_or_what_a_person_said(
    bench: Bench, said: Sequence[int], seconds: float
) -> None:
    os.utime(bench.spool.instances(STUDY)[0].path, (time.time() - HOUR, time.time() - HOUR))
    for minutes in said:
        at = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
        bench.spool.keep_document(STUDY, "released", str(minutes), {"at": at, "corrections": ["a"]})

    for number, delivery in enumerate(bench.deliveries):
        assert counted(bench.sending, "cxr_turnaround_seconds_count") == 0, number
        bench.sending.send(delivery, 1, time.time())

    assert counted(bench.sending, "cxr_turnaround_seconds_count") == 1
    assert seconds <= counted(bench.sending, "cxr_turnaround_seconds_sum") < 2 * seconds


def test_an_answer_that_a_person_sends_is_no_turnaround(bench: Bench) -> None:
    uid = bench.deliveries[1].sop_instance_uid
    output = OutputObject(
        kind="sr", study_uid=STUDY, sop_class_uid="1.2", sop_instance_uid=uid, series_instance_uid="1.3"
    )
    answer = SentAnswer(question="0" * 32, requested_at=datetime.now(UTC), outputs=(output,))
    questions.keep_answer(bench.spool, STUDY, answer)

    for delivery in bench.deliveries:
        bench.sending.send(delivery, 1, time.time())

    assert counted(bench.sending, "cxr_turnaround_seconds_count") == 0


def test_waiting_for_a_destination_ends_when_it_answers_at_the_time_to_give_up_and_when_the_node_stops(
    bench: Bench,
) -> None:
    bench.archive.stop()
    assert bench.sending.probe("archive", time.time() - 72 * HOUR + 0.5)
    assert bench.archive.echoes == 0

    back = threading.Timer(0.5, bench.archive.start)
    back.start()
    assert bench.sending.probe("archive", time.time())
    back.join()
    assert (bench.archive.echoes, bench.archive.requests) == (1, [])

    with bench.archive.down():
        threading.Timer(0.3, bench.sending.pauses.close).start()
        began = time.monotonic()
        assert not bench.sending.probe("archive", time.time())
    assert time.monotonic() - began < 30  # and not the minute


def committed(bench: Bench) -> Sending:
    """Send both objects to the archive, which is to commit to them."""
    sending = bench.with_settings(storage_commitment=True)
    for delivery in bench.deliveries:
        assert sending.send(delivery, 1, time.time()).to_confirm_since is not None
    assert not bench.ledger.is_delivered(STUDY)
    return sending


def test_an_archive_commits_once_to_what_it_was_sent(bench: Bench) -> None:
    sending = committed(bench)
    assert tuple(bench.ledger.open_deliveries()) == bench.deliveries, "also after the engine is lost"
    assert sending.send(bench.deliveries[0], 1, time.time()).to_confirm_since is not None

    asked = sending.commit(bench.deliveries, 1, time.time())

    assert (asked.again, asked.open) == ((), ())
    assert {bench.state(delivery) for delivery in bench.deliveries} == {DeliveryState.COMMITTED}
    assert bench.committing.reported == [0x0000]
    assert sorted(uids(bench.committing.requests[0])) == sorted(
        delivery.sop_instance_uid for delivery in bench.deliveries
    )
    classes = {item.ReferencedSOPClassUID for item in bench.committing.requests[0].ReferencedSOPSequence}
    assert classes == {ComprehensiveSRStorage}
    assert bench.ledger.is_delivered(STUDY)
    assert counted(sending, "cxr_deliveries_total", destination="archive", outcome="committed") == 2

    assert sending.send(bench.deliveries[0], 1, time.time()) == Sent(outcome=Outcome.SENT)
    sending.commit(bench.deliveries, 2, time.time())

    assert len(bench.archive.requests) == 2
    assert len(bench.committing.requests) == 1


def test_a_silent_archive_is_asked_anew_and_what_it_was_sent_is_parked_until_it_answers(bench: Bench) -> None:
    bench.committing.answer = Answer.NEVER
    sending = committed(bench)

    first, second = (sending.commit(bench.deliveries, attempt, time.time()) for attempt in (1, 2))

    assert first.open == second.open == bench.deliveries
    assert (first.wait_seconds, second.wait_seconds) == (5.0, 10.0)
    assert len({request.TransactionUID for request in bench.committing.requests}) == 2
    assert {bench.state(delivery) for delivery in bench.deliveries} == {DeliveryState.SENT}

    asked = sending.commit(bench.deliveries, 9, time.time() - 73 * HOUR)

    assert (asked.again, asked.open) == ((), ())
    assert {bench.state(delivery) for delivery in bench.deliveries} == {DeliveryState.PARKED}
    assert "never reported whether it keeps the object" in bench.ledger.parked()[0].reason
    assert "gave up after 72 hours" in bench.ledger.parked()[0].reason
    assert counted(sending, "cxr_failures_total", stage="commit", reason="expired") == 2

    late = sending.commitments.take(1, bench.committing.requests[0], calling_aet="ARCHIVE")

    assert (late, bench.ledger.parked()) == (0x0000, [])
    assert {bench.state(delivery) for delivery in bench.deliveries} == {DeliveryState.COMMITTED}
    assert bench.ledger.is_delivered(STUDY)


@pytest.mark.parametrize(("is_down", "reason"), [(True, "down"), (False, "busy")])
def test_an_archive_that_cannot_be_asked_now_is_asked_later(bench: Bench, is_down: bool, reason: str) -> None:
    sending = committed(bench)
    bench.committing.answer = Answer.BUSY
    if is_down:
        bench.archive.stop()

    asked = sending.commit(bench.deliveries, 1, time.time())

    assert asked.open == bench.deliveries
    assert asked.is_down is is_down
    assert counted(sending, "cxr_failures_total", stage="commit", reason=reason) == 1


def test_an_archive_without_commitment_parks_with_a_remedy(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with peers.ReceivingArchive(port=bench.archive.port):
        sending = committed(bench)
        asked = sending.commit(bench.deliveries, 1, time.time())

    assert asked.open == ()
    assert "set storage_commitment = false" in bench.ledger.parked()[0].reason
    assert counted(sending, "cxr_failures_total", stage="commit", reason="rejected") == 2
    bench.ledger.close()


def test_an_object_the_archive_keeps_losing_is_parked_at_last(bench: Bench) -> None:
    bench.committing.answer = Answer.FAIL
    sending = committed(bench)

    for _ in range(MOST_FAILURES - 1):
        asked = sending.commit(bench.deliveries, 1, time.time())
        assert (asked.again, asked.open) == (bench.deliveries, ())
        for delivery in bench.deliveries:
            assert sending.send(delivery, 1, time.time()).to_confirm_since is not None
    asked = sending.commit(bench.deliveries, 1, time.time())

    assert (asked.again, asked.open) == ((), ())
    assert len(bench.archive.kept) == 6
    assert {bench.state(delivery) for delivery in bench.deliveries} == {DeliveryState.PARKED}
    assert "no such object (0112)" in bench.ledger.parked()[0].reason
    assert counted(sending, "cxr_failures_total", stage="commit", reason="failed") == 2

    retried, *_ = bench.deliveries  # a person retries it: it may fail as often again
    bench.ledger.unpark_delivery(retried)
    sending.send(retried, 1, time.time())
    assert sending.commit([retried], 1, time.time()).again == (retried,)


@pytest.mark.parametrize("is_gone", [False, True])
def test_lost_objects_are_sent_again_without_commitment_too(bench: Bench, is_gone: bool) -> None:
    bench.committing.answer = Answer.NEVER
    sending = committed(bench)
    sending.commit(bench.deliveries, 1, time.time())
    lost, kept = bench.deliveries
    request = bench.committing.requests[0]
    request.FailedSOPSequence = request.ReferencedSOPSequence[:1]
    request.ReferencedSOPSequence = []
    assert sending.commitments.take(2, request, calling_aet="ARCHIVE") == 0x0000
    switched_off = replace(bench.sending, destinations={}) if is_gone else bench.sending

    asked = switched_off.commit(bench.deliveries, 2, time.time())

    assert (asked.again, asked.open, len(bench.committing.requests)) == ((lost,), (), 1)
    assert switched_off.send(lost, 1, time.time()) == Sent(outcome=Outcome.PARKED if is_gone else Outcome.SENT)
    assert bench.state(kept) is DeliveryState.SENT
    assert bench.ledger.is_delivered(STUDY) is not is_gone


def test_a_commitment_is_parked_by_an_unforeseen_error_without_its_text_not_by_its_database(
    bench: Bench, tmp_path: Path
) -> None:
    bench.committing.answer = Answer.NEVER
    with closing(BrieflyAway(connect(tmp_path / "ledger.sqlite"))) as ledger:
        sending = replace(committed(bench), ledger=ledger, report_seconds=60.0)
        with pytest.raises(OperationalError):
            sending.commit(bench.deliveries, 1, time.time())
        assert {bench.state(delivery) for delivery in bench.deliveries} == {DeliveryState.SENT}

        ledger.error = KeyError("Doe^Jane")
        sending.commit(bench.deliveries, 1, time.time())

    reasons = [parked.reason for parked in bench.ledger.parked()]
    assert [bool(re.fullmatch(r"KeyError at test_sending\.py:\d+", reason)) for reason in reasons] == [True, True]


class Away:
    """A destination that answers from now on, or not yet; it notes when it was asked, and by how many at a time."""

    def __init__(self) -> None:
        self.is_back = threading.Event()
        self.asked = threading.Semaphore(0)
        self.times: list[float] = []
        self.most_at_once = self._at_once = 0
        self._counting = threading.Lock()

    def probe(self) -> None:
        with self._counting:
            self.times.append(time.monotonic())
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.asked.release()
        try:
            if not self.is_back.wait(0.05):
                raise DestinationDown("nobody is there")
        finally:
            with self._counting:
                self._at_once -= 1


def test_of_waiting_deliveries_one_probes_at_a_time_and_all_go_on() -> None:
    pauses, away = Pauses(), Away()
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(pauses.wait, "archive", away.probe, limit_seconds=60.0) for _ in range(8)]
        for _ in range(2):
            assert away.asked.acquire(timeout=60.0)
        away.is_back.set()

        assert all(wait.result(timeout=60.0) for wait in waits)
    assert away.most_at_once == 1
    first, second, *_ = away.times
    assert second - first >= 1.0  # however many there are that could ask meanwhile
    assert len(away.times) <= 3, "one answer is for all that wait"


def test_a_destination_that_is_down_for_long_is_probed_every_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [100.0], list[float]()
    monkeypatch.setattr(delivery_steps, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pauses = Pauses()

    def probe() -> None:
        asked.append(now[0])
        raise DestinationDown("nobody is there")

    def advance(seconds: float) -> bool:
        now[0] += seconds
        return False

    monkeypatch.setattr(pauses._closing, "wait", advance)

    assert not pauses.wait("archive", probe, limit_seconds=100.0)

    *waits, _ = (later - earlier for earlier, later in pairwise(asked))  # the last one ends with the limit
    assert (waits[0], waits[-1]) == (1.0, 5.0)
    assert waits == sorted(waits)


def test_a_destination_is_probed_anew_each_time_waits_for_no_other_and_ends_with_the_node() -> None:
    pauses, away, other = Pauses(), Away(), Away()
    other.is_back.set()

    assert not pauses.wait("archive", away.probe, limit_seconds=0.0)
    assert [pauses.wait("other", other.probe, limit_seconds=0.0) for _ in range(3)] == [True] * 3
    assert len(other.times) == 3

    pauses.close()
    assert not pauses.wait("other", other.probe, limit_seconds=60.0)
    assert len(other.times) == 3


DESTINATIONS = (
    DicomDestination(name="pacs", ae_title="PACS", host="localhost", port=104, storage_commitment=True),
    DicomDestination(name="other", ae_title="OTHER", host="127.0.0.1", port=105, storage_commitment=True),
    DicomDestination(name="plain", ae_title="PLAIN", host="127.0.0.1", port=106),
    Hl7Destination(name="ris", host="127.0.0.1", port=2575),
)


class SentObjects:
    """Two objects that were sent to `pacs`, and one of them to `other`; each destination was asked."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.metrics = Ledger(connect(folder / "ledger.sqlite")), Metrics()
        self.commitments = Commitments(self.ledger, DestinationTable(DESTINATIONS), self.metrics)
        self.deliveries = [self._sent("pacs", "1.1"), self._sent("pacs", "1.2")]
        self.elsewhere = self._sent("other", "1.1")
        self.ledger.add_transaction("2.25.1", self.deliveries)
        self.ledger.add_transaction("2.25.2", [self.elsewhere])

    def states(self) -> list[DeliveryState | None]:
        return [self.ledger.delivery_state(delivery) for delivery in (*self.deliveries, self.elsewhere)]

    def _sent(self, destination: str, uid: str) -> Delivery:
        delivery = Delivery(destination=destination, study_uid="1", sop_instance_uid=uid, kind="sr")
        self.ledger.set_sent(delivery, attempts=1, awaits_commitment=True)
        return delivery


@pytest.fixture
def sent(tmp_path: Path) -> Iterator[SentObjects]:
    sent = SentObjects(tmp_path)
    with closing(sent.ledger):
        yield sent


def answer(transaction: str = "2.25.1", *, kept: tuple[str, ...] = (), failed: tuple[str, ...] = ()) -> Dataset:
    information = Dataset()
    information.TransactionUID = transaction
    information.ReferencedSOPSequence = [reference(uid) for uid in kept]
    information.FailedSOPSequence = [reference(uid) for uid in failed]
    for item in information.FailedSOPSequence:
        item.FailureReason = 0x0112
    return information


def reference(uid: str) -> Dataset:
    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.88.33", uid
    return item


SENT, WAITING, COMMITTED = DeliveryState.SENT, DeliveryState.WAITING, DeliveryState.COMMITTED


def test_an_answer_tells_what_is_kept_from_what_is_not_and_counts_once(sent: SentObjects) -> None:
    for _ in range(2):
        assert sent.commitments.take(2, answer(kept=("1.1",), failed=("1.2",)), calling_aet="PACS") == 0x0000

    assert sent.states() == [COMMITTED, WAITING, SENT]
    standing = sent.ledger.delivery_record(sent.deliveries[1])
    assert standing and (standing.failures, standing.reason) == (
        1, "pacs cannot commit to the object: no such object (0112); see its log, then retry"
    )  # fmt: skip
    assert sent.commitments.take(1, answer(kept=("1.2",)), calling_aet="PACS") == 0x0000
    assert sent.states() == [COMMITTED, WAITING, SENT], "an old answer commits to nothing that is to be sent again"


@pytest.mark.parametrize(
    ("event", "information", "calling_aet", "status"),
    [
        *((1, answer(kept=("1.1", "1.2")), other, 0x0115) for other in ("OTHER", "PLAIN", "SOMEBODY")),
        (3, answer(kept=("1.1",)), "PACS", 0x0113),
        (1, answer("2.25.99", kept=("1.1",)), "PACS", 0x0115),
        (1, answer("", kept=("1.1",)), "PACS", 0x0115),
        (1, Dataset(), "PACS", 0x0115),
    ],
)
def test_an_answer_for_another_destination_or_that_cannot_be_understood_is_told_by_its_status(
    sent: SentObjects, event: int, information: Dataset, calling_aet: str, status: int
) -> None:
    assert sent.commitments.take(event, information, calling_aet=calling_aet) == status

    assert sent.states() == [SENT, SENT, SENT]
    assert sent.metrics.registry.get_sample_value("cxr_failures_total", {"stage": "commit", "reason": "refused"}) == 1


def test_without_a_database_the_archive_is_told_to_try_again() -> None:
    ledger = Mock(transaction=Mock(side_effect=ConnectionError("the database is away")))
    commitments = Commitments(ledger, DestinationTable(DESTINATIONS), Metrics())

    assert commitments.take(1, answer(kept=("1.1",)), calling_aet="PACS") == 0x0110


def test_only_a_committing_destination_reports_from_its_own_host_if_that_is_known(sent: SentObjects) -> None:
    def may(calling_aet: str, host: str, *, is_caller: bool = False) -> bool:
        return sent.commitments.may_report(calling_aet=calling_aet, host=host, is_caller=is_caller)

    assert may("PACS", "127.0.0.1")  # by the name of its host
    assert may("OTHER ", "127.0.0.1")
    assert may("OTHER", "::ffff:127.0.0.1")  # as a socket for both kinds of addresses says it
    assert may("PACS", "192.0.2.7", is_caller=True)
    assert not may("PACS", "192.0.2.7")
    assert not may("PLAIN", "127.0.0.1", is_caller=True)
    assert not may("SOMEBODY", "127.0.0.1", is_caller=True)
    for unknown in ("no.such.host.invalid", "a..b", "x" * 300):
        somewhere = DestinationTable([replace(DESTINATIONS[0], host=unknown)])
        sent.commitments = Commitments(sent.ledger, somewhere, Metrics())
        assert not may("PACS", "127.0.0.1"), unknown


UIDS = st.sets(st.sampled_from(("1.1", "1.2", "1.3")))


@given(kept=UIDS, failed=UIDS, has_reason=st.booleans())
def test_what_failed_is_never_kept_and_without_a_reason_is_one_of_processing(
    kept: set[str], failed: set[str], has_reason: bool
) -> None:
    information = answer(kept=tuple(kept), failed=tuple(failed))
    for item in () if has_reason else information.FailedSOPSequence:
        del item.FailureReason

    found = read_report(information)

    assert (found.kept, found.failed) == (kept - failed, dict.fromkeys(failed, 0x0112 if has_reason else 0x0110))


@given(state=st.sampled_from(DeliveryState), awaits=st.booleans(), failures=st.integers(min_value=0, max_value=9))
def test_every_delivery_has_one_thing_to_do(state: DeliveryState, awaits: bool, failures: int) -> None:
    standing = DeliveryRow(
        delivery=Delivery(destination="pacs", study_uid="1", sop_instance_uid="1.1", kind="sr"),
        state=state,
        attempts=1,
        reason=None,
        created_at=moment(0),
        since=moment(0),
        awaits_commitment=awaits,
        failures=failures,
        unclear=0,
    )
    expected = Next.NOTHING
    if awaits and state is SENT:
        expected = Next.ASK
    elif awaits and state is WAITING and failures:
        expected = Next.SEND_AGAIN if failures < MOST_FAILURES else Next.PARK

    assert decide(standing) is expected
    assert decide(None) is Next.NOTHING
