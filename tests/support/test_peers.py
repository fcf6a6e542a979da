"""The tests' own peers do what they say: a peer that errs would prove nothing about the node."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydicom import Dataset, dcmread
from pydicom.data import get_testdata_file

from tests.support.peers import LOOPBACK, ReceivingArchive, responds, send, send_all, wait_until


@pytest.fixture
def archive() -> Iterator[ReceivingArchive]:
    with ReceivingArchive() as running:
        yield running


@pytest.fixture
def image() -> Dataset:
    return dcmread(Path(str(get_testdata_file("CT_small.dcm", download=False))))


def test_an_archive_keeps_what_it_is_sent(archive: ReceivingArchive, image: Dataset) -> None:
    statuses = send_all([image, image], port=archive.port, called_ae="ARCHIVE", calling_ae="MODALITY")

    assert statuses == [0x0000, 0x0000]
    assert [received.calling_ae for received in archive.kept] == ["MODALITY", "MODALITY"]
    assert archive.kept[0].dataset == image


def test_an_archive_that_refuses_counts_what_it_did_not_take(archive: ReceivingArchive, image: Dataset) -> None:
    archive.refuse(0xA700)

    assert send(image, port=archive.port, called_ae="ARCHIVE") == 0xA700
    assert (len(archive.requests), len(archive.kept)) == (1, 0)


def test_an_archive_that_rejects_gets_nothing(archive: ReceivingArchive, image: Dataset) -> None:
    archive.reject()

    assert send(image, port=archive.port, called_ae="ARCHIVE") is None
    assert archive.requests == []


def test_an_archive_that_drops_the_connection_gives_no_status(archive: ReceivingArchive, image: Dataset) -> None:
    archive.drop()

    assert send_all([image, image], port=archive.port, called_ae="ARCHIVE") == [None, None]
    assert (len(archive.requests), len(archive.kept)) == (1, 0)


def test_an_archive_that_hangs_answers_when_it_is_told_to(archive: ReceivingArchive, image: Dataset) -> None:
    archive.hang()
    statuses: list[int | None] = []
    sender = threading.Thread(
        target=lambda: statuses.append(send(image, port=archive.port, called_ae="ARCHIVE")), name="sender"
    )

    sender.start()
    archive.wait_for_requests(1)
    assert statuses == []
    archive.accept()
    sender.join(30)

    assert statuses == [0x0000]


def test_an_archive_that_was_down_comes_back_at_its_port(archive: ReceivingArchive, image: Dataset) -> None:
    with archive.down():
        assert send(image, port=archive.port, called_ae="ARCHIVE") is None

    assert send(image, port=archive.port, called_ae="ARCHIVE") == 0x0000


def test_a_server_that_resets_the_connection_is_not_up_yet() -> None:
    requests: list[bytes] = []

    def reset_the_first(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        requests.append(connection.recv(65536))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    with socket.create_server((LOOPBACK, 0)) as listener:
        listener.settimeout(30)
        thread = threading.Thread(target=reset_the_first, args=(listener,), name="server", daemon=True)
        thread.start()
        up = responds(f"http://{LOOPBACK}:{listener.getsockname()[1]}/")
        thread.join(30)

    assert not up
    assert len(requests) == 1 and requests[0].startswith(b"GET /")


def test_a_peer_that_is_too_slow_to_answer_is_asked_again() -> None:
    answers = iter([TimeoutError, True])

    def has_come() -> bool:
        answer = next(answers)
        if answer is TimeoutError:
            raise TimeoutError
        return True

    wait_until(has_come, what="the peer has come")

    assert list(answers) == []
