"""A study is loaded once: what a round decides afterwards touches no disk, and what comes meanwhile is not lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from node.rounds.round_plan import Round, known_to
from node.store.correction import CorrectionKind
from node.store.rounds import RoundMark
from node.store.study_facts import StudyFacts, load
from tests.node.jobs.test_corrected_rounds import FILM, KEY, correct
from tests.node.jobs.test_rounds import STUDY, Bench, film
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import damage


def facts_of(bench: Bench, plan: Round) -> StudyFacts:
    keys = map(bench.steps.pipeline.films.key, plan.files)
    return known_to(plan, load(bench.spool, STUDY, keys=keys))


def planned(bench: Bench) -> Round:
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    return plan


COMES: dict[str, Callable[[Bench], object]] = {
    "a film": lambda bench: bench.receive(film("late")),
    "a rejection note": lambda bench: bench.receive(highdicom_note(FILM)),
    "a correction": lambda bench: correct(bench, 1, CorrectionKind.REJECT, prompt=KEY),
}


@pytest.mark.parametrize("comes", COMES.values(), ids=COMES)
def test_what_comes_after_the_plan_has_a_round_of_its_own(tmp_path: Path, comes: Callable[[Bench], object]) -> None:
    bench, calm = Bench(tmp_path / "busy"), Bench(tmp_path / "calm")
    for each in (bench, calm):
        each.receive(FILM)
    plan = planned(bench)
    outcomes = [str(bench.steps.read(STUDY, file)) for file in plan.files]
    comes(bench)

    written = bench.steps.write(plan)

    assert written is not None
    assert [output.kind for output in written.mark.outputs] == [delivery.kind for delivery in calm.round()]
    assert bench.steps.finish(plan, outcomes, written)


def test_a_round_knows_only_what_was_planned_for_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    plan = planned(bench)
    before = facts_of(bench, plan)
    for comes in COMES.values():
        comes(bench)
    bench.spool.mark_round(STUDY, RoundMark(number=plan.number, created_at=plan.created_at, files=(), outputs=()))

    after = facts_of(bench, plan)

    for name in ("rounds", "notes", "corrections"):
        assert getattr(after, name) == getattr(before, name), name
    assert len(after.instances) == len(before.instances) + 2


def test_a_correction_that_is_damaged_on_disk_opens_no_round(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    bench.round()
    made = correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)

    damage.cut(tmp_path / "studies" / str(STUDY) / "corrections" / f"{made}.json")

    assert bench.steps.plan(STUDY) is None
