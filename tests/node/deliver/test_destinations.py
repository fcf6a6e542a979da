"""C-STORE to an archive: each answer and what follows, and TLS to it, with dcmtk and with bad certificates."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.pdu import P_DATA_TF

from node.deliver.commitment import Commitments
from node.deliver.dicom import confirm, judge, judge_request
from node.deliver.kinds import Asking, Calling
from node.domain import Delivery
from node.errors import DestinationDown, GiveUp, RetryLater
from node.net.association_pdus import rejection
from node.settings.destinations import DicomDestination, TlsSettings
from tests.support import films, peers, senders
from tests.support.certificates import Authority, Identity
from tests.support.committing import Committing

CONTENT = films.file_bytes(films.thumbnail())


def to(archive: peers.ReceivingArchive) -> DicomDestination:
    return DicomDestination(name="pacs", ae_title=archive.ae_title, host=peers.LOOPBACK, port=archive.port)


def deliver(archive: peers.ReceivingArchive) -> None:
    senders.deliver(CONTENT, to(archive), calling_aet="CHEX")


def test_an_object_arrives_as_it_lies_on_disk_though_an_archive_may_take_its_time(
    archive: peers.ReceivingArchive,
) -> None:
    archive.hang()
    patient, impatient = (replace(to(archive), answer_seconds=seconds) for seconds in (30.0, 0.3))

    with pytest.raises(DestinationDown, match=r"raise destinations\.answer_seconds"):
        senders.deliver(CONTENT, impatient, calling_aet="CHEX")
    with ThreadPoolExecutor(1) as pool:
        delivery = pool.submit(senders.deliver, CONTENT, patient, calling_aet="CHEX")
        archive.wait_for_requests(2)
        assert not delivery.done()
        archive.accept()
        delivery.result(timeout=30)

    received = archive.kept[-1]
    assert (received.calling_ae, received.dataset) == ("CHEX", films.thumbnail())


def test_an_archive_that_answers_no_release_has_it() -> None:
    go_on = threading.Event()

    def hang_after_the_answer(event: evt.Event) -> None:
        if isinstance(event.pdu, P_DATA_TF):
            go_on.wait(30.0)

    with peers.ReceivingArchive(handlers=[(evt.EVT_PDU_SENT, hang_after_the_answer)]) as slow:
        began = time.monotonic()
        deliver(slow)
        seconds = time.monotonic() - began
        go_on.set()

    assert len(slow.kept) == 1
    assert seconds < 15.0  # pynetdicom by itself waits 60 s


def test_an_association_without_an_answer_is_aborted(
    archive: peers.ReceivingArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Association] = []
    monkeypatch.setattr(Association, "release", lambda association: released.append(association))
    archive.drop()

    for _ in range(3):
        with pytest.raises(DestinationDown):
            deliver(archive)

    assert released == []


@pytest.mark.parametrize("event", [evt.EVT_ESTABLISHED, evt.EVT_C_ECHO])
def test_an_archive_that_ends_an_association_without_an_answer_is_down(event: evt.InterventionEvent) -> None:
    def abort(event: evt.Event) -> int:
        event.assoc.abort()
        return 0x0000

    with peers.ReceivingArchive(handlers=[(event, abort)]) as archive, pytest.raises(DestinationDown):
        senders.probe(to(archive), calling_aet="CHEX")


PACS = DicomDestination(name="pacs", ae_title="PACS", host=peers.LOOPBACK, port=104)


@given(st.integers(0, 0xFFFF))
def test_every_status_of_an_object_and_of_a_commitment_request_has_one_outcome(code: int) -> None:
    status = Dataset()
    status.Status = code
    warning_or_success = code in (0, 0x0111) or 0xB000 <= code <= 0xBFFF
    hopeless = (
        code in (0x0106, 0x0107, 0x0117, 0x0120, 0x0121, 0x0122, 0x0124)
        or 0xA900 <= code <= 0xA9FF
        or 0xC000 <= code <= 0xCFFF
    )

    with nullcontext() if warning_or_success else pytest.raises(GiveUp if hopeless else RetryLater):
        judge(status, "pacs")
    is_hopeless_request = code in (0x0118, 0x0122, 0x0124)
    with nullcontext() if code in (0, 0x0131) else pytest.raises(GiveUp if is_hopeless_request else RetryLater):
        judge_request(status, PACS)


def test_no_answer_is_tried_again() -> None:
    with pytest.raises(RetryLater, match="no answer"):
        judge(Dataset(), "pacs")
    with pytest.raises(DestinationDown, match="no answer"):
        judge_request(Dataset(), PACS)


def test_an_answer_is_acknowledged_before_its_association_ends() -> None:
    committing, came = Committing(), threading.Event()

    class SlowCommitments:
        def take(self, *_report: object, **_sender: object) -> int:
            came.set()
            threading.Event().wait(0.3)  # nobody sets it: what was written is seen before this answer has left
            return 0x0000

    asking = Asking(
        calling=Calling(ae_title="CHEX"),
        transaction_uid="2.25.1",
        sent_at=0.0,
        commitments=cast(Commitments, SlowCommitments()),
        is_over=came.is_set,
        report_seconds=60.0,
    )
    delivery = Delivery(destination="pacs", study_uid="1.2", sop_instance_uid="1.3", kind="sr")
    with peers.ReceivingArchive(handlers=committing.handlers) as archive:
        confirm([delivery], to(archive), asking)

    peers.wait_until(lambda: bool(committing.reported), what="the archive hears that it was understood")
    assert committing.reported == [0x0000]


def test_a_destination_answers_if_it_accepts_any_association_not_if_it_rejects_or_is_absent(
    archive: peers.ReceivingArchive,
) -> None:
    senders.probe(to(archive), calling_aet="CHEX")
    assert archive.echoes == 1
    archive.stop()
    archive.verify_nobody()
    archive.start()
    senders.probe(to(archive), calling_aet="CHEX")
    assert archive.echoes == 1

    for act in (partial(senders.probe, to(archive), calling_aet="CHEX"), partial(deliver, archive)):
        archive.reject()
        with pytest.raises(DestinationDown, match="check both AE titles"):
            act()
        with archive.down(), pytest.raises(DestinationDown, match="cannot be reached"):
            act()


def test_a_rejection_is_told_however_soon_it_comes(
    archive: peers.ReceivingArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pynetdicom's own thread may wait for the answer only after the connection is closed again."""
    closed, associate = threading.Event(), AE.associate
    late = [(evt.EVT_REQUESTED, lambda _event: closed.wait(10)), (evt.EVT_CONN_CLOSE, lambda _event: closed.set())]

    def associate_late(entity: AE, host: str, port: int, *, evt_handlers: list[object], **named: object) -> Association:
        return associate(entity, host, port, evt_handlers=[*evt_handlers, *late], **named)  # type: ignore[arg-type,list-item]

    monkeypatch.setattr(AE, "associate", associate_late)
    archive.reject()
    with pytest.raises(DestinationDown, match=r"calling AE title not recognised.*check both AE titles"):
        senders.probe(to(archive), calling_aet="CHEX")


