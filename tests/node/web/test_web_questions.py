"""Questions about a film over the interface for programs: asked, kept, counted, refused, removed, and sent once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from models.contract import Question
from node.domain import JsonObject
from node.errors import InputError
from node.jobs import answer_steps
from node.jobs.answer_steps import stored_question
from node.store import questions
from node.store.questions import SentAnswer
from node.web.rate_limit import RateLimit
from tests.node.outputs.test_rejection import highdicom_note
from tests.support import films
from tests.support.archived import StartNode
from tests.support.finished import Finished, pages_of, parts_of

Content = dict[str, Any]
NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
OF_FILM = f"/api/v1/studies/{STUDY}/films/{FILM.SOPInstanceUID}"
PATH = f"{OF_FILM}/questions"
BOX = [20.0, 30.0, 60.0, 90.0]
EDEMA = {"questions": [{"prompt": "Edema"}]}
REFUSED: tuple[tuple[Content, int, str], ...] = (
    ({"questions": []}, 422, "questions"),
    ({"questions": [{}]}, 422, "give a prompt, a box, or both"),
    ({"questions": [{"prompt": " "}]}, 422, "give a prompt, a box, or both"),
    ({"questions": [{"prompt": "x" * 301}]}, 422, "prompt"),
    ({"questions": [{"box": [9, 9, 9, 9]}]}, 422, "must not be empty"),
    ({"questions": [{"box": [0, 0, 1]}]}, 422, "box"),
    ({"questions": [{"box": [-1, 0, 9, 9]}]}, 422, "box"),
    ({"questions": [{"box": [0, 0, 1e5, 9]}]}, 409, "leaves the film"),
    ({"questions": [{"prompt": "x"}] * 21}, 422, "questions"),
    ({"questions": [{"prompt": "no pneumonia"}]}, 409, "ask for the finding or the region itself"),
    ({"questions": [{"prompt": "Edema"}, {"prompt": "ignore the left"}]}, 409, "ask for the finding or the region"),
)
"""What every route for questions refuses, with the status and words of its reason."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    made = Finished(tmp_path_factory.mktemp("asked") / "node", rate=RateLimit(burst=1000, seconds=1.0))
    made.read(FILM)
    return made


def ask(asked: Finished, *questions: Content, **headers: str) -> list[Content]:
    answer = asked.client(user="ada").post(PATH, json={"questions": questions}, headers=headers)
    assert answer.status_code == 201, answer.text
    return cast(list[Content], answer.json()["questions"])


def test_questions_stay_with_the_film_and_are_counted_by_source(asked: Finished) -> None:
    registry, ways = asked.bench.metrics.registry, ("page", "api", "dicom")

    def counted() -> dict[str, float]:
        return {way: registry.get_sample_value("cxr_questions_total", {"source": way}) or 0.0 for way in ways}

    before = counted()
    made = [
        *ask(asked, {"prompt": "Edema"}, {"prompt": "Fracture"}, **{"X-Requested-From": "page"}),
        *ask(asked, {"box": BOX}),
    ]
    assert [answer["source"] for answer in made] == ["page", "page", "api"]
    assert [(answer["sent"], answer["asked_by"]) for answer in made] == [(False, "ada")] * 3
    (film,) = asked.client().get(f"/api/v1/studies/{STUDY}").json()["films"]
    by = ("model", "engine", "prompts")
    assert {tuple(answer[name] for name in by) for answer in made} == {tuple(film[name] for name in by)}
    listed = {answer["id"]: answer for answer in asked.client().get(PATH).json()["questions"]}
    assert [listed[answer["id"]] for answer in made] == made
    assert {way: count - before[way] for way, count in counted().items()} == {"page": 2, "api": 1, "dicom": 0}
    for answer, why in zip(made, ("", "no such destination"), strict=False):
        questions.keep_answer(asked.spool, STUDY, SentAnswer(question=answer["id"], requested_at=NOON, reason=why))
    told = {answer["id"]: answer for answer in asked.client().get(PATH).json()["questions"]}
    said = [(told[answer["id"]]["sent"], told[answer["id"]].get("not_sent")) for answer in made]
    assert said == [(True, None), (False, "no such destination"), (False, None)]


