"""Questions in words about a film that the shipped model has read: by rule, by the network, and on what changed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from starlette.testclient import TestClient

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
        answered = self.client.get(f"/api/v1/films/{self.film.SOPInstanceUID}/questions").json()
        return cast(list[Content], answered["questions"])


def taken(name: str, *, at: str, patient: str = "4711", issuer: str = "A") -> Dataset:
    """A film with an opacity, of a study of its own, taken on a day of November 2026."""
    film = films.as_another(dcmread(demo.FILMS[0]), name, study=name)
    changes = {"PatientID": patient, "IssuerOfPatientID": issuer, "AcquisitionDate": f"202611{at}"}
    return films.changed(film, {**changes, "AcquisitionTime": "093000"})


def read(folder: Path, model: ModelSettings, *received: Dataset, user: str = "") -> Node:
    """Read films one by one with the shipped model; user: who asks about the last one."""
    reader = open_reader(model.directory, prompts=PROMPTS, engine="onnx", threads=1, trusted=model.trusted)
    finished = Finished(folder / "node", reader=reader, change=lambda settings: replace(settings, model=model))
    for film in received:
        finished.read(film)
    return Node(finished=finished, film=received[-1], client=finished.client(user=user))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path) -> Node:
    return read(tmp_path_factory.mktemp("replies"), ModelSettings(directory=phantom_model), taken("asked", at="05"))


@pytest.fixture(scope="module")
def signed_in(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path) -> Node:
    """One whose user has signed in, and whose model may compare films."""
    several = (
        taken("first", at="01"),
        taken("second", at="03"),
        taken("other patient", at="02", patient="4712"),
        taken("other issuer", at="02", issuer="B"),
        taken("nameless", at="02", patient=""),
        taken("last", at="05"),
    )
    model = ModelSettings(directory=phantom_model, uncalibrated="accept")
    return read(tmp_path_factory.mktemp("compared"), model, *several, user="ada")


def test_a_reply_is_what_the_rules_say_of_the_report(node: Node) -> None:
    (received,) = films_of(node.finished.spool, str(node.film.SOPInstanceUID))
    film = read_film(node.finished.spool, received).answer
    before = len(node.questions())
    for text in ("list the findings", "summarize", "any ptx", "left base?", "heart size", "is it normal"):
        reply, expected = node.reply(text), answer(understand(text, PROMPTS), film)
        said = (reply["text"], tuple(reply["boxes"]), tuple(reply["findings"]), reply["questions"])
        assert said == (expected.text, expected.boxes, expected.findings, [])
        assert misread(expected.text, film) == []
    assert len(node.questions()) == before


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
    path = f"/api/v1/films/{node.film.SOPInstanceUID}/questions"
    (by_prompt,) = node.client.post(path, json={"questions": [{"prompt": prompt}]}).json()["questions"]
    own = dict.fromkeys(("id", "asked_at"))
    assert {**by_prompt, **own} == {**question, **own}, "as the same question without words"


def test_a_correction_in_words_is_proposed_and_waits_for_a_person(node: Node) -> None:
    before = len(node.questions())
    denied, added = node.reply("no effusion"), node.reply("there is also a fracture")
    proposed = {(each["kind"], each["prompt"]) for each in (*denied["corrections"], *added["corrections"])}
    assert proposed <= {("reject", "pleural_effusion"), ("accept", "fracture"), ("add", "fracture")}
    assert ("fracture" in str(proposed), denied["questions"], added["questions"]) == (True, [], [])
    assert len(node.questions()) == before


def test_a_drawn_box_is_answered_by_report_and_network(node: Node) -> None:
    (film,) = node.client.get(f"/api/v1/studies/{node.film.StudyInstanceUID}").json()["films"]
    box = next(finding["boxes"][0] for finding in film["film"]["findings"] if finding["boxes"])
    reply = node.reply("what is in this region?", box=box["box"])
    assert box["tracking_uid"] in reply["boxes"]
    (question,) = reply["questions"]
    assert (question["prompt"], question["box"]) == (None, box["box"])


def test_words_that_cannot_be_answered_are_refused_and_a_model_that_cannot_compare_says_why(node: Node) -> None:
    bodies: tuple[tuple[Content, int], ...] = (
        ({"text": " "}, 422),
        ({"text": "x" * 301}, 422),
        ({"text": "what is here?", "box": [9, 9, 9, 9]}, 422),
        ({"text": "what is here?", "box": [0, 0, 99999, 9]}, 409),
        ({"text": "what changed?", "earlier": "no uid"}, 422),
    )
    for body, status in bodies:
        answered, content = node.ask(**body)
        assert (answered, content["status"]) == (status, status), body
    reply = node.reply("what changed?")
    assert reply["text"].startswith("This model cannot compare films: nobody measured on such films ")
    assert (reply["earlier"], reply["changes"]) == ([], [])


def test_films_of_one_patient_alone_are_compared_the_last_one_before_or_the_one_that_is_named(signed_in: Node) -> None:
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

    for other in ("other patient", "other issuer", "nameless", "last"):
        status, content = signed_in.ask("what changed?", earlier=taken(other, at="02").SOPInstanceUID)
        assert (status, "one patient" in content["detail"]) == (409, True), other
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
