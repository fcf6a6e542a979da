"""Who is read first: the law of the place in the queue, what makes a study urgent, and a node that keeps to both."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.hl7.order import Priority
from node.jobs.queue_places import Waiting, queue_place, waiting
from node.orders.store import OrderStore
from node.store.rounds import RoundMark
from node.store.spool import Spool
from tests.support import films
from tests.support.ordered import PATIENT, ordered

MOMENTS = st.datetimes(datetime(2025, 1, 2), datetime(2090, 1, 1), timezones=st.just(UTC))
SECONDS = st.floats(0.0, 86400.0)
ARRIVED, MINUTE = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=1)
STUDY = films.thumbnail().StudyInstanceUID


@given(arrived=MOMENTS, waited=SECONDS, stat_seconds=SECONDS, is_stat=st.booleans())
def test_a_study_past_the_head_start_is_overtaken_by_no_other(
    arrived: datetime, waited: float, stat_seconds: float, is_stat: bool
) -> None:
    newcomer = Waiting(arrived_at=arrived + timedelta(seconds=stat_seconds + waited), is_stat=is_stat)
    routine = Waiting(arrived_at=arrived, is_stat=False)

    places = [queue_place(study, stat_seconds=stat_seconds) for study in (routine, newcomer)]

    assert places[0] <= places[1]  # in the same place, the one that was queued first


@given(arrived=MOMENTS, stat_seconds=st.floats(2.0, 86400.0), part=st.floats(0.0, 1.0))
def test_an_urgent_study_overtakes_all_within_the_head_start(
    arrived: datetime, stat_seconds: float, part: float
) -> None:
    before = timedelta(seconds=part * (stat_seconds - 2.0))  # places are whole seconds
    routine = Waiting(arrived_at=arrived - before, is_stat=False)
    urgent = Waiting(arrived_at=arrived, is_stat=True)

    assert queue_place(urgent, stat_seconds=stat_seconds) < queue_place(routine, stat_seconds=stat_seconds)


@given(arrival=MOMENTS, other=MOMENTS, stat_seconds=SECONDS, is_stat=st.booleans())
def test_among_equals_the_one_that_came_first_is_read_first(
    arrival: datetime, other: datetime, stat_seconds: float, is_stat: bool
) -> None:
    first, last = (Waiting(arrived_at=moment, is_stat=is_stat) for moment in sorted((arrival, other)))

    assert queue_place(first, stat_seconds=stat_seconds) <= queue_place(last, stat_seconds=stat_seconds)


@pytest.mark.parametrize("year", [1970, 2025, 2026, 2099, 9999])
def test_every_place_is_one_that_the_engine_takes(year: int) -> None:
    study = Waiting(arrived_at=datetime(year, 1, 1, tzinfo=UTC), is_stat=True)

    assert 1 <= queue_place(study, stat_seconds=86400.0) <= 2**31 - 1


class Bench:
    """One study on a spool, and the orders beside it."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.orders = Spool(folder), OrderStore(folder)

    def keep(self, name: str, *, arrived: datetime = ARRIVED) -> str:
        """Receive one film of the study; the name of its file."""
        film = films.as_another(films.thumbnail({"AccessionNumber": "A1", "PatientID": PATIENT.number}), name)
        path = films.keep(self.spool, film, study_uid=STUDY).instance.path
        os.utime(path, (arrived.timestamp(), arrived.timestamp()))
        return path.name


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_study_that_gets_films_again_and_again_keeps_its_place(bench: Bench) -> None:
    read = bench.keep("read", arrived=ARRIVED - MINUTE)
    bench.spool.mark_round(STUDY, RoundMark(number=1, created_at=ARRIVED, files=(read,), outputs=()))
    bench.keep("unread")
    bench.keep("newest", arrived=ARRIVED + MINUTE)

    assert waiting(bench.spool, bench.orders, STUDY) == Waiting(arrived_at=ARRIVED, is_stat=False)


def test_a_study_whose_sender_called_it_urgent_is(bench: Bench) -> None:
    bench.keep("film")
    bench.spool.mark_stat(STUDY)

    assert waiting(bench.spool, bench.orders, STUDY).is_stat


@pytest.mark.parametrize(("study_uid", "accession"), [(STUDY, ""), ("", "A1")])
@pytest.mark.parametrize(("priority", "is_stat"), [("stat", True), ("asap", True), ("routine", False)])
def test_an_order_says_how_urgent_a_study_is(
    bench: Bench, study_uid: str, accession: str, priority: str, is_stat: bool
) -> None:
    bench.keep("film")
    bench.orders.keep(ordered(accession="A2", priority=Priority.STAT))
    bench.orders.keep(ordered(study_uid=study_uid, accession=accession, priority=Priority(priority)))

    assert waiting(bench.spool, bench.orders, STUDY).is_stat is is_stat


def test_a_broken_film_names_no_patient_that_an_order_is_for(bench: Bench) -> None:
    content = films.file_bytes(films.thumbnail())
    meta = content[: -len(films.body_of(content))]
    films.keep_bytes(bench.spool, study_uid=STUDY, sop_instance_uid="1.2.3", meta=meta, body=b"no dataset")
    bench.orders.keep(ordered(study_uid=STUDY, priority=Priority.STAT))

    assert not waiting(bench.spool, bench.orders, STUDY).is_stat