def test_a_question_that_cannot_be_asked_is_refused(asked: Finished) -> None:
    pages = asked.client()
    for body, status, words in REFUSED:
        answer = pages.post(PATH, json=body)
        assert (answer.status_code, words in str(answer.json()["detail"])) == (status, True), body
    unknown = PATH.replace(str(FILM.SOPInstanceUID), "1.2.3.4")
    assert pages.post(unknown, json=EDEMA).status_code == 404
    assert pages.post(f"/api/v1/questions/{'0' * 32}/send").status_code == 404


def test_a_process_without_a_model_asks_nothing_and_says_when_to_come_again(asked: Finished) -> None:
    pages = pages_of(parts_of(asked.settings, asked.spool))
    looked_at = pages.post("/api/v1/looks", content=b"", headers={"Content-Type": "application/dicom"})
    answers = [pages.post(PATH, json=EDEMA), looked_at]
    assert [(answer.status_code, answer.headers.get("Retry-After")) for answer in answers] == [(503, "5")] * 2


def test_a_question_that_the_model_refused_is_not_sent_but_removed(asked: Finished) -> None:
    pages, (known,) = asked.client(), ask(asked, {"prompt": "Pneumonia"})
    stored = next(each for each in asked.spool.documents(STUDY, "questions") if each["id"] == known["id"])
    answer: JsonObject = {**cast(JsonObject, stored["answer"]), "never_learned": ["zyx"], "boxes": []}
    refused: JsonObject = {**stored, "id": "f" * 32, "answer": {**answer, "question": {"prompt": "zyx", "box": None}}}
    asked.spool.keep_document(STUDY, "questions", "f" * 32, refused)
    counts = [pages.get(f"/api/v1/studies/{STUDY}").json()["line"]["questions"]]

    assert pages.post(f"/api/v1/questions/{'f' * 32}/send").status_code == 409
    with capture_logs() as lines:
        statuses = [pages.delete(f"/api/v1/questions/{question}").status_code for question in (known["id"], "f" * 32)]
    assert statuses == [409, 204]
    counts.append(pages.get(f"/api/v1/studies/{STUDY}").json()["line"]["questions"])
    assert counts[0] == counts[1], "it never counted"
    assert f", {counts[1]} asked<" in pages.get("/").text
    assert "f" * 32 not in str(pages.get(PATH).json())
    assert [(line["event"], line["study"]) for line in lines if "outcome" in line][-1] == ("question.removed", STUDY)


def test_an_answer_is_sent_to_the_archive_once_and_its_objects_are_given_back(start_node: StartNode) -> None:
    node = start_node()
    service = node.service
    service.read(FILM)
    node.archive.wait_for_kept(2)
    _, made = service.ask("POST", PATH, {"questions": [{"prompt": "Fracture", "box": BOX}]})
    (answer,) = cast(list[Content], made["questions"])
    statuses = [service.ask("POST", f"/api/v1/questions/{answer['id']}/send")[0] for _ in range(2)]
    node.archive.wait_for_kept(4)
    assert statuses == [202, 202]
    new = [kept.dataset for kept in node.archive.kept[2:]]
    assert sorted((each.Modality, each.StudyInstanceUID) for each in new) == [("PR", STUDY), ("SR", STUDY)]
    _, listed = service.ask("GET", PATH)
    assert [question["sent"] for question in cast(list[Content], listed["questions"])] == [True]

    outputs = cast(list[Content], service.ask("GET", f"/api/v1/studies/{STUDY}")[1]["outputs"])
    of_answer = {output["uid"]: output for output in outputs if output["question"] == answer["id"]}
    assert of_answer.keys() == {str(dataset.SOPInstanceUID) for dataset in new}
    facts = {(each["film"], each["round"], each["is_there"]) for each in of_answer.values()}
    assert facts == {(str(FILM.SOPInstanceUID), None, True)}
    assert None not in {output["round"] for output in outputs if not output["question"]}
    given = [service.request("GET", f"/api/v1/outputs/{uid}") for uid in of_answer]
    assert [(each.status_code, each.content[128:132]) for each in given] == [(200, b"DICM")] * 2
    page = service.request("GET", f"/studies/{STUDY}").text
    assert page.count("of the answer to &#34;Fracture&#34; on film 1</span>") == 2
    assert "no longer here" not in page
    assert len(node.archive.kept) == 4


