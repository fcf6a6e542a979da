"""The short form of `make chaos`, and proof that its verdict sees every way to fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydicom.dataset import Dataset

from models.progress import quiet
from tests.drills.chaos import night, scenarios
from tests.drills.chaos.hostile import HOSTILE
from tests.drills.chaos.night import Plan
from tests.drills.chaos.scenarios import CannotMountError, Trouble
from tests.drills.chaos.verdict import Verdict, blamed, changed, sent_twice, unanswered
from tests.support import documents, samples
from tests.support.postgres import Postgres

pytestmark = pytest.mark.drill(part="chaos")

STUDY, FILMS = "1.2", {"1.2.1", "1.2.2"}
HURT = tuple(HOSTILE)
"""Every tenth film of a short night hurts its decoder."""


def test_a_night_of_kills_loses_nothing(tmp_path: Path) -> None:
    plan = Plan(kills=1, films=10, seed=6, longest_seconds=1.0, excused=night.IN_HAND, hostile=HURT)

    figures = night.run(plan, tmp_path, say=quiet)

    assert figures["passed"], str(figures)
    assert figures["hostile"] == 1


def test_a_night_of_kills_among_several_processes_loses_nothing(tmp_path: Path) -> None:
    with Postgres() as postgres:
        plan = Plan(kills=1, films=6, seed=6, longest_seconds=1.0, excused=night.IN_HAND)
        figures = night.run(plan, tmp_path, database_url=postgres.url, say=quiet)

    assert figures["passed"], str(figures)


def test_a_disk_that_is_full_to_the_last_byte_loses_nothing(tmp_path: Path) -> None:
    try:
        figures = scenarios.disk_full(Trouble(films=6, seconds=1.5, seed=6), tmp_path, say=quiet)
    except CannotMountError as error:
        pytest.skip(str(error))  # a right of this machine, which nothing that is installed gives

    assert figures["passed"], str(figures)


def test_restarts_with_a_backlog_queue_no_study_twice(tmp_path: Path) -> None:
    figures = scenarios.restarts(tmp_path, count=2, films=3, say=quiet)

    assert figures["passed"], str(figures)


@pytest.mark.parametrize(
    ("objects", "unreadable", "lost"),
    [
        (lambda: [report("9.1", FILMS), *map(overlay, FILMS)], set(), set()),
        (lambda: [], set(), FILMS),
        (lambda: [report("9.1", FILMS), overlay("1.2.1")], set(), {"1.2.2"}),
        (lambda: [report("9.1", FILMS), overlay("1.2.1")], {"1.2.2"}, set()),
        (lambda: [overlay("1.2.1")], {"1.2.2"}, FILMS),
        (lambda: [report("9.1", FILMS), report("9.2", {"1.2.1"}, "9.1"), *map(overlay, FILMS)], set(), {"1.2.2"}),
        (lambda: [report("9.1", FILMS), report("9.2", FILMS), *map(overlay, FILMS)], set(), FILMS),
        (lambda: [report("9.1", {"1.2.1"}), *map(overlay, FILMS)], set(), {"1.2.2"}),
        (lambda: [report("9.1", {"1.2.1"}), report("8.1", {"1.2.2"}, series="8"), *map(overlay, FILMS)], set(), set()),
    ],
    ids=[
        "answered",
        "no answer",
        "no overlay",
        "nobody can read it",
        "no report of what nobody can read",
        "the newest report leaves it out",
        "two newest reports",
        "no report names it",
        "a report each",
    ],
)
def test_an_acknowledged_film_without_its_answers_is_lost(
    objects: Callable[[], list[Dataset]], unreadable: set[str], lost: set[str]
) -> None:
    assert unanswered({STUDY: FILMS}, objects(), unreadable=unreadable) == tuple(sorted(lost))


def test_who_calls_a_good_film_undecodable_blames_it() -> None:
    objects = documents.all_written(samples.report(samples.film(1), samples.unread(2)))
    bad = {samples.film_uid(2)}

    assert (blamed(objects), blamed(objects, unreadable=bad), blamed(objects[:1])) == (1, 0, 0)


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
