"""Questions in words to a running node: by rule from the report, by the network, and on what changed."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.answers.questions import understand
from node.answers.replies import answer
from node.commands import demo
from node.config import ModelSettings
from node.jobs.answered_film import read_film
from node.store.spool import Spool
from node.store.study_facts import films_of
from tests.support import films
from tests.support.archived import StartNode
from tests.support.service import Service
from tests.support.spoken import PROMPTS, misread
from tests.support.web_access import PASSWORD

Content = dict[str, object]

BASIC = {"Authorization": f"Basic {b64encode(f'ada:{PASSWORD}'.encode()).decode()}"}
UNASKED = "The report does not answer this, so the network is asked."


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with the shipped model; film: one that it has read; headers: that every request needs."""

    service: Service
    directory: Path
    film: Dataset
    headers: dict[str, str]

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Content]:
        return self.service.ask(method, path, body, **self.headers)

    def reply(self, text: str, *, about: Dataset | None = None, **others: object) -> Content:
        uid = (about or self.film).SOPInstanceUID
        status, content = self.ask("POST", f"/api/v1/films/{uid}/replies", {"text": text, **others})
        assert status == 200, content
        return content

    def report(self) -> Content:
        (film,) = cast(list[Content], self.ask("GET", f"/api/v1/studies/{self.film.StudyInstanceUID}")[1]["films"])
        return cast(Content, film["film"])

    def questions(self) -> list[Content]:
        path = f"/api/v1/films/{self.film.SOPInstanceUID}/questions"
        return cast(list[Content], self.ask("GET", path)[1]["questions"])


def taken(name: str, *, at: str, patient: str = "4711", issuer: str = "A") -> Dataset:
    """A film with an opacity, of a study of its own, taken on a day of November 2026."""
    film = films.as_another(dcmread(demo.FILMS[0]), name, study=name)
    changes = {"PatientID": patient, "IssuerOfPatientID": issuer, "AcquisitionDate": f"202611{at}"}
    return films.changed(film, {**changes, "AcquisitionTime": "093000"})


@pytest.fixture(scope="module")
def node(start_node: StartNode, phantom_model: Path) -> Node:
    started = start_node(model=ModelSettings(directory=phantom_model))
    started.service.read(film := taken("asked", at="05"))
    return Node(service=started.service, directory=started.directory, film=film, headers={})


@pytest.fixture(scope="module")
def signed_in(start_node: StartNode, phantom_model: Path) -> Node:
    """A node whose user has signed in, and whose model may compare films."""
    started = start_node(model=ModelSettings(directory=phantom_model, uncalibrated="accept"), users=["ada"])
    for film in (
        taken("first", at="01"),
        taken("second", at="03"),
        taken("other patient", at="02", patient="4712"),
        taken("other issuer", at="02", issuer="B"),
        taken("nameless", at="02", patient=""),
        last := taken("last", at="05"),
    ):
        started.service.read(film)
    return Node(service=started.service, directory=started.directory, film=last, headers=BASIC)


@pytest.fixture(scope="module")
def unknown(start_node: StartNode, phantom_model: Path) -> Node:
    """A node whose model may compare films, and which knows no users."""
    started = start_node(model=ModelSettings(directory=phantom_model, uncalibrated="accept"))
    for film in (taken("first", at="01"), last := taken("last", at="05")):
        started.service.read(film)
    return Node(service=started.service, directory=started.directory, film=last, headers={})


@pytest.mark.parametrize(
    "text", ["list the findings", "summarize", "any ptx", "left base?", "heart size", "is it normal"]
)
def test_a_reply_is_what_the_rules_say_of_the_report(node: Node, text: str) -> None:
    spool = Spool(node.directory)
    (received,) = films_of(spool, str(node.film.SOPInstanceUID))
    film = read_film(spool, received).answer
    before = len(node.questions())

    reply = node.reply(text)

    expected = answer(understand(text, PROMPTS), film)
    assert (reply["text"], tuple(cast(list[str], reply["boxes"]))) == (expected.text, expected.boxes)
    assert tuple(cast(list[str], reply["findings"])) == expected.findings
    assert misread(expected.text, film) == []
    assert (reply["questions"], len(node.questions())) == ([], before)


@pytest.mark.parametrize(
    ("text", "said", "prompt"),
    [
        ("Pneumonia", None, "Pneumonia"),
        ("a hiatal hernia", UNASKED, "hiatal hernia"),
        ("hiatal hernia", None, "hiatal hernia"),
        ("is there a hiatal hernia?", UNASKED, "hiatal hernia"),
        ("pacemaker?", "The closest finding on the list is stated here", "pacemaker"),
    ],
)
def test_the_network_is_asked_what_the_report_does_not_say(
    node: Node, text: str, said: str | None, prompt: str
) -> None:
    reply = node.reply(text)

    (question,) = cast(list[Content], reply["questions"])
    assert question["prompt"] == prompt
    assert question in node.questions()
    assert reply["text"] is None if said is None else said in str(reply["text"])


def test_a_correction_in_words_is_proposed_and_waits_for_a_person(node: Node) -> None:
    before = len(node.questions())

    denied, added = node.reply("no effusion"), node.reply("there is also a fracture")

    proposed = [*cast(list[Content], denied["corrections"]), *cast(list[Content], added["corrections"])]
    assert {(str(each["kind"]), str(each["prompt"])) for each in proposed} <= {
        ("reject", "pleural_effusion"),
        ("accept", "fracture"),
        ("add", "fracture"),
    }
    assert ("fracture" in str(proposed), denied["questions"], added["questions"]) == (True, [], [])
    assert len(node.questions()) == before


