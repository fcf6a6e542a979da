"""The bytes of one connection are read whole, in order and in time, however they arrive."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from node.net.pdu_reader import PduReader
from tests.support.peers import LOOPBACK, wait_until


def test_what_was_read_is_acknowledged_before_a_wait() -> None:
    with reading() as (sender, receiver, reader):
        receiver.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        sender.sendall(b"half")

        assert reader.read(4) == b"half"
        assert not reader.is_ready(wait_milliseconds=1)
        assert receiver.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1


@pytest.mark.parametrize("sizes", [[6, 4, 6, 9], [6, 0, 6, 0], [6, 131_072, 6, 1], [1, 2, 3, 13]])
def test_bytes_are_read_in_order_however_they_arrive(sizes: list[int]) -> None:
    sent, draw = random.Random(4).randbytes(sum(sizes)), random.Random(5)
    with reading() as (sender, _, reader):
        sending = threading.Thread(target=send_in_pieces, args=(sender, sent, draw))
        sending.start()
        read = [bytes(reader.read(size)) for size in sizes]
        sending.join()
        sender.shutdown(socket.SHUT_WR)

        assert [len(part) for part in read] == sizes
        assert b"".join(read) == sent
        assert reader.read(6) == b""


def test_a_head_that_came_with_the_pdu_before_counts_as_arrived() -> None:
    with reading() as (sender, _, reader):
        sender.sendall(b"body" + b"header")
        wait_until(lambda: reader.is_ready(wait_milliseconds=0), what="all has arrived")

        assert reader.read(4) == b"body"
        assert reader.is_ready(wait_milliseconds=0)
        assert reader.read(6) == b"header"
        assert not reader.is_ready(wait_milliseconds=0)


def test_the_rest_of_a_pdu_must_come_in_time() -> None:
    with reading(request_seconds=0.2) as (sender, _, reader):
        sender.sendall(b"hal")

        with pytest.raises(TimeoutError):
            reader.read(4)


@contextmanager
def reading(*, request_seconds: float = 60.0) -> Iterator[tuple[socket.socket, socket.socket, PduReader]]:
    """Two ends of a connection, and a reader of the second one."""
    with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            yield (
                sender,
                receiver,
                PduReader(
                    receiver,
                    leave_pending=lambda: None,
                    request_end=time.monotonic() + request_seconds,
                    idle_seconds=60.0,
                    on_aborted=lambda _reason: None,
                ),
            )


def send_in_pieces(sender: socket.socket, content: bytes, draw: random.Random) -> None:
    """Send pieces of random lengths."""
    while content:
        piece, content = content[: (length := draw.randint(1, 40_000))], content[length:]
        sender.sendall(piece)
