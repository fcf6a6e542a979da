"""What an archive answers counts only as the answer to the request that it was sent; otherwise it is sent again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from node.deliver import dicom
from node.deliver.connections import Associations
from node.deliver.kinds import Calling
from node.errors import DestinationDown
from node.settings.destinations import DicomDestination
from tests.support import films, pdus
from tests.support.pdus import item
from tests.support.peers import LOOPBACK, wait_until

LARGE = 12_000_000
"""Bytes of pixels that do not fit into what a connection holds between two programs."""


RESET = 0
"""How an association ends that the node does not release: with the type of its last PDU, or with none."""


class Archive:
    """Serves each association by the next script, and by `keep` when none is left."""

    def __init__(self, *scripts: Callable[[Archive], None]) -> None:
        self._scripts = list(scripts)
        self.associations = self.kept = 0
        self.ends: list[int] = []
        self._listening = socket.create_server((LOOPBACK, 0))
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        self.destination = DicomDestination(
            name="pacs", ae_title="ARCHIVE", host=LOOPBACK, port=self._listening.getsockname()[1], answer_seconds=5
        )
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def request(self) -> int:
        """Read the command of a request; its message id."""
        self._command = self._read()
        return pdus.message_id_of(self._command)

    def object(self) -> None:
        """Read the rest of a request."""
        while not pdus.is_last_of_dataset(self._read()):
            pass

    def answer(self, number: int, *, status: int = 0) -> None:
        self._peer.sendall(pdus.store_answer(number, context=self._command[10], status=status))

    def _read(self) -> bytes:
        pdu = pdus.read_pdu(self._peer)
        if pdu[:1] != bytes([pdus.DATA]):
            self.ends.append(pdu[0] if pdu else 0)
            raise EOFError
        return pdu

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                with self._listening.accept()[0] as self._peer:
                    self._peer.settimeout(20)
                    self._peer.sendall(accepted(pdus.read_pdu(self._peer)))
                    self._command = pdus.data(b"")
                    self.associations += 1
                    try:
                        if self._scripts:
                            self._scripts.pop(0)(self)
                        keep(self)
                    except EOFError:
                        pass
                    except OSError:
                        self.ends.append(RESET)


def keep(archive: Archive) -> None:
    while True:
        number = archive.request()
        archive.object()
        archive.kept += 1
        archive.answer(number)


def another(archive: Archive) -> None:
    number = archive.request()
    archive.object()
    archive.answer(number + 1)


def none(archive: Archive) -> None:
    archive.request()
    archive.object()
    archive.answer(0)


def another_failed(archive: Archive) -> None:
    number = archive.request()
    archive.object()
    archive.answer(number + 7, status=0xC000)


def within_the_object(archive: Archive) -> None:
    archive.answer(archive.request())
    time.sleep(0.3)  # while the sender can send no more
    archive.object()


def before_the_request(archive: Archive) -> None:
    for number in range(1, 200):
        archive.answer(number)
    archive.request()
    archive.object()


def twice(archive: Archive) -> None:
    number = archive.request()
    archive.object()
    archive.kept += 1
    for _ in range(2):
        archive.answer(number)
    archive.request()
    archive.object()


def twice_in_advance(archive: Archive) -> None:
    number = archive.request()
    archive.object()
    archive.kept += 1
    archive.answer(number)
    archive.answer(number + 1)
    archive.request()
    archive.object()


def accepted(request: bytes) -> bytes:
    """Accept every context of a request in its transfer syntax."""
    contexts, at = b"", 74
    while at < len(request):
        length = int.from_bytes(request[at + 2 : at + 4], "big")
        if request[at] == 0x20:
            content = request[at + 4 : at + 4 + length]
            contexts += item(0x21, bytes([content[0], 0, 0, 0]) + content[content.index(b"\x40\0") :])
        at += 4 + length
    content = b"\0\1\0\0" + bytes(64) + item(0x10, b"1.2.840.10008.3.1.1.1") + contexts + item(0x50, pdus.USER)
    return b"\2\0" + len(content).to_bytes(4, "big") + content


@contextmanager
def archive(*scripts: Callable[[Archive], None]) -> Iterator[Archive]:
    serving = Archive(*scripts)
    try:
        yield serving
    finally:
        serving.close()


def film(name: str, *, pixels: int = 0) -> bytes:
    another = films.as_another(films.thumbnail(), name)
    if pixels:
        another.PixelData = bytes(pixels)
    return films.file_bytes(another)


@pytest.mark.parametrize("script", [another, none, another_failed, before_the_request, within_the_object])
def test_an_answer_out_of_turn_is_no_answer(script: Callable[[Archive], None]) -> None:
    content = film("one", pixels=LARGE if script is within_the_object else 0)
    with archive(script) as pacs:
        with pytest.raises(DestinationDown):
            dicom.send(content, pacs.destination, Calling(ae_title="CHEX"))
        # A connection that is closed with answers unread is reset, and who sent them may then not see the abort.
        ends = {pdus.ABORT, RESET} if script is before_the_request else {pdus.ABORT}
        wait_until(lambda: ends.issuperset(pacs.ends) and len(pacs.ends) == 1, what="the association is aborted")
        dicom.send(content, pacs.destination, Calling(ae_title="CHEX"))

    assert (pacs.associations, pacs.kept) == (2, 1)


@pytest.mark.parametrize("script", [twice, twice_in_advance])
def test_an_answer_too_many_is_not_that_of_the_next_object(script: Callable[[Archive], None]) -> None:
    associations = Associations(idle_seconds=30.0)
    with archive(script) as pacs:
        for name in ("one", "two"):
            dicom.send(film(name), pacs.destination, Calling(ae_title="CHEX", associations=associations))
        associations.close()

    assert (pacs.associations, pacs.kept) == (2, 2)


def test_a_good_archive_keeps_many_objects_of_all_sizes() -> None:
    associations = Associations(idle_seconds=30.0)
    with archive() as pacs:
        for number in range(20):
            content = film(str(number), pixels=LARGE if number == 10 else 0)
            dicom.send(content, pacs.destination, Calling(ae_title="CHEX", associations=associations))
        associations.close()

    assert (pacs.associations, pacs.kept) == (1, 20)
