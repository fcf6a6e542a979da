"""kill -9, lost databases, a failing disk, then a start: the study still gets exactly its SR and GSPS.

`tests/node/jobs/test_deaths.py` has a death after every step.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from node.config import CorrectionsSettings, QuestionsSettings, Settings
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, settings_for
from tests.support.workstation import finding, group, region, report


def test_a_node_killed_right_after_success_and_without_its_databases_still_delivers(
    archive: ReceivingArchive, settings: Settings
) -> None:
    film, kept, awaited = (
        films.as_another(films.thumbnail(), name, study=name) for name in ("film", "kept", "awaited")
    )
    square = region(awaited, "POLYLINE", [2, 3, 20, 3, 20, 30, 2, 30, 2, 3])
    asks, corrects = QuestionsSettings(ae_titles=("TESTER",)), CorrectionsSettings(quiet_seconds=3.0)
    settings = replace(settings, questions=asks, corrections=corrects)
    with Service(settings) as first:
        assert peers.send(film, port=first.dicom_port) == 0
        first.kill()
    # What stays if it dies before it hands the study to the executor: a film, and no workflow.
    films.keep(Spool(settings.storage.directory), kept)

    path = f"/api/v1/films/{film.SOPInstanceUID}"
    with archive.down(), Service(settings) as second:
        second.wait_for("study.finished", count=2)
        second.wait_for("delivery.delayed")
        _, answer = second.ask("POST", f"{path}/questions", {"questions": [{"prompt": "Edema"}]})
        question = cast(list[dict[str, str]], answer["questions"])[0]["id"]
        assert second.ask("POST", f"/api/v1/questions/{question}/send")[0] == 202
        second.wait_for("answer.written")
        assert second.ask("POST", f"{path}/corrections", {"kind": "reject", "prompt": "atelectasis"})[0] == 202
        assert peers.send(report(awaited, group(finding("edema"), square)), port=second.dicom_port) == 0
        second.kill()
    for database in settings.storage.directory.glob("*.sqlite*"):
        database.unlink()

    with Service(settings) as third:
        assert peers.send(awaited, port=third.dicom_port) == 0
        third.wait_for("question.answered")
        # Report and state of three films, of two answers, and of what was corrected.
        archive.wait_for_kept(12, limit_seconds=60)
        third.wait_for("delivery.sent", count=12)
        _, listed = third.ask("GET", "/api/v1/studies")
        assert third.stop() == 0

    assert Counter(each.dataset.Modality for each in archive.kept) == {"SR": 6, "PR": 6}
    assert len({each.sop_instance_uid for each in archive.kept}) == 12
    studies = {line["uid"] for line in cast(list[dict[str, str]], listed["studies"])}
    assert studies == {str(each.StudyInstanceUID) for each in (film, kept, awaited)}


@pytest.mark.drill(part="kills")
def test_a_failing_disk_ends_the_process_and_nothing_is_lost(archive: ReceivingArchive, settings: Settings) -> None:
    film = films.thumbnail()
    in_the_way = settings.storage.directory / "studies" / film.StudyInstanceUID / "readings"
    with Service(settings) as first:
        in_the_way.parent.mkdir(parents=True)
        in_the_way.write_text("no folder", encoding="utf-8")
        assert peers.send(film, port=first.dicom_port) == 0
        assert first.wait_until_dead() == 1
        assert first.logged("executor.broken")
    in_the_way.unlink()

    with Service(settings) as second:
        archive.wait_for_kept(2)
        assert second.stop() == 0

    assert len(archive.kept) == 2


def test_a_second_node_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=peers.free_port())
    with Service(settings) as first:
        second = Service(settings)
        assert second.wait_until_dead() == 1
        second.kill()

        assert not second.logged("service.ready")
        assert first.stop() == 0
