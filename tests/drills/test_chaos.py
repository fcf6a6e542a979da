"""The short form of `make chaos`, and proof that its verdict sees every way to fail."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from models.progress import quiet
from tests.drills.chaos import disk, night
from tests.drills.chaos.__main__ import SCENARIOS
from tests.drills.chaos.disk import CannotMountError
from tests.drills.chaos.night import Plan
from tests.drills.chaos.verdict import Verdict, blamed, changed, judge, sent_twice, unanswered
from tests.support import documents, films, peers, samples
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="chaos")

STUDY, FILMS = "1.2", {"1.2.1", "1.2.2"}
OPEN_WORKFLOWS = "SELECT count(*) FROM workflow_status WHERE status IN ('PENDING', 'ENQUEUED', 'DELAYED')"
SETTLE_SECONDS = 2.0
"""A node hands on the studies that it finds at its start in its first second."""


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_night_of_kills_loses_nothing(tmp_path: Path, database: str) -> None:
    plan = Plan(kills=1, films=10, seed=6, longest_seconds=1.0, excused=night.IN_HAND)

    figures = SCENARIOS[f"kills-{database}"](plan, tmp_path, quiet)

    assert figures["passed"], str(figures)


def test_a_disk_that_is_full_to_the_last_byte_loses_nothing(tmp_path: Path) -> None:
    try:
        figures = disk.run(tmp_path, films=6, seconds=1.5, seed=6, say=quiet)
    except CannotMountError as error:
        pytest.skip(str(error))  # a right of this machine, which nothing that is installed gives

    assert figures["passed"], str(figures)


def test_restarts_with_a_backlog_queue_no_study_twice(tmp_path: Path) -> None:
    def open_workflows() -> int:
        with closing(sqlite3.connect(tmp_path / "node" / "engine.sqlite")) as engine:
            return int(engine.execute(OPEN_WORKFLOWS).fetchone()[0])

    waiting = [films.as_another(films.thumbnail(), str(number), study=str(number)) for number in range(3)]
    (tmp_path / "hold").touch()  # the scripted reader reads nothing while this is there
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        with Service(settings) as node:
            assert set(peers.send_all(waiting, port=node.dicom_port)) == {0}
            node.wait_for("study.submitted", count=3)
            node.wait_for("study.ready")
            node.kill()
        for _ in range(2):
            with Service(settings) as node:
                node.wait_for("service.ready")
                time.sleep(SETTLE_SECONDS)
                # A study whose quiet time ends holds two workflows until the first of them is over.
                peers.wait_until(lambda: open_workflows() == 3, what="one workflow for each study")
                node.kill()
        (tmp_path / "hold").unlink()
        with Service(settings):
            is_idle, _ = night.retry_interrupted(settings, patience_seconds=60.0)
        verdict = judge(archive, {str(film.StudyInstanceUID): {str(film.SOPInstanceUID)} for film in waiting})

    assert (is_idle, verdict.passed) == (True, True), verdict


@pytest.mark.parametrize(
    ("objects", "lost"),
    [
        (lambda: [report("9.1", FILMS), *map(overlay, FILMS)], set()),
        (lambda: [], FILMS),
        (lambda: [report("9.1", FILMS), overlay("1.2.1")], {"1.2.2"}),
        (lambda: [report("9.1", FILMS), report("9.2", {"1.2.1"}, "9.1"), *map(overlay, FILMS)], {"1.2.2"}),
        (lambda: [report("9.1", FILMS), report("9.2", FILMS), *map(overlay, FILMS)], FILMS),
        (lambda: [report("9.1", {"1.2.1"}), *map(overlay, FILMS)], {"1.2.2"}),
        (lambda: [report("9.1", {"1.2.1"}), report("8.1", {"1.2.2"}, series="8"), *map(overlay, FILMS)], set()),
    ],
    ids=[
        "answered",
        "no answer",
        "no overlay",
        "the newest report leaves it out",
        "two newest reports",
        "no report names it",
        "a report each",
    ],
)
def test_an_acknowledged_film_without_its_answers_is_lost(objects: Callable[[], list[Dataset]], lost: set[str]) -> None:
    assert unanswered({STUDY: FILMS}, objects()) == tuple(sorted(lost))


def test_who_calls_a_good_film_undecodable_blames_it() -> None:
    objects = documents.all_written(samples.report(samples.film(1), samples.unread(2)))

    assert (blamed(objects), blamed(objects[:1])) == (2, 0)


@pytest.mark.parametrize(
    ("figures", "passed"),
    [
        ({"twice": 2}, True),
        ({"twice": 3}, False),
        ({"twice": 3, "excused": 3}, True),
        ({"changed": 1}, False),
        ({"blamed": 1}, False),
        ({"unanswered": ("1.2.1",)}, False),
    ],
)
def test_a_loss_a_change_or_over_two_percent_twice_fails(figures: dict[str, object], passed: bool) -> None:
    made = {"unanswered": (), "objects": 100, "twice": 0, "changed": 0} | figures

    assert Verdict(**made).passed is passed  # type: ignore[arg-type]  # a table of cases
    assert sent_twice(["1", "2", "1", "1"]) == 1
    assert changed([("1", b"a"), ("1", b"a"), ("2", b"a"), ("2", b"b")]) == 1


def overlay(film: str) -> Dataset:
    state, series, image = Dataset(), Dataset(), Dataset()
    image.ReferencedSOPInstanceUID = film
    series.ReferencedImageSequence = [image]
    state.StudyInstanceUID, state.Modality, state.ReferencedSeriesSequence = STUDY, "PR", [series]
    return state


def report(uid: str, films: set[str], predecessor: str | None = None, *, series: str = "9") -> Dataset:
    document = Dataset()
    document.SeriesInstanceUID = series
    document.StudyInstanceUID, document.Modality, document.SOPInstanceUID = STUDY, "SR", uid
    document.CurrentRequestedProcedureEvidenceSequence = [hierarchy(films)]
    if predecessor is not None:
        document.PredecessorDocumentsSequence = [hierarchy({predecessor})]
    return document


def hierarchy(uids: set[str]) -> Dataset:
    study, series = Dataset(), Dataset()
    series.ReferencedSOPSequence = [Dataset() for _ in uids]
    for item, uid in zip(series.ReferencedSOPSequence, sorted(uids), strict=True):
        item.ReferencedSOPInstanceUID = uid
    study.ReferencedSeriesSequence = [series]
    return study
