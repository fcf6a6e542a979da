"""A critical finding goes out first: which finding is critical, the law of the place in a queue, and a node.

A finding is critical if it is present and to be told within minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from dbos import DBOSClient
from hypothesis import given
from hypothesis import strategies as st
from pydicom import Dataset

from models.contract import FindingState
from node.domain import CRITICAL, ROUTINE, Delivery, DeliveryState, OutputPriority
from node.jobs.queue_places import CRITICAL_SECONDS, delivery_place
from node.orders.store import OrderStore
from node.output_kinds import OUTPUTS
from node.outputs import vocabulary
from node.pipeline import Pipeline
from node.read import prompts
from node.settings.destinations import DicomDestination
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.spool import Spool
from tests.support import films, peers, samples, senders
from tests.support.fakes import ScriptedReader
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
def test_only_a_present_finding_is_critical(state: FindingState) -> None:
    assert vocabulary.is_critical(samples.finding(samples.PNEUMOTHORAX, state=state)) is (state is FindingState.PRESENT)


def test_a_finding_that_may_wait_for_hours_is_not_critical() -> None:
    assert not vocabulary.is_critical(samples.finding(samples.EFFUSION))


@given(written=WRITTEN, waited=st.floats(2.0, CRITICAL_SECONDS - 2.0))
def test_a_critical_output_overtakes_all_of_the_last_day(written: float, waited: float) -> None:
    assert delivery_place(written, CRITICAL) < delivery_place(written - waited, ROUTINE)


@given(written=WRITTEN, waited=st.floats(CRITICAL_SECONDS, 1e8), priority=st.sampled_from((CRITICAL, ROUTINE)))
def test_no_output_is_overtaken_for_longer_than_a_day(written: float, waited: float, priority: OutputPriority) -> None:
    assert delivery_place(written, ROUTINE) <= delivery_place(written + waited, priority)


@given(moments=st.lists(WRITTEN, min_size=2, max_size=2).map(sorted), priority=st.sampled_from((CRITICAL, ROUTINE)))
def test_among_equals_what_was_written_first_is_sent_first(moments: list[float], priority: OutputPriority) -> None:
    first, last = moments

    assert 1 <= delivery_place(first, priority) <= delivery_place(last, priority) <= 2**31 - 1


class Bench:
    """One study on a spool, with films of which some show a pneumothorax."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spool = folder, Spool(folder)
        self.pipeline = Pipeline(
            spool=self.spool,
            orders=OrderStore(folder),
            reader=ScriptedReader(critical=folder / "critical"),
            prompts=prompts.load("chexpert14"),
            zone=ZoneInfo("UTC"),
            kinds=(*OUTPUTS.own, "oru"),
        )

    def read(self, name: str) -> str:
        """Receive a film and read it; its SOP Instance UID."""
        instance = films.keep(self.spool, films.as_another(films.thumbnail(), name)).instance
        assert self.pipeline.read(instance.study_uid, instance.path.name) == "read"
        return instance.sop_instance_uid


def test_the_report_on_a_critical_film_comes_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for name in ("a", "b", "c"):
        bench.read(name)
    with pneumothorax(tmp_path):
        urgent = {bench.read(name) for name in ("d", "e")}

    plan = bench.pipeline.plan(films.thumbnail().StudyInstanceUID)
    assert plan is not None
    outputs = bench.pipeline.write(plan).outputs

    assert {output.subject.film for output in outputs[:2]} == urgent
    assert {output.kind for output in outputs[:2]} == {"sr"}
    assert {output.priority for output in outputs} == {CRITICAL}
    bench.pipeline.finish(plan, outputs, parked={})
    (mark,) = bench.spool.rounds(plan.study_uid)
    assert {output.priority for output in mark.outputs} == {CRITICAL}  # a lost ledger is filled from here


def test_a_study_without_a_critical_finding_is_routine(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.read("a")

    plan = bench.pipeline.plan(films.thumbnail().StudyInstanceUID)
    assert plan is not None

    assert {output.priority for output in bench.pipeline.write(plan).outputs} == {ROUTINE}


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
    ledger = Ledger(connect(tmp_path / "ledger.sqlite"))
    yield ledger
    ledger.close()


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
        (DeliveryState.SENDING, 1, True),
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

    ledger.set_delivery(delivery("9", CRITICAL), state, attempts=attempts)

    assert ledger.awaits_critical("archive") is awaited


def test_the_ledger_tells_the_priority_of_what_waits(ledger: Ledger) -> None:
    ledger.add_delivery(delivery("9", CRITICAL))

    assert [each.priority for each in ledger.open_deliveries()] == [CRITICAL]
