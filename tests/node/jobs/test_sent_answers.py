"""An answer that a person sends: what comes while it is written, the rounds after it, and when it is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from pydicom.dataset import Dataset

from node.domain import Delivery, JsonObject
from node.errors import InputError
from node.jobs import answer_steps
from node.store import questions
from node.store.questions import SentAnswer
from node.store.spool import DocumentKind, Spool
from tests.node.jobs.test_rounds import STUDY, Bench, film
from tests.node.outputs.test_rejection import dcmtk_note, rejected_uids, uids
from tests.node.test_metrics import samples
from tests.support import senders
from tests.support.fakes import ScriptedReader
from tests.support.films import thumbnail

OLD = {"PatientID": "P-1", "PatientName": "WRONG^PATIENT"}
FILM = thumbnail(OLD)
QUESTION = f"{1:032x}"
TAKEN, RECORDED, RELEASED = 1, 2, 3
"""The times at which what is known of a sent answer is stored, in their order."""
MOMENTS = [(RECORDED, "before"), (RECORDED, "after"), (RELEASED, "before")]
"""Before the objects of an answer are recorded; then before the look at what came meanwhile; and after that look."""


class Interrupted(Spool):
    """A spool where something happens once: before or after what is known of an answer is stored."""

    def __init__(self, directory: Path, moment: tuple[int, str]) -> None:
        super().__init__(directory)
        self._number, self._side = moment
        self._count = 0
        self.happens: Callable[[], object] = lambda: None

    def keep_document(self, study_uid: str, kind: DocumentKind, name: str, content: JsonObject) -> None:
        self._count += kind == "sent"
        is_now = kind == "sent" and self._count == self._number
        if is_now and self._side == "before":
            self._happen()
        super().keep_document(study_uid, kind, name, content)
        if is_now and self._side == "after":
            self._happen()

    def _happen(self) -> None:
        self._number = 0
        self.happens()


class Race:
    """A node that answers, and another process of it that reads, on one folder."""

    def __init__(self, folder: Path, moment: tuple[int, str]) -> None:
        self.folder, self.spool = folder, Interrupted(folder, moment)
        self.answering, self.reading = Bench(folder, spool=self.spool), Bench(folder)
        self.reading.receive(FILM)
        self.reading.round()
        self.rejected = set[str]()

    def answer(self, happens: Callable[[], object]) -> list[Delivery]:
        """Send an answer, while something happens."""
        self.spool.happens = happens
        return self.answering.answer(str(FILM.SOPInstanceUID))

    def reject(self) -> None:
        """The archive rejects the film, and the node answers that."""
        self.reading.receive(dcmtk_note(self.folder, FILM))
        self.read()

    def correct(self, number: str = "P-2") -> None:
        """The film comes again as another patient's, and the node follows."""
        self.reading.receive(thumbnail({**OLD, "PatientID": number}))
        self.read()

    def read(self) -> None:
        for note in self.reading.objects(self.reading.round(), "rejection"):
            self.rejected |= rejected_uids(note)

    def patients(self, deliveries: list[Delivery]) -> set[str]:
        objects: list[Dataset] = [found for kind in ("sr", "gsps") for found in self.reading.objects(deliveries, kind)]
        return {str(found.PatientID) for found in objects}


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_answer_escapes_a_rejection_note(tmp_path: Path, moment: tuple[int, str]) -> None:
    race = Race(tmp_path, moment)

    sent = race.answer(race.reject)

    assert uids(sent) <= race.rejected
    assert bool(sent) == (moment == (RELEASED, "before"))
    [answer] = questions.answers_of(race.reading.spool, STUDY)
    assert not answer.is_open
    assert sent or "rejected the film" in answer.reason
    failures = samples(race.answering.steps.metrics.registry, "cxr_failures_total")
    assert sum(count for (_, stage), count in failures.items() if stage == "answer") == (not sent)


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_answer_escapes_another_patient(tmp_path: Path, moment: tuple[int, str]) -> None:
    race = Race(tmp_path, moment)

    sent = race.answer(race.correct)

    is_old = moment == (RELEASED, "before")
    assert race.patients(sent) == {"P-1" if is_old else "P-2"}
    assert (uids(sent) <= race.rejected) == is_old
    assert is_old or uids(sent).isdisjoint(race.rejected)
    assert len(sent) == 2


