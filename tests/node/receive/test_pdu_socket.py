"""The bytes of one connection are read whole, in order and in time, however they arrive."""

from __future__ import annotations

import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO

import pytest
from pynetdicom import AE
from pynetdicom.association import Association

from node.net.pynetdicom_adapter import MessageProvider, PduSocket
from tests.support.peers import LOOPBACK


def pdu(length: int, *, kind: int = 4) -> bytes:
    """A PDU with a content of so many bytes, no two PDUs alike."""
    return bytes([kind, 0]) + length.to_bytes(4, "big") + random.Random(length).randbytes(length)


@pytest.mark.parametrize(
    "lengths", [[4, 9], [0, 0, 1], [131_072, 1, 131_072], [1_048_576, 3, 1_048_576], [700_000] * 3]
)
def test_pdus_are_read_in_order_however_they_arrive(lengths: list[int]) -> None:
    sent = [pdu(length) for length in lengths]
    with reading() as (sender, reader):
        sending = threading.Thread(target=send_in_pieces, args=(sender, b"".join(sent), random.Random(5)))
        sending.start()
        assert [bytes(reader.read()) for _ in sent] == sent
        sending.join()
        sender.sendall(pdu(4) + pdu(6))
        assert reader.read() == pdu(4)
        assert reader.ready, "what came with the one before has arrived"
        assert reader.read() == pdu(6)
        assert not reader.ready


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", ConnectionResetError),
        (pdu(4)[:3], ConnectionResetError),
        (pdu(4)[:-1], ConnectionResetError),
        (pdu(4, kind=0), ValueError),
        (b"GET / HTTP/1.1", ValueError),
        (bytes.fromhex("04 00 00100001"), ConnectionAbortedError),
    ],
)
def test_what_is_no_whole_pdu_in_time_is_refused(sent: bytes, error: type[Exception]) -> None:
    with reading() as (sender, reader):
        sender.sendall(sent)
        sender.shutdown(socket.SHUT_WR)

        with pytest.raises(error):
            reader.read()
    with reading(request_seconds=0.2) as (sender, reader):
        sender.sendall(sent)

        with pytest.raises(TimeoutError if error is ConnectionResetError else error):
            reader.read()


def test_a_peer_that_takes_no_answer_is_left_in_time_and_no_buffer_is_held() -> None:
    with reading(idle_seconds=0.2) as (_, reader):
        sending = threading.Thread(target=reader.send, args=(b"\4" + bytes(50_000_000),), daemon=True)
        sending.start()
        sending.join(20)

        assert not sending.is_alive()
        assert "Evt17" in reader.event_queue.queue  # the connection is closed (PS3.8 9.2)
    tracemalloc.start()
    with reading() as (_, reader):
        before, _ = tracemalloc.get_traced_memory()
        reader.discard()
        assert before - tracemalloc.get_traced_memory()[0] > 1_000_000
    tracemalloc.stop()


@contextmanager
def reading(*, request_seconds: float = 60.0, idle_seconds: float = 60.0) -> Iterator[tuple[socket.socket, PduSocket]]:
    """One end of a connection, and a reader of the other one."""
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        messages = MessageProvider(
            Association(AE(), "acceptor"),
            open_dataset=lambda _command, _context: BytesIO(),
            is_too_long=lambda _command, _dataset: False,
            on_aborted=lambda _reason: None,
        )
        end = time.monotonic() + request_seconds
        made = PduSocket(messages, receiver, request_end=end, idle_seconds=idle_seconds, on_admitted=lambda: None)
        with receiver:
            yield sender, made


def send_in_pieces(sender: socket.socket, content: bytes, draw: random.Random) -> None:
    """Send pieces of random lengths."""
    while content:
        piece, content = content[: (length := draw.randint(1, 40_000))], content[length:]
        sender.sendall(piece)
