"""The films to review of one study, as its rounds find them: which wait, and for which reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pytest

from models.contract import Contradiction, FindingState
from models.documents import encode
from node.config import Settings
from node.jobs import gathering
from node.metrics import ReviewReason
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.service.worker import LedgerFiller
from node.store.correction import Correction, CorrectionKind
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.worklist import to_review
from node.web import review
from node.web.review import ReviewQueue
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import peers
from tests.support.damage import FILM, STUDY, Bench, benches
from tests.support.fakes import ScriptedReader
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS

KEY = "edema"


class Doubtful(ScriptedReader):
    """Answers everything but one prompt with "absent"; has_box: whether it says where that one lies."""

    def __init__(self, state: FindingState, contradiction: Contradiction | None, *, has_box: bool) -> None:
        super().__init__()
        self._state, self._contradiction, self._has_box = state, contradiction, has_box

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        reading = super().read(image, prompts)
        answers = []
        for answer in reading.pathologies:
            is_doubtful = answer.key == KEY
            state = self._state if is_doubtful else FindingState.ABSENT
            against = self._contradiction if is_doubtful else None
            boxes = answer.boxes if self._has_box else ()
            answers.append(replace(answer, state=state, contradiction=against, boxes=boxes))
        return replace(reading, prompts=tuple(answers))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with benches(tmp_path) as made:
        yield made


def read(
    bench: Bench, state: FindingState, contradiction: Contradiction | None = None, *, has_box: bool = True
) -> None:
    """Read the film with a network that is in doubt about one finding."""
    pipeline = replace(bench.steps.pipeline, reader=Doubtful(state, contradiction, has_box=has_box))
    bench.steps = replace(bench.steps, pipeline=pipeline)
    bench.keep(FILM)
    bench.round()


def settings_of(bench: Bench) -> Settings:
    return settings_for(bench.folder, archive_port=104)


def queue_of(bench: Bench, *, limit: int = 50) -> ReviewQueue:
    return review.queue(settings_of(bench), bench.spool, PROMPTS, limit=limit)


@pytest.mark.parametrize(
    ("state", "contradiction", "reasons"),
    [
        (
            FindingState.INDETERMINATE,
            None,
            ["The probability is too low for present and too high to leave unreported."],
        ),
        (FindingState.INDETERMINATE, "sentence_denies", ["The network's own sentence says that it is not there."]),
        (FindingState.UNCALIBRATED, None, ["The threshold was not measured on such films."]),
        (
            FindingState.UNCALIBRATED,
            "other_side",
            [
                "Asked again about each side by name, the network contradicts itself.",
                "The threshold was not measured on such films.",
            ],
        ),
    ],
)
def test_a_doubtful_finding_is_in_the_queue_with_its_reasons(
    bench: Bench, state: FindingState, contradiction: Contradiction | None, reasons: list[str]
) -> None:
    read(bench, state, contradiction)

    (film,) = queue_of(bench).films
    (finding,) = film.findings

    assert (film.study, film.film) == (STUDY, FILM.SOPInstanceUID)
    assert (finding.prompt, finding.state) == (KEY, state)
    assert list(finding.reasons) == reasons


@pytest.mark.parametrize("state", [FindingState.PRESENT, FindingState.ABSENT])
def test_a_film_without_a_doubtful_finding_is_not_in_the_queue(bench: Bench, state: FindingState) -> None:
    read(bench, state)

    assert queue_of(bench).films == ()


def counted(bench: Bench) -> dict[str, int]:
    return dict(bench.ledger.overview().reviews)


@pytest.mark.parametrize(
    ("state", "contradiction", "reason"),
    [
        (FindingState.INDETERMINATE, None, "near_threshold"),
        (FindingState.INDETERMINATE, "sentence_denies", "contradicted"),
        (FindingState.UNCALIBRATED, None, "uncalibrated"),
        (FindingState.UNCALIBRATED, "other_side", "contradicted"),
    ],
)
def test_a_film_is_counted_once_by_its_reason(
    bench: Bench, state: FindingState, contradiction: Contradiction | None, reason: str
) -> None:
    read(bench, state, contradiction)

    assert counted(bench) == {reason: 1}
    assert reason in get_args(ReviewReason)


@pytest.mark.parametrize("has_box", [True, False])
def test_a_film_that_a_reader_judged_is_not_counted_any_more(bench: Bench, has_box: bool) -> None:
    read(bench, FindingState.INDETERMINATE, has_box=has_box)
    judge(bench)

    assert queue_of(bench).films == (), "the queue does not wait for the round"
    bench.round()

    assert counted(bench) == {}


def test_a_film_is_counted_again_when_the_judgment_is_withdrawn(bench: Bench) -> None:
    read(bench, FindingState.INDETERMINATE)
    judged = judge(bench)
    bench.round()
    judge(bench, CorrectionKind.WITHDRAW, withdraws=judged)
    bench.round()

    assert counted(bench) == {"near_threshold": 1}


def test_a_rejected_film_is_not_counted(bench: Bench) -> None:
    read(bench, FindingState.INDETERMINATE)
    bench.keep(highdicom_note(FILM))
    bench.round()

    assert counted(bench) == {}
    assert queue_of(bench).films == ()


def test_a_finish_that_runs_again_counts_the_same(bench: Bench) -> None:
    bench.keep(FILM)
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    outcomes = [str(bench.steps.read(STUDY, file)) for file in plan.files]
    written = bench.steps.write(plan)
    assert written is not None

    for _ in range(2):
        bench.steps.finish(plan, outcomes, written)

    assert counted(bench) == {"near_threshold": 1}


def test_a_lost_ledger_gets_its_films_at_the_start(bench: Bench, tmp_path: Path) -> None:
    read(bench, FindingState.UNCALIBRATED)

    with closing(Ledger(connect(tmp_path / "new.sqlite"))) as ledger:
        ledger.add_finished_study(STUDY)
        finder = LedgerFiller(bench.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=False)
        peers.wait_until(lambda: ledger.overview().reviews == {"uncalibrated": 1}, what="the film is found")
        finder.close()

        assert ledger.statistics.recorded() == {STUDY}


def test_an_answer_in_an_unknown_form_hides_no_other_study(bench: Bench, tmp_path: Path) -> None:
    read(bench, FindingState.UNCALIBRATED)
    damaged = bench.folder / "studies" / "1.1" / "readings"
    shutil.copytree(bench.folder / "studies" / STUDY, damaged.parent)
    for answer in damaged.glob("*.json"):
        answer.write_text(json.dumps({"source": FILM.SOPInstanceUID, "findings": 5}), encoding="utf-8")
    with closing(Ledger(connect(tmp_path / "new.sqlite"))) as ledger:
        for study_uid in (STUDY, "1.1"):
            ledger.add_finished_study(study_uid)

        finder = LedgerFiller(bench.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=False)
        peers.wait_until(lambda: len(ledger.statistics.recorded()) == 2, what="both studies were looked at")
        finder.close()

        assert ledger.overview().reviews == {"uncalibrated": 1}


def test_the_queue_goes_beyond_the_listed_films(bench: Bench) -> None:
    read(bench, FindingState.INDETERMINATE)
    (row,) = to_review(settings_of(bench).storage)
    others = [replace(row, study_uid=f"1.{n}", film=f"1.{n}.1", urgency=9) for n in range(300)]
    for other in others:
        bench.ledger.set_study(other.study_uid, "finished")
        bench.ledger.set_reviews(other.study_uid, [other])

    found = queue_of(bench, limit=1)

    assert [film.film for film in found.films] == [FILM.SOPInstanceUID]
    assert found.total == 301


def judge(bench: Bench, kind: CorrectionKind = CorrectionKind.ACCEPT, *, withdraws: str = "") -> str:
    """Store what a reader says of the finding, as the page and the interface for programs do."""
    number = len(bench.spool.documents(STUDY, "corrections")) + 1
    made = Correction(
        id=f"{number:032x}",
        study_uid=str(STUDY),
        film=str(FILM.SOPInstanceUID),
        kind=kind,
        at=datetime(2026, 11, 23, 12, 0, number, tzinfo=UTC),
        by="anna",
        source="page",
        prompt="" if withdraws else KEY,
        withdraws=withdraws,
    )
    bench.spool.keep_document(made.study_uid, "corrections", made.id, encode(made))
    gathering.release(bench.spool, made.study_uid, gathering.waiting(bench.spool, made.study_uid))
    return made.id