def test_a_correction_long_after_rejects_what_was_renewed(tmp_path: Path) -> None:
    race = Race(tmp_path, (RECORDED, "before"))
    sent = race.answer(race.correct)

    race.correct("P-3")

    assert uids(sent) <= race.rejected
    assert uids(race.reading.write_answer(QUESTION)) <= uids(sent), "what was released stays so"


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_at_any_moment_lets_no_answer_escape(tmp_path: Path, moment: tuple[int, str]) -> None:
    race = Race(tmp_path, moment)

    with pytest.raises(SystemExit):  # the end of the process, which no step takes for a fault
        race.answer(Mock(side_effect=SystemExit))
    race.reject()

    assert list(questions.released_outputs(race.reading.spool, STUDY)) == []
    assert race.reading.write_answer(QUESTION) == []


def test_a_lost_object_of_an_answer_is_written_again_as_it_was(tmp_path: Path) -> None:
    race = Race(tmp_path, (RECORDED, "before"))
    sent = race.answer(race.correct)
    contents = [race.reading.spool.output(delivery) for delivery in sent]
    for delivery in sent:
        for path in (tmp_path / "studies" / STUDY / "outputs").glob(f"{delivery.sop_instance_uid}*"):
            path.unlink()

    race.reading.steps.plan(STUDY)

    assert [race.reading.spool.output(delivery) for delivery in sent] == contents
    assert None not in contents


def test_an_answer_and_the_rounds_after_it_leave_each_other_alone(tmp_path: Path) -> None:
    bench, late, last = Bench(tmp_path), film("late", None, **OLD), film("last", None, **OLD)
    bench.receive(FILM)
    bench.round()
    sent, before = bench.answer(str(FILM.SOPInstanceUID)), bench.spool.rounds(STUDY)
    bench.receive(late)
    later = bench.round()
    assert sorted(delivery.kind for delivery in sent) == ["gsps", "sr"]
    assert bench.spool.rounds(STUDY)[:1] == before
    assert not any(uid.encode() in (bench.spool.output(delivery) or b"") for uid in uids(sent) for delivery in later)

    for delivery in sent:
        next(tmp_path.rglob(f"{delivery.sop_instance_uid}~*")).write_bytes(b"damaged")
    other = Bench(tmp_path, reader=ScriptedReader("2"))  # which writes other bytes
    sending = senders.sending(other.spool, other.ledger, *other.steps.destinations.values())
    assert {sending.send(delivery, 1, time.time()).outcome for delivery in sent} == {"delayed"}
    other.steps.plan(STUDY)
    assert {sending.send(delivery, 2, time.time()).outcome for delivery in sent} == {"parked"}
    other.receive(last)
    other.round()

    assert {delivery.sop_instance_uid for delivery in other.ledger.parked_deliveries(study_uid=STUDY)} == uids(sent)
    assert all("ask the question again" in parked.reason for parked in other.ledger.parked())


def test_an_answer_of_another_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    bench.round()
    bench.ask(str(FILM.SOPInstanceUID), weights_sha256="1" * 64)
    questions.keep_answer(bench.spool, STUDY, SentAnswer(question=QUESTION, requested_at=datetime.now(UTC)))

    assert bench.write_answer(QUESTION) == []

    known = questions.find_answer(bench.spool, STUDY, QUESTION)
    assert known and (known.outputs, "another model" in known.reason) == ((), True)


def test_an_answer_that_no_destination_takes_or_of_a_removed_study_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, outputs=("text", "sc"))
    bench.receive(FILM)
    question = bench.ask(str(FILM.SOPInstanceUID))

    with pytest.raises(InputError, match="no destination takes answers"):
        answer_steps.take(bench.spool, question, destinations=[*bench.steps.destinations.values()])
    assert questions.answers_of(bench.spool, STUDY) == []
    bench.spool.drop_document(STUDY, "questions", QUESTION)
    with pytest.raises(InputError, match="may have been removed"):
        answer_steps.stored_question(bench.spool, STUDY, QUESTION)


@pytest.mark.parametrize("question_id", ["../" * 4, "0" * 31, ""])
def test_no_file_is_reached_by_a_bad_id(tmp_path: Path, question_id: str) -> None:
    with pytest.raises(InputError, match="no id of a question"):
        questions.question(Spool(tmp_path), STUDY, question_id)