@pytest.fixture
def limited(tmp_path: Path) -> Finished:
    """One whose users ask three questions, and then one in an hour."""
    made = Finished(tmp_path / "node", rate=RateLimit(burst=3, seconds=3600.0))
    made.read(FILM)
    return made


def look_at(client: TestClient) -> str:
    """Have a film looked at without a study; its address."""
    made = client.post("/api/v1/looks", content=films.file_bytes(FILM), headers={"Content-Type": "application/dicom"})
    return f"/api/v1/looks/{made.json()['id']}"


@pytest.mark.parametrize("where", ["film", "look"])
def test_each_question_of_a_request_counts(limited: Finished, where: str) -> None:
    client = limited.client()
    path = OF_FILM if where == "film" else look_at(client)
    several = client.post(f"{path}/questions", json={"questions": [{"prompt": "Edema"}] * 3})
    refused = [client.post(f"{path}/questions", json=EDEMA), client.post(f"{path}/replies", json={"text": "Edema"})]
    assert several.is_success
    assert [answer.status_code for answer in refused] == [429, 429]
    assert all(int(answer.headers["Retry-After"]) > 0 for answer in refused)


def test_questions_of_one_user_count_wherever_they_are_asked(limited: Finished) -> None:
    client = limited.client()
    look = look_at(client)
    asked = [client.post(f"{path}/replies", json={"text": "Edema"}) for path in (OF_FILM, look, OF_FILM, look)]
    assert [answer.status_code for answer in asked] == [200, 200, 200, 429]


def test_a_rejected_film_takes_neither_questions_nor_corrections_and_sends_no_answer(limited: Finished) -> None:
    client = limited.client()
    (made,) = client.post(f"{OF_FILM}/questions", json=EDEMA).json()["questions"]  # its encoded film is in memory
    films.keep(limited.spool, highdicom_note(FILM))

    refused = [
        client.post(f"{OF_FILM}/questions", json=EDEMA),
        client.post(f"{OF_FILM}/replies", json={"text": "List the findings"}),
        client.post(f"{OF_FILM}/corrections", json={"kind": "reject", "prompt": "pleural_effusion"}),
    ]
    why = "rejected by the archive: Rejected for Quality Reasons (113001 DCM)"
    assert [(answer.status_code, why in answer.json()["detail"]) for answer in refused] == [(409, True)] * 3
    assert client.get(f"{OF_FILM}/corrections").json() == {"corrections": []}
    assert len(client.get(f"{OF_FILM}/questions").json()["questions"]) == 1
    (film,) = (each for each in limited.spool.instances(STUDY) if each.sop_instance_uid == FILM.SOPInstanceUID)
    answerer = limited.parts.answerer()
    assert answerer is not None
    with pytest.raises(InputError, match="113001"):  # as for an object of a workstation
        answerer.ask(film, [Question(prompt="Edema")], by="", source="dicom")
    stored = stored_question(limited.spool, STUDY, made["id"])
    with pytest.raises(InputError, match="rejected by the archive"):
        answer_steps.take(limited.spool, stored, destinations=limited.parts.settings.destinations)
