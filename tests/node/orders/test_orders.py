"""Orders: what is taken out of a message, what is kept of it and for how long.

And their port, plain and with TLS: what is answered to whom, who is let in, and that nobody holds it.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from unittest import mock
from zoneinfo import ZoneInfo

import hl7
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from node.config import OrdersSettings, OrdersTlsSettings, SiteSettings
from node.hl7.acknowledgment import AcknowledgmentCode, read_acknowledgment
from node.hl7.order import Order, Priority
from node.hl7.text import read
from node.metrics import Metrics
from node.net import callers
from node.orders import listener as listener_module
from node.orders.listener import OrderListener
from node.orders.messages import OrderRefused, read_orders
from node.orders.store import OrderStore
from node.store import files
from tests.node.test_metrics import samples
from tests.support import mllp, peers
from tests.support.certificates import Authority, Identity
from tests.support.mllp import BEFORE
from tests.support.ordered import PATIENTS, find, ordered

NOON = datetime(2024, 1, 31, 12, tzinfo=UTC)
STUDY = "1.2.840.99.7"
PATIENT = "PID|1||PID-7788^^^CLINIC||Zyxwvu^Qrst||19500228|M"
ORM = "\r".join(
    (
        r"MSH|^~\&|RIS|CLINIC|CHEX|XRAY|20240131||ORM^O01|C1|P|2.3.1",
        PATIENT,
        "PV1|1|O",
        "ORC|NW|P1^RIS|F1^RIS||||^^^^^S",
        "OBR|1|P1^RIS|F1^RIS|XCHEST^Chest^L||||||||||||||A-17|RP-3",
        f"ZDS|{STUDY}^RIS^Application^DICOM",
    )
)
OMI = "\r".join(
    (
        r"MSH|^~\&|RIS|CLINIC|CHEX|XRAY|20240131||OMI^O23^OMI_O23|C2|P|2.5.1",
        PATIENT,
        "ORC|NW|P2^RIS",
        "TQ1|1||||||||A^ASAP^HL70485",
        "OBR|1|P2^RIS|F2^RIS^1.2.3^ISO|XCHEST^Chest^L",
        f"IPC|A-18|RP-4|{STUDY}|SPS-1|CR",
    )
)


WHOLE = ordered(accession="A-17", study_uid=STUDY, placer_number=("P1",), priority=Priority.STAT)


def orders(text: str) -> list[Order]:
    return [change.order for change in read_orders(read(text.encode()))]


def test_an_orm_and_an_omi_give_numbers_accession_study_and_priority() -> None:
    assert orders(ORM) == [
        ordered(
            accession="A-17",
            study_uid=STUDY,
            placer_number=("P1", "RIS"),
            filler_number=("F1", "RIS"),
            priority=Priority.STAT,
        )
    ]
    assert orders(OMI) == [
        ordered(
            accession="A-18",
            study_uid=STUDY,
            placer_number=("P2", "RIS"),
            filler_number=("F2", "RIS", "1.2.3", "ISO"),
            priority=Priority.ASAP,
        )
    ]


def test_each_order_of_a_message_is_one_for_the_patient_before_it() -> None:
    first, second, last = orders(f"{ORM}\rORC|NW|P9|F8\rOBR|1|P9|F8\rPID|1||PID-9\rORC|NW|P9|F9\rOBR|1|P9|F9")

    assert [order.accession for order in (first, second, last)] == ["A-17", "F8", "F9"]
    assert [order.is_for(PATIENTS) for order in (first, second, last)] == [True, True, False]
    assert last.is_for([("PID-9", "")])
    assert len(orders("\r".join([ORM] + ["ORC|NW|P|F"] * 99))) == 100
    assert orders(ORM.replace("A-17", "Ä  1" * 16))[0].accession == "Ä  1" * 16, "whole at any length"


def test_an_order_is_cancelled_by_control_code_or_status() -> None:
    def is_cancelled(control: str, status: str) -> bool:
        message = ORM.replace("ORC|NW|P1^RIS|F1^RIS|", f"ORC|{control}|P1^RIS|F1^RIS||{status}")
        (change,) = read_orders(read(message.encode()))
        return change.is_cancelled

    cancelling = [(control, "") for control in ("CA", "OC", "DC", "OD", "CR", "DR", "ca")]
    cancelling += [("NW", "CA"), ("SC", "ca"), ("SC", "DC"), ("", "CA"), ("CA", "IP")]
    others = [("SC", "IP"), ("SC", "CM"), ("NW", ""), ("UC", "")]

    assert [found for found in (*cancelling, *others) if is_cancelled(*found)] == cancelling


@pytest.mark.parametrize(
    ("before", "after", "priority"),
    [
        ("^^^^^S", "^^^^^R", Priority.ROUTINE),
        ("^^^^^S", "", Priority.ROUTINE),
        ("^^^^^S", "^^^^^stat", Priority.STAT),
        ("^^^^^S", "^^^^^T", Priority.ROUTINE),
        ("A-17|RP-3", "A-17|RP-3||||||||^^^^^A", Priority.ASAP),
        ("Chest^L||", "Chest^L|S|", Priority.STAT),  # of the oldest versions (OBR-5)
    ],
)
def test_an_order_is_as_urgent_as_its_control_or_else_its_request_says(
    before: str, after: str, priority: Priority
) -> None:
    message = ORM if before == "^^^^^S" else ORM.replace("^^^^^S", "")

    assert orders(message.replace(before, after))[0].priority is priority


def test_numbers_and_patient_stand_where_older_messages_have_them() -> None:
    (whole,) = orders(ORM)

    (of_request,) = orders(ORM.replace("ORC|NW|P1^RIS|F1^RIS|", "ORC|NW|||"))
    (of_no_study,) = orders(ORM.replace(STUDY, "no UID"))
    (of_second_field,) = orders(ORM.replace("PID|1||PID-7788^^^CLINIC|", "PID|1|PID-7788^^^CLINIC||"))

    assert of_request == of_second_field == whole
    assert of_no_study == replace(whole, study_uid="")


@pytest.mark.parametrize(
    ("before", "after", "code", "condition"),
    [
        ("ORM^O01", "ADT^A01", AcknowledgmentCode.REJECT, "200"),
        ("ORM^O01", "ORU^R01", AcknowledgmentCode.REJECT, "200"),
        ("ORM^O01", "ORM^O02", AcknowledgmentCode.REJECT, "201"),
        ("|2.3.1", "|3.0", AcknowledgmentCode.REJECT, "203"),
        ("|C1|", "||", AcknowledgmentCode.ERROR, "101"),
        ("ORC|NW", "ZZZ|NW", AcknowledgmentCode.ERROR, "100"),
        ("A-17", "", AcknowledgmentCode.ERROR, "101"),
        ("A-17", '""', AcknowledgmentCode.ERROR, "101"),
        ("A-17", "A\\X0D\\17", AcknowledgmentCode.ERROR, "102"),  # no film can have a CR, a DEL, a backslash
        ("A-17", "A\\X7F\\17", AcknowledgmentCode.ERROR, "102"),
        ("A-17", "A\\E\\17", AcknowledgmentCode.ERROR, "102"),
        ("PID-7788", '""', AcknowledgmentCode.ERROR, "101"),
        (PATIENT, "PID|1||^^^CLINIC||Zyxwvu^Qrst", AcknowledgmentCode.ERROR, "101"),
        (PATIENT, "NTE|1", AcknowledgmentCode.ERROR, "101"),
        ("P1^", "P\\X0D\\1^", AcknowledgmentCode.ERROR, "102"),
        ("F1^RIS", "F1^R\\X07\\S", AcknowledgmentCode.ERROR, "102"),
        ("OBR|1|", "\r".join(["ORC|NW|P|F"] * 100 + ["OBR|1|"]), AcknowledgmentCode.ERROR, "207"),
    ],
)
def test_a_message_that_cannot_be_used_is_refused_with_a_reason(
    before: str, after: str, code: AcknowledgmentCode, condition: str
) -> None:
    without_numbers = ORM.replace("F1^RIS", "").replace(STUDY, "") if before == "A-17" else ORM

    with pytest.raises(OrderRefused) as caught:
        orders(without_numbers.replace(before, after))

    assert (caught.value.code, caught.value.complaint.condition) == (code, condition)


@given(st.lists(st.sampled_from(["ORC", "OBR", "TQ1", "IPC", "ZDS"]).flatmap(
    lambda name: st.text("|^~&\\ A1.", max_size=40).map(lambda rest: f"{name}|{rest}")
), max_size=5))  # fmt: skip
def test_whatever_segments_say_is_an_order_or_a_refusal(segments: list[str]) -> None:
    try:
        found = orders("\r".join((ORM.split("\r")[0], *segments)))
    except OrderRefused:
        return
    assert all(order.accession or order.study_uid for order in found)


@pytest.fixture
def store(tmp_path: Path) -> OrderStore:
    return OrderStore(tmp_path)


def test_no_order_is_found_by_a_number_that_is_nobodys(tmp_path: Path) -> None:
    for number, is_found in (("unknown", False), ("0", False), ("PID-7788", True)):
        folder, patients = tmp_path / number, [(number, "")]
        folder.mkdir()
        store = OrderStore(folder, nobodys=SiteSettings().nobodys)
        (order,) = orders(ORM.replace("PID-7788", number))
        store.keep(order)

        found = store.find(study_uid=STUDY, accession="A-17", patients=patients)
        fixed = store.fix(study_uid=STUDY, accession="A-17", patients=patients, at=NOON)

        assert (found, fixed) == ((order, order) if is_found else (None, None)), number


def test_an_order_is_found_by_either_name_of_its_authority(store: OrderStore) -> None:
    (order,) = orders(ORM.replace("^CLINIC|", "^CLINIC&1.2.3&ISO|"))
    store.keep(order)

    for issuer, found in {"CLINIC": order, "Clinic": order, "1.2.3": order, "": order, "WARD": None}.items():
        assert store.find(study_uid=STUDY, accession="A-17", patients=[("PID-7788", issuer)]) == found, issuer


def test_an_order_is_found_by_its_newest_number_or_study_until_it_is_cancelled_by_either(store: OrderStore) -> None:
    store.keep(WHOLE)

    assert find(store, study_uid="1.9", accession="A-17") == WHOLE
    assert find(store, study_uid=STUDY, accession="") == WHOLE
    assert find(store, study_uid="1.9", accession="A-1") is None
    assert store.counts() == {"stat": 1, "asap": 0, "routine": 0}
    store.keep(replace(WHOLE, accession="A-18"))
    assert find(store, study_uid="1.9", accession="A-17") is None
    assert find(store, study_uid="1.9", accession="A-18") == replace(WHOLE, accession="A-18")

    for named in (ordered(accession="A-17"), ordered(study_uid=STUDY), WHOLE):
        store.keep(WHOLE)
        store.forget(named)
        assert find(store, study_uid=STUDY, accession="A-17") is None
        assert store.counts() == {"stat": 0, "asap": 0, "routine": 0}


def test_orders_are_changed_by_one_process_at_a_time(store: OrderStore, tmp_path: Path) -> None:
    changes: tuple[Callable[[], object], ...] = (
        lambda: store.keep(WHOLE),
        lambda: store.fix(study_uid=STUDY, accession="A-17", patients=PATIENTS, at=NOON),
        lambda: store.forget(WHOLE),
    )
    with ThreadPoolExecutor(3) as pool:
        with files.lock(tmp_path / "orders.lock"):
            changing = [pool.submit(change) for change in changes]
            assert wait(changing, timeout=0.3).done == set()

        assert wait(changing, timeout=60).not_done == set()


@pytest.mark.parametrize("number", ["P1", "P2"])
def test_studies_of_one_accession_number_keep_an_order_each_until_its_number_is_cancelled(
    store: OrderStore, number: str
) -> None:
    both = {
        placer: replace(WHOLE, study_uid=study, placer_number=(placer,))
        for placer, study in (("P1", STUDY), ("P2", "1.2.840.99.8"))
    }
    for order in both.values():
        store.keep(order)
    assert [find(store, study_uid=order.study_uid, accession="A-17") for order in both.values()] == [*both.values()]
    assert find(store, study_uid="1.9", accession="A-17") is None, "none is guessed"

    store.forget(ordered(accession="A-17", placer_number=(number,)))

    found = {placer: find(store, study_uid=order.study_uid, accession="") for placer, order in both.items()}
    assert [placer for placer, order in found.items() if order is None] == [number]


def test_a_cancelled_order_does_not_come_back_after_a_power_cut(
    store: OrderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.keep(WHOLE)
    synced, fsync = list[tuple[Path, int]](), os.fsync

    def note(handle: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{handle}")), len(list((tmp_path / "orders").glob("*.json")))))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    store.forget(WHOLE)

    assert synced[-1] == (tmp_path / "orders", 0)


@pytest.mark.parametrize("named", [ordered(accession="A-17"), ordered(study_uid=STUDY)])
def test_an_order_changed_by_one_of_its_names_keeps_the_other(store: OrderStore, named: Order) -> None:
    store.keep(WHOLE)

    store.keep(replace(named, placer_number=("P2",)))

    changed = ordered(accession="A-17", study_uid=STUDY, placer_number=("P2",))
    assert find(store, study_uid=STUDY, accession="") == find(store, study_uid="1.9", accession="A-17") == changed
    assert store.counts() == {"stat": 0, "asap": 0, "routine": 1}


def test_a_damaged_order_is_ignored_and_the_next_replaces_it(store: OrderStore, tmp_path: Path) -> None:
    order, names = ordered(accession="A-17"), b'{"accession": "A-17", "study_uid": "", "placer_number": '
    store.keep(order)
    for content in (
        b'{"accession": "A-17"}',
        names + b'null, "filler_number": [], "priority": "stat"}',
        names + b'[], "filler_number": [], "priority": "never"}',
        b"\xff\x00",
        b"[]",
    ):
        for path in tmp_path.rglob("*.json"):
            path.write_bytes(content)

        assert find(store, study_uid="1.9", accession="A-17") is None
        assert store.counts() == {"stat": 0, "asap": 0, "routine": 0}
        store.keep(order)
        assert find(store, study_uid="1.9", accession="A-17") == order


@pytest.mark.parametrize("first", [None, ordered(accession="A-17", placer_number=("P1",))])
def test_what_a_round_knew_stays_so_whatever_comes_in_between(store: OrderStore, first: Order | None) -> None:
    if first is not None:
        store.keep(first)
    assert store.fix(study_uid=STUDY, accession="A-17", patients=PATIENTS, at=NOON) == first

    later = ordered(accession="A-17", placer_number=("P2",))
    store.keep(later)

    assert store.fix(study_uid=STUDY, accession="A-17", patients=PATIENTS, at=NOON) == first
    assert store.fix(study_uid=STUDY, accession="A-17", patients=PATIENTS, at=NOON + timedelta(hours=1)) == later


def test_old_orders_go_and_young_ones_stay_though_several_processes_remove(store: OrderStore, tmp_path: Path) -> None:
    store.keep(ordered(accession="A-18"))
    for number in range(600):
        path = tmp_path / "orders" / f"{number}.json"
        path.touch()
        os.utime(path, (1, 1))
    together = Barrier(4)

    def remove() -> None:
        together.wait(60)
        store.remove_older(NOON)

    with ThreadPoolExecutor(4) as pool:
        for removal in [pool.submit(remove) for _ in range(4)]:
            removal.result()

    assert len(list((tmp_path / "orders").iterdir())) == 1
    assert find(store, study_uid="1.9", accession="A-18") is not None


def test_an_order_names_its_patient_by_a_hash_alone_and_its_file_nobody(store: OrderStore, tmp_path: Path) -> None:
    for order in orders(ORM):
        store.keep(order)

    stored = list(tmp_path.rglob("*.json"))
    assert len(stored) == 2
    assert not [path for path in stored if b"PID-7788" in path.read_bytes() or "A-17" in path.name]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def listener(store: OrderStore, metrics: Metrics) -> Iterator[OrderListener]:
    with listening(store, metrics) as listener:
        yield listener


@contextmanager
def listening(
    store: OrderStore,
    metrics: Metrics,
    *,
    hosts: tuple[str, ...] = (peers.LOOPBACK,),
    tls: OrdersTlsSettings | None = None,
    patience_seconds: float = 30.0,
    character_set: str = "",
) -> Iterator[OrderListener]:
    settings = OrdersSettings(port=0, hosts=hosts, tls=tls, character_set=character_set)
    with (
        mock.patch.object(listener_module, "_PATIENCE_SECONDS", patience_seconds),
        closing(OrderListener(settings, store, metrics, zone=ZoneInfo("Europe/Berlin"))) as listener,
    ):
        yield listener


def refused(metrics: Metrics) -> dict[str, float]:
    """How often something was refused, by reason, where it was at all."""
    found = samples(metrics.registry, "cxr_orders_refused_total")
    return {reason: count for (reason,), count in found.items() if count}


def codes(answers: Sequence[hl7.Message]) -> list[str]:
    """The acknowledgment code of each answer."""
    return [str(answer.segment("MSA")[1]) for answer in answers]


def test_orders_are_answered_in_turn_once_they_are_kept(
    listener: OrderListener, store: OrderStore, metrics: Metrics
) -> None:
    answers = mllp.ask(listener.port, ORM.encode(), f"{OMI}\rNTE|1||{'x' * 900_000}".encode())

    assert codes(answers) == ["AA", "AA"]
    assert [str(answer.segment("MSA")[2]) for answer in answers] == ["C1", "C2"]
    assert find(store, study_uid="1.9", accession="A-18") is not None
    assert samples(metrics.registry, "cxr_orders_total") == {("kept",): 2.0, ("cancelled",): 0.0, ("refused",): 0.0}
    assert refused(metrics) == {}


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (ORM.replace("ORM^O01", "ADT^A08"), "AR", "updates and merges of patients (ADT) are not offered"),
        (ORM.replace("ORC|NW", "ZZZ|NW"), "AE", ""),
        (ORM.replace(PATIENT, "PID|||7" + "~a" * 200), "AE", "102"),  # identifiers without end
        ("GET / HTTP/1.1", "AR", ""),
        (PATIENT, "AR", ""),
    ],
)
def test_a_bad_message_is_answered_without_a_word_of_the_patient(
    listener: OrderListener, store: OrderStore, metrics: Metrics, content: str, code: str, words: str
) -> None:
    answers = mllp.ask(listener.port, content.encode(), OMI.encode())

    assert codes(answers) == [code, "AA"]
    assert words in str(answers[0])
    assert not any(secret in str(answers) for secret in ("Zyxwvu", "PID-7788"))
    assert find(store, study_uid="1.9", accession="A-17") is None
    assert refused(metrics) == {"content": 1.0}


def test_a_message_that_names_no_set_is_read_in_that_of_the_site(store: OrderStore, metrics: Metrics) -> None:
    with listening(store, metrics, character_set="GB 18030-2000") as listener:
        answers = mllp.ask(listener.port, ORM.replace("F1^RIS", "王1^RIS").encode("gb18030"))

    found = find(store, study_uid=STUDY, accession="A-17")
    assert (codes(answers), found and found.filler_number) == (["AA"], ("王1", "RIS"))


def test_an_order_that_cannot_be_kept_is_not_accepted(
    listener: OrderListener, metrics: Metrics, tmp_path: Path
) -> None:
    (tmp_path / "orders").write_text("no folder", encoding="utf-8")

    (answer,) = mllp.ask(listener.port, ORM.encode())

    verdict = read_acknowledgment(str(answer).encode())
    assert (verdict.code, verdict.conditions) == ("AR", ("207",))
    assert refused(metrics) == {"not_kept": 1.0}


def test_what_is_no_frame_ends_its_own_connection_only(listener: OrderListener) -> None:
    for content in (b"\x0bMSH|^~\\&|half", b"\x16\x03\x01 TLS", b"no mark\x1c\r", b""):
        with socket.create_connection((peers.LOOPBACK, listener.port), timeout=60) as connection:
            connection.sendall(content)

        assert codes(mllp.ask(listener.port, ORM.encode())) == ["AA"]


def test_an_order_from_elsewhere_is_not_taken(store: OrderStore, metrics: Metrics) -> None:
    with listening(store, metrics, hosts=("192.0.2.1",)) as listener:
        assert mllp.ask(listener.port, ORM.encode()) == []
    assert store.counts() == {"stat": 0, "asap": 0, "routine": 0}
    assert refused(metrics) == {"caller": 1.0}

    with listening(store, metrics, hosts=(f"::ffff:{peers.LOOPBACK}",)) as listener:  # however its address is written
        assert codes(mllp.ask(listener.port, ORM.encode())) == ["AA"]


def test_an_open_connection_ends_with_the_node(listener: OrderListener) -> None:
    with socket.create_connection((peers.LOOPBACK, listener.port), timeout=60) as connection:
        connection.sendall(mllp.START + ORM.encode() + mllp.END)
        assert connection.recv(65536)
        (ours,) = listener._open
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), "one that is gone is noticed"

        listener.close()

        assert connection.recv(65536) == b""
        assert not listener.is_listening


def test_the_longest_silent_connection_makes_room_for_the_21st(listener: OrderListener, metrics: Metrics) -> None:
    with ExitStack() as everything:
        address = (peers.LOOPBACK, listener.port)
        open_ones = [everything.enter_context(socket.create_connection(address, timeout=60)) for _ in range(20)]
        for busy in (open_ones[-1], open_ones[0]):  # in this order: once the last is answered, all were let in
            busy.sendall(mllp.START + OMI.encode() + mllp.END)
            assert busy.recv(65536)

        assert codes(mllp.ask(listener.port, ORM.encode())) == ["AA"]
        assert open_ones[1].recv(65536) == b""
        assert refused(metrics) == {"silent": 1.0}
        open_ones[0].sendall(mllp.START + OMI.encode() + mllp.END)
        assert open_ones[0].recv(65536)
        assert samples(metrics.registry, "cxr_order_connections_open")[()] in (19.0, 20.0)  # one may not have ended yet

    listener.close()
    assert samples(metrics.registry, "cxr_order_connections_open") == {(): 0.0}


def test_refused_messages_keep_no_order_behind_them_out(listener: OrderListener, metrics: Metrics) -> None:
    with mock.patch.object(callers, "_TOLD_EVERY_SECONDS", 0.0), capture_logs() as lines:
        answers = mllp.ask(listener.port, *[b"GET / HTTP/1.1"] * 12, ORM.encode())

        def told() -> int:
            return sum(line.get("times", 1) for line in lines if line["event"] == "order.refused")

        peers.wait_until(lambda: told() == 12, what="each is in the log")

    assert codes(answers) == ["AR"] * 12 + ["AA"]
    assert refused(metrics) == {"content": 12.0}


def test_who_never_reads_an_answer_is_left(store: OrderStore, metrics: Metrics) -> None:
    message = mllp.START + ORM.replace("|C1|", f"|{'C' * 900_000}|").encode() + mllp.END  # its answer is as long
    with (
        listening(store, metrics, patience_seconds=0.5) as listener,
        socket.create_connection((peers.LOOPBACK, listener.port), timeout=20) as connection,
        pytest.raises(ConnectionError),
    ):
        for _ in range(100):
            connection.sendall(message)

    assert refused(metrics) == {"connection": 1.0}


@pytest.mark.drill(part="processes")
def test_a_disk_that_hangs_does_not_hold_up_the_end(listener: OrderListener, store: OrderStore, tmp_path: Path) -> None:
    store.keep(ordered(accession="A-17"))
    (path,) = tmp_path.rglob("*.json")
    path.unlink()
    os.mkfifo(path)
    with socket.create_connection((peers.LOOPBACK, listener.port), timeout=60) as connection:
        connection.sendall(mllp.START + ORM.encode() + mllp.END)
        hand = os.open(path, os.O_WRONLY)  # which waits until somebody reads the order
        try:
            before = time.monotonic()
            listener.close()
            assert time.monotonic() - before < 8.0
        finally:
            os.close(hand)


def test_an_order_is_read_behind_what_others_send_first(listener: OrderListener) -> None:
    for name, before in BEFORE.items():
        (answer,) = mllp.ask(listener.port, before + ORM.encode())

        assert (str(answer.segment("MSA")[1]), str(answer.segment("MSA")[2])) == ("AA", "C1"), name


BATCHES = (
    f"FHS|^~\\&|RIS\rBHS|^~\\&|RIS\r{ORM}\rBTS|1\rFTS|1",
    f"BHS|^~\\&|RIS\r{ORM}\rBTS|1",
    "BHS|^~\\&|RIS\rBTS|0",
    f"{ORM}\r{ORM.replace('A-17', 'A-99')}",
    f"{ORM}\rBTS|1",
    f"BHS|^~\\&|RIS\n{ORM}\nBTS|1",
)


def test_a_batch_is_refused_in_words(listener: OrderListener, store: OrderStore, metrics: Metrics) -> None:
    for content in BATCHES:
        batch, single = mllp.ask(listener.port, content.encode(), ORM.replace("A-17", "A-18").encode())

        assert codes([batch, single]) == ["AR", "AA"], content
        assert "send each message in its own frame" in str(batch.segment("MSA")[3])
        assert str(batch.segment("ERR")[3][0][0]) == "200"
    assert refused(metrics) == {"content": len(BATCHES)}
    assert find(store, study_uid="", accession="A-17") is None


def test_a_cancelled_order_is_removed_and_counted(
    listener: OrderListener, store: OrderStore, metrics: Metrics, tmp_path: Path
) -> None:
    answers = mllp.ask(listener.port, ORM.encode(), ORM.replace("ORC|NW|", "ORC|CA|").encode())

    assert codes(answers) == ["AA", "AA"]
    assert find(store, study_uid=STUDY, accession="A-17") is None
    assert list((tmp_path / "orders").glob("*.json")) == []
    assert samples(metrics.registry, "cxr_orders_total") == {("kept",): 1.0, ("cancelled",): 1.0, ("refused",): 0.0}


def test_with_tls_an_order_comes_from_whom_the_authority_knows_and_nobody_else_delays_it(
    store: OrderStore, metrics: Metrics, tmp_path: Path, authority: Authority
) -> None:
    own, theirs = authority.issue("node"), authority.issue("ris")
    tls = OrdersTlsSettings(certificate=own.certificate, key=own.key, ca=authority.certificate)
    with listening(store, metrics, tls=tls, patience_seconds=20) as listener:

        def connect() -> socket.socket:
            return socket.create_connection((peers.LOOPBACK, listener.port), timeout=60)

        def ask(identity: Identity | None, content: str = ORM) -> bytes:
            """Send a message with a certificate or none; what comes back, nothing where the connection ends."""
            context = ssl.create_default_context(cafile=authority.certificate)
            if identity is not None:
                context.load_cert_chain(identity.certificate, identity.key)
            with connect() as plain, context.wrap_socket(plain, server_hostname=peers.LOOPBACK) as connection:
                connection.sendall(mllp.START + content.encode() + mllp.END)
                return connection.recv(65536)

        assert b"MSA|AA|C1" in ask(theirs)
        assert b"MSA|AA|C2" in ask(theirs, OMI)
        assert refused(metrics) == {}
        assert 0 < samples(metrics.registry, "cxr_certificate_days")[("orders",)] < 1000

        for identity in (None, Authority.found(tmp_path / "stranger").issue("stranger")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(identity)
        with connect() as in_the_clear:
            in_the_clear.sendall(mllp.START + ORM.encode() + mllp.END)
            assert b"MSA" not in b"".join(iter(lambda: receive(in_the_clear), b""))
        peers.wait_until(lambda: refused(metrics) == {"tls": 3.0}, what="each is counted", limit_seconds=60)

        with connect() as silent:  # it never begins its handshake
            assert b"MSA|AA" in ask(theirs)
            listener.close()
            assert receive(silent) == b""


def receive(connection: socket.socket) -> bytes:
    """The next bytes; none at the end, however it came."""
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""
