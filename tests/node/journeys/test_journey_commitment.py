"""Storage commitment with a real Orthanc, which answers on an association of its own to the node's port."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from node.settings.destinations import DicomDestination
from tests.node.journeys.test_journey_delivery import deliveries_of
from tests.support import films, peers
from tests.support.orthanc import Orthanc
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="peers")


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