def test_a_rejection_without_words_is_told_by_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pynetdicom._config.LOG_HANDLER_LEVEL", "none")  # as a node's own port does

    def answer(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(rejection(1, 9, 9))

    with socket.create_server((peers.LOOPBACK, 0)) as listening, ThreadPoolExecutor() as threads:
        threads.submit(answer, listening)
        with pytest.raises(DestinationDown, match="source 9, reason 9"):
            senders.probe(replace(PACS, port=listening.getsockname()[1]), calling_aet="CHEX")


def archive_of(identity: Identity, authority: Authority) -> peers.ReceivingArchive:
    """An archive that asks everybody for a certificate of this authority."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(identity.certificate, identity.key)
    return peers.ReceivingArchive(tls=context)


def over_tls(
    port: int, authority: Authority, identity: Identity | None, *, host: str = peers.LOOPBACK
) -> DicomDestination:
    certificate, key = (None, None) if identity is None else (identity.certificate, identity.key)
    tls = TlsSettings(ca=authority.certificate, certificate=certificate, key=key)
    return DicomDestination(name="pacs", ae_title="ARCHIVE", host=host, port=port, tls=tls)


@contextmanager
def storescp(folder: Path, identity: Identity, authority: Authority) -> Iterator[int]:
    """Run dcmtk's storage SCP with TLS; its port."""
    folder.mkdir()
    command = [peers.require("storescp"), "+tls", str(identity.key), str(identity.certificate), "+px", "-d"]
    command += ["+cf", str(authority.certificate), "-rc", "-od", str(folder), str(port := peers.free_port())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            # the system's table: a connection for a look would keep a server busy that serves one at a time
            table, row = Path("/proc/net/tcp"), f":{port:04X} 00000000:0000 0A "
            peers.wait_until(lambda: row in table.read_text(encoding="ascii"), what="storescp listens")
            yield port
        finally:
            process.kill()


def test_dcmtk_takes_an_object_over_tls(tmp_path: Path, authority: Authority) -> None:
    with storescp(tmp_path / "kept", authority.issue("pacs"), authority) as port:
        destination = over_tls(port, authority, authority.issue("node"))
        senders.probe(destination, calling_aet="CHEX")
        senders.deliver(CONTENT, destination, calling_aet="CHEX")

        (kept,) = (tmp_path / "kept").iterdir()
    assert films.thumbnail().SOPInstanceUID in kept.name


def refusal(destination: DicomDestination) -> str:
    """What a delivery and a probe both say."""
    with pytest.raises(DestinationDown) as sent:
        senders.deliver(CONTENT, destination, calling_aet="CHEX")
    with pytest.raises(DestinationDown) as probed:
        senders.probe(destination, calling_aet="CHEX")
    assert str(sent.value) == str(probed.value)
    return str(sent.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("foreign", "unable to get local issuer"),
        ("expired", "certificate has expired"),
        ("of another name", "IP address mismatch"),
    ],
)
def test_an_archive_without_a_good_certificate_is_refused_and_leaves_no_thread(
    tmp_path: Path, authority: Authority, kind: str, said: str
) -> None:
    stranger, own = Authority.found(tmp_path / "stranger"), authority.issue("node")
    shown = {"foreign": stranger.issue("pacs"), "expired": authority.issue("old", days=-1)}.get(kind)
    host = peers.LOOPBACK if shown else "127.0.0.2"
    with archive_of(shown or authority.issue("pacs"), authority) as archive:
        archive.stop()
        archive.start(host=host)
        before = threading.active_count()
        assert f"its certificate is refused ({said}" in refusal(over_tls(archive.port, authority, own, host=host))
        peers.wait_until(lambda: threading.active_count() <= before, what="the threads of the connections end")

    assert archive.requests == []


def test_an_archive_that_does_not_believe_the_node_says_so(tmp_path: Path, authority: Authority) -> None:
    with archive_of(authority.issue("pacs"), authority) as archive:
        for shown in (None, Authority.found(tmp_path / "stranger").issue("node")):
            assert "refuses the node's certificate" in refusal(over_tls(archive.port, authority, shown))

    assert archive.requests == []


def test_an_archive_that_speaks_no_tls_gets_nothing_and_files_that_cannot_be_used_are_named(
    archive: peers.ReceivingArchive, authority: Authority, tmp_path: Path
) -> None:
    own = authority.issue("node")
    broken = Identity(certificate=own.certificate, key=tmp_path / "nowhere.key")
    assert "pacs" in refusal(over_tls(archive.port, authority, own))

    assert refusal(over_tls(archive.port, authority, broken)) == (
        "pacs: the files of its tls table cannot be used (No such file or directory)"
    )
    assert archive.requests == []
