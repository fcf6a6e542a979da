"""Who comes first: the laws of the places in both queues, what makes a study urgent, and which finding is critical.

A finding is critical if it is present and to be told within minutes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dbos import DBOSClient
from hypothesis import given
from hypothesis import strategies as st
from pydicom import Dataset

from models.contract import FindingState
from node.domain import CRITICAL, ROUTINE, Delivery, DeliveryState, OutputObject, OutputPriority
from node.hl7.order import Priority
from node.jobs.queue_places import CRITICAL_SECONDS, delivery_place, queue_place, study_place
from node.orders.store import OrderStore
from node.output_kinds import OUTPUTS
from node.outputs import vocabulary
from node.settings.destinations import DicomDestination
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.rounds import RoundMark
from node.store.spool import Spool
from tests.support import films, peers, samples, senders
from tests.support.damage import STUDY, Bench
from tests.support.fakes import ScriptedReader
from tests.support.ordered import PATIENT, ordered
from tests.support.service import Service, settings_for

WRITTEN = st.floats(1.74e9, 3.7e9)  # 2025 to 2087


def study(name: str) -> Dataset:
    """One film of a study of its own."""
    return films.as_another(films.thumbnail(), name, study=name)


@contextmanager
def pneumothorax(folder: Path) -> Iterator[None]:
    """Let every film that is read in the block show a pneumothorax."""
    (folder / "critical").touch()
    try:
        yield
    finally:
        (folder / "critical").unlink()


@pytest.mark.parametrize("state", list(FindingState))
def test_only_a_present_finding_that_may_not_wait_for_hours_is_critical(state: FindingState) -> None:
    assert vocabulary.is_critical(samples.finding(samples.PNEUMOTHORAX, state=state)) is (state is FindingState.PRESENT)
    assert not vocabulary.is_critical(samples.finding(samples.EFFUSION, state=state))


@given(written=WRITTEN, share=st.floats(0.0, 1.0), longer=st.floats(0.0, 1e8))
def test_a_critical_output_overtakes_those_of_the_last_day_and_none_that_waited_longer(
    written: float, share: float, longer: float
) -> None:
    within = 2.0 + share * (CRITICAL_SECONDS - 4.0)  # places are whole seconds
    assert delivery_place(written, CRITICAL) < delivery_place(written - within, ROUTINE)
    for priority in (CRITICAL, ROUTINE):
        assert delivery_place(written, ROUTINE) <= delivery_place(written + CRITICAL_SECONDS + longer, priority)
        assert 1 <= delivery_place(written, priority) <= delivery_place(written + longer, priority) <= 2**31 - 1


def test_the_report_on_a_critical_film_comes_first_and_without_one_all_are_routine(
    bench: Bench, tmp_path: Path
) -> None:
    reader = ScriptedReader(critical=tmp_path / "critical")
    reading = replace(bench.steps.pipeline.films, reader=reader)
    pipeline = replace(bench.steps.pipeline, films=reading, kinds=(*OUTPUTS.own, "oru"))
    bench.steps = replace(bench.steps, pipeline=pipeline)

    def outputs_after(*names: str) -> tuple[OutputObject, ...]:
        for name in names:
            film = films.as_another(films.thumbnail(), name)
            assert pipeline.read(STUDY, bench.keep(film).name) == "read"
        written = pipeline.write(bench.plan())
        bench.spool.mark_round(STUDY, written.mark)
        assert bench.spool.rounds(STUDY)[-1].outputs == written.mark.outputs  # a lost ledger is filled from here
        return written.mark.outputs

    assert {output.priority for output in outputs_after("a", "b", "c")} == {ROUTINE}
    with pneumothorax(tmp_path):
        outputs = outputs_after("d", "e")
    urgent = {films.as_another(films.thumbnail(), name).SOPInstanceUID for name in ("d", "e")}
    assert {(output.subject.film, output.kind) for output in outputs[:2]} == {(film, "sr") for film in urgent}
    assert {output.priority for output in outputs} == {CRITICAL}


def places(directory: Path) -> dict[str, int]:
    """The place in the queue of each study that waits for its delivery."""
    sql = connect(directory / "engine.sqlite")
    client = DBOSClient(system_database_engine=sql)
    try:
        # One whose connection broke while the archive went down waits outside the queue for a moment.
        found = client.list_workflows(name="deliver", status=["ENQUEUED", "DELAYED"])
    finally:
        client.destroy()
        sql.dispose()
    return {work.input["args"][0]["deliveries"][0]["study_uid"]: work.priority or 0 for work in found if work.input}


@pytest.mark.drill(part="peers")
def test_a_critical_finding_is_sent_first_though_it_came_last(tmp_path: Path) -> None:
    urgent = study("urgent")
    archive = peers.ReceivingArchive()
    with archive, Service(settings_for(tmp_path / "node", archive_port=archive.port)) as node:
        with archive.down():
            for number in range(6):
                assert peers.send(study(f"routine {number}"), port=node.dicom_port) == 0
            node.wait_for("study.finished", count=6)
            node.wait_for("destination.down")
            with pneumothorax(tmp_path):
                assert peers.send(urgent, port=node.dicom_port) == 0
                node.wait_for("study.finished", count=7)
            # Two hold the slots; one that found the archive down is for a moment in neither place.
            peers.wait_until(lambda: len(places(tmp_path / "node")) == 5, what="the others wait")
            waiting = places(tmp_path / "node")
        archive.wait_for_kept(14, limit_seconds=60.0)
        assert node.stop() == 0

    assert min(waiting, key=lambda uid: waiting[uid]) == urgent.StudyInstanceUID
    first, second = (received.dataset for received in archive.kept[:2])
    assert [first.Modality, second.Modality] == ["SR", "PR"]
    assert first.StudyInstanceUID == second.StudyInstanceUID == urgent.StudyInstanceUID
    assert len(archive.requests) == 14  # none twice


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(connect(tmp_path / "ledger.sqlite"))) as ledger:
        yield ledger


def delivery(name: str, priority: OutputPriority = ROUTINE, *, destination: str = "archive") -> Delivery:
    return Delivery(destination=destination, study_uid=name, sop_instance_uid=name, kind="sr", priority=priority)


def test_a_routine_output_gives_way_only_where_it_may(tmp_path: Path, ledger: Ledger) -> None:
    with peers.ReceivingArchive() as archive:
        destination = settings_for(tmp_path, archive_port=archive.port).destinations[0]
        assert isinstance(destination, DicomDestination)
        elsewhere = replace(destination, name="elsewhere")
        sending = senders.sending(Spool(tmp_path), ledger, destination, elsewhere)
        film, urgent = films.thumbnail(), delivery("9", CRITICAL)
        waiting = [delivery(str(film.SOPInstanceUID), destination=name) for name in ("archive", "elsewhere")]
        sending.spool.keep_output(waiting[0], films.file_bytes(film))
        for each in (*waiting, urgent):
            ledger.add_delivery(each)

        asked = {each.destination: sending.send(each, 1, time.time(), may_give_way=True).outcome for each in waiting}
        assert asked == {"archive": "gave_way", "elsewhere": "sent"}

        assert sending.send(waiting[0], 1, time.time()).outcome == "sent"


@pytest.mark.parametrize(
    ("state", "attempts", "awaited"),
    [
        (DeliveryState.WAITING, 0, True),
        (DeliveryState.WAITING, 1, True),
        (DeliveryState.WAITING, 2, False),
        (DeliveryState.SENDING, 2, True),
        (DeliveryState.SENDING, 3, False),
        (DeliveryState.SENT, 1, False),
        (DeliveryState.PARKED, 1, False),
    ],
)
def test_nothing_gives_way_to_what_is_refused(
    ledger: Ledger, state: DeliveryState, attempts: int, awaited: bool
) -> None:
    ledger.add_delivery(delivery("9", CRITICAL))
    assert [each.priority for each in ledger.open_deliveries()] == [CRITICAL]

    ledger.set_delivery(delivery("9", CRITICAL), state, attempts=attempts)

    assert ledger.awaits_critical("archive") is awaited


MOMENTS = st.datetimes(datetime(2025, 1, 2), datetime(2090, 1, 1), timezones=st.just(UTC))
SECONDS = st.floats(0.0, 86400.0)
ARRIVED, MINUTE = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=1)


@given(arrived=MOMENTS, waited=SECONDS, stat_seconds=st.floats(2.0, 86400.0), part=st.floats(0.0, 1.0))
def test_an_urgent_study_overtakes_all_within_the_head_start_and_no_other(
    arrived: datetime, waited: float, stat_seconds: float, part: float
) -> None:
    def place(seconds: float, *, is_stat: bool) -> int:
        """The place of a study that came so many seconds later."""
        return queue_place(arrived + timedelta(seconds=seconds), is_stat=is_stat, stat_seconds=stat_seconds)

    assert place(part * (stat_seconds - 2.0), is_stat=True) < place(0.0, is_stat=False)  # places are whole seconds
    for is_stat in (False, True):
        assert place(0.0, is_stat=False) <= place(stat_seconds + waited, is_stat=is_stat)
        assert place(0.0, is_stat=is_stat) <= place(waited, is_stat=is_stat), "among equals who came first"


def test_every_place_is_one_that_the_engine_takes() -> None:
    for year in (1970, 2025, 2026, 2099, 9999):
        place = queue_place(datetime(year, 1, 1, tzinfo=UTC), is_stat=True, stat_seconds=86400.0)

        assert 1 <= place <= 2**31 - 1, year


class Ordered:
    """One study on a spool, and the orders beside it."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.orders = Spool(folder), OrderStore(folder)

    def keep(self, name: str, *, arrived: datetime = ARRIVED) -> str:
        """Receive one film of the study; the name of its file."""
        film = films.as_another(films.thumbnail({"AccessionNumber": "A1", "PatientID": PATIENT.number}), name)
        path = films.keep(self.spool, film, study_uid=STUDY).instance.path
        os.utime(path, (arrived.timestamp(), arrived.timestamp()))
        return path.name

    def is_stat(self) -> bool:
        """Whether the study has the place of a STAT study that came with its last film, or that of another."""
        arrived = self.spool.instances(STUDY)[-1].received_at
        place = study_place(self.spool, self.orders, STUDY, stat_seconds=60.0)
        places = [queue_place(arrived, is_stat=is_stat, stat_seconds=60.0) for is_stat in (False, True)]
        return bool(places.index(place))


