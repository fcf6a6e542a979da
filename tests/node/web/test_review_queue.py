"""The films to review, as rounds find them, and a file of one study that cannot be read: others do not notice."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from structlog.testing import capture_logs

from models.contract import Contradiction, FindingState
from node.jobs.answered_film import UnusableFilm, is_still_critical, read_film
from node.metrics import ReviewReason
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.service.worker import LedgerFiller
from node.store.correction import CorrectionKind
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.statistics import counted_studies
from node.store.worklist import has_patient, to_review
from node.web import findings, review_queue
from node.web.review_queue import ReviewQueue
from node.web.studies import received_films
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films, peers, senders
from tests.support.damage import FILM, STUDY, Bench, cut
from tests.support.fakes import ScriptedReader
from tests.support.finished import Finished, parts_of
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
    for number in range(300):
        study = f"1.{number}"
        node.ledger.set_study(study, "finished")
        node.ledger.set_reviews(study, [replace(row, study_uid=study, film=f"{study}.1", urgency=9)])

    found = queue_of(node, limit=1)

    assert ([film.film for film in found.films], found.total) == ([FILM.SOPInstanceUID], 301)


def test_a_page_names_a_next_film_only_while_one_waits_and_marks_stat(tmp_path: Path) -> None:
    node = finished(tmp_path, FindingState.INDETERMINATE)
    node.spool.mark_stat(UNREAD)
    node.read(SECOND)
    client = node.client()

    def names_next() -> bool:
        return "Next film to review" in client.get(f"/studies/{STUDY}").text

    pages = [client.get(path).text for path in ("/", "/review", f"/studies/{UNREAD}", f"/studies/{STUDY}")]
    parts = [page.split('<b class="stat">STAT</b>') for page in pages]
    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert [(UNREAD in first, STUDY in first) for first, _ in parts[:2]] == [(True, False)] * 2, "the right one of two"
    assert [(film.study, film.is_stat) for film in queue_of(node).films] == [(UNREAD, True), (STUDY, False)]
    assert names_next()
    judged = node.correct(SECOND, prompt=KEY)
    assert not names_next(), "the page does not wait for the round"
    node.correct(SECOND, CorrectionKind.WITHDRAW, withdraws=judged)
    assert names_next()


SECOND = films.as_another(films.thumbnail(), "second", study="second")
UNREAD = str(SECOND.StudyInstanceUID)
LISTS = ("/", "/review", f"/review/next?study={STUDY}", f"/studies/{STUDY}", "/statistics")
INTERFACE = ("/api/v1/studies", "/api/v1/review", "/api/v1/findings")


def answers_of(node: Finished, study: str = UNREAD) -> list[Path]:
    return list((node.spool.directory / "studies" / study / "readings").glob("*.json"))


def lose_a_field(node: Finished) -> None:
    ((_, reading),) = node.spool.readings(UNREAD).intact
    (path,) = answers_of(node)
    node.spool.keep_reading(UNREAD, path.stem, {key: value for key, value in reading.items() if key != "view"})


def cut_the_answer(node: Finished) -> None:
    (path,) = answers_of(node)
    cut(path)


def change_the_form_of_a_correction(node: Finished) -> None:
    node.spool.keep_document(UNREAD, "corrections", f"{1:032x}", {"form": "another program's"})


def change_the_form_of_a_question(node: Finished) -> None:
    node.spool.keep_document(UNREAD, "objects", "1.3", {"form": "another program's"})


DAMAGES = [lose_a_field, cut_the_answer, change_the_form_of_a_correction, change_the_form_of_a_question]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """A node with two studies, each with a film to review."""
    monkeypatch.setattr(findings, "_SETTLED_SECONDS", 0.0)
    made = finished(tmp_path, FindingState.INDETERMINATE)
    made.read(SECOND)
    return made


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_lists_show_every_study_and_say_of_which_an_answer_cannot_be_read(
    node: Finished, damage: Callable[[Finished], None]
) -> None:
    client = node.client()
    before = {path: client.get(path).json() for path in INTERFACE}
    damage(node)

    with capture_logs() as lines:
        shown = {path: client.get(path) for path in LISTS for _ in range(2)}
        studies, review, rows_of_findings = (client.get(path).json() for path in INTERFACE)

    assert {path: page.status_code for path, page in shown.items()} == dict.fromkeys(LISTS, 200)
    assert "Next film to review" in shown[f"/studies/{STUDY}"].text
    rows = {uid: row for row in shown["/"].text.split("<tr ") for uid in (STUDY, UNREAD) if f'data-uid="{uid}"' in row}
    is_damaged = damage in (lose_a_field, cut_the_answer)
    said = "A stored result is damaged." if is_damaged else "written by another version of the program; see the log."
    assert "stored result not readable" in rows[UNREAD] and said in rows[UNREAD]
    assert (f"/studies/{UNREAD}/manage" in rows[UNREAD]) is is_damaged
    assert "none reported" not in rows[UNREAD]
    assert "damaged" not in rows[STUDY] and "Pulmonary edema" in rows[STUDY]
    states = {line["uid"]: line["state"] for line in studies["studies"]}
    assert states == {STUDY: "finished", UNREAD: "answer_unreadable"}
    cautions = {film["study"]: " ".join(film["cautions"]) for film in review["films"]}
    assert cautions[STUDY] == "" and said in cautions[UNREAD]
    own = [row for row in rows_of_findings["rows"] if row["study"] == UNREAD]
    assert [(row["state"], row["finding"]) for row in own] == [("answer_unreadable", None)]
    others = [row for row in before["/api/v1/findings"]["rows"] if row["study"] == STUDY]
    assert [row for row in rows_of_findings["rows"] if row not in own] == others
    ((study, reason),) = [(line["study"], line["reason"]) for line in lines if line["event"] == "answer.unreadable"]
    assert study == UNREAD and str(node.spool.directory) in reason
    assert [line for line in lines if line["event"] == "page.failed"] == []


@pytest.mark.parametrize("damage", [lose_a_field, cut_the_answer])
def test_the_page_of_the_study_says_so_until_it_was_read_again(
    node: Finished, damage: Callable[[Finished], None]
) -> None:
    damage(node)
    older = answers_of(node)[0].with_name("older.json")
    older.write_bytes(b"an answer of another model, cut short")
    page = node.client().get(f"/studies/{UNREAD}")
    assert (page.status_code, "A stored result is damaged." in page.text) == (200, True)
    with pytest.raises(UnusableFilm, match="read again"):
        read_film(node.spool, node.spool.instances(UNREAD)[0])
    assert is_still_critical(node.spool, UNREAD, "edema", PROMPTS) is True, "nobody knows"

    node.spool.forget_interrupted_readings(UNREAD)
    assert not older.exists()
    node.spool.uncover(UNREAD)
    node.round(UNREAD)

    states = {line["uid"]: line["state"] for line in node.client().get("/api/v1/studies").json()["studies"]}
    assert states == {STUDY: "finished", UNREAD: "finished"}
    assert is_still_critical(node.spool, UNREAD, "edema", PROMPTS) is False


def test_a_lost_ledger_is_filled_though_a_document_of_one_study_cannot_be_read(node: Finished, tmp_path: Path) -> None:
    of_unknown_form = node.spool.directory / "studies" / "1.1" / "readings"
    shutil.copytree(node.spool.directory / "studies" / STUDY, of_unknown_form.parent)
    for answer in of_unknown_form.glob("*.json"):
        answer.write_text(json.dumps({"source": FILM.SOPInstanceUID, "findings": 5}), encoding="utf-8")
    change_the_form_of_a_question(node)
    studies = (STUDY, UNREAD, "1.1")
    with closing(Ledger(connect(tmp_path / "new.sqlite"))) as ledger:
        for study_uid in studies:
            ledger.add_finished_study(study_uid)

        finder = LedgerFiller(node.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=True)
        peers.wait_until(lambda: len(counted_studies(ledger.tables)) == 3, what="all studies were looked at")
        finder.close()

        assert [has_patient(ledger.tables, uid) for uid in studies] == [True, False, True]
        assert ledger.overview().reviews == {"near_threshold": 1}


def test_an_older_answer_is_not_shown_in_place_of_a_newer_one_that_is_damaged(node: Finished) -> None:
    report = films.as_another(films.non_image("SR"), "report", study="second")  # which gets no answer
    node.read(report)
    ((_, reading),) = node.spool.readings(UNREAD).intact
    (newest,) = answers_of(node)
    node.spool.keep_reading(UNREAD, "older", {**reading, "model": "OLD 1.0"})
    os.utime(newest.with_name("older.json"), (1, 1))
    seen = [shown(node)]
    cut(newest)
    seen.append(shown(node))
    with pytest.raises(UnusableFilm, match="read again"):
        read_film(node.spool, node.spool.instances(UNREAD)[0])
    os.utime(newest, (0, 0))  # now the damaged one is older
    seen.append(shown(node))

    assert seen == [
        {str(SECOND.SOPInstanceUID): status, str(report.SOPInstanceUID): "left_alone"}
        for status in ("read", "answer_unreadable", "read")
    ]
    assert is_still_critical(node.spool, UNREAD, "edema", PROMPTS) is False


def test_a_finding_does_not_stand_on_a_film_with_a_damaged_answer_if_a_reader_or_the_archive_rejected_it(
    node: Finished,
) -> None:
    def still_critical(key: str = "edema") -> bool | None:
        return is_still_critical(node.spool, UNREAD, key, PROMPTS)

    cut_the_answer(node)
    assert still_critical()
    made = node.correct(SECOND, CorrectionKind.REJECT, prompt="edema")
    assert (still_critical(), still_critical("pneumothorax")) == (False, True)
    node.correct(SECOND, CorrectionKind.WITHDRAW, withdraws=made)
    assert still_critical()
    films.keep(node.spool, highdicom_note(SECOND))
    assert not still_critical()


def shown(node: Finished) -> dict[str, str]:
    return {film.instance.sop_instance_uid: film.status for film in received_films(UNREAD, node.spool, PROMPTS)}


@pytest.mark.parametrize("damage", [change_the_form_of_a_correction, change_the_form_of_a_question])
def test_a_study_with_a_document_of_another_version_is_neither_read_again_nor_deleted(
    node: Finished, damage: Callable[[Finished], None]
) -> None:
    damage(node)
    client, path = node.client(), f"/api/v1/studies/{UNREAD}"

    with capture_logs() as lines:
        answers = [
            client.post(f"{path}/read", json={"reason": "other"}),
            client.post(f"{path}/delete", json={"reason": "other", "films": 1, "undelivered": 0}),
        ]

    said = [(answer.status_code, "another version of the program" in answer.text) for answer in answers]
    assert said == [(409, True)] * 2
    audited = [(line["event"], line["outcome"], line["study"]) for line in lines if "outcome" in line]
    assert audited == [(event, "refused", UNREAD) for event in ("study.reread", "study.deleted")]
    assert node.ledger.study_state(UNREAD) == "finished"
    assert len(node.spool.rounds(UNREAD)) == 1, "no round follows that would be parked"
    node.spool.keep_document(UNREAD, "questions", f"{1:032x}", {"form": "another program's"})
    questions = client.get(f"{path}/films/{SECOND.SOPInstanceUID}/questions")
    assert (questions.status_code, "questions/" in questions.json()["detail"]) == (503, True)


def test_a_study_with_a_damaged_answer_is_still_shown_as_not_delivered(node: Finished) -> None:
    film, pages = films.as_another(films.thumbnail(), "unsent", study="unsent"), node.client()
    uid = str(film.StudyInstanceUID)
    films.keep(node.spool, film)
    senders.run_round(node.bench.steps, uid)
    (reading,) = answers_of(node, uid)
    cut(reading)

    page = pages.get(f"/?q={uid}").text

    assert '<span class="chip">not delivered</span>' in page and "A stored result is damaged." in page
    node.ledger.set_study(uid, "parked", stage="read", reason="the disk is full")
    (line,) = pages.get(f"/api/v1/studies?q={uid}").json()["studies"]
    assert (line["state"], line["reason"]) == ("parked", "the disk is full"), "what a person has to do comes first"
