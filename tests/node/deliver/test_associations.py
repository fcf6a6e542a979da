"""Associations that stay open between objects, to an archive on this machine."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial

import pytest
from pydicom.dataset import Dataset
from pydicom.uid import ComprehensiveSRStorage, GrayscaleSoftcopyPresentationStateStorage, JPEG2000Lossless
from pynetdicom import evt
from pynetdicom.association import Association

from node.deliver import connections, dicom
from node.deliver.connections import Associations
from node.deliver.kinds import Calling
from node.errors import DestinationDown, GiveUp
from node.settings.destinations import DicomDestination
from tests.support import films, pdus, peers, senders
from tests.support.pdus import item
from tests.support.peers import LOOPBACK, wait_until

LARGE = 12_000_000
"""Bytes of pixels that do not fit into what a connection holds between two programs."""
RESET = 0
"""How an association ends that the node does not release: with the type of its last PDU, or with none."""


class Archive(peers.ReceivingArchive):
    """An archive that notes how its associations begin and end."""

    def __init__(self) -> None:
        self.accepted, self.released = list[Association](), list[Association]()
        super().__init__(
            handlers=[
                (evt.EVT_ACCEPTED, lambda event: self.accepted.append(event.assoc)),
                (evt.EVT_RELEASED, lambda event: self.released.append(event.assoc)),
            ]
        )

    def wait_for_releases(self, count: int) -> None:
        peers.wait_until(lambda: len(self.released) >= count, what=f"{count} associations released", limit_seconds=10.0)


@pytest.fixture
def archive() -> Iterator[Archive]:
    with Archive() as archive:
        yield archive


@pytest.fixture
def associations() -> Iterator[Associations]:
    associations = Associations(idle_seconds=30.0)
    yield associations
    associations.close()


def to(archive: peers.ReceivingArchive) -> DicomDestination:
    return DicomDestination(name="pacs", ae_title=archive.ae_title, host=peers.LOOPBACK, port=archive.port)


def objects() -> tuple[Dataset, Dataset]:
    """Objects of two classes of the node's own."""
    first, second = (films.as_another(films.thumbnail(), name) for name in ("first", "second"))
    return films.of_class(first, ComprehensiveSRStorage), films.of_class(
        second, GrayscaleSoftcopyPresentationStateStorage
    )


def deliver(dataset: Dataset, destination: DicomDestination, associations: Associations) -> None:
    senders.deliver(films.file_bytes(dataset), destination, calling_aet="CHEX", associations=associations)


def test_objects_of_several_classes_share_an_association(archive: Archive, associations: Associations) -> None:
    written = objects()

    for dataset in written * 2:
        deliver(dataset, to(archive), associations)

    assert [received.dataset for received in archive.kept] == [*written, *written]
    assert (len(archive.accepted), archive.released) == (1, [])


