"""Corrections of a study wait for their reader to finish, and leave together, whatever happens meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from node.commands.operate import render, status
from node.config import Settings
from node.domain import Delivery
from node.jobs import gathering
from node.store.correction import CorrectionKind
from tests.node.jobs.test_corrected_rounds import KEY, START, correct, meanings, report_of, rounds
from tests.node.jobs.test_rounds import STUDY, Bench, film, predecessor
from tests.support import films
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, read_and_stop

Content = dict[str, object]

READ = films.thumbnail()
UID = str(READ.StudyInstanceUID)
PATH = f"/api/v1/films/{READ.SOPInstanceUID}/corrections"
LONG = 600.0  # seconds: no test waits for it
REJECTION: Content = {"kind": "reject", "prompt": KEY}
ADDITION: Content = {"kind": "add", "prompt": "cardiomegaly", "box": [2.0, 3.0, 20.0, 30.0]}


def release(bench: Bench) -> gathering.Waiting:
    found = gathering.waiting(bench.spool, STUDY)
    gathering.release(bench.spool, STUDY, found)
    return found


def rejected(bench: Bench, number: int = 1) -> str:
    """Store a correction that waits."""
    return correct(bench, number, CorrectionKind.REJECT, prompt=KEY, is_released=False)


def kinds(deliveries: list[Delivery]) -> list[str]:
    return sorted(delivery.kind for delivery in deliveries)


def test_a_correction_that_waits_makes_no_round_and_stays(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    made = rejected(bench)

    assert bench.steps.plan(STUDY) is None
    assert bench.spool.has_unread(STUDY), "retention would remove it"
    assert not bench.spool.remove_study(STUDY)
    found = gathering.waiting(bench.spool, STUDY)
    assert ([item.id for item in found.corrections], found.changes) == ([made], 1)
    assert found.leave_at(60.0) == START.replace(minute=1, second=1)
    queued = list[tuple[str, str, float]]()
    for known in ((), (made,), ("f" * 32,)):
        gathering.wait_again(bench.spool, STUDY, lambda *said: queued.append(said), quiet_seconds=9.0, queued=known)
    assert [(correction, seconds <= 9.0) for _, correction, seconds in queued] == [(made, True)] * 2


def test_corrections_make_one_version_and_what_is_taken_back_in_time_none(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    correct(bench, 2, CorrectionKind.WITHDRAW, withdraws=rejected(bench), is_released=False)
    assert release(bench).changes == 0
    assert bench.round() == []
    assert not bench.spool.has_unread(STUDY)

    made = rejected(bench, 3)
    correct(bench, 4, CorrectionKind.WITHDRAW, withdraws=made, is_released=False)
    accepted = correct(bench, 8, CorrectionKind.ACCEPT, prompt=KEY, is_released=False)

    assert release(bench).changes == 1
    second = bench.round()

    assert kinds(second) == ["gsps", "sr"]
    assert predecessor(report_of(bench, second)) == report_of(bench, first).SOPInstanceUID
    assert "Rejected by a reader" not in meanings(report_of(bench, second))
    assert bench.steps.plan(STUDY) is None

    correct(bench, 9, CorrectionKind.WITHDRAW, withdraws=accepted, is_released=False)
    assert release(bench).changes == 1, "the report says it"


@pytest.mark.drill(part="processes")
def test_a_film_that_comes_meanwhile_takes_no_correction_along(tmp_path: Path) -> None:
    bench, first = rounds(tmp_path)
    rejected(bench)
    bench.receive(film("late"))

    second = bench.round()
    assert all("Rejected by a reader" not in meanings(report) for report in bench.objects(second, "sr"))
    assert report_of(bench, first).SOPInstanceUID not in {delivery.sop_instance_uid for delivery in second}
    assert bench.steps.plan(STUDY) is None

    release(bench)
    third = bench.round()
    corrected = [report for report in bench.objects(third, "sr") if "Rejected by a reader" in meanings(report)]
    assert [predecessor(report) for report in corrected] == [report_of(bench, first).SOPInstanceUID]


@pytest.mark.parametrize("is_released", [True, False])
def test_a_correction_during_a_round_waits_for_the_next(tmp_path: Path, is_released: bool) -> None:
    bench, _ = rounds(tmp_path)
    rejected(bench)
    release(bench)
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    outcomes = [str(bench.steps.read(STUDY, file)) for file in plan.files]
    late = correct(bench, 2, CorrectionKind.ACCEPT, prompt="edema", is_released=is_released)

    written = bench.steps.write(plan)

    assert written is not None
    assert bench.steps.finish(plan, outcomes, written) is is_released
    assert late not in plan.corrections
    release(bench)
    following = bench.steps.plan(STUDY)
    assert following is not None
    assert late in following.corrections


def test_the_last_correction_alone_releases_them_all(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    first, last = rejected(bench), correct(bench, 2, CorrectionKind.ACCEPT, prompt="edema", is_released=False)

    assert not bench.steps.gather(STUDY, first)
    assert gathering.waiting(bench.spool, STUDY).changes == 2
    assert bench.steps.gather(STUDY, last)
    assert bench.steps.gather(STUDY, last), "as after a crash in the step"
    assert not gathering.waiting(bench.spool, STUDY).corrections
    assert kinds(bench.round()) == ["gsps", "sr"]
    assert not bench.steps.gather(STUDY, last)


def test_corrections_of_a_lost_release_wait_again_unless_they_have_left(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    made = rejected(bench)
    release(bench)
    (path,) = (tmp_path / "studies" / STUDY / "released").iterdir()
    path.write_bytes(b"damaged")

    assert [item.id for item in gathering.waiting(bench.spool, STUDY).corrections] == [made]
    release(bench)
    assert kinds(bench.round()) == ["gsps", "sr"]

    for path in (tmp_path / "studies" / STUDY / "released").iterdir():
        path.unlink()

    assert not gathering.waiting(bench.spool, STUDY).corrections
    assert not bench.spool.has_unread(STUDY)


def test_corrections_in_an_unknown_form_park_their_study(tmp_path: Path) -> None:
    bench, _ = rounds(tmp_path)
    bench.spool.keep_document(STUDY, "corrections", "f" * 32, {"film": "no correction"})
    queued: list[tuple[str, str, float]] = []

    gathering.wait_again(bench.spool, STUDY, lambda *arguments: queued.append(arguments), quiet_seconds=60.0)
    ((study, correction_id, seconds),) = queued

    assert (study, seconds) == (STUDY, 0.0)
    assert not bench.steps.gather(study, correction_id)
    assert [(work.study, work.stage) for work in bench.ledger.parked()] == [(STUDY, "gather")]


def click(service: Service, said: Content, *, is_last: bool = False) -> str:
    """Correct the film; the id of the correction."""
    status, answer = service.ask("POST", PATH, {**said, "finish": is_last} if is_last else said)
    assert status == 202
    return str(answer["id"])


@pytest.mark.drill(part="kills")
def test_finish_sends_the_report_at_once(settings: Settings, archive: ReceivingArchive) -> None:
    finish = f"/api/v1/studies/{UID}/finish"
    read_and_stop(settings, READ)
    settings = replace(settings, corrections=replace(settings.corrections, quiet_seconds=LONG))
    with Service(settings) as service:
        rejection = click(service, REJECTION)
        click(service, ADDITION)
        seen = status(settings)
        assert service.ask("POST", finish) == (202, {"corrections": 2, "changes": 2})
        archive.wait_for_kept(4)
        service.wait_for("study.finished")
        assert service.ask("POST", finish) == (202, {"corrections": 0, "changes": 0})
        assert Counter(kept.dataset.Modality for kept in archive.kept) == {"SR": 2, "PR": 2}
        old, new = (kept.dataset for kept in archive.kept if kept.dataset.Modality == "SR")
        assert predecessor(new) == old.SOPInstanceUID
        click(service, {"kind": "withdraw", "withdraws": rejection}, is_last=True)
        archive.wait_for_kept(6)
        service.wait_for("study.finished", count=2)
        after = status(settings)
        assert service.ask("POST", "/api/v1/studies/1.2.3/finish")[0] == 404
        assert service.stop() == 0

    assert {study: found["waiting"] for study, found in seen["corrections"].items()} == {UID: 2}
    assert f"of {UID}: 2, of which 2 would change the report" in render(seen, zone=ZoneInfo("UTC"))
    assert after["corrections"] == {}
