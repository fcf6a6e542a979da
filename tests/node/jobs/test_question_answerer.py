"""Questions about the films of a spool: when they are refused, and what becomes of them, with a scripted reader."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from models.contract import Question
from models.engines.scheduler import Scheduler
from models.errors import Abandoned
from node.config import Settings, StorageSettings
from node.errors import InputError, ModelLost
from node.jobs.asking import QuestionAnswerer, questions_of
from node.metrics import Metrics
from node.prompt_set import PromptSet
from node.read import prompts
from node.read.decoding import Radiograph
from node.read.model import FilmAnswer, OpenModel, SeenFilm
from node.store.received import Instance
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.web.application import build
from node.web.look_files import Looks
from node.web.parts import WebParts
from tests.support import films
from tests.support.fakes import ScriptedReader
from tests.support.peers import LOOPBACK
from tests.support.serving import read_to_end, serving
from tests.support.spoken import PROMPTS
from tests.support.web_access import as_user

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


class Lost(ScriptedReader):
    """A reader whose GPU is lost."""

    def see(self, image: Radiograph) -> SeenFilm:
        raise ModelLost("the GPU is lost")


def kept(folder: Path) -> tuple[Spool, Instance]:
    spool = Spool(folder)
    return spool, films.keep(spool, films.thumbnail()).instance


def finish(spool: Spool, film: Instance) -> None:
    """Mark the only round of a study as finished, so that it may be removed."""
    mark = RoundMark(number=1, created_at=datetime.now(UTC), files=(film.path.name,), outputs=())
    spool.mark_round(film.study_uid, mark)


def answerer_of(spool: Spool, reader: ScriptedReader) -> QuestionAnswerer:
    return QuestionAnswerer(spool, OpenModel(reader=reader, prompts=prompts.load("chexpert14")), Metrics())


def pages_of(spool: Spool, answerer: QuestionAnswerer) -> ASGIApp:
    settings, looks = Settings(storage=StorageSettings(directory=spool.directory)), Looks(spool.directory / "looks")
    looks.close()
    parts = WebParts(
        settings=settings,
        spool=spool,
        metrics=Metrics(),
        prompts=lambda: PROMPTS,
        answerer=lambda: answerer,
        looks=looks,
    )
    return as_user(build(parts))


def test_questions_survive_a_restart_and_go_with_their_study(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    (made,) = answerer_of(spool, ScriptedReader()).ask(film, [EDEMA], by="anna", source="api")

    again = Spool(tmp_path)
    again.sweep()
    before = questions_of(again, film)
    finish(again, film)
    is_removed = again.remove_study(film.study_uid)

    assert before == [made]
    assert is_removed
    assert questions_of(again, film) == []


def test_a_damaged_film_cannot_be_asked_about(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    content = bytearray(film.path.read_bytes())
    content[-100] ^= 1
    film.path.write_bytes(content)

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
    finish(spool, film)
    reader = Waiting()
    answerer = answerer_of(spool, reader)
    reader.may_answer.clear()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(answerer.ask, film, [EDEMA], by="", source="api")
        assert reader.asked.acquire(timeout=SECONDS)
        spool.remove_study(film.study_uid)
        reader.may_answer.set()
        with pytest.raises(InputError, match="removed"):
            asking.result(timeout=SECONDS)

    assert [path.name for path in (tmp_path / "studies" / film.study_uid).iterdir()] == ["rounds"]


def test_a_lost_gpu_ends_the_process(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    answerer = answerer_of(spool, Lost())

    with pytest.raises(ModelLost):
        answerer.ask(film, [EDEMA], by="", source="api")

    assert answerer.is_broken


def test_too_many_questions_are_told_when_to_come_back(tmp_path: Path) -> None:
    spool, film = kept(tmp_path)
    reader = Waiting()
    answerer = answerer_of(spool, reader)
    client = TestClient(pages_of(spool, answerer))
    reader.may_answer.clear()

    with ThreadPoolExecutor(16) as pool:
        asking = [pool.submit(answerer.ask, film, [EDEMA], by="", source="api") for _ in range(16)]
        for _ in asking:
            assert reader.asked.acquire(timeout=SECONDS)
        refused = client.post(
            f"/api/v1/films/{film.sop_instance_uid}/questions", json={"questions": [{"prompt": "Edema"}]}
        )
        reader.may_answer.set()

    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    assert refused.headers["Content-Type"] == "application/problem+json"


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def close_sending(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [close, reset, close_sending])
def test_a_question_leaves_the_queue_when_its_client_has_gone(
    tmp_path: Path, leave: Callable[[socket.socket], None]
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
            has_left = reader.left.wait(SECONDS)
            told = read_to_end(connection) if leave is close_sending else b""
            connection.close()
        after_it = questions_of(spool, film)
        answered = served.ask(request)

    assert has_left
    assert after_it == []
    assert told == b"" or told.startswith(b"HTTP/1.1 503")
    assert answered.startswith(b"HTTP/1.1 201")
    assert len(questions_of(spool, film)) == 1
