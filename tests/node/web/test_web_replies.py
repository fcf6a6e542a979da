"""Questions in words about a film that the shipped model has read: by rule, by the network, and on what changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from node.answers.questions import understand
from node.answers.replies import answer
from node.commands import demo
from node.config import ModelSettings
from node.jobs.answered_film import read_film
from node.read.model import open_reader
from node.store.study_facts import films_of
from tests.support import films
from tests.support.finished import Finished
from tests.support.spoken import PROMPTS, misread

Content = dict[str, Any]
UNASKED = "The report does not answer this, so the network is asked."


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a node left that has read films with the shipped model; film: the last one."""

    finished: Finished
    film: Dataset
    client: TestClient

    def ask(self, text: str, *, about: Dataset | None = None, **others: object) -> tuple[int, Content]:
        uid = (about or self.film).SOPInstanceUID
        answered = self.client.post(f"/api/v1/films/{uid}/replies", json={"text": text, **others})
        return answered.status_code, answered.json()

    def reply(self, text: str, *, about: Dataset | None = None, **others: object) -> Content:
        status, content = self.ask(text, about=about, **others)
        assert status == 200, content
        return content

    def questions(self) -> list[Content]:
        found: list[Content] = self.client.get(f"/api/v1/films/{self.film.SOPInstanceUID}/questions").json()[
            "questions"
        ]
        return found


def taken(name: str, *, at: str, patient: str = "4711", issuer: str = "A") -> Dataset:
    """A film with an opacity, of a study of its own, taken on a day of November 2026."""
    film = films.as_another(dcmread(demo.FILMS[0]), name, study=name)
    changes = {"PatientID": patient, "IssuerOfPatientID": issuer, "AcquisitionDate": f"202611{at}"}
    return films.changed(film, {**changes, "AcquisitionTime": "093000"})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path) -> Node:
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1)
    with_model = ModelSettings(directory=phantom_model)
    finished = Finished(
        tmp_path_factory.mktemp("replies") / "node",
        reader=reader,
        change=lambda settings: replace(settings, model=with_model),
    )
    finished.read(film := taken("asked", at="05"))
    return Node(finished=finished, film=film, client=finished.client())


@pytest.fixture(scope="module")
def signed_in(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path) -> Node:
    """One whose user has signed in, and whose model may compare films."""
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted="any")
    with_model = ModelSettings(directory=phantom_model, uncalibrated="accept")
    finished = Finished(
        tmp_path_factory.mktemp("compared") / "node",
        reader=reader,
        change=lambda settings: replace(settings, model=with_model),
    )
    for film in (
        taken("first", at="01"),
        taken("second", at="03"),
        taken("other patient", at="02", patient="4712"),
        taken("other issuer", at="02", issuer="B"),
        taken("nameless", at="02", patient=""),
        last := taken("last", at="05"),
    ):
        finished.read(film)
    return Node(finished=finished, film=last, client=finished.client(user="ada"))


@pytest.mark.parametrize(
    "text", ["list the findings", "summarize", "any ptx", "left base?", "heart size", "is it normal"]
)
def test_a_reply_is_what_the_rules_say_of_the_report(node: Node, text: str) -> None:
    (received,) = films_of(node.finished.spool, str(node.film.SOPInstanceUID))
    film = read_film(node.finished.spool, received).answer
    before = len(node.questions())
    reply = node.reply(text)
    expected = answer(understand(text, PROMPTS), film)
    assert (reply["text"], tuple(reply["boxes"])) == (expected.text, expected.boxes)
    assert tuple(reply["findings"]) == expected.findings
    assert misread(expected.text, film) == []
    assert (reply["questions"], len(node.questions())) == ([], before)


@pytest.mark.parametrize(
    ("text", "said", "prompt"),
    [
        ("Pneumonia", None, "Pneumonia"),
        ("hiatal hernia", None, "hiatal hernia"),
        ("is there a hiatal hernia?", UNASKED, "hiatal hernia"),
        ("pacemaker?", "The closest finding on the list is stated here", "pacemaker"),
    ],
)
def test_the_network_is_asked_what_the_report_does_not_say(
    node: Node, text: str, said: str | None, prompt: str
) -> None:
    reply = node.reply(text)
    (question,) = reply["questions"]
    assert question["prompt"] == prompt
    assert question in node.questions()
    assert reply["text"] is None if said is None else said in reply["text"]


def test_a_correction_in_words_is_proposed_and_waits_for_a_person(node: Node) -> None:
    before = len(node.questions())
    denied, added = node.reply("no effusion"), node.reply("there is also a fracture")
    proposed = [*denied["corrections"], *added["corrections"]]
    assert {(each["kind"], each["prompt"]) for each in proposed} <= {
        ("reject", "pleural_effusion"),
        ("accept", "fracture"),
        ("add", "fracture"),
    }
    assert ("fracture" in str(proposed), denied["questions"], added["questions"]) == (True, [], [])
    assert len(node.questions()) == before