def test_an_association_in_use_is_renewed_within_a_minute(
    archive: Archive, associations: Associations, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connections._LONGEST_SECONDS == 60.0
    monkeypatch.setattr(connections, "_LONGEST_SECONDS", 0.2)
    deliver(objects()[0], to(archive), associations)

    archive.wait_for_releases(1)


def test_an_object_of_another_syntax_gets_an_association_that_takes_it(associations: Associations) -> None:
    written = films.thumbnail(), films.compressed(films.thumbnail(), JPEG2000Lossless)
    with peers.ReceivingArchive(compressed=[JPEG2000Lossless]) as archive:
        for dataset in written:
            deliver(dataset, to(archive), associations)

    syntaxes = [dataset.file_meta.TransferSyntaxUID for dataset in written]
    assert [received.transfer_syntax_uid for received in archive.kept] == syntaxes


def test_an_association_that_nothing_uses_is_released_and_at_a_stop_each(archive: Archive) -> None:
    associations = Associations(idle_seconds=0.2)
    deliver(objects()[0], to(archive), associations)
    archive.wait_for_releases(1)

    deliver(objects()[1], to(archive), associations)
    assert len(archive.accepted) == 2
    associations.close()
    archive.wait_for_releases(2)

    deliver(objects()[1], to(archive), associations)
    archive.wait_for_releases(3)
    assert len(archive.kept) == 3


def test_a_refused_object_leaves_the_association_open(archive: Archive, associations: Associations) -> None:
    first, second = objects()
    archive.stop()
    archive.refuse_class(str(second.SOPClassUID))
    archive.start()
    deliver(first, to(archive), associations)

    with pytest.raises(GiveUp, match="enable it there"):
        deliver(second, to(archive), associations)
    archive.refuse(0xC000)
    with pytest.raises(GiveUp):
        deliver(first, to(archive), associations)
    archive.accept()
    deliver(first, to(archive), associations)

    assert len(archive.kept) == 2


def restarts(archive: Archive, associations: Associations) -> None:
    with archive.down(), pytest.raises(DestinationDown):
        deliver(objects()[1], to(archive), associations)


def ends_at_the_request(archive: Archive, _associations: Associations) -> None:
    archive.is_poison = lambda _: len(archive.requests) == 2


def aborts(archive: Archive, _associations: Associations) -> None:
    archive.accepted[0].abort()


def releases(archive: Archive, associations: Associations) -> None:
    [theirs], [[ours]] = archive.accepted, associations._kept.values()
    releasing = threading.Thread(target=theirs.release)
    releasing.start()
    peers.wait_until(lambda: not ours.is_established, what="our side has answered the release")
    releasing.join(4.0)  # less than the time after which either side gives up
    assert theirs.is_released


@pytest.mark.parametrize("end", [restarts, ends_at_the_request, aborts, releases])
def test_an_association_that_the_archive_ends_is_opened_anew(
    archive: Archive, associations: Associations, end: Callable[[Archive, Associations], None]
) -> None:
    first, second = objects()
    deliver(first, to(archive), associations)
    end(archive, associations)

    deliver(second, to(archive), associations)

    assert len(archive.accepted) == 2
    assert {received.sop_instance_uid for received in archive.kept} == {first.SOPInstanceUID, second.SOPInstanceUID}


def test_changed_settings_open_a_new_association_and_what_gets_no_answer_in_time_is_not_sent_again(
    archive: Archive, associations: Associations
) -> None:
    impatient = replace(to(archive), answer_seconds=0.5)
    first, second = objects()
    deliver(first, to(archive), associations)
    deliver(first, impatient, associations)
    assert len(archive.accepted) == 2
    archive.hang()

    with pytest.raises(DestinationDown):
        deliver(second, impatient, associations)

    archive.accept()
    assert len(archive.requests) == 3


class ScriptedArchive:
    """Serves each association by the next script, and by `keep` when none is left."""

    def __init__(self, *scripts: Callable[[ScriptedArchive], None]) -> None:
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

    def wait_until_full(self) -> None:
        """Wait until nothing more comes for half a second: the sender can send no more."""
        held, since = -1, time.monotonic()
        while time.monotonic() - since < 0.5:
            waiting = struct.unpack("i", fcntl.ioctl(self._peer, termios.FIONREAD, bytes(4)))[0]
            if waiting != held or not waiting:
                held, since = waiting, time.monotonic()
            time.sleep(0.02)

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


def keep(scripted: ScriptedArchive) -> None:
    while True:
        number = scripted.request()
        scripted.object()
        scripted.kept += 1
        scripted.answer(number)


def another(scripted: ScriptedArchive, *, by: int = 1, status: int = 0) -> None:
    number = scripted.request()
    scripted.object()
    scripted.answer(number + by, status=status)


def none(scripted: ScriptedArchive) -> None:
    scripted.request()
    scripted.object()
    scripted.answer(0)


another_failed = partial(another, by=7, status=0xC000)


def within_the_object(scripted: ScriptedArchive) -> None:
    scripted.answer(scripted.request())
    scripted.wait_until_full()
    scripted.object()


def before_the_request(scripted: ScriptedArchive) -> None:
    for number in range(1, 200):
        scripted.answer(number)
    scripted.request()
    scripted.object()


def twice(scripted: ScriptedArchive, *, by: int = 0) -> None:
    number = scripted.request()
    scripted.object()
    scripted.kept += 1
    scripted.answer(number)
    scripted.answer(number + by)
    scripted.request()
    scripted.object()


twice_in_advance = partial(twice, by=1)


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


def film(name: str, *, pixels: int = 0) -> bytes:
    another = films.as_another(films.thumbnail(), name)
    if pixels:
        another.PixelData = bytes(pixels)
    return films.file_bytes(another)


@pytest.mark.parametrize("script", [another, none, another_failed, before_the_request, within_the_object])
def test_an_answer_out_of_turn_is_no_answer(script: Callable[[ScriptedArchive], None]) -> None:
    content = film("one", pixels=LARGE if script is within_the_object else 0)
    with closing(ScriptedArchive(script)) as pacs:
        with pytest.raises(DestinationDown):
            dicom.send(content, pacs.destination, Calling(ae_title="CHEX"))
        # A connection that is closed with answers unread is reset, and who sent them may then not see the abort.
        ends = {pdus.ABORT, RESET} if script is before_the_request else {pdus.ABORT}
        wait_until(lambda: ends.issuperset(pacs.ends) and len(pacs.ends) == 1, what="the association is aborted")
        dicom.send(content, pacs.destination, Calling(ae_title="CHEX"))

    assert (pacs.associations, pacs.kept) == (2, 1)


@pytest.mark.parametrize("script", [twice, twice_in_advance])
def test_an_answer_too_many_is_not_that_of_the_next_object(script: Callable[[ScriptedArchive], None]) -> None:
    associations = Associations(idle_seconds=30.0)
    with closing(ScriptedArchive(script)) as pacs:
        for name in ("one", "two"):
            dicom.send(film(name), pacs.destination, Calling(ae_title="CHEX", associations=associations))
        associations.close()

    assert (pacs.associations, pacs.kept) == (2, 2)