def test_a_study_that_gets_films_again_and_again_keeps_its_place(tmp_path: Path) -> None:
    ordering = Ordered(tmp_path)
    read = ordering.keep("read", arrived=ARRIVED - MINUTE)
    ordering.spool.mark_round(STUDY, RoundMark(number=1, created_at=ARRIVED, files=(read,), outputs=()))
    ordering.keep("unread")
    ordering.keep("newest", arrived=ARRIVED + MINUTE)

    place = study_place(ordering.spool, ordering.orders, STUDY, stat_seconds=60.0)
    assert place == queue_place(ARRIVED, is_stat=False, stat_seconds=60.0)


@pytest.mark.parametrize(("study_uid", "accession"), [(STUDY, ""), ("", "A1")])
def test_an_order_or_its_sender_says_how_urgent_a_study_is(tmp_path: Path, study_uid: str, accession: str) -> None:
    ordering = Ordered(tmp_path)
    ordering.keep("film")
    ordering.orders.keep(ordered(accession="A2", priority=Priority.STAT))
    for priority, is_stat in ((Priority.STAT, True), (Priority.ASAP, True), (Priority.ROUTINE, False)):
        ordering.orders.keep(ordered(study_uid=study_uid, accession=accession, priority=priority))
        assert ordering.is_stat() is is_stat, priority

    ordering.spool.mark_stat(STUDY)
    assert ordering.is_stat()


def test_a_broken_film_names_no_patient_that_an_order_is_for(tmp_path: Path) -> None:
    ordering, content = Ordered(tmp_path), films.file_bytes(films.thumbnail())
    meta = content[: -len(films.body_of(content))]
    films.keep_bytes(ordering.spool, study_uid=STUDY, sop_instance_uid="1.2.3", meta=meta, body=b"no dataset")
    ordering.orders.keep(ordered(study_uid=STUDY, priority=Priority.STAT))

    assert not ordering.is_stat()
