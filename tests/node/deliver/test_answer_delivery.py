"""An answer that a person sends reaches each destination as SR and GSPS, exactly once, whatever ends in between."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from models.contract import Box
from models.documents import encode
from node.config import Settings
from node.errors import InputError
from node.jobs import answer_steps
from node.jobs.executor import Client
from node.outputs.asked_question import AskedQuestion
from node.settings.destinations import DicomDestination
from node.store import database, files, questions
from node.store.ledger import Ledger
from node.store.questions import SentAnswer
from node.store.spool import Spool
from tests.node.jobs.test_rounds import Bench
from tests.node.outputs.test_answer_objects import asked
from tests.support import films, peers
from tests.support.service import Service, read_and_stop, run_command, settings_for

FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
QUESTION = "3f2a91bc" * 4


def question(*, weights_sha256: str = "0" * 64) -> AskedQuestion:
    """Make a question about the film that the scripted reader reads."""
    facts = {"study_uid": STUDY, "film": str(FILM.SOPInstanceUID), "weights_sha256": weights_sha256}
    return replace(asked(boxes=(Box(left=2, top=3, right=20, bottom=30),)), **facts)


def store(settings: Settings, stored: AskedQuestion) -> Spool:
    """Store a question beside its film."""
    spool = Spool(settings.storage.directory)
    folder = spool.directory / "studies" / stored.study_uid / "questions"
    files.make_folder(folder)
    files.write(folder / f"{stored.id}.json", files.to_json(encode(stored)))
    return spool


def send(settings: Settings, stored: AskedQuestion) -> SentAnswer:
    """Send an answer as the page does, from another process than the service."""
    with closing(Client(database.open_executor_database(settings.storage))) as client:
        known = answer_steps.take(store(settings, stored), stored, destinations=settings.destinations)
        client.run_answer(stored.study_uid, stored.id)
        return known


@pytest.fixture
def settings(tmp_path: Path, archive: peers.ReceivingArchive) -> Settings:
    """The settings of a node that has read and delivered one film, and is stopped."""
    settings = settings_for(tmp_path / "node", archive_port=archive.port)
    read_and_stop(settings, FILM)
    return settings


@pytest.mark.drill(part="peers")
def test_answers_leave_the_reports_of_their_study_alone(settings: Settings, archive: peers.ReceivingArchive) -> None:
    spool = Spool(settings.storage.directory)
    before = spool.rounds(STUDY)

    with Service(settings) as service:
        send(settings, question())
        archive.wait_for_kept(4)
        service.wait_for("delivery.sent", count=2)
        [mark] = questions.answers_of(spool, STUDY)
        explained = run_command("explain", mark.outputs[0].sop_instance_uid, service.settings_path).stdout
        late = films.as_another(films.thumbnail(), "late")
        assert peers.send(late, port=service.dicom_port) == 0
        archive.wait_for_kept(4 + 3)  # the late film's report and state, and the study's report
        assert service.stop() == 0

    assert spool.rounds(STUDY)[: len(before)] == before
    answers = {output.sop_instance_uid for output in mark.outputs}
    newest = archive.kept[-3:]
    assert not any(uid.encode() in received.content for uid in answers for received in newest)
    assert {output.kind for output in mark.outputs} == {"sr", "gsps"}
    assert f"answer {QUESTION}" in explained


@pytest.mark.drill(part="peers")
def test_a_new_round_replaces_no_lost_answer(settings: Settings, archive: peers.ReceivingArchive) -> None:
    with archive.down(), Service(settings) as service:
        send(settings, question())
        service.wait_for("delivery.delayed")
        service.kill()
    [mark] = questions.answers_of(Spool(settings.storage.directory), STUDY)
    for output in mark.outputs:
        next(settings.storage.directory.rglob(f"{output.sop_instance_uid}~*")).write_bytes(b"damaged")

    with Service(settings, version="2") as service:  # which writes other bytes
        parked = service.wait_for("delivery.parked", count=2)
        assert peers.send(films.as_another(films.thumbnail(), "late"), port=service.dicom_port) == 0
        service.wait_for_line(lambda line: line["event"] == "study.finished" and line.get("instances") == 2)
        assert service.stop() == 0

    with closing(Ledger(database.open_ledger(settings.storage))) as ledger:
        left = {delivery.sop_instance_uid for delivery in ledger.parked_deliveries(study_uid=STUDY)}
    assert left == {output.sop_instance_uid for output in mark.outputs}
    assert "ask the question again" in str(parked["reason"])


def test_an_answer_of_another_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "node")
    bench.receive(FILM)
    bench.round()
    spool = store(settings_for(tmp_path / "node", archive_port=1), question(weights_sha256="1" * 64))
    questions.keep_answer(spool, STUDY, SentAnswer(question=QUESTION, requested_at=datetime.now(UTC)))

    assert bench.write_answer(QUESTION) == []

    known = questions.find_answer(spool, STUDY, QUESTION)
    assert known is not None
    assert known.outputs == ()
    assert "another model" in known.reason


def test_an_answer_that_no_destination_takes_or_of_a_removed_study_is_refused(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=1)
    [archive] = settings.destinations
    assert isinstance(archive, DicomDestination)
    spool = store(settings, question())

    with pytest.raises(InputError, match="no destination takes answers"):
        answer_steps.take(spool, question(), destinations=[replace(archive, outputs=("text", "sc"))])
    assert questions.answers_of(spool, STUDY) == []
    (spool.directory / "studies" / STUDY / "questions" / f"{QUESTION}.json").unlink()
    with pytest.raises(InputError, match="may have been removed"):
        answer_steps.stored_question(spool, STUDY, QUESTION)


@pytest.mark.parametrize("question_id", ["../" * 4, "0" * 31, ""])
def test_no_file_is_reached_by_a_bad_id(tmp_path: Path, question_id: str) -> None:
    with pytest.raises(InputError, match="no id of a question"):
        questions.question(Spool(tmp_path), STUDY, question_id)
