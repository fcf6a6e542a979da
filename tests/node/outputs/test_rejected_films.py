"""Films that an archive has rejected, as pages, interface for programs, metrics and `explain` show them."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from node.store.study_facts import rejections_of
from tests.node.jobs.test_rounds import STUDY, Bench, film
from tests.node.outputs.test_rejection import highdicom_note
from tests.node.test_metrics import samples
from tests.support import films, peers
from tests.support.peers import LOOPBACK
from tests.support.service import Service, run_command, settings_for


def fetch(service: Service, path: str) -> str:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{service.http_port}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def test_a_rejection_has_a_reason_and_a_time(tmp_path: Path) -> None:
    bench, wrong, right = Bench(tmp_path), film("wrong"), film("right")
    for received in (wrong, right, highdicom_note(wrong)):
        bench.receive(received)

    found = rejections_of(bench.spool.study(STUDY).instances)

    note = next(item for item in bench.spool.study(STUDY).instances if item.sop_instance_uid == "1.2.3.4.8")
    assert found.keys() == {str(wrong.SOPInstanceUID)}
    [rejected] = found.values()
    assert (rejected.code, rejected.meaning, rejected.at) == (
        "113001",
        "Rejected for Quality Reasons",
        note.received_at,
    )


def test_rejected_films_are_counted_once_by_reason(tmp_path: Path) -> None:
    bench, wrong = Bench(tmp_path), film("wrong")
    bench.receive(wrong)
    bench.round()
    bench.receive(highdicom_note(wrong))
    bench.round()
    bench.receive(highdicom_note(wrong, uid="1.2.3.4.10"))
    bench.round()

    counted = samples(bench.steps.metrics.registry, "cxr_films_rejected_total")

    assert {reason: count for (reason,), count in counted.items()} == {
        "quality": 1.0,
        "patient_safety": 0.0,
        "worklist": 0.0,
        "retention": 0.0,
    }


@pytest.mark.drill(part="objects")
def test_a_rejected_film_is_shown_as_such_everywhere(tmp_path: Path) -> None:
    wrong = films.thumbnail()
    uid = wrong.SOPInstanceUID
    with (
        peers.ReceivingArchive() as archive,
        Service(settings_for(tmp_path / "node", archive_port=archive.port)) as service,
    ):
        assert peers.send(wrong, port=service.dicom_port) == 0
        service.wait_for("study.finished")
        before = fetch(service, f"/studies/{STUDY}?film={uid}")
        assert peers.send(highdicom_note(wrong), port=service.dicom_port) == 0
        service.wait_for("study.finished", count=2)
        [line] = json.loads(fetch(service, "/api/v1/studies"))["studies"]
        detail = json.loads(fetch(service, f"/api/v1/studies/{STUDY}"))
        queue = json.loads(fetch(service, "/api/v1/review"))
        worklist, page = fetch(service, "/"), fetch(service, f"/studies/{STUDY}?film={uid}")
        explained = run_command("explain", STUDY, service.settings_path).stdout
        service.stop()

    [shown] = [item for item in detail["films"] if item["uid"] == uid]
    assert 'class="finding ' in before
    assert 'class="finding ' not in page
    assert "Rejected for Quality Reasons (113001 DCM)" in page
    assert (shown["status"], shown["rejected"]["code"]) == ("rejected", "113001")
    assert (line["read"], line["rejected"], line["marks"]) == (0, 1, [])
    assert "1 rejected" in worklist
    assert queue["films"] == []
    assert "rejected by the archive" in explained
