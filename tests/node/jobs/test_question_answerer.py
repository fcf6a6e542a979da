"""Questions, typed or drawn at a workstation: what is answered, what is refused, and what becomes of them."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydicom.dataset import Dataset
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from structlog.testing import capture_logs

from models.contract import Question
from models.engines.scheduler import Scheduler
from models.errors import Abandoned
from node.config import QuestionsSettings, Settings, StorageSettings
from node.dicom import question_object
from node.errors import InputError, ModelLost
from node.jobs import answer_steps
from node.jobs.object_questions import Looked, ObjectSteps, objection, take
from node.jobs.question_answerer import QuestionAnswerer, questions_of
from node.metrics import Metrics
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.decoding import Radiograph
from node.read.model import FilmAnswer, OpenModel, SeenFilm
from node.store.questions import ObjectMark, objects_of
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.web.application import build
from tests.node.jobs.test_rounds import Bench
from tests.support import films, workstation
from tests.support.damage import flip_a_pixel
from tests.support.fakes import ScriptedReader
from tests.support.finished import parts_of
from tests.support.peers import LOOPBACK
from tests.support.service import settings_for
from tests.support.serving import read_to_end, serving
from tests.support.web_access import as_user
from tests.support.workstation import TRACKING, finding, group, note, rectangle, region, report, state

EDEMA = Question(prompt="Edema")
SECONDS = 20.0
ANSWERED = json.dumps({"questions": [{"prompt": "Edema"}]}).encode()


class Waiting(ScriptedReader):
    """Answers when it is told to, and counts the films it sees, also those at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.may_answer, self.may_see = 0, threading.Event(), threading.Event()
        self.asked = threading.Semaphore(0)
        self.may_answer.set()
        self.may_see.set()

    def see(self, image: Radiograph) -> SeenFilm:
        self.seen += 1
        assert self.may_see.wait(SECONDS)
        return super().see(image)

    def ask(self, film: SeenFilm, questions: Sequence[Question], prompts: PromptSet) -> list[FilmAnswer]:
        self.asked.release()
        assert self.may_answer.wait(SECONDS)
        return super().ask(film, questions, prompts)


class Queued(ScriptedReader):
    """Asks through the queue of the network, which other work holds while the block of `held` runs."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(join=lambda _: iter(()), step=lambda _: iter(()))
        self.asked, self.left = threading.Event(), threading.Event()

    def ask(self, film: SeenFilm, questions: Sequence[Question], prompts: PromptSet) -> list[FilmAnswer]:
        self.asked.set()
        try:
            return self.scheduler.call(lambda: super(Queued, self).ask(film, questions, prompts))
        except Abandoned:
            self.left.set()
            raise

    @contextmanager
    def held(self) -> Iterator[None]:
        is_held, may_go_on = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            assert may_go_on.wait(3 * SECONDS)

        with ThreadPoolExecutor(1) as pool:
            holding = pool.submit(self.scheduler.call, hold)
            try:
                assert is_held.wait(SECONDS)
                yield
            finally:
                may_go_on.set()
            holding.result(SECONDS)


def kept(folder: Path) -> tuple[Spool, Instance]:
    spool = Spool(folder)
    return spool, films.keep(spool, films.thumbnail()).instance


def remove(spool: Spool, film: Instance) -> None:
    """Mark the only round of a study as finished, and remove it."""
    mark = RoundMark(number=1, created_at=datetime.now(UTC), files=(film.path.name,), outputs=())
    spool.mark_round(film.study_uid, mark)
    assert spool.remove_study(film.study_uid)


def answerer_of(spool: Spool, reader: ScriptedReader) -> QuestionAnswerer:
    return QuestionAnswerer(spool, OpenModel(reader=reader, prompts=prompts.load("chexpert14")), Metrics())


def pages_of(spool: Spool, answerer: QuestionAnswerer) -> ASGIApp:
    settings = Settings(storage=StorageSettings(directory=spool.directory))
    return as_user(build(parts_of(settings, spool, answerer=lambda: answerer)))


@pytest.fixture(scope="module", autouse=True)
def decoder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the process that decodes, which takes long on a busy machine, before a test waits for an answer."""
    spool, film = kept(tmp_path_factory.mktemp("decoder"))
    answerer_of(spool, ScriptedReader()).ask(film, [EDEMA], by="", source="api")


