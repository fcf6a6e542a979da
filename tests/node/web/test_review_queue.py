"""The films to review of one study, as its rounds find them: which wait, and for which reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from models.contract import Contradiction, FindingState
from node.metrics import ReviewReason
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.store.correction import CorrectionKind
from node.store.worklist import to_review
from node.web import review_queue
from node.web.review_queue import ReviewQueue
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films
from tests.support.damage import FILM, STUDY, Bench
from tests.support.fakes import ScriptedReader
from tests.support.finished import Finished, parts_of

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


def finished(
    folder: Path, state: FindingState, contradiction: Contradiction | None = None, *, has_box: bool = True
) -> Finished:
    """What a node leaves that has read the film with a network that is in doubt about one finding."""
    made = Finished(folder / "node", reader=Doubtful(state, contradiction, has_box=has_box))
    made.read(FILM)
    return made


def queue_of(node: Finished, *, limit: int = 50) -> ReviewQueue:
    return review_queue.queue(parts_of(node.settings, node.spool), limit=limit)


def counted(node: Finished) -> dict[str, int]:
    return dict(node.ledger.overview().reviews)


NEAR = "The probability is too low for present and too high to leave unreported."
UNMEASURED = "The threshold was not measured on such films."
DENIED = "The network's own sentence says that it is not there."
OTHER_SIDE = "Asked again about each side by name, the network contradicts itself."


@pytest.mark.parametrize(
    ("state", "contradiction", "reasons", "count"),
    [
        (FindingState.INDETERMINATE, None, (NEAR,), "near_threshold"),
        (FindingState.INDETERMINATE, "sentence_denies", (DENIED,), "contradicted"),
        (FindingState.UNCALIBRATED, None, (UNMEASURED,), "uncalibrated"),
        (FindingState.UNCALIBRATED, "other_side", (OTHER_SIDE, UNMEASURED), "contradicted"),
    ],
)
def test_a_doubtful_finding_is_in_the_queue_with_its_reasons_and_counted_once(
    tmp_path: Path, state: FindingState, contradiction: Contradiction | None, reasons: tuple[str, ...], count: str
) -> None:
    node = finished(tmp_path, state, contradiction)
    (film,) = queue_of(node).films
    (finding,) = film.findings

    assert (film.study, film.film) == (STUDY, FILM.SOPInstanceUID)
    assert (finding.prompt, finding.state, tuple(finding.reasons)) == (KEY, state, reasons)
    assert counted(node) == {count: 1}
    assert count in get_args(ReviewReason)


def test_a_film_without_a_doubtful_finding_or_that_was_rejected_is_not_in_the_queue(tmp_path: Path) -> None:
    for state in (FindingState.PRESENT, FindingState.ABSENT):
        assert queue_of(finished(tmp_path / state, state)).films == ()
    node = finished(tmp_path, FindingState.INDETERMINATE)
    node.read(highdicom_note(FILM))
    assert (counted(node), queue_of(node).films) == ({}, ())


@pytest.mark.parametrize("has_box", [True, False])
def test_a_judged_film_leaves_the_queue_at_once_and_comes_back_when_the_judgment_is_withdrawn(
    tmp_path: Path, has_box: bool
) -> None:
    node = finished(tmp_path, FindingState.INDETERMINATE, has_box=has_box)
    judged = node.correct(FILM, prompt=KEY)
    assert queue_of(node).films == (), "the queue does not wait for the round"
    assert "✓ Finished" in node.client().get("/review").text, "the list waits for it"
    node.round(STUDY)
    assert "No film waits for a reader." in node.client().get("/review").text
    assert counted(node) == {}
    node.correct(FILM, CorrectionKind.WITHDRAW, withdraws=judged)
    node.round(STUDY)
    assert counted(node) == {"near_threshold": 1}


def test_a_finish_that_runs_again_counts_the_same(bench: Bench) -> None:
    bench.keep(FILM)
    plan = bench.steps.plan(STUDY)
    assert plan is not None
    outcomes = [str(bench.steps.read(STUDY, file)) for file in plan.files]
    written = bench.steps.write(plan)
    assert written is not None

    for _ in range(2):
        bench.steps.finish(plan, outcomes, written)

    assert dict(bench.ledger.overview().reviews) == {"near_threshold": 1}


def test_the_queue_goes_beyond_the_listed_films(tmp_path: Path) -> None:
    node = finished(tmp_path, FindingState.INDETERMINATE)
    (row,) = to_review(node.settings.storage)
    others = [replace(row, study_uid=f"1.{n}", film=f"1.{n}.1", urgency=9) for n in range(300)]
    for other in others:
        node.ledger.set_study(other.study_uid, "finished")
        node.ledger.set_reviews(other.study_uid, [other])

    found = queue_of(node, limit=1)

    assert [film.film for film in found.films] == [FILM.SOPInstanceUID]
    assert found.total == 301


def test_a_page_names_a_next_film_only_while_one_waits_and_marks_stat(tmp_path: Path) -> None:
    node = finished(tmp_path, FindingState.INDETERMINATE)
    second = films.as_another(films.thumbnail(), "second", study="second")
    urgent = str(second.StudyInstanceUID)
    node.spool.mark_stat(urgent)
    node.read(second)
    client = node.client()

    def names_next() -> bool:
        return "Next film to review" in client.get(f"/studies/{STUDY}").text

    pages = [client.get(path).text for path in ("/", "/review", f"/studies/{urgent}", f"/studies/{STUDY}")]
    parts = [page.split('<b class="stat">STAT</b>') for page in pages]
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert [(urgent in first, STUDY in first) for first, _ in parts[:2]] == [(True, False)] * 2, "the right one of two"
    assert [(film.study, film.is_stat) for film in queue_of(node).films] == [(urgent, True), (STUDY, False)]
    assert names_next()
    judged = node.correct(second, prompt=KEY)
    assert not names_next(), "the page does not wait for the round"
    node.correct(second, CorrectionKind.WITHDRAW, withdraws=judged)
    assert names_next()
