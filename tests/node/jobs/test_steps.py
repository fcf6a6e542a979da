"""The steps of a round, one by one, with real files and a real database."""

from __future__ import annotations

import json
import re
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from models.documents import decode, encode
from node.deliver.results import Asked, DeliveryBatch, Outcome, Sent
from node.domain import StudyState
from node.errors import ModelLost
from node.jobs.object_questions import Looked
from node.jobs.round_steps import Steps, WrittenRound
from node.jobs.workflows import Planned
from node.output_kinds import DEFAULT_OUTPUTS
from node.outputs import batches
from node.outputs.batches import Batch, EncodedObject
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import RadiographReader, Reading
from node.rounds import round_plan
from node.rounds.round_plan import Round
from node.store.database import connect
from node.store.interrupted_work import MOST_INTERRUPTIONS
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.store.study_facts import load
from tests.support import films
from tests.support.damage import FILM, OTHER, STUDY, Bench, interrupted
from tests.support.fakes import Panic, ScriptedReader


class Raising(ScriptedReader):
    """Raises when it is to read a film."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        raise self._error


def test_neither_a_database_that_is_away_nor_a_full_disk_parks_a_study(bench: Bench, tmp_path: Path) -> None:
    class BrieflyAway(Ledger):
        """Its database is away when a study is first written."""

        is_away = True

        def set_study(self, uid: str, state: StudyState, **why: str | None) -> None:
            if self.is_away:
                self.is_away = False
                raise OperationalError("INSERT", {}, ConnectionError())
            super().set_study(uid, state, **why)

    path = bench.keep(FILM)
    with closing(BrieflyAway(connect(tmp_path / "ledger.sqlite"))) as ledger, pytest.raises(OperationalError):
        replace(bench.steps, ledger=ledger).plan(STUDY)
    (bench.folder / "studies" / STUDY / "readings").write_text("in the way", encoding="utf-8")
    with pytest.raises(OSError, match="readings"):
        bench.steps.read(STUDY, path.name)

    assert bench.ledger.parked() == []


def restarted(bench: Bench, reader: RadiographReader) -> Steps:
    """The steps of a process that begins now, with another reader."""
    pipeline = bench.steps.pipeline
    return replace(bench.steps, pipeline=replace(pipeline, films=replace(pipeline.films, reader=reader)), _begun={})


def written(bench: Bench) -> tuple[Round, WrittenRound]:
    """Receive a film, plan, read and write; the plan and what was written."""
    path = bench.keep(FILM)
    plan = bench.plan()
    assert bench.steps.read(STUDY, path.name) == "read"
    outputs = bench.steps.write(plan)
    assert outputs is not None
    return plan, outputs


def test_a_round_covers_no_object_that_was_not_taken(bench: Bench) -> None:
    seen, path = list[str](), bench.keep(FILM)

    def take(study_uid: str) -> None:
        seen.extend(instance.path.name for instance in bench.spool.instances(study_uid))
        bench.keep(OTHER)  # it came meanwhile

    bench.steps.take_objects = take
    plan = bench.plan()

    assert plan.files == (path.name,)
    assert set(plan.files) <= set(seen)


def test_a_reading_is_stored_under_and_with_all_that_it_depends_on(bench: Bench) -> None:
    plan, _ = written(bench)
    own, [path] = bench.steps.pipeline.films, bench.folder.rglob("readings/*.json")
    model, stored = own.reader.identity, json.loads(path.read_bytes())
    others = (
        replace(own, program="another"),
        replace(own, reader=ScriptedReader("another")),
        replace(own, prompts=replace(own.prompts, sha256="ab" * 32)),
        replace(own, spool=Spool(bench.folder, character_set="GB18030")),
    )

    assert len({own.key("1.2.dcm"), own.key("1.3.dcm"), *(other.key("1.2.dcm") for other in others)}) == 6
    origin = {
        "file": plan.files[0],
        "model": "scripted 1",
        "engine": "scripted",
        "prompts": own.prompts.title,
        "program": own.program,
        "prompts_sha256": own.prompts.sha256,
        "weights_sha256": model.weights_sha256,
        "manifest_sha256": model.manifest_sha256,
        "trusted": model.trusted,
    }
    assert {key: stored[key] for key in origin} == origin


def test_writing_twice_writes_and_sends_the_same_also_without_what_reading_kept(bench: Bench) -> None:
    asked = list[Batch]()

    def write_batch(batch: Batch) -> tuple[EncodedObject, ...]:
        asked.append(batch)
        return batches.write_batch(batch)

    bench.steps = replace(bench.steps, pipeline=replace(bench.steps.pipeline, write_batch=write_batch))
    plan, first = written(bench)
    before = {path: path.read_bytes() for path in bench.folder.rglob("outputs/*.dcm")}

    again = [bench.steps.write(plan), restarted(bench, ScriptedReader()).write(plan)]

    assert [each and (each.mark.outputs, each.queued.deliveries) for each in again] == [
        (first.mark.outputs, first.queued.deliveries)
    ] * 2
    assert {path: path.read_bytes() for path in bench.folder.rglob("outputs/*.dcm")} == before
    assert [batch.kinds for batch in asked] == [("sr",), ("gsps",)] * 3
    assert len(asked[0].thumbnails) == 1 and asked[-1].thumbnails == {}


def test_what_steps_record_is_read_and_planned_again_as_it_was(bench: Bench) -> None:
    plan, outputs = written(bench)
    deliveries = next(iter(outputs.queued.deliveries.values()))

    for value in (
        Planned(round=plan),
        outputs,
        DeliveryBatch(deliveries=deliveries, started=1.5, attempt=2),
        Sent(outcome=Outcome.DELAYED, wait_seconds=2.0),
        Asked(again=deliveries, open=(), is_down=False, wait_seconds=5.0, at=7.0),
        Looked(questions=("a",)),
    ):
        assert decode(type(value), json.loads(json.dumps(encode(value)))) == value
    mark = replace(outputs.mark, parked={"1.2.dcm": "damaged"}, corrections=("a",))
    assert plan.destinations == {"archive": DEFAULT_OUTPUTS}
    assert round_plan.again(STUDY, mark) == replace(plan, files=(*plan.files, "1.2.dcm"), corrections=("a",))


def test_a_round_follows_the_last_and_knows_those_before_it(bench: Bench) -> None:
    bench.keep(FILM)
    bench.round()
    bench.keep(OTHER)
    facts = load(bench.spool, STUDY)
    marks = tuple(replace(mark, number=number) for mark in facts.rounds for number in (2, 5, 6))

    plan = round_plan.plan(replace(facts, rounds=marks), at=datetime.now(UTC), destinations={})

    assert plan is not None
    assert (plan.number, plan.created_at.microsecond) == (7, 0)
    assert round_plan.known_to(replace(plan, number=5), replace(facts, rounds=marks)).rounds == marks[:1]


@pytest.mark.parametrize(
    ("error", "is_fault"),
    [
        (KeyError("Doe^Jane"), True),
        (Panic("Doe^Jane"), True),
        (OSError("Doe^Jane: no tag to read at file position 13890"), True),  # of a library: not with a disk's number
        (KeyboardInterrupt(), False),
        (SystemExit(), False),
        (ModelLost("NVIDIA L4 stopped computing"), False),
    ],
)
def test_a_fault_parks_its_study_without_its_text_and_what_ends_the_process_blames_no_film(
    bench: Bench, error: BaseException, is_fault: bool
) -> None:
    path = bench.keep(FILM)

    for _ in range(MOST_INTERRUPTIONS + 1):
        with nullcontext() if is_fault else pytest.raises(type(error)):
            assert restarted(bench, Raising(error)).read(STUDY, path.name) is None

    parked = [(work.study, work.stage, re.sub(r":\d+$", "", work.reason)) for work in bench.ledger.parked()]
    assert parked == ([(STUDY, "read", f"{type(error).__name__} at test_steps.py")] if is_fault else [])
    assert bench.spool.count_begun_readings(STUDY) == 0  # it is no death of the process
    assert bench.steps.read(STUDY, path.name) == "read"


def test_a_film_that_ended_four_processes_is_parked_alone_and_read_on_request(bench: Bench) -> None:
    interrupted(bench, bench.keep(FILM))
    bench.keep(OTHER)

    assert bench.round()[0] == ["interrupted", "read"]

    (parked,) = bench.ledger.parked()
    assert (parked.study, parked.stage) == (STUDY, "read")
    assert "the process ended 4 times while film" in parked.reason
    said = bench.output("sr").read_bytes()
    assert all(film.SOPInstanceUID.encode() in said for film in (FILM, OTHER))
    assert b"Not processed: the program ended several times while it was reading it" in said
    assert b"could not be decoded" not in said

    bench.spool.forget_interrupted_readings(STUDY)

    assert bench.round()[0] == ["read", "read"]
    assert bench.ledger.study_state(STUDY) == "finished"


def test_a_film_that_another_model_read_is_read_again(bench: Bench) -> None:
    path = bench.keep(FILM)
    plan = bench.plan()
    assert bench.steps.read(STUDY, path.name) == "read"

    assert restarted(bench, ScriptedReader("2")).write(plan) is not None

    assert b"scripted 2" in bench.output("sr").read_bytes()


def test_a_study_whose_workflow_was_lost_is_parked_unless_it_is_done(bench: Bench) -> None:
    bench.keep(FILM)

    bench.steps.park_lost(STUDY, reason="its thread ended")
    [row] = bench.ledger.parked()
    bench.round()
    bench.steps.park_lost(STUDY, reason="its thread ended")

    assert (row.study, row.stage) == (STUDY, "workflow")
    assert (bench.ledger.parked(), bench.ledger.study_state(STUDY)) == ([], "finished")
    assert bench.steps.plan(STUDY) is None  # a round covers its files once


def test_a_film_that_came_during_a_round_asks_for_another_once(bench: Bench) -> None:
    plan, outputs = written(bench)
    films.keep(bench.spool, OTHER)

    assert bench.steps.finish(plan, ["read"], outputs, is_awaited=lambda _study: True) is False
    assert bench.steps.finish(plan, ["read"], outputs, is_awaited=lambda _study: False) is True
    assert bench.ledger.study_state(STUDY) == "receiving"
