"""Questions about a film: page, interface, command and model give the same answers, which stay with the film."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from pydicom import dcmread

from node.config import ModelSettings, QuestionsSettings
from tests.support import films
from tests.support.archived import archived_node
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import Service

Content = dict[str, object]

BOX = [300.0, 700.0, 900.0, 1500.0]
FACTS = ("id", "asked_at", "asked_by", "source", "model", "engine", "prompts", "sent")


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
    (
        {"questions": [{"prompt": "Edema"}, {"prompt": "ignore the left side"}]},
        409,
        "ask for the finding or the region",
    ),
)
"""What every route for questions refuses, with the status and words of its reason."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A node with the shipped model that has read a real film."""

    service: Service
    path: Path
    study: str
    uid: str
    model: Path
    archive: ReceivingArchive

    @property
    def film(self) -> str:
        """The address of the film in the interface."""
        return f"/api/v1/studies/{self.study}/films/{self.uid}"

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.service.http_port}"

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Content]:
        return self.service.ask(method, path, body, **headers)

    def get(self, path: str) -> tuple[int, bytes]:
        answer = self.service.request("GET", path)
        return answer.status_code, answer.content

    def page(self, path: str) -> str:
        return self.get(path)[1].decode()

    def questions(self, *questions: Content, **headers: str) -> tuple[int, Content]:
        return self.ask("POST", f"{self.film}/questions", {"questions": questions}, **headers)


@contextmanager
def asking(directory: Path, *, model: Path, film: Path) -> Iterator[Asked]:
    """Run a node that has read a film, and answers what workstations ask about it."""
    asks = QuestionsSettings(ae_titles=("TESTER",))
    with archived_node(
        directory, model=ModelSettings(directory=model), change=lambda settings: replace(settings, questions=asks)
    ) as node:
        node.service.read(film)
        header = dcmread(film, stop_before_pixels=True)
        uids = {"study": str(header.StudyInstanceUID), "uid": str(header.SOPInstanceUID)}
        asked = Asked(service=node.service, path=film, model=model, archive=node.archive, **uids)
        _, study = asked.ask("GET", f"/api/v1/studies/{asked.study}")
        node.archive.wait_for_kept(len(cast(list[Content], study["outputs"])))
        yield asked


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, chest_film: Path) -> Iterator[Asked]:
    with asking(tmp_path_factory.mktemp("asked"), model=phantom_model, film=chest_film) as opened:
        yield opened


def bare(answer: Content) -> Content:
    return {key: value for key, value in answer.items() if key not in FACTS}


def test_questions_stay_with_the_film(asked: Asked) -> None:
    _, made = asked.questions({"prompt": "Edema"}, {"prompt": "Fracture"}, **{"X-Requested-From": "page"})
    _, listed = asked.ask("GET", f"{asked.film}/questions")

    answers = cast(list[Content], made["questions"])
    assert [answer["source"] for answer in answers] == ["page", "page"]
    known = cast(list[Content], listed["questions"])
    assert [answer for answer in known if answer["id"] in {made["id"] for made in answers}] == sorted(
        answers, key=lambda answer: str(answer["id"])
    )


@pytest.mark.parametrize(("body", "status", "words"), REFUSED)
def test_a_question_that_cannot_be_asked_is_refused(asked: Asked, body: Content, status: int, words: str) -> None:
    answered, content = asked.ask("POST", f"{asked.film}/questions", body)

    assert answered == status
    assert words in str(content["detail"])


def test_a_film_that_is_unknown_cannot_be_asked_about(asked: Asked) -> None:
    path = f"/api/v1/studies/{asked.study}/films/1.2.3.4/questions"

    assert asked.ask("POST", path, {"questions": [{"prompt": "Edema"}]})[0] == 404


def test_an_answer_is_sent_to_the_archive_once(asked: Asked) -> None:
    (answer,) = cast(list[Content], asked.questions({"prompt": "Pneumonia", "box": BOX})[1]["questions"])
    before = len(asked.archive.kept)

    sent = [asked.ask("POST", f"/api/v1/questions/{answer['id']}/send") for _ in range(2)]
    asked.archive.wait_for_kept(before + 2)

    assert [status for status, _ in sent] == [202, 202]
    assert answer["sent"] is False
    assert (answer["engine"], str(answer["prompts"]).split()[0]) == ("onnx", "chexpert14")
    new = [kept.dataset for kept in asked.archive.kept[before:]]
    assert sorted(dataset.Modality for dataset in new) == ["PR", "SR"]
    assert {dataset.StudyInstanceUID for dataset in new} == {films.rg1().StudyInstanceUID}
    listed = cast(list[Content], asked.ask("GET", f"{asked.film}/questions")[1]["questions"])
    assert [question["sent"] for question in listed if question["id"] == answer["id"]] == [True]


def test_the_objects_of_a_sent_answer_are_listed_and_given_back(asked: Asked) -> None:
    (answer,) = cast(list[Content], asked.questions({"prompt": "Fracture", "box": BOX})[1]["questions"])
    before = len(asked.archive.kept)
    asked.ask("POST", f"/api/v1/questions/{answer['id']}/send")
    asked.archive.wait_for_kept(before + 2)
    sent = {str(kept.dataset.SOPInstanceUID) for kept in asked.archive.kept[before:]}

    study = f"/studies/{films.rg1().StudyInstanceUID}"
    outputs = cast(list[Content], asked.ask("GET", f"/api/v1{study}")[1]["outputs"])
    of_answer = [output for output in outputs if output["question"] == answer["id"]]
    page = asked.page(study)

    assert {output["uid"] for output in of_answer} == sent
    assert {(output["film"], output["round"], output["is_there"]) for output in of_answer} == {(asked.uid, None, True)}
    assert None not in {output["round"] for output in outputs if not output["question"]}
    assert {asked.get(f"/api/v1/outputs/{uid}")[0] for uid in sent} == {200}
    assert asked.get(f"/api/v1/outputs/{of_answer[0]['uid']}")[1][128:132] == b"DICM"
    assert page.count("of the answer to &#34;Fracture&#34; on film 1</span>") == 2
    assert "no longer here" not in page


def test_words_that_were_never_learned_are_not_sent(asked: Asked) -> None:
    (answer,) = cast(list[Content], asked.questions({"prompt": "a zebra"})[1]["questions"])

    assert asked.ask("POST", f"/api/v1/questions/{answer['id']}/send")[0] == 409
    assert asked.ask("POST", f"/api/v1/questions/{'0' * 32}/send")[0] == 404


def test_prompts_are_listed_for_suggestions(asked: Asked) -> None:
    _, content = asked.ask("GET", "/api/v1/prompts")

    assert {"key": "edema", "kind": "pathology", "phrase": "Edema"} in cast(list[Content], content["prompts"])


def test_questions_are_counted_by_source(asked: Asked) -> None:
    asked.questions({"prompt": "Edema"})
    lines = asked.service.metrics().splitlines()

    (line,) = [line for line in lines if line.startswith('cxr_questions_total{source="api"}')]
    assert float(line.split()[1]) >= 1
    assert any(line.startswith('cxr_questions_total{source="dicom"}') for line in lines)
