"""Results on their way by MLLP: what each answer means, and that a result arrives whatever the other side does."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from node.deliver.hl7 import judge
from node.deliver.results import Outcome, Sent, delivery_of
from node.domain import OutputObject
from node.errors import DestinationDown, GiveUp, OutcomeUnknown, RetryLater
from node.hl7.acknowledgment import Acknowledgment
from node.hl7.text import read
from node.orders.store import OrderStore
from node.outputs import oru
from node.settings.destinations import Hl7Destination, TlsSettings
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.spool import Spool
from tests.support import films, peers, samples, senders
from tests.support.certificates import Authority
from tests.support.mllp import BEFORE, END, START, InformationSystem, Mood
from tests.support.ordered import PATIENT, ordered


@pytest.fixture(scope="module")
def result() -> bytes:
    report, headers = samples.report(samples.several()), samples.sources(samples.cr())
    return oru.write(report, headers, samples.BERLIN, order=None, documents=[])[1]


@pytest.fixture
def system() -> Iterator[InformationSystem]:
    with InformationSystem() as system:
        yield system


def to(system: InformationSystem, *, answer_seconds: float = 60.0, tls: TlsSettings | None = None) -> Hl7Destination:
    return Hl7Destination(name="ris", host=peers.LOOPBACK, port=system.port, answer_seconds=answer_seconds, tls=tls)


def deliver(result: bytes, destination: Hl7Destination) -> None:
    senders.deliver(result, destination, calling_aet="CHEX")


def test_a_result_arrives_as_stored_except_for_its_addresses(system: InformationSystem, result: bytes) -> None:
    system.mood = lambda: Mood.LATE_AND_OWN_ANSWER  # the answer to another message is passed over
    destination = replace(
        to(system), sending_facility="A&B", receiving_application="RIS", receiving_facility="WEST", processing_id="T"
    )

    deliver(result, destination)

    (kept,) = system.kept
    header, before = read(kept.content).header, read(result).header
    assert [header.text(field) for field in (3, 4, 5, 6, 11)] == ["CHEX", "A&B", "RIS", "WEST", "T"]
    assert header.fields[7:11] == before.fields[7:11]
    assert kept.content.split(b"\r")[1:] == result.split(b"\r")[1:]


_UNREADABLE = (
    *(Mood.CUT_NAME, Mood.LATE_ANSWER, Mood.UNKNOWN_CODE, Mood.HALF_AN_ANSWER, Mood.WITHOUT_START, Mood.WITHOUT_END),
    *(Mood.NONSENSE, Mood.NO_ACKNOWLEDGMENT, Mood.ENDLESS),
)


@pytest.mark.parametrize(
    ("mood", "condition", "outcome"),
    [
        *((mood, "", OutcomeUnknown) for mood in _UNREADABLE),
        *((mood, "", RetryLater) for mood in (Mood.DROP_BEFORE, Mood.DROP_AFTER, Mood.RESET, Mood.HANG)),
        *((mood, "", RetryLater) for mood in (Mood.ERROR, Mood.REJECT)),
        *((mood, "101", GiveUp) for mood in (Mood.ERROR, Mood.REJECT)),
    ],
)
def test_what_is_no_acceptance_delays_no_other_result(
    system: InformationSystem, result: bytes, mood: Mood, condition: str, outcome: type[Exception]
) -> None:
    system.mood, system.condition = (lambda: mood), condition or system.condition

    with pytest.raises(outcome) as caught:
        deliver(result, to(system, answer_seconds=0.5 if mood in (Mood.WITHOUT_END, Mood.HANG) else 60.0))
    assert not isinstance(caught.value, DestinationDown)
    assert isinstance(caught.value, OutcomeUnknown) is (mood in _UNREADABLE)


@pytest.mark.parametrize(
    ("condition", "outcome"),
    [
        *((condition, GiveUp) for condition in ("100", "101", "102", "103", "200", "201", "202", "203", "205")),
        *((condition, RetryLater) for condition in ("204", "206", "207")),
    ],
)
def test_what_the_same_message_would_get_again_is_parked(condition: str, outcome: type[Exception]) -> None:
    for code in ("AE", "AR"):
        with pytest.raises(outcome, match=code):
            judge(Acknowledgment(code=code, control_id="1", conditions=(condition,)), "ris")


def test_a_closed_port_is_down_and_is_probed_without_a_message(system: InformationSystem, result: bytes) -> None:
    senders.probe(to(system), calling_aet="CHEX")

    with socket.socket() as bound:  # and not listening: nobody else gets this port meanwhile
        bound.bind((peers.LOOPBACK, 0))
        closed = replace(to(system), port=bound.getsockname()[1])
        with pytest.raises(DestinationDown, match="cannot be reached"):
            deliver(result, closed)
        with pytest.raises(DestinationDown, match="cannot be reached"):
            senders.probe(closed, calling_aet="CHEX")
    with pytest.raises(DestinationDown, match=r"ris cannot be reached at no\.such\.host\.invalid"):
        deliver(result, replace(to(system), host="no.such.host.invalid"))
    assert system.kept == []


def test_both_sides_of_tls_are_known(authority: Authority, tmp_path: Path, result: bytes) -> None:
    theirs, own = authority.issue("ris"), authority.issue("node of ris")
    stranger = Authority.found(tmp_path / "stranger")
    known = TlsSettings(ca=authority.certificate, certificate=own.certificate, key=own.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.load_cert_chain(theirs.certificate, theirs.key)
    context.verify_mode = ssl.CERT_REQUIRED
    misnamed = "127.0.0.2"

    with InformationSystem(tls=context) as system, InformationSystem(tls=context, host=misnamed) as elsewhere:
        deliver(result, to(system, tls=known))
        with pytest.raises(RetryLater):
            deliver(result, to(system, tls=TlsSettings(ca=authority.certificate)))
        for destination, said in (
            (to(system, tls=replace(known, ca=stranger.certificate)), "certificate is refused"),
            (replace(to(elsewhere, tls=known), host=misnamed), "certificate is refused"),
            (to(system, tls=TlsSettings(ca=Path("nowhere.pem"))), "No such file"),
        ):
            with pytest.raises(DestinationDown, match=said):
                deliver(result, destination)

    assert (len(system.kept), elsewhere.kept) == (1, [])


class Bench:
    """One study on a spool, and one information system."""

    def __init__(self, folder: Path, system: InformationSystem) -> None:
        self.ledger, self.orders = Ledger(connect(folder / "ledger.sqlite")), OrderStore(folder)
        spool = Spool(folder)
        film = films.thumbnail({"AccessionNumber": "A-17", "PatientID": PATIENT.number})
        self.pipeline = senders.pipeline(spool, kinds=["oru"])
        self.plan = self.pipeline.plan(films.keep(spool, film).instance.study_uid)
        self.sending = senders.sending(spool, self.ledger, to(system))

    def written(self) -> tuple[OutputObject, bytes]:
        assert self.plan is not None
        (output,) = self.pipeline.write(self.plan).mark.outputs
        return output, self.pipeline.spool.output(output) or b""

    def send(self, output: OutputObject, attempt: int = 1) -> Sent:
        return self.sending.send(delivery_of("ris", output), attempt, time.time())


@pytest.fixture
def bench(tmp_path: Path, system: InformationSystem) -> Iterator[Bench]:
    bench = Bench(tmp_path, system)
    yield bench
    bench.ledger.close()


def test_a_message_is_the_same_after_a_late_order_and_delivered_delayed_and_parked_as_any_output(
    bench: Bench, system: InformationSystem
) -> None:
    output, content = bench.written()
    bench.orders.keep(ordered(accession="A-17", placer_number=("P1",)))
    assert bench.written() == (output, content)

    system.mood, system.condition = (lambda: Mood.ERROR), "207"
    assert bench.send(output) == Sent(outcome=Outcome.DELAYED, wait_seconds=1.0)

    system.condition = "102"
    assert bench.send(output) == Sent(outcome=Outcome.PARKED)
    assert "AE with error 102" in bench.ledger.parked()[0].reason

    system.mood = lambda: Mood.ACCEPT
    assert bench.send(output) == bench.send(output) == Sent(outcome=Outcome.SENT)
    assert len(system.kept) == 1


@pytest.mark.parametrize("unreadable", [Mood.CUT_NAME, Mood.WITHOUT_START])
def test_only_answers_that_say_nothing_count_and_park_what_may_have_been_taken(
    tmp_path: Path, bench: Bench, system: InformationSystem, unreadable: Mood
) -> None:
    output, _ = bench.written()

    def outcomes(mood: Mood, first: int, count: int) -> list[tuple[str, float]]:
        system.mood = lambda: mood
        sent = [bench.send(output, attempt) for attempt in range(first, first + count)]
        return [(each.outcome, each.wait_seconds) for each in sent]

    assert [outcome for outcome, _ in outcomes(Mood.DROP_BEFORE, 1, 9)] == ["delayed"] * 9
    assert outcomes(unreadable, 10, 3) == [("delayed", 1.0), ("delayed", 2.0), ("delayed", 4.0)]
    for mood in (Mood.DROP_BEFORE, Mood.ERROR):
        assert outcomes(mood, 20, 1)[0][0] == "delayed"
    bench.ledger.close()
    reopened = Ledger(connect(tmp_path / "ledger.sqlite"))  # the process ended
    bench.ledger, bench.sending = reopened, replace(bench.sending, ledger=reopened)
    assert [outcome for outcome, _ in outcomes(unreadable, 14, 3)] == ["delayed", "delayed", "parked"]
    assert "may have the result" in bench.ledger.parked()[0].reason

    bench.ledger.unpark_delivery(delivery_of("ris", output))
    assert [outcome for outcome, _ in outcomes(unreadable, 1, 6)] == ["delayed"] * 5 + ["parked"]


class Answering(InformationSystem):
    """Answers every message with the same bytes."""

    reply = b""

    def answer(self, connection: socket.socket, content: bytes) -> None:
        connection.sendall(self.reply)


@pytest.mark.parametrize(
    ("before", "said", "error"),
    [
        *((before, "MSA|AA|{id}", "") for before in BEFORE.values()),
        (BEFORE["all of it"], "MSA|AA|", ""),
        (b"", "MSA|AA", ""),
        (b"", 'MSA|AA|""', ""),
        (b"", "MSA|CA||done", ""),
        (b"", "MSA|AE|", "AE"),
        (b"", "MSA|AA|OTHER", "acknowledged another message"),
    ],
)
def test_an_acknowledgment_counts_as_others_write_it(result: bytes, before: bytes, said: str, error: str) -> None:
    control_id = result.split(b"|", 10)[9].decode()
    answer = f"MSH|^~\\&|RIS|H|CHEX|H|20260101||ACK|1|P|2.5.1\r{said.format(id=control_id)}\r".encode()

    with Answering() as system, pytest.raises(RetryLater, match=error) if error else nullcontext():
        system.reply = START + before + answer + END
        deliver(result, to(system, answer_seconds=5.0))
