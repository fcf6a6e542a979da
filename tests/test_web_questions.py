"""Questions about a film: page, interface, command and model give the same answers, which stay with the film."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from pydicom.dataset import Dataset

from node.config import ModelSettings, QuestionsSettings
from node.domain import Box
from node.outputs.answer_json import answer_to_json
from node.read import open_film, prompts
from node.read.model import FilmQuestion, Reader, open_reader
from tests import films, peers
from tests.peers import LOOPBACK, ReceivingArchive
from tests.service import Service, run_command, settings_for
from tests.workstation import finding, group, region, report

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
)
"""What every route for questions refuses, with the status and words of its reason."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A node with the shipped model that has read a real film."""

    service: Service
    path: Path
    uid: str
    model: Path
    reader: Reader
    archive: ReceivingArchive

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Content]:
        connection = http.client.HTTPConnection(LOOPBACK, self.service.http_port, timeout=60)
        content = None if body is None else json.dumps(body)
        connection.request(method, path, body=content, headers={"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        said = json.loads(answer.read())
        connection.close()
        return answer.status, said

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(LOOPBACK, self.service.http_port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    def page(self, path: str) -> str:
        return self.get(path)[1].decode()

    def questions(self, *questions: Content, **headers: str) -> tuple[int, Content]:
        return self.ask("POST", f"/api/v1/films/{self.uid}/questions", {"questions": questions}, **headers)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, chest_film: Path) -> Iterator[Asked]:
    directory = tmp_path_factory.mktemp("asked")
    with ReceivingArchive() as archive:
        settings = settings_for(
            directory / "node", archive_port=archive.port, model=ModelSettings(directory=phantom_model)
        )
        settings = replace(settings, questions=QuestionsSettings(ae_titles=("TESTER",)))
        with Service(settings, scripted=False) as service:
            assert peers.send(chest_film, port=service.dicom_port) == 0
            service.wait_for("study.finished")
            uid = str(films.rg1().SOPInstanceUID)
            reader = open_reader(phantom_model, prompts=prompts.load("chexpert14"), engine="onnx")
            yield Asked(service=service, path=chest_film, uid=uid, model=phantom_model, reader=reader, archive=archive)


def bare(answer: Content) -> Content:
    return {key: value for key, value in answer.items() if key not in FACTS}


def _question(question: Content) -> FilmQuestion:
    box = None
    if question.get("box") is not None:
        left, top, right, bottom = cast(list[float], question["box"])
        box = Box(left=left, top=top, right=right, bottom=bottom)
    return FilmQuestion(prompt=cast(str | None, question.get("prompt")), box=box)


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ({"prompt": "Pneumonia"}, ["--prompt", "Pneumonia"]),
        ({"prompt": "left lung"}, ["--prompt", "left lung"]),
        ({"box": BOX}, ["--box", ",".join(map(str, BOX))]),
        ({"prompt": "Edema", "box": BOX}, ["--prompt", "Edema", "--box", ",".join(map(str, BOX))]),
        ({"prompt": "a zebra"}, ["--prompt", "a zebra"]),
    ],
    ids=["of the set", "region", "box", "both", "never learned"],
)
def test_everyone_gets_the_same_answer(asked: Asked, question: Content, arguments: list[str]) -> None:
    status, content = asked.questions(question)
    (of_api,) = cast(list[Content], content["questions"])
    address = f"http://{LOOPBACK}:{asked.service.http_port}"
    of_node = run_command("ask", asked.path, "--node", address, *arguments)
    (here,) = open_film.ask(asked.path, [_question(question)], reader=asked.reader, prompts=prompts.load("chexpert14"))

    assert (status, of_node.returncode) == (201, 0)
    (by_command,) = json.loads(of_node.stdout)["questions"]
    assert bare(of_api) == bare(by_command) == json.loads(json.dumps(answer_to_json(here)))
    assert (of_api["source"], by_command["source"]) == ("api", "command")


def _text_of(report: Dataset) -> str:
    """All values of a structured report's content items, in their order."""
    return "\n".join(str(item.value) for item in report.iterall() if item.keyword in ("TextValue", "NumericValue"))