def test_questions_survive_a_restart_and_go_with_their_study(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    (made,) = answerer_of(spool, ScriptedReader()).ask(film, [EDEMA], by="anna", source="api")

    again = Spool(tmp_path)
    again.sweep()
    assert questions_of(again, film) == [made]
    remove(again, film)
    assert questions_of(again, film) == []


def test_a_damaged_film_cannot_be_asked_about_and_a_lost_gpu_ends_the_process(tmp_path: Path) -> None:
    class Lost(ScriptedReader):
        def see(self, image: Radiograph) -> SeenFilm:
            raise ModelLost("the GPU is lost")

    spool, film = kept(tmp_path)
    answerer = answerer_of(spool, Lost())

    with pytest.raises(ModelLost):
        answerer.ask(film, [EDEMA], by="", source="api")
    assert answerer.is_broken

    flip_a_pixel(film.path)
    with pytest.raises(InputError, match="damaged"):
        answerer_of(spool, ScriptedReader()).ask(film, [EDEMA], by="", source="api")


def test_a_film_is_decoded_once_for_all_who_ask_at_one_time(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    reader = Waiting()
    answerer = answerer_of(spool, reader)
    reader.may_see.clear()

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(answerer.ask, film, [EDEMA], by="", source="api") for _ in range(4)]
        reader.may_see.wait(0.3)
        reader.may_see.set()
        answered = [asked.result(timeout=SECONDS) for asked in asking]

    assert reader.seen == 1
    assert len(questions_of(spool, film)) == len(answered) == 4


def test_a_study_that_is_removed_meanwhile_gets_no_folder_again(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    reader = Waiting()
    reader.may_answer.clear()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(answerer_of(spool, reader).ask, film, [EDEMA], by="", source="api")
        assert reader.asked.acquire(timeout=SECONDS)
        remove(spool, film)
        reader.may_answer.set()
        with pytest.raises(InputError, match="removed"):
            asking.result(timeout=SECONDS)

    assert [path.name for path in (tmp_path / "studies" / film.study_uid).iterdir()] == ["rounds"]


def test_too_many_questions_are_told_when_to_come_back(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    reader = Waiting()
    answerer = answerer_of(spool, reader)
    client = TestClient(pages_of(spool, answerer))
    reader.may_answer.clear()

    with ThreadPoolExecutor(16) as pool:
        for _ in range(16):
            pool.submit(answerer.ask, film, [EDEMA], by="", source="api")
        for _ in range(16):
            assert reader.asked.acquire(timeout=SECONDS)
        refused = client.post(f"/api/v1/films/{film.sop_instance_uid}/questions", json=json.loads(ANSWERED))
        reader.may_answer.set()

    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert refused.headers["Content-Type"] == "application/problem+json"


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize(
    ("leave", "may_hear"),
    [(socket.socket.close, False), (reset, False), (lambda connection: connection.shutdown(socket.SHUT_WR), True)],
    ids=["closes", "resets", "sends no more"],
)
def test_a_question_leaves_the_queue_when_its_client_has_gone(
    tmp_path: Path, leave: Callable[[socket.socket], None], may_hear: bool
) -> None:
    spool, film = kept(tmp_path)
    reader = Queued()
    answerer = answerer_of(spool, reader)
    request = (
        f"POST /api/v1/films/{film.sop_instance_uid}/questions HTTP/1.1\r\nHost: {LOOPBACK}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(ANSWERED)}\r\nConnection: close\r\n\r\n"
    ).encode() + ANSWERED

    with serving(application=pages_of(spool, answerer)) as served:
        with reader.held():
            connection = served.connect(request)
            assert reader.asked.wait(SECONDS)
            leave(connection)
            assert reader.left.wait(SECONDS)
            told = read_to_end(connection) if may_hear else b""
            connection.close()
        assert questions_of(spool, film) == []
        answered = served.ask(request)

    assert told == b"" or told.startswith(b"HTTP/1.1 503")
    assert answered.startswith(b"HTTP/1.1 201")
    assert len(questions_of(spool, film)) == 1


FILM = films.thumbnail()
NO_FILM = films.as_another(films.thumbnail({"Rows": None}), "no film")
STUDY = str(FILM.StudyInstanceUID)
SQUARE = [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]
STATE = state(FILM, graphics=[rectangle(2, 3, 20, 30, tracking=TRACKING)], texts=[note("edema", 5, 5)])
REPORT = report(FILM, group(finding("edema"), region(FILM, "POLYLINE", SQUARE), tracking=TRACKING))
ASKED_BY_ALL = QuestionsSettings(ae_titles=("TESTER",))


class Asking:
    """The objects of one study, and the step that looks at them."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.queued = Spool(folder), list[str]()
        (destination,) = settings_for(folder, archive_port=104).destinations
        self.steps = ObjectSteps(
            spool=self.spool,
            answerer=answerer_of(self.spool, ScriptedReader()),
            metrics=Metrics(),
            settings=ASKED_BY_ALL,
            destinations={destination.name: destination},
        )

    def keep(self, *received: Dataset) -> None:
        for dataset in received:
            dataset.file_meta.SourceApplicationEntityTitle = "TESTER"
            films.keep(self.spool, dataset, study_uid=STUDY)

    def look(self, asking: Dataset) -> Looked:
        """Take an object, mark and queue it if it may be a question, and look at it."""
        self.keep(asking)
        queue = lambda _study, uid: self.queued.append(uid)  # noqa: E731
        take(self.spool, STUDY, settings=self.steps.settings, run_object=queue)
        return self.steps.look(STUDY, str(asking.SOPInstanceUID))

    def mark(self) -> ObjectMark:
        (mark,) = objects_of(self.spool, STUDY)
        return mark


@pytest.fixture
def study(tmp_path: Path) -> Asking:
    return Asking(tmp_path)


@pytest.mark.parametrize(
    ("questions", "is_one"),
    [
        (QuestionsSettings(), False),
        (QuestionsSettings(ae_titles=("TESTER",)), True),
        (QuestionsSettings(ae_titles=("OTHER",)), False),
        (QuestionsSettings(creators=("workstation",), labels=("ASK AI",)), True),
        (QuestionsSettings(creators=("Reader Rita",)), True),
        (QuestionsSettings(ae_titles=("TESTER",), labels=("other",)), False),
    ],
)
def test_the_settings_say_what_a_question_is(questions: QuestionsSettings, is_one: bool) -> None:
    assert (objection(question_object.read(STATE), "TESTER", questions) is None) is is_one


def test_the_node_never_asks_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.receive(FILM)
    deliveries = [*bench.round(), *bench.answer(str(FILM.SOPInstanceUID))]
    written = [dataset for kind in ("sr", "gsps") for dataset in bench.objects(deliveries, kind)]

    assert len(written) == 4
    for dataset in written:
        assert objection(question_object.read(dataset), "TESTER", ASKED_BY_ALL) == "the node wrote this object"


def test_an_object_is_answered_once(study: Asking) -> None:
    study.keep(FILM)
    answered = study.look(REPORT)
    changed = report(FILM, group(finding("fracture"), region(FILM, "POLYLINE", SQUARE)))
    with capture_logs() as said:
        again = [study.look(asking) for asking in (REPORT, changed)]

    assert len(answered.questions) == 1
    assert again == [answered, answered]
    assert study.queued == [REPORT.SOPInstanceUID], "a closed mark is not queued"
    assert ["with other bytes" in line["reason"] for line in said] == [True]
    assert len(study.spool.documents(STUDY, "questions")) == 1


def test_an_object_waits_for_its_film_in_its_own_study_and_ends_with_a_reason(study: Asking) -> None:
    films.keep(study.spool, films.as_another(films.thumbnail(), "other", study="another study"))
    other = films.as_another(films.thumbnail(), "other")
    assert (study.look(report(other, group(region(other, "POLYLINE", SQUARE)))).wait_seconds or 0.0) > 0.0
    assert study.mark().is_open

    hasty = replace(study.steps, settings=replace(ASKED_BY_ALL, wait_minutes=0.0))
    assert hasty.look(STUDY, study.mark().sop_instance_uid) == Looked()

    assert not study.mark().is_open
    assert "did not arrive" in study.mark().reasons[0]


@pytest.mark.parametrize(
    ("asking", "reason"),
    [
        (report(FILM, name="empty"), "no graphic and no text"),
        (state(FILM, graphics=[rectangle(900, 900, 990, 990)]), "outside the film"),
        (report(FILM, group(region(FILM, "POINT", [3, 3]))), "no area"),
        (report(NO_FILM, group(region(NO_FILM, "POLYLINE", SQUARE))), "is no film"),
    ],
)
def test_what_cannot_be_answered_says_why(study: Asking, asking: Dataset, reason: str) -> None:
    study.keep(FILM, NO_FILM)

    with capture_logs() as said:
        assert study.look(asking).questions == ()

    assert reason in study.mark().reasons[0]
    assert [(line["event"], line["calling_aet"]) for line in said] == [("question.refused", "TESTER")]


def test_each_graphic_of_an_object_is_answered_cut_at_the_edges_of_the_film(study: Asking) -> None:
    graphics = [rectangle(2, 3, 20, 30), rectangle(-9, -8, 20, 30), rectangle(200, 210, 990, 990)]
    study.keep(FILM)

    asked = study.look(state(FILM, graphics=[*graphics, workstation.graphic("POINT", [3, 3])])).questions

    answers = [answer_steps.stored_question(study.spool, STUDY, each).answer for each in asked]
    assert [each.question.box and each.question.box.edges for each in answers] == [
        (2, 3, 20, 30), (0, 0, 20, 30), (200, 210, FILM.Columns, FILM.Rows)
    ]  # fmt: skip
    assert "no area" in study.mark().reasons[0]


def references(dataset: Dataset, keyword: str) -> set[str]:
    named = (item for part in dataset.get(keyword, ()) for item in part.iterall())
    return {str(item.value) for item in named if item.keyword == "ReferencedSOPInstanceUID"}


def test_an_answer_names_the_object_that_asked(study: Asking, tmp_path: Path) -> None:
    study.keep(FILM)
    answering = Bench(tmp_path)

    for asking in (STATE, REPORT):
        (question,) = study.look(asking).questions
        deliveries = answering.write_answer(question)
        (report,), (drawn,) = (answering.objects(deliveries, kind) for kind in ("sr", "gsps"))

        predecessors = references(report, "PredecessorDocumentsSequence")
        evidence = references(report, "CurrentRequestedProcedureEvidenceSequence") - {str(FILM.SOPInstanceUID)}
        named = {str(asking.SOPInstanceUID)}
        assert (predecessors, evidence) == ((named, set()) if asking is REPORT else (set(), named))
        assert TRACKING in [item.value for item in drawn.iterall() if item.keyword == "TrackingUID"]
        assert drawn.InstanceNumber > asking.InstanceNumber
        assert drawn.ContentDescription.endswith("version 2")
        persons = [str(item.value).replace("^", " ").strip() for item in report.iterall() if item.VR == "PN"]
        assert "Reader Rita" in persons
