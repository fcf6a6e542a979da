"""A running node and archives that are away, that die of an object, or that say in their own time what they keep."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydicom import Dataset

from node.commands import operate
from node.config import Settings
from node.settings.destinations import DicomDestination
from tests.support import films, peers
from tests.support.committing import Answer, Committing, report
from tests.support.orthanc import Orthanc
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="peers")

# ready, place, plan, read, write, queue, finish, send, send
SENT = 9


def study(number: int) -> Dataset:
    """One film of a study of its own."""
    return films.as_another(films.thumbnail(), f"study {number}", study=f"study {number}")


def committing_settings(folder: Path, archive: peers.ReceivingArchive) -> Settings:
    settings = settings_for(folder / "node", archive_port=archive.port)
    destinations = tuple(
        dataclasses.replace(destination, storage_commitment=True)
        for destination in settings.destinations
        if isinstance(destination, DicomDestination)
    )
    return dataclasses.replace(settings, destinations=destinations)


def deliveries_of(settings: Settings) -> dict[str, int]:
    """What `node status` says of the archive."""
    return operate.status(settings)["deliveries"]["archive"]


def test_an_archive_that_is_down_costs_few_attempts(archive: ReceivingArchive, settings: Settings) -> None:
    with Service(settings) as node:
        with archive.down():
            statuses = peers.send_all([study(number) for number in range(6)], port=node.dicom_port)
            node.wait_for("study.finished", count=6)
            node.wait_for("destination.down")
            assert deliveries_of(settings)["paused"] is True
        archive.wait_for_kept(12, limit_seconds=60.0)
        node.wait_for("destination.back")
        assert node.stop() == 0

    assert statuses == [0] * 6
    assert len(archive.requests) == 12  # none twice
    assert len(node.logged("delivery.delayed")) <= 4  # one for each slot, and one more for each that came between
    assert len(node.logged("destination.down")) == len(node.logged("destination.back")) == 1


def test_objects_that_break_every_association_delay_no_other(tmp_path: Path) -> None:
    poison = {study(number).StudyInstanceUID for number in range(2)}
    with peers.ReceivingArchive() as archive:
        archive.is_poison = lambda received: received.dataset.StudyInstanceUID in poison
        with Service(settings_for(tmp_path / "node", archive_port=archive.port)) as node:
            for number in range(4):
                assert peers.send(study(number), port=node.dicom_port) == 0
            archive.wait_for_kept(4, limit_seconds=60.0)
            assert {received.dataset.StudyInstanceUID for received in archive.kept}.isdisjoint(poison)
            assert node.logged("destination.down") == []
            archive.is_poison = lambda _: False
            archive.wait_for_kept(8, limit_seconds=60.0)


def test_objects_sent_before_a_crash_are_committed_hours_later(tmp_path: Path) -> None:
    committing = Committing(Answer.NEVER)
    with peers.ReceivingArchive(handlers=committing.handlers) as archive:
        settings = committing_settings(tmp_path, archive)
        with Service(settings, die_at=SENT) as first:
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            assert first.wait_until_dead() == -9
        with Service(settings) as second:
            (request, *_) = committing.wait_for_requests(1)
            assert deliveries_of(settings)["sent"] == 2
            assert second.stop() == 0
        with Service(settings) as third:
            assert report(request, port=third.dicom_port, calling_ae="TESTER") is None  # not for others to say
            assert report(request, port=third.dicom_port) == 0x0000
            third.wait_for("delivery.committed", count=2)
            assert third.stop() == 0

    assert len(archive.requests) == 2
    found = deliveries_of(settings)
    assert (found["sent"], found["committed"], found["parked"]) == (0, 2, 0)


def test_orthanc_commits_to_its_objects_though_it_is_no_caller(tmp_path: Path) -> None:
    dicom_port = peers.free_port()
    with Orthanc(tmp_path, node_port=dicom_port) as orthanc:
        settings = settings_for(
            tmp_path / "node", archive_port=orthanc.dicom_port, archive_ae=orthanc.ae_title, dicom_port=dicom_port
        )
        (archive,) = settings.destinations
        assert isinstance(archive, DicomDestination)
        archive = dataclasses.replace(archive, host="localhost", storage_commitment=True)
        settings = dataclasses.replace(settings, destinations=(archive,))
        with Service(settings) as node:
            assert peers.send(films.thumbnail(), port=node.dicom_port) == 0
            node.wait_for("delivery.committed", count=2)
            assert node.logged("commitment.refused") == []
            assert peers.send(films.lateral(), port=node.dicom_port, calling_ae=orthanc.ae_title) is None  # no films
            assert node.stop() == 0

        assert deliveries_of(settings)["committed"] == orthanc.count(films.thumbnail().StudyInstanceUID) == 2
