"""What a person does with a study by hand: read it again, delete it, remove a question that was refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import httpx2
import pytest
from playwright.sync_api import expect
from pydicom.dataset import Dataset

from node.config import Settings
from node.domain import JsonObject
from node.store.spool import Spool
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import Browsed
from tests.support.service import Service

NAME = "Qzvxwkjp"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node on which everybody on this machine sees patients."""

    started: ArchivedNode

    @property
    def service(self) -> Service:
        return self.started.service

    @property
    def spool(self) -> Spool:
        return Spool(self.started.directory)

    def read(self, name: str) -> Dataset:
        film = films.as_another(films.thumbnail({"PatientName": f"{NAME}{name}^Jane"}), name, study=name)
        self.service.read(film)
        return film

    def sent(self, name: str) -> Dataset:
        """Read a film, and wait until its results are delivered."""
        film = self.read(name)
        path = f"/api/v1/studies?q={film.StudyInstanceUID}"
        peers.wait_until(lambda: '"delivered":"all"' in self.ask("GET", path).text, what="all is sent")
        return film

    def ask(self, method: str, path: str, body: object = None) -> httpx2.Response:
        return self.service.request(method, path, body)

    def named(self, name: str) -> list[str]:
        """The files of the database in which the patient of a film stands."""
        files = self.started.directory.glob("*.sqlite*")
        return [path.name for path in files if f"{NAME}{name}".lower().encode() in path.read_bytes().lower()]


def shown(settings: Settings) -> Settings:
    return replace(settings, http=replace(settings.http, show_patient=True))


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    return Node(started=start_node(change=shown))


def test_a_delivered_study_is_deleted_without_a_trace(node: Node) -> None:
    film = node.sent("delivered")
    path = f"/api/v1/studies/{film.StudyInstanceUID}"
    assert node.named("delivered")

    refused = node.ask("POST", f"{path}/delete", {"reason": "test", "films": 2, "undelivered": 0})
    deleted = node.ask("POST", f"{path}/delete", {"reason": "test", "films": 1, "undelivered": 0})

    assert (refused.status_code, deleted.status_code) == (409, 204)
    assert "by now: 1, deliveries that are not done: 0" in refused.json()["detail"]
    assert node.spool.study(film.StudyInstanceUID).instances == ()
    assert node.ask("GET", f"/api/v1/studies?q={film.StudyInstanceUID}").json()["total"] == 0
    assert node.named("delivered") == []
    said = [(line["outcome"], line["reason"], line["study"]) for line in node.service.logged("study.deleted")]
    assert said == [(outcome, "test", film.StudyInstanceUID) for outcome in ("refused", "done")]


@pytest.mark.drill(part="pages")
def test_what_waits_is_named_before_it_is_deleted(node: Node, seen: Browsed) -> None:
    node.started.archive.refuse(0xA700)
    film = node.read("waiting")
    uid = str(film.StudyInstanceUID)
    node.service.wait_for("delivery.delayed", count=2)
    page = seen.open(f"/studies/{uid}")

    page.get_by_role("link", name="Read again or delete").click()
    expect(page.locator("#undelivered")).to_contain_text("Not delivered yet: 2 to archive.")
    assert seen.violations() == []
    deleting = page.get_by_role("form", name="Delete")
    deleting.get_by_label("Reason").select_option("wrong_patient")
    deleting.get_by_role("button").click()
    assert node.spool.study(uid).instances, "the box was not checked"
    deleting.get_by_label("Delete this study and what is not delivered").check()
    deleting.get_by_role("button").click()
    page.wait_for_url(f"{seen.origin}/")

    row = page.locator(f'tr[data-uid="{uid}"]')
    expect(row).to_contain_text("films removed")
    expect(row).to_contain_text("2 abandoned")
    assert node.spool.study(uid).instances == ()
    node.started.archive.accept()
    assert node.sent("after it")
    assert not node.started.objects(uid)


def test_a_study_is_read_again_by_hand(node: Node) -> None:
    film = node.sent("again")
    uid = str(film.StudyInstanceUID)

    answer = node.ask("POST", f"/api/v1/studies/{uid}/read", {"reason": "other_model"})

    assert answer.status_code == 204
    peers.wait_until(lambda: len(node.spool.rounds(uid)) == 3, what="the mark, and another round")
    assert node.service.logged("study.reread")[-1]["reason"] == "other_model"
    assert node.ask("POST", f"/api/v1/studies/{uid}/read", {"reason": "Mrs. Miller asked"}).status_code == 422


@pytest.mark.drill(part="pages")
def test_a_refused_question_is_removed_and_never_counts(node: Node, seen: Browsed) -> None:
    film = node.sent("asked")
    study, uid = str(film.StudyInstanceUID), str(film.SOPInstanceUID)
    asked = node.ask("POST", f"/api/v1/films/{uid}/questions", {"questions": [{"prompt": "Edema"}]})
    known = cast(list[dict[str, str]], asked.json()["questions"])[0]["id"]
    (stored,) = node.spool.documents(study, "questions")
    answer: JsonObject = {**cast(JsonObject, stored["answer"]), "never_learned": ["zyx"], "boxes": []}
    refused: JsonObject = {**stored, "id": "f" * 32, "answer": {**answer, "question": {"prompt": "zyx", "box": None}}}
    node.spool.keep_document(study, "questions", "f" * 32, refused)

    assert node.ask("GET", f"/api/v1/studies/{study}").json()["line"]["questions"] == 1
    assert node.ask("DELETE", f"/api/v1/questions/{known}").status_code == 409
    page = seen.open(f"/studies/{study}")
    expect(page.locator("#answers li")).to_have_count(2)
    page.get_by_role("button", name="Remove").click()

    expect(page.locator("#answers li")).to_have_count(1)
    assert len(node.spool.documents(study, "questions")) == 1
    assert node.service.logged("question.removed")[0]["study"] == study