def test_words_and_question_get_the_same_answer(node: Node) -> None:
    (by_words,) = cast(list[Content], node.reply("Pneumonia")["questions"])
    path = f"/api/v1/films/{node.film.SOPInstanceUID}/questions"
    (by_prompt,) = cast(list[Content], node.ask("POST", path, {"questions": [{"prompt": "Pneumonia"}]})[1]["questions"])

    facts = ("id", "asked_at")
    assert {**by_words, **dict.fromkeys(facts)} == {**by_prompt, **dict.fromkeys(facts)}


def test_a_drawn_box_is_answered_by_report_and_network(node: Node) -> None:
    finding = next(each for each in cast(list[Content], node.report()["findings"]) if each["boxes"])
    box = cast(list[Content], finding["boxes"])[0]

    reply = node.reply("what is in this region?", box=box["box"])

    assert box["tracking_uid"] in cast(list[str], reply["boxes"])
    (question,) = cast(list[Content], reply["questions"])
    assert (question["prompt"], question["box"]) == (None, box["box"])


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("", {"text": " "}, 422),
        ("", {"text": "x" * 301}, 422),
        ("", {"text": "what is here?", "box": [9, 9, 9, 9]}, 422),
        ("", {"text": "what is here?", "box": [0, 0, 99999, 9]}, 409),
        ("", {"text": "what changed?", "earlier": "no uid"}, 422),
        ("1.2.3", {"text": "summarize"}, 404),
    ],
)
def test_words_that_cannot_be_answered_are_refused(node: Node, path: str, body: Content, status: int) -> None:
    uid = path or node.film.SOPInstanceUID
    answered, content = node.ask("POST", f"/api/v1/films/{uid}/replies", body)

    assert (answered, content["status"]) == (status, status)


def test_a_question_in_words_is_audited_without_its_words(node: Node) -> None:
    before = len(node.service.logged("question.asked"))
    node.reply("is there a hiatal hernia of Mrs Secretname?")

    node.service.wait_for("question.asked", count=before + 1)
    (event,) = node.service.logged("question.asked")[before:]
    assert (event["study"], event["sop_instance_uid"]) == (node.film.StudyInstanceUID, node.film.SOPInstanceUID)
    assert "ecretname" not in json.dumps(event)


def test_a_model_that_cannot_compare_says_why(node: Node) -> None:
    reply = node.reply("what changed?")

    expected = (
        "This model cannot compare films: nobody measured on such films how far its answers differ without a change."
    )
    assert (reply["text"], reply["earlier"], reply["changes"]) == (expected, [], [])


@pytest.mark.drill(part="objects")
def test_films_are_compared_with_the_last_one_before(signed_in: Node) -> None:
    reply = signed_in.reply("what changed?")

    earlier = cast(list[Content], reply["earlier"])
    assert [each["at"] for each in earlier] == ["2026-11-03 09:30", "2026-11-01 09:30"]
    assert reply["compared_with"] == earlier[0]["film"]
    assert str(reply["text"]).startswith("Compared with the film of 2026-11-03 09:30. ")
    assert str(reply["text"]).endswith("What is not reported on either film may have been missed.")
    # The network told no side, so no zone: how much of one the finding covers is not known.
    assert {change["change"] for change in cast(list[Content], reply["changes"])} == {"not_comparable"}
    assert "cannot be compared with the earlier film" in str(reply["text"])


@pytest.mark.drill(part="objects")
def test_a_named_film_is_compared_and_one_of_a_day_is_chosen(signed_in: Node) -> None:
    films_known = cast(list[Content], signed_in.reply("what changed?")["earlier"])
    first, study = films_known[1]["film"], films_known[1]["study"]

    named = signed_in.reply("what changed?", earlier=first, earlier_study=study)
    by_day = signed_in.reply("compare with the film of 2026-11-01")

    assert named["compared_with"] == first
    assert (by_day["compared_with"], by_day["earlier"]) == (None, films_known)
    assert str(by_day["text"]).startswith("Choose the earlier film")


@pytest.mark.parametrize("other", ["other patient", "other issuer", "nameless", "last"])
def test_films_that_are_not_of_one_patient_are_not_compared(signed_in: Node, other: str) -> None:
    uid = taken(other, at="02").SOPInstanceUID
    path = f"/api/v1/films/{signed_in.film.SOPInstanceUID}/replies"

    status, content = signed_in.ask("POST", path, {"text": "what changed?", "earlier": uid})

    assert (status, "one patient" in str(content["detail"])) == (409, True)


def test_a_film_of_an_unknown_patient_has_no_earlier_one(signed_in: Node) -> None:
    reply = signed_in.reply("what changed?", about=taken("nameless", at="02"))

    assert (reply["earlier"], "no film that is known to be an earlier one" in str(reply["text"])) == ([], True)


def test_who_has_not_signed_in_is_not_told_of_earlier_films(unknown: Node) -> None:
    other = taken("first", at="01")

    reply = unknown.reply("compare with the film of 2026-11-01")
    address = {"earlier": other.SOPInstanceUID, "earlier_study": other.StudyInstanceUID}
    named = unknown.reply("what changed?", **address)

    assert str(reply["text"]).startswith("Only a user who has signed in is told which films are of one patient")
    assert (reply["earlier"], reply["compared_with"]) == ([], None)
    assert str(named["text"]).startswith("Compared with the film that was named. ")
    assert (named["earlier"], named["compared_with"]) == ([], other.SOPInstanceUID)
    assert "2026" not in json.dumps([reply, named])
