"""An archive that goes away before it has committed: nobody asks it again and again."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from node.domain import derive_uid
from node.settings.destinations import DicomDestination
from tests.support import films, peers
from tests.support.committing import Answer, Committing
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="peers")

STUDIES = 4
AT_ONCE = 2


def test_an_archive_that_is_down_gets_few_commitment_requests(tmp_path: Path) -> None:
    committing = Committing(Answer.BUSY)
    archive = peers.ReceivingArchive(handlers=committing.handlers)
    settings = settings_for(tmp_path / "node", archive_port=archive.port)
    (receiver,) = settings.destinations
    assert isinstance(receiver, DicomDestination)
    settings = dataclasses.replace(settings, destinations=(dataclasses.replace(receiver, storage_commitment=True),))
    with archive, Service(settings) as node:
        for number in range(STUDIES):
            names = ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
            film = films.thumbnail({name: derive_uid(name, str(number)) for name in names})
            assert peers.send(film, port=node.dicom_port) == 0
        node.wait_for("delivery.sent", count=2 * STUDIES)
        with archive.down():
            committing.answer = Answer.AT_ONCE  # only now: an archive that is up would commit to everything first
            node.wait_for("destination.down")
        node.wait_for("delivery.committed", count=2 * STUDIES)

        in_vain = [line for line in node.logged("commitment.delayed") if "0213" not in str(line["reason"])]
        assert 1 <= len(in_vain) <= AT_ONCE
        assert len(node.logged("destination.back")) == 1
        assert node.stop() == 0
