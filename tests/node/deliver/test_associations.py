"""Associations that stay open between objects, to an archive on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pynetdicom import evt
from pynetdicom.association import Association

from node.deliver.connections import Associations
from node.errors import DestinationDown, GiveUp
from node.outputs import gsps
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.settings.destinations import DicomDestination
from tests.support import peers, samples, senders


class Archive(peers.ReceivingArchive):
    """An archive that notes how its associations begin and end."""

    def __init__(self) -> None:
        self.accepted, self.released = 0, 0
        self.associations: list[Association] = []
        super().__init__(handlers=[(evt.EVT_ACCEPTED, self._on_accepted), (evt.EVT_RELEASED, self._on_released)])

    def _on_accepted(self, event: evt.Event) -> None:
        self.accepted += 1
        self.associations.append(event.assoc)

    def _on_released(self, _event: evt.Event) -> None:
        self.released += 1

    def wait_for_releases(self, count: int) -> None:
        peers.wait_until(lambda: self.released >= count, what=f"{count} associations released", limit_seconds=10.0)


@pytest.fixture
def archive() -> Iterator[Archive]:
    with Archive() as archive:
        yield archive


@pytest.fixture
def associations() -> Iterator[Associations]:
    associations = Associations(idle_seconds=30.0)
    yield associations
    associations.close()


def to(archive: Archive) -> DicomDestination:
    return DicomDestination(name="pacs", ae_title=archive.ae_title, host=peers.LOOPBACK, port=archive.port)


def objects() -> tuple[Dataset, Dataset]:
    """A report and a presentation state of one film."""
    report, received = samples.report(samples.several()), samples.received(samples.cr(1))
    headers = {uid: source.header for uid, source in received.items()}
    written = (
        samples.datasets(sr.write, report, headers, samples.BERLIN)[0],
        samples.datasets(gsps.write, report, received, samples.BERLIN)[0],
    )
    first, second = (dcmread(BytesIO(save_bytes(dataset))) for dataset in written)
    return first, second


def deliver(dataset: Dataset, destination: DicomDestination, associations: Associations) -> None:
    senders.deliver(save_bytes(dataset), destination, calling_aet="CHEX", associations=associations)


def test_objects_of_several_classes_share_an_association(archive: Archive, associations: Associations) -> None:
    written = objects()

    for dataset in written * 2:
        deliver(dataset, to(archive), associations)

    assert [received.dataset for received in archive.kept] == [*written, *written]
    assert archive.accepted == 1
    assert archive.released == 0


def test_an_association_that_nothing_uses_is_released(archive: Archive) -> None:
    associations = Associations(idle_seconds=0.2)
    deliver(objects()[0], to(archive), associations)

    archive.wait_for_releases(1)

    deliver(objects()[1], to(archive), associations)
    assert archive.accepted == 2
    associations.close()


def test_a_stop_releases_what_is_open(archive: Archive, associations: Associations) -> None:
    deliver(objects()[0], to(archive), associations)

    associations.close()

    archive.wait_for_releases(1)
    deliver(objects()[1], to(archive), associations)
    archive.wait_for_releases(2)
    assert len(archive.kept) == 2


def test_an_archive_that_was_restarted_gets_a_new_one(archive: Archive, associations: Associations) -> None:
    first, second = objects()
    deliver(first, to(archive), associations)
    with archive.down(), pytest.raises(DestinationDown):
        deliver(second, to(archive), associations)

    deliver(second, to(archive), associations)

    assert archive.accepted == 2
    assert len(archive.kept) == 2


def test_an_association_that_ends_at_the_request_is_opened_anew(archive: Archive, associations: Associations) -> None:
    first, second = objects()
    deliver(first, to(archive), associations)
    archive.is_poison = lambda _: len(archive.requests) == 2

    deliver(second, to(archive), associations)

    assert archive.accepted == 2
    assert len(archive.requests) == 3


def test_a_refused_object_leaves_the_association_open(archive: Archive, associations: Associations) -> None:
    first, second = objects()
    archive.stop()
    archive.refuse_class(str(second.SOPClassUID))
    archive.start()
    deliver(first, to(archive), associations)

    with pytest.raises(GiveUp):
        deliver(second, to(archive), associations)
    archive.refuse(0xC000)
    with pytest.raises(GiveUp):
        deliver(first, to(archive), associations)
    archive.accept()
    deliver(first, to(archive), associations)

    assert len(archive.kept) == 2


def test_changed_settings_open_a_new_association(archive: Archive, associations: Associations) -> None:
    first, second = objects()
    deliver(first, to(archive), associations)

    deliver(second, replace(to(archive), answer_seconds=5.0), associations)

    assert archive.accepted == 2


def test_an_archive_that_releases_is_answered(archive: Archive, associations: Associations) -> None:
    first, second = objects()
    deliver(first, to(archive), associations)
    [theirs], [[ours]] = archive.associations, associations._kept.values()
    releasing = threading.Thread(target=theirs.release)
    releasing.start()
    peers.wait_until(lambda: not ours.association.is_established, what="our side has answered the release")

    deliver(second, to(archive), associations)

    releasing.join(4.0)  # less than the time after which either side gives up
    assert theirs.is_released
    assert archive.accepted == 2


def test_an_association_that_the_archive_aborts_is_opened_anew(archive: Archive, associations: Associations) -> None:
    first, second = objects()
    deliver(first, to(archive), associations)
    [theirs] = archive.associations
    theirs.abort()

    deliver(second, to(archive), associations)

    assert archive.accepted == 2