@pytest.mark.parametrize("prompt", ["Edema", None])
def test_a_workstation_gets_the_answer_of_the_interface(asked: Asked, prompt: str | None) -> None:
    left, top, right, bottom = BOX
    place = region(films.rg1(), "POLYLINE", [left, top, right, top, right, bottom, left, bottom, left, top])
    content = [place] if prompt is None else [finding(prompt), place]
    (of_api,) = cast(list[Content], asked.questions({"prompt": prompt, "box": BOX})[1]["questions"])
    before = len(asked.archive.kept)

    assert peers.send(report(films.rg1(), group(*content), name=str(prompt)), port=asked.service.dicom_port) == 0
    asked.archive.wait_for_kept(before + 2)

    _, listed = asked.ask("GET", f"/api/v1/films/{asked.uid}/questions")
    (of_report,) = [
        answer
        for answer in cast(list[Content], listed["questions"])
        if answer["source"] == "dicom" and answer["prompt"] == prompt
    ]
    assert bare(of_report) == bare(of_api)
    (written,) = [kept.dataset for kept in asked.archive.kept[before:] if kept.dataset.Modality == "SR"]
    assert str(of_api["sentence"]) in _text_of(written)


def test_the_report_and_the_question_agree(asked: Asked) -> None:
    study = str(films.rg1().StudyInstanceUID)
    (film,) = cast(list[dict[str, Content]], asked.ask("GET", f"/api/v1/studies/{study}")[1]["films"])
    findings = cast(list[Content], film["film"]["findings"])
    pneumonia = next(finding for finding in findings if finding["prompt"] == "pneumonia")

    (answer,) = cast(list[Content], asked.questions({"prompt": "Pneumonia"})[1]["questions"])

    assert (answer["state"], answer["score"]) == (pneumonia["state"], pneumonia["probability"])


def test_questions_stay_with_the_film(asked: Asked) -> None:
    _, made = asked.questions({"prompt": "Edema"}, {"prompt": "Fracture"}, **{"X-Requested-From": "page"})
    _, listed = asked.ask("GET", f"/api/v1/films/{asked.uid}/questions")

    answers = cast(list[Content], made["questions"])
    assert [answer["source"] for answer in answers] == ["page", "page"]
    known = cast(list[Content], listed["questions"])
    assert [answer for answer in known if answer["id"] in {made["id"] for made in answers}] == sorted(
        answers, key=lambda answer: str(answer["id"])
    )


@pytest.mark.parametrize(("body", "status", "words"), REFUSED)
def test_a_question_that_cannot_be_asked_is_refused(asked: Asked, body: Content, status: int, words: str) -> None:
    answered, content = asked.ask("POST", f"/api/v1/films/{asked.uid}/questions", body)

    assert answered == status
    assert words in str(content["detail"])


def test_a_film_that_is_unknown_cannot_be_asked_about(asked: Asked) -> None:
    done = run_command("ask", "1.2.3.4", "--node", f"http://{LOOPBACK}:{asked.service.http_port}", "--prompt", "Edema")

    assert (done.returncode, "no such film" in done.stderr) == (2, True)


@pytest.mark.parametrize("node", ["127.0.0.1:1", "ftp://x/", "http://127.0.0.1:9"])
def test_an_address_without_a_node_is_said(asked: Asked, node: str) -> None:
    done = run_command("ask", asked.path, "--node", node, "--prompt", "Edema")

    assert done.returncode in (1, 2)
    assert node in done.stderr
    assert done.stderr.count("\n") == 1


def test_model_and_node_are_not_asked_together(asked: Asked) -> None:
    both = run_command("ask", asked.path, "--node", "http://x", "--model", asked.model, "--prompt", "Edema")
    neither = run_command("ask", asked.path, "--prompt", "Edema")

    assert (both.returncode, neither.returncode) == (2, 2)
    assert "one of the two" in both.stderr
    assert "one of the two" in neither.stderr


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
    listed = cast(list[Content], asked.ask("GET", f"/api/v1/films/{asked.uid}/questions")[1]["questions"])
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
    connection = http.client.HTTPConnection(LOOPBACK, asked.service.http_port, timeout=30)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()

    (line,) = [line for line in lines if line.startswith('cxr_questions_total{source="api"}')]
    assert float(line.split()[1]) >= 1
    assert any(line.startswith('cxr_questions_total{source="dicom"}') for line in lines)
