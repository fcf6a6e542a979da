"""kill -9 between any two steps, then a start: the study still gets exactly its SR and GSPS, once."""

from pathlib import Path

import pytest

from tests import films, peers
from tests.service import Service, settings_for

# ready, plan, read, write, queue, finish, begin, send, send: one film, an SR and a GSPS, one destination
STEPS = 9


@pytest.mark.parametrize("die_at", range(1, STEPS + 1))
def test_a_node_killed_after_any_step_still_delivers_exactly_once(tmp_path: Path, die_at: int) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings, die_at=die_at) as first:
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            assert first.wait_until_dead() == -9

        with Service(settings) as second:
            archive.wait_for_kept(2)
            second.wait_for("service.ready")
            assert second.stop() == 0

        assert sorted(one.dataset.Modality for one in archive.kept) == ["PR", "SR"]


def test_a_node_killed_right_after_success_still_delivers(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as first:
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            first.kill()

        with Service(settings):
            archive.wait_for_kept(2)

        assert len(archive.kept) == 2


def test_a_node_that_loses_its_databases_starts_again_from_the_spool(tmp_path: Path) -> None:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port, quiet_seconds=20.0)
        with Service(settings) as first:
            assert peers.send(films.thumbnail(), port=first.dicom_port) == 0
            first.wait_for("study.submitted")
        for database in settings.storage.directory.glob("*.sqlite*"):
            database.unlink()

        with Service(settings_for(tmp_path / "node", archive_port=archive.port)):
            archive.wait_for_kept(2)

        assert len(archive.kept) == 2
