"""What a destination says of the objects it was sent: whom it is believed, and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import Dataset

from node.deliver.commitment import MOST_FAILURES, Commitments, Next, decide, read_report
from node.domain import Delivery, DeliveryState
from node.metrics import Metrics
from node.settings.destinations import DestinationTable, DicomDestination, Hl7Destination
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.ledger_queries import DeliveryRow, moment

DESTINATIONS = (
    DicomDestination(name="pacs", ae_title="PACS", host="localhost", port=104, storage_commitment=True),
    DicomDestination(name="other", ae_title="OTHER", host="127.0.0.1", port=105, storage_commitment=True),
    DicomDestination(name="plain", ae_title="PLAIN", host="127.0.0.1", port=106),
    Hl7Destination(name="ris", host="127.0.0.1", port=2575),
)


class Away(Ledger):
    """One that nobody reaches."""

    def __init__(self) -> None:
        pass

    def transaction(self, uid: str) -> list[Delivery]:
        raise ConnectionError("the database is away")


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


@pytest.mark.parametrize("calling_aet", ["OTHER", "PLAIN", "SOMEBODY"])
def test_nobody_answers_for_another_destination(sent: SentObjects, calling_aet: str) -> None:
    assert sent.commitments.take(1, answer(kept=("1.1", "1.2")), calling_aet=calling_aet) == 0x0115

    assert sent.states() == [SENT, SENT, SENT]


@pytest.mark.parametrize(
    ("event", "information", "status"),
    [
        (3, answer(kept=("1.1",)), 0x0113),
        (1, answer("2.25.99", kept=("1.1",)), 0x0115),
        (1, answer("", kept=("1.1",)), 0x0115),
        (1, Dataset(), 0x0115),
    ],
)
def test_what_cannot_be_understood_is_told_by_its_status(
    sent: SentObjects, event: int, information: Dataset, status: int
) -> None:
    assert sent.commitments.take(event, information, calling_aet="PACS") == status

    assert sent.states() == [SENT, SENT, SENT]
    assert sent.metrics.registry.get_sample_value("cxr_failures_total", {"stage": "commit", "reason": "refused"}) == 1


def test_without_a_database_the_archive_is_told_to_try_again() -> None:
    commitments = Commitments(Away(), DestinationTable(DESTINATIONS), Metrics())

    assert commitments.take(1, answer(kept=("1.1",)), calling_aet="PACS") == 0x0110


def test_only_a_committing_destination_reports_from_its_own_host(sent: SentObjects) -> None:
    def may(calling_aet: str, host: str, *, is_caller: bool = False) -> bool:
        return sent.commitments.may_report(calling_aet=calling_aet, host=host, is_caller=is_caller)

    assert may("PACS", "127.0.0.1")  # by the name of its host
    assert may("OTHER ", "127.0.0.1")
    assert may("OTHER", "::ffff:127.0.0.1")  # as a socket for both kinds of addresses says it
    assert may("PACS", "192.0.2.7", is_caller=True)
    assert not may("PACS", "192.0.2.7")
    assert not may("PLAIN", "127.0.0.1", is_caller=True)
    assert not may("SOMEBODY", "127.0.0.1", is_caller=True)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "x" * 300])
def test_a_host_that_is_not_known_reports_nothing(host: str) -> None:
    somewhere = DicomDestination(name="pacs", ae_title="PACS", host=host, port=104, storage_commitment=True)

    assert not Commitments(Away(), DestinationTable([somewhere]), Metrics()).may_report(
        calling_aet="PACS", host="127.0.0.1", is_caller=False
    )


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
