"""Messages that are odd: each is served as a good one, refused, or ends its association, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO

import pytest
from pydicom import dcmread
from pydicom.uid import UID, CTImageStorage, generate_uid
from pynetdicom import AE, build_context
from pynetdicom.dsutils import decode, encode

from tests.support import films, pdus, peers
from tests.support.listening import Node, is_clean
from tests.support.pdus import Recording
from tests.support.peers import LOOPBACK, wait_until

VERIFICATION = "1.2.840.10008.1.1"
LAST_OF_COMMAND, LAST_OF_DATASET = 3, 2
BESIDE = 3
"""The id of a second presentation context."""
OUTCOMES = ("kept", "repeated", "conflict", "refused")


@pytest.fixture
def recording(node: Node) -> Recording:
    return pdus.record(films.thumbnail(), port=node.listener.port)


def command(recording: Recording, **changes: str | int) -> bytes:
    """The recorded command set with other values, or without those that are empty."""
    said = decode(BytesIO(recording.store[0][12:]), True, True)
    for keyword, value in changes.items():
        setattr(said, keyword, value)
    del said.CommandGroupLength
    content = encode(said, True, True)
    assert content is not None
    return bytes.fromhex("00000000 04000000") + len(content).to_bytes(4, "little") + content


def dataset(recording: Recording) -> bytes:
    return b"".join(pdu[12:] for pdu in recording.store[1:])


def fragments(*parts: tuple[int, bytes], context: int = 1) -> bytes:
    """One PDU with a fragment for each control byte and content (PS3.8 9.3.5)."""
    content = b"".join(pdus.data(part, context=context, control=control)[6:] for control, part in parts)
    return bytes([pdus.DATA, 0]) + len(content).to_bytes(4, "big") + content


def answer_of(connection: socket.socket) -> bytes:
    return pdus.read_pdu(connection)


def wait_for_abort(node: Node, reason: str) -> None:
    wait_until(
        lambda: node.count("cxr_associations_aborted_total", reason=reason) >= 1,
        what="the association is aborted",
        limit_seconds=60.0,
    )
    wait_until(lambda: is_clean(node), what="nothing is left of any object", limit_seconds=60.0)


@pytest.mark.parametrize(
    "sop_class", ["1.3.12.2.1107.5.9.1", "1.2.840.10008.5.1.4.1.1.6", generate_uid()], ids=["private", "retired", "own"]
)
def test_an_object_of_every_storage_class_is_kept(node: Node, sop_class: str) -> None:
    odd = films.thumbnail({"SOPClassUID": sop_class})
    odd.file_meta.MediaStorageSOPClassUID = UID(sop_class)

    assert peers.send(odd, port=node.listener.port) == 0x0000

    (instance,) = node.spool.study(odd.StudyInstanceUID).instances
    assert dcmread(instance.path).file_meta.MediaStorageSOPClassUID == sop_class


def test_an_object_in_the_context_of_another_service_is_refused(node: Node) -> None:
    film = films.thumbnail()
    association = AE(ae_title="TESTER").associate(
        LOOPBACK,
        node.listener.port,
        ae_title="CHEX",
        contexts=[build_context(VERIFICATION, film.file_meta.TransferSyntaxUID)],
    )
    (context,) = association.accepted_contexts
    context._abstract_syntax = UID(film.SOPClassUID)  # what it was negotiated for is forgotten at the sender alone

    assert association.send_c_store(film).Status == 0xC000
    association.release()

    assert list(node.spool.studies()) == []
    assert is_clean(node)


@pytest.mark.parametrize("announced", [VERIFICATION, CTImageStorage])
def test_an_object_of_another_class_than_its_context_is_refused(
    node: Node, recording: Recording, announced: str
) -> None:
    said = command(recording, AffectedSOPClassUID=announced, AffectedSOPInstanceUID="1.2.3")
    with pdus.associate(recording, port=node.listener.port) as odd:
        odd.sendall(fragments((LAST_OF_COMMAND, said), (LAST_OF_DATASET, dataset(recording))))

        assert pdus.status_of(answer_of(odd)) == 0xC000
    assert not list(node.spool.directory.rglob("1.2.3~*"))


@pytest.mark.parametrize("order", ["data first", "two commands", "two contexts"])
def test_fragments_that_make_up_no_message_end_the_association(node: Node, recording: Recording, order: str) -> None:
    whole, film = command(recording), dataset(recording)
    other = command(recording, AffectedSOPInstanceUID="1.2.3")
    said = {
        "data first": fragments((0, film[:100]), (LAST_OF_COMMAND, whole), (LAST_OF_DATASET, film)),
        "two commands": fragments((LAST_OF_COMMAND, other), (LAST_OF_COMMAND, whole), (LAST_OF_DATASET, film)),
        "two contexts": fragments((LAST_OF_COMMAND, whole)) + fragments((LAST_OF_DATASET, film), context=BESIDE),
    }
    kept = node.count("cxr_instances_total", outcome="repeated")
    with pdus.associate(recording, port=node.listener.port) as odd:
        odd.sendall(said[order])

        assert answer_of(odd)[:1] == b"\7"
    wait_for_abort(node, "protocol")
    assert node.count("cxr_instances_total", outcome="repeated") == kept


def test_a_command_in_fragments_is_put_together(node: Node, recording: Recording) -> None:
    whole = command(recording)
    with pdus.associate(recording, port=node.listener.port) as slow:
        for at in range(0, len(whole), 10):
            is_last = at + 10 >= len(whole)
            slow.sendall(pdus.data(whole[at : at + 10], control=LAST_OF_COMMAND if is_last else 1))
        slow.sendall(pdus.data(dataset(recording)) + pdus.data(b"", control=LAST_OF_DATASET))

        assert pdus.status_of(answer_of(slow)) == 0x0000


@pytest.mark.parametrize("odd", ["context", "no content", "a command", "an abort", "an end"])
def test_what_does_not_continue_an_object_leaves_nothing(node: Node, recording: Recording, odd: str) -> None:
    film = dataset(recording)
    said = {
        "context": pdus.data(film[1000:2000], context=BESIDE),
        "no content": bytes([pdus.DATA, 0, 0, 0, 0, 4, 0, 0, 0, 0]),
        "a command": fragments((LAST_OF_COMMAND, command(recording))),
        "an abort": bytes.fromhex("07 00 00000004 00000000"),
        "an end": bytes([pdus.DATA, 0, 0, 1, 0, 0]) + film[:100],
    }
    with pdus.associate(recording, port=node.listener.port) as sender:
        sender.sendall(fragments((LAST_OF_COMMAND, command(recording))) + pdus.data(film[:1000]) + said[odd])
        if odd == "an end":
            sender.shutdown(socket.SHUT_WR)

        assert answer_of(sender)[:1] == (b"" if odd in ("an abort", "an end") else b"\7")
    wait_until(lambda: is_clean(node), what="nothing is left of the object", limit_seconds=60.0)
    assert {outcome: node.count("cxr_instances_total", outcome=outcome) for outcome in OUTCOMES} == {
        "kept": 1.0,  # that of the recording
        "repeated": 0.0,
        "conflict": 0.0,
        "refused": 0.0,
    }


def test_a_closing_listener_aborts_an_object_on_its_way(node: Node, recording: Recording) -> None:
    part, is_over = pdus.data(dataset(recording)[:1000]) * 50, threading.Event()
    with pdus.associate(recording, port=node.listener.port) as sender, ThreadPoolExecutor(2) as threads:
        sender.sendall(fragments((LAST_OF_COMMAND, command(recording))))

        def stream() -> None:
            with suppress(OSError):
                while not is_over.is_set():
                    sender.sendall(part)

        streaming = threads.submit(stream)
        wait_until(lambda: not is_clean(node), what="the object arrives")
        closing = threads.submit(node.listener.close)
        try:
            assert answer_of(sender)[:1] == b"\7"
        finally:
            is_over.set()
        closing.result()
        streaming.result()
    assert is_clean(node)


def test_a_request_that_cannot_be_read_ends_the_association(node: Node, recording: Recording) -> None:
    bad = command(recording, Priority=9)
    with pdus.associate(recording, port=node.listener.port) as hostile:
        hostile.sendall(fragments((LAST_OF_COMMAND, bad), (0, b"no"), (LAST_OF_DATASET, b"film")))
        with suppress(OSError):
            hostile.sendall(pdus.data(b"more") * 1000)

        assert answer_of(hostile)[:1] == b"\7"
    wait_until(lambda: is_clean(node), what="nothing is left of the object", limit_seconds=60.0)


@pytest.mark.parametrize("length", [0, 1])
def test_a_fragment_without_content_ends_the_association(node: Node, recording: Recording, length: int) -> None:
    item = length.to_bytes(4, "big") + bytes([1])[:length]
    with pdus.associate(recording, port=node.listener.port) as odd:
        odd.sendall(recording.store[0] + bytes([pdus.DATA, 0]) + len(item).to_bytes(4, "big") + item)

        assert answer_of(odd)[:1] == b"\7"
    wait_until(lambda: is_clean(node), what="nothing is left of the object", limit_seconds=60.0)


def test_a_thousand_objects_in_one_pdu_take_no_descriptor_each(node: Node, recording: Recording) -> None:
    message = [(LAST_OF_COMMAND, command(recording)), (LAST_OF_DATASET, b"no film")]
    before = len(os.listdir("/proc/self/fd"))
    with pdus.associate(recording, port=node.listener.port) as hostile:
        hostile.sendall(fragments(*message * 1000))
        wait_for_abort(node, "pieces")
    assert node.count("cxr_instances_total", outcome="refused") < 100
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, what="all are closed", limit_seconds=60.0)
