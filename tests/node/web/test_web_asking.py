"""Who may ask and correct how much: questions are counted one by one on every route, and rejected films take none."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from models.contract import Question
from models.documents import encode
from node.errors import InputError
from node.jobs import answers
from node.jobs.answers import stored_question
from node.jobs.asking import QuestionAnswerer
from node.metrics import Metrics
from node.read import prompts
from node.read.model import OpenModel
from node.store.received import Instance
from node.store.spool import Spool
from node.web import application
from node.web.look_files import Looks
from node.web.parts import WebParts
from node.web.rate import RateLimit
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films, samples
from tests.support.fakes import ScriptedReader
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS
from tests.support.web_access import as_user

BURST = 3
QUESTION = {"prompt": "Edema"}
WORDS = {"text": "Edema"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The application of a node that has read a film, and looks at another one without a study."""

    client: TestClient
    parts: WebParts
    answerer: QuestionAnswerer
    film: Instance
    reject: Callable[[], object]

    @property
    def path(self) -> str:
        return f"/api/v1/films/{self.film.sop_instance_uid}"

    def look(self) -> str:
        body = films.file_bytes(films.thumbnail())
        made = self.client.post("/api/v1/looks", content=body, headers={"Content-Type": "application/dicom"})
        return f"/api/v1/looks/{made.json()['id']}"


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    settings = settings_for(tmp_path / "node", archive_port=104)
    spool, received = Spool(settings.storage.directory), films.thumbnail()
    film = films.keep(spool, received).instance
    answer = replace(samples.several(), source=film.sop_instance_uid)
    spool.keep_reading(film.study_uid, "1", {**encode(answer), "file": film.path.name})
    model = OpenModel(reader=ScriptedReader(), prompts=prompts.load("chexpert14"))
    answerer, looks = QuestionAnswerer(spool, model, Metrics()), Looks(tmp_path / "looks")
    parts = WebParts(
        settings=settings,
        spool=spool,
        metrics=Metrics(),
        prompts=lambda: model.prompts,
        destinations=lambda: settings.destinations,
        answerer=lambda: answerer,
        model=lambda: model,
        looks=looks,
        rate=RateLimit(burst=BURST, seconds=3600.0),
    )
    client = TestClient(as_user(application.build(parts)), raise_server_exceptions=False)
    note = highdicom_note(received)
    yield Asked(client=client, parts=parts, answerer=answerer, film=film, reject=lambda: films.keep(spool, note))
    looks.close()


@pytest.mark.parametrize("where", ["film", "look"])
def test_each_question_of_a_request_counts(asked: Asked, where: str) -> None:
    path = asked.path if where == "film" else asked.look()

    several = asked.client.post(f"{path}/questions", json={"questions": [QUESTION] * BURST})
    refused = [
        asked.client.post(f"{path}/questions", json={"questions": [QUESTION]}),
        asked.client.post(f"{path}/replies", json=WORDS),
    ]

    assert several.is_success
    assert [answer.status_code for answer in refused] == [429, 429]
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)


def test_questions_of_one_user_count_wherever_they_are_asked(asked: Asked) -> None:
    look = asked.look()

    answers = [asked.client.post(f"{path}/replies", json=WORDS) for path in (asked.path, look, asked.path, look)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]


@pytest.fixture
def described(tmp_path: Path) -> FastAPI:
    """An application of which only the description is looked at."""
    settings = settings_for(tmp_path, archive_port=104)
    parts = WebParts(settings=settings, spool=None, metrics=Metrics(), prompts=lambda: PROMPTS, looks=None)  # type: ignore[arg-type]  # not used
    return application.build(parts)


def test_every_route_that_asks_describes_that_it_may_refuse(described: FastAPI) -> None:
    paths = described.openapi()["paths"]

    asking = {path: routes["post"] for path, routes in paths.items() if path.endswith(("}/questions", "}/replies"))}

    assert len(asking) == 6
    assert [path for path, route in asking.items() if "429" not in route["responses"]] == []


def test_the_description_is_made_when_somebody_asks_for_it(described: FastAPI) -> None:
    before = described.openapi_schema

    first, second = (copy.deepcopy(described.openapi()) for _ in range(2))

    assert before is None
    assert "ProblemDocument" in first["components"]["schemas"]
    assert first == second


def test_a_rejected_film_takes_neither_questions_nor_corrections(asked: Asked) -> None:
    asked.client.post(f"{asked.path}/questions", json={"questions": [QUESTION]})  # its encoded film is in memory
    asked.reject()

    refused = [
        asked.client.post(f"{asked.path}/questions", json={"questions": [QUESTION]}),
        asked.client.post(f"{asked.path}/replies", json={"text": "List the findings"}),
        asked.client.post(f"{asked.path}/corrections", json={"kind": "reject", "prompt": "pleural_effusion"}),
    ]

    why = "rejected by the archive: Rejected for Quality Reasons (113001 DCM)"
    assert [(answer.status_code, why in answer.json()["detail"]) for answer in refused] == [(409, True)] * 3
    assert asked.client.get(f"{asked.path}/corrections").json() == {"corrections": []}
    assert len(asked.client.get(f"{asked.path}/questions").json()["questions"]) == 1
    with pytest.raises(InputError, match="113001"):  # as for an object of a workstation
        asked.answerer.ask(asked.film, [Question(prompt="Edema")], by="", source="dicom")


def test_the_answer_on_a_rejected_film_is_not_sent(asked: Asked) -> None:
    made = asked.client.post(f"{asked.path}/questions", json={"questions": [QUESTION]}).json()["questions"]
    stored = stored_question(asked.parts.spool, asked.film.study_uid, made[0]["id"])
    asked.reject()

    with pytest.raises(InputError, match="rejected by the archive"):
        answers.take(asked.parts.spool, stored, destinations=asked.parts.destinations())