def test_words_and_question_get_the_same_answer(node: Node) -> None:
    (by_words,) = node.reply("Pneumonia")["questions"]
    path = f"/api/v1/films/{node.film.SOPInstanceUID}/questions"
    (by_prompt,) = node.client.post(path, json={"questions": [{"prompt": "Pneumonia"}]}).json()["questions"]
    facts = dict.fromkeys(("id", "asked_at"))
    assert {**by_words, **facts} == {**by_prompt, **facts}


def test_a_drawn_box_is_answered_by_report_and_network(node: Node) -> None:
    (film,) = node.client.get(f"/api/v1/studies/{node.film.StudyInstanceUID}").json()["films"]
    box = next(finding["boxes"][0] for finding in film["film"]["findings"] if finding["boxes"])
    reply = node.reply("what is in this region?", box=box["box"])
    assert box["tracking_uid"] in reply["boxes"]
    (question,) = reply["questions"]
    assert (question["prompt"], question["box"]) == (None, box["box"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"text": " "}, 422),
        ({"text": "x" * 301}, 422),
        ({"text": "what is here?", "box": [9, 9, 9, 9]}, 422),
        ({"text": "what is here?", "box": [0, 0, 99999, 9]}, 409),
        ({"text": "what changed?", "earlier": "no uid"}, 422),
    ],
)
def test_words_that_cannot_be_answered_are_refused(node: Node, body: Content, status: int) -> None:
    answered, content = node.ask(**body)
    assert (answered, content["status"]) == (status, status)


def test_a_question_in_words_is_audited_without_its_words(node: Node) -> None:
    with capture_logs() as lines:
        node.reply("is there a hiatal hernia of Mrs Secretname?")
    (event,) = (line for line in lines if line["event"] == "question.asked")
    assert (event["study"], event["sop_instance_uid"]) == (node.film.StudyInstanceUID, node.film.SOPInstanceUID)
    assert "ecretname" not in str(lines)


def test_a_model_that_cannot_compare_says_why(node: Node) -> None:
    reply = node.reply("what changed?")
    assert reply["text"].startswith("This model cannot compare films: nobody measured on such films ")
    assert (reply["earlier"], reply["changes"]) == ([], [])


def test_films_are_compared_with_the_last_one_before_or_the_one_that_is_named(signed_in: Node) -> None:
    reply = signed_in.reply("what changed?")
    last, first = reply["earlier"]
    assert [last["at"], first["at"]] == ["2026-11-03 09:30", "2026-11-01 09:30"]
    assert reply["compared_with"] == last["film"]
    assert reply["text"].startswith("Compared with the film of 2026-11-03 09:30. ")
    assert reply["text"].endswith("What is not reported on either film may have been missed.")
    # The network told no side, so no zone: how much of one the finding covers is not known.
    assert {change["change"] for change in reply["changes"]} == {"not_comparable"}
    assert "cannot be compared with the earlier film" in reply["text"]

    named = signed_in.reply("what changed?", earlier=first["film"], earlier_study=first["study"])
    by_day = signed_in.reply("compare with the film of 2026-11-01")
    assert named["compared_with"] == first["film"]
    assert (by_day["compared_with"], by_day["earlier"]) == (None, [last, first])
    assert by_day["text"].startswith("Choose the earlier film")


@pytest.mark.parametrize("other", ["other patient", "other issuer", "nameless", "last"])
def test_films_that_are_not_of_one_patient_are_not_compared(signed_in: Node, other: str) -> None:
    status, content = signed_in.ask("what changed?", earlier=taken(other, at="02").SOPInstanceUID)
    assert (status, "one patient" in content["detail"]) == (409, True)


def test_a_film_of_an_unknown_patient_has_no_earlier_one(signed_in: Node) -> None:
    reply = signed_in.reply("what changed?", about=taken("nameless", at="02"))
    assert (reply["earlier"], "no film that is known to be an earlier one" in reply["text"]) == ([], True)


def test_who_has_not_signed_in_is_not_told_of_earlier_films(signed_in: Node) -> None:
    unknown, other = replace(signed_in, client=signed_in.finished.client()), taken("first", at="01")
    reply = unknown.reply("compare with the film of 2026-11-01")
    named = unknown.reply("what changed?", earlier=other.SOPInstanceUID, earlier_study=other.StudyInstanceUID)
    assert reply["text"].startswith("Only a user who has signed in is told which films are of one patient")
    assert (reply["earlier"], reply["compared_with"]) == ([], None)
    assert named["text"].startswith("Compared with the film that was named. ")
    assert (named["earlier"], named["compared_with"]) == ([], other.SOPInstanceUID)
    assert "2026" not in json.dumps([reply, named])
