"""Messages that are odd: each is served as a good one, refused, or ends its association, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
from io import BytesIO
from unittest.mock import Mock

import pytest
from pydicom.uid import UID, CTImageStorage
from pynetdicom import AE, build_context
from pynetdicom.association import Association
from pynetdicom.dsutils import decode, encode

from node.errors import Refused
from node.receive.dimse import DatasetOnDisk, Reception
from node.store.incoming import Incoming
from tests.support import films, pdus
from tests.support.listening import Node, is_clean
from tests.support.pdus import Recording
from tests.support.peers import LOOPBACK, wait_until

VERIFICATION = "1.2.840.10008.1.1"
LAST_OF_COMMAND, LAST_OF_DATASET = 3, 2
BESIDE = 3
"""The id of a second presentation context."""
OUTCOMES = ("kept", "repeated", "conflict", "refused")


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


def test_an_object_in_the_context_of_another_service_is_refused(node: Node) -> None:
    film = films.thumbnail()
    asked = [build_context(VERIFICATION, film.file_meta.TransferSyntaxUID)]
    association = AE(ae_title="TESTER").associate(LOOPBACK, node.listener.port, ae_title="CHEX", contexts=asked)
    (context,) = association.accepted_contexts
    context._abstract_syntax = UID(film.SOPClassUID)  # what it was negotiated for is forgotten at the sender alone

    answer = association.send_c_store(film)
    assert answer.Status == 0xC000
    assert "context is not for storage" in answer.ErrorComment
    assert len(answer.ErrorComment) <= 64, "PS3.7 C.4.2"
    association.release()

    assert list(node.spool.studies()) == []
    assert is_clean(node)


def test_an_object_that_is_not_what_its_command_says_is_refused(node: Node, recording: Recording) -> None:
    another_service = command(recording, AffectedSOPClassUID=VERIFICATION)
    another_class = command(recording, AffectedSOPClassUID=CTImageStorage)
    another_object = command(recording, AffectedSOPInstanceUID="1.2.3")
    with pdus.associate(recording, port=node.listener.port) as odd:
        for said in (another_service, another_class, another_object):
            odd.sendall(fragments((LAST_OF_COMMAND, said), (LAST_OF_DATASET, dataset(recording))))

            assert pdus.status_of(pdus.read_pdu(odd)) == 0xC000
    assert list(node.spool.studies()) == []
    assert is_clean(node)


@pytest.mark.parametrize("order", ["data first", "two commands", "two contexts", "no command", "a bad command"])
def test_fragments_that_make_up_no_message_end_the_association(node: Node, recording: Recording, order: str) -> None:
    whole, film = command(recording), dataset(recording)
    other = command(recording, AffectedSOPInstanceUID="1.2.3")
    said = {
        "data first": fragments((0, film[:100]), (LAST_OF_COMMAND, whole), (LAST_OF_DATASET, film)),
        "two commands": fragments((LAST_OF_COMMAND, other), (LAST_OF_COMMAND, whole), (LAST_OF_DATASET, film)),
        "two contexts": fragments((LAST_OF_COMMAND, whole)) + fragments((LAST_OF_DATASET, film), context=BESIDE),
        "no command": fragments((LAST_OF_COMMAND, b"no command at all")),
        "a bad command": fragments((LAST_OF_COMMAND, command(recording, Priority=9)), (LAST_OF_DATASET, film)),
    }
    with pdus.associate(recording, port=node.listener.port) as odd:
        odd.sendall(said[order])

        assert pdus.read_pdu(odd)[:1] == b"\7"
    node.wait_for_abort("protocol")
    assert list(node.spool.studies()) == []


def test_a_command_in_fragments_is_put_together(node: Node, recording: Recording) -> None:
    whole = command(recording)
    with pdus.associate(recording, port=node.listener.port) as slow:
        for at in range(0, len(whole), 10):
            is_last = at + 10 >= len(whole)
            slow.sendall(pdus.data(whole[at : at + 10], control=LAST_OF_COMMAND if is_last else 1))
        slow.sendall(pdus.data(dataset(recording)) + pdus.data(b"", control=LAST_OF_DATASET))

        assert pdus.status_of(pdus.read_pdu(slow)) == 0x0000


@pytest.mark.parametrize("odd", ["context", "no content", "no control", "a command", "an abort", "an end"])
def test_what_does_not_continue_an_object_leaves_nothing(node: Node, recording: Recording, odd: str) -> None:
    film = dataset(recording)
    said = {
        "context": pdus.data(film[1000:2000], context=BESIDE),
        "no content": bytes([pdus.DATA, 0, 0, 0, 0, 4, 0, 0, 0, 0]),
        "no control": bytes([pdus.DATA, 0, 0, 0, 0, 5, 0, 0, 0, 1, 1]),
        "a command": fragments((LAST_OF_COMMAND, command(recording))),
        "an abort": bytes.fromhex("07 00 00000004 00000000"),
        "an end": bytes([pdus.DATA, 0, 0, 1, 0, 0]) + film[:100],
    }
    with pdus.associate(recording, port=node.listener.port) as sender:
        sender.sendall(fragments((LAST_OF_COMMAND, command(recording))) + pdus.data(film[:1000]) + said[odd])
        if odd == "an end":
            sender.shutdown(socket.SHUT_WR)

        assert pdus.read_pdu(sender)[:1] == (b"" if odd in ("an abort", "an end") else b"\7")
    node.wait_until_clean()
    assert [node.count("cxr_instances_total", outcome=outcome) for outcome in OUTCOMES] == [0, 0, 0, 0]


def test_an_object_of_which_a_part_was_not_written_is_never_kept() -> None:
    full = Mock(write=Mock(side_effect=[Refused("no room"), None]))  # its disk takes no byte, and then takes them again
    dataset = DatasetOnDisk(lambda: full)

    for _ in range(2):
        assert dataset.write(b"part") == 4
    with pytest.raises(Refused, match="no room"):
        dataset.take()


def test_a_command_an_object_and_another_dataset_have_limits_of_their_own(node: Node) -> None:
    intake = node.listener.intake
    reception = Reception(Association(AE(), "acceptor"), intake=intake)

    def begin() -> Incoming:
        raise Refused("no room")

    def is_too_long(more: int) -> list[bool]:
        film, other = DatasetOnDisk(begin), BytesIO()
        film.size = intake.longest_bytes + more
        other.seek(16 * 1024 * 1024 + more)
        return [reception.is_too_long(*message) for message in ((64 * 1024 + more, None), (100, film), (100, other))]

    assert (is_too_long(0), is_too_long(1)) == ([False] * 3, [True] * 3)


def test_a_thousand_objects_in_one_pdu_take_no_descriptor_each(node: Node, recording: Recording) -> None:
    message = [(LAST_OF_COMMAND, command(recording)), (LAST_OF_DATASET, b"no film")]
    before = len(os.listdir("/proc/self/fd"))
    with pdus.associate(recording, port=node.listener.port) as hostile:
        hostile.sendall(fragments(*message * 1000))
        node.wait_for_abort("pieces")
    assert node.count("cxr_instances_total", outcome="refused") < 100
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, what="all are closed", limit_seconds=60.0)
