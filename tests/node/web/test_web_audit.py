"""Every route that touches a study or a film leaves an audit event with user and UIDs; a new route needs one, too."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx2
import pytest

from node.metrics import Metrics
from node.store.spool import Spool
from node.web import application
from node.web.look_files import Looks
from node.web.parts import WebParts
from tests.support import films, peers
from tests.support.archived import StartNode
from tests.support.service import Line, Service, settings_for
from tests.support.spoken import PROMPTS
from tests.support.web_access import PASSWORD, routes_of

FILM = films.thumbnail({"PatientName": "Zyx^Secret", "PatientID": "SECRET-7"})
STUDY, UID = str(FILM.StudyInstanceUID), str(FILM.SOPInstanceUID)
OTHER = films.as_another(films.thumbnail(), "submitted", study="submitted")
BASIC = f"Basic {b64encode(f'ada:{PASSWORD}'.encode()).decode()}"
NO_STUDY = ""

TOUCHES_NONE: Final = {
    "GET /": "the worklist",
    "GET /api/v1/studies": "the worklist",
    "POST /search": "leads to the worklist",
    "GET /review/next": "leads to the page of a film",
    "GET /review": "the worklist of uncertain findings",
    "GET /api/v1/review": "the worklist of uncertain findings",
    "GET /users": "the users",
    "GET /system": "the state of the node",
    "GET /system/settings": "the settings",
    "POST /api/v1/destinations/{name}/echo": "asks a destination",
    "GET /api/v1/events": "says that the worklist changed",
    "GET /api/v1/prompts": "the prompt set",
    "GET /statistics": "counts",
    "GET /statistics.csv": "counts",
    "GET /upload": "an empty form",
    "GET /api/openapi.json": "the description",
    "GET /interface": "the description",
    "GET /notices/{notice_id}": "leads to the page of a study",
    "GET /api/v1/findings": "the findings of all studies",
    "GET /static": "scripts and styles",
}
BY_HAND: Final = {
    "POST /api/v1/studies/{uid}/delete",
    "POST /api/v1/studies/{uid}/read",
    "DELETE /api/v1/questions/{question_id}",
}
"""What `test_web_managing` tries, with the audit event of each."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request to a route, and the audit event that it leaves; study: NO_STUDY for a film that is in none."""

    path: str
    event: str
    body: object = None
    study: str = STUDY
    film: str = UID


def routes_with(*, output: str, question: str, look: str) -> dict[str, Asked]:
    """A request to each route that touches a study or a film."""
    about = {"questions": [{"prompt": "Edema"}]}
    in_none, sent = {"study": NO_STUDY}, films.file_bytes(OTHER)
    submitted = {"study": str(OTHER.StudyInstanceUID), "film": str(OTHER.SOPInstanceUID)}
    of_films = {
        "GET picture": ("film.viewed", None),
        "GET questions": ("questions.viewed", None),
        "POST questions": ("question.asked", about),
        "POST replies": ("question.asked", {"text": "list the findings"}),
        "GET corrections": ("corrections.viewed", None),
        "POST corrections": ("correction.made", {"kind": "reject", "prompt": "atelectasis"}),
    }
    addresses = {
        "/api/v1/films/{uid}": f"/api/v1/films/{UID}",
        "/api/v1/studies/{study}/films/{uid}": f"/api/v1/studies/{STUDY}/films/{UID}",
    }
    return {
        f"{method} {address}/{what}": Asked(path=f"{path}/{what}", event=event, body=body)
        for address, path in addresses.items()
        for (method, what), (event, body) in ((tuple(route.split()), asked) for route, asked in of_films.items())
    } | {
        "GET /studies/{uid}": Asked(path=f"/studies/{STUDY}", event="study.viewed", film=""),
        "GET /studies/{uid}/manage": Asked(path=f"/studies/{STUDY}/manage", event="study.viewed", film=""),
        "GET /api/v1/studies/{uid}": Asked(path=f"/api/v1/studies/{STUDY}", event="study.viewed", film=""),
        "GET /api/v1/outputs/{uid}": Asked(path=f"/api/v1/outputs/{output}", event="output.downloaded", film=output),
        "POST /api/v1/questions/{question_id}/send": Asked(
            path=f"/api/v1/questions/{question}/send", event="question.sent", film="", body={}
        ),
        "POST /api/v1/studies/{uid}/finish": Asked(
            path=f"/api/v1/studies/{STUDY}/finish", event="corrections.finished", film="", body={}
        ),
        "POST /api/v1/studies/{uid}/retry": Asked(
            path=f"/api/v1/studies/{STUDY}/retry", event="study.retried", film="", body={}
        ),
        "POST /api/v1/instances": Asked(path="/api/v1/instances", event="film.submitted", body=sent, **submitted),
        "POST /api/v1/dicomweb/studies": Asked(
            path="/api/v1/dicomweb/studies", event="film.submitted", body=sent, **submitted
        ),
        "POST /api/v1/looks": Asked(path="/api/v1/looks", event="film.viewed", body=films.file_bytes(FILM), **in_none),
        "GET /api/v1/looks/{look_id}/picture": Asked(
            path=f"/api/v1/looks/{look}/picture", event="film.viewed", **in_none
        ),
        "POST /api/v1/looks/{look_id}/questions": Asked(
            path=f"/api/v1/looks/{look}/questions", event="question.asked", body=about, **in_none
        ),
        "POST /api/v1/looks/{look_id}/replies": Asked(
            path=f"/api/v1/looks/{look}/replies",
            event="question.asked",
            body={"text": "list the findings"},
            **in_none,
        ),
        "GET /upload/{look_id}": Asked(path=f"/upload/{look}", event="film.viewed", **in_none),
    }


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that knows its users, has read a film and answered a question; requests: one to each route."""

    service: Service
    requests: dict[str, Asked]

    def left(self, route: str, asked: Asked) -> tuple[int, list[Line]]:
        """Send a request; the status, and the audit events that it left."""
        before = len(self.audited())
        status = send(self.service, route.partition(" ")[0], asked.path, asked.body).status_code
        peers.wait_until(lambda: len(self.audited()) > before or status >= 400, what=f"an audit event of {route}")
        return status, self.audited()[before:]

    def audited(self) -> list[Line]:
        return [line for line in list(self.service.lines) if "outcome" in line and "user" in line]


def send(service: Service, method: str, path: str, body: object = None) -> httpx2.Response:
    """Send a request of the user Ada; a body in bytes is a DICOM file, another one JSON."""
    kind = "application/dicom" if isinstance(body, bytes) else "application/json"
    return service.request(method, path, body, kind=kind, Authorization=BASIC)


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    started = start_node(users=["ada"])
    service = started.service
    service.read(FILM)
    started.archive.wait_for_kept(2)
    outputs = send(service, "GET", f"/api/v1/studies/{STUDY}").json()["outputs"]
    question = {"questions": [{"prompt": "Edema"}]}
    asked = send(service, "POST", f"/api/v1/films/{UID}/questions", question).json()["questions"]
    look = send(service, "POST", "/api/v1/looks", films.file_bytes(FILM)).json()["id"]
    requests = routes_with(output=outputs[0]["uid"], question=asked[0]["id"], look=look)
    return Node(service=service, requests=requests)


def test_every_route_is_known_to_touch_a_study_or_none(tmp_path: Path, node: Node) -> None:
    looks = Looks(tmp_path / "looks")
    looks.close()
    settings = settings_for(tmp_path / "node", archive_port=104)
    parts = WebParts(
        settings=settings, spool=Spool(tmp_path / "node"), metrics=Metrics(), prompts=lambda: PROMPTS, looks=looks
    )
    assert set(routes_of(application.build(parts).routes)) == {*node.requests, *TOUCHES_NONE, *BY_HAND}


def test_every_touch_of_a_study_is_an_audit_event(node: Node) -> None:
    wrong = {}
    for route, asked in node.requests.items():
        status, lines = node.left(route, asked)
        said = [(line["event"], line["user"], line["outcome"]) for line in lines]
        uids = [(line.get("study", NO_STUDY), line.get("sop_instance_uid", "")) for line in lines]
        if (said, uids) != ([(asked.event, "ada", "done")], [(asked.study, asked.film)]):
            wrong[route] = (status, lines)

    assert wrong == {}


def test_no_audit_event_says_more_than_user_and_uids(node: Node) -> None:
    known = {"event", "level", "timestamp", "user", "host", "outcome", "study", "sop_instance_uid"}

    assert [line for line in node.audited() if not known >= line.keys()] == []
    assert "Secret" not in str(node.service.lines)
    assert "SECRET-7" not in str(node.service.lines)


def test_a_moved_window_is_an_audit_event_once_a_minute(node: Node) -> None:
    path = f"/api/v1/films/{UID}/picture?size=64"
    windows = [f"{path}&center={center}&width=50" for center in range(100, 105)]
    before = len(node.audited())

    assert {send(node.service, "GET", window).status_code for window in windows} == {200}
    peers.wait_until(lambda: len(node.audited()) > before, what="an audit event")
    assert send(node.service, "GET", path).status_code == 200
    peers.wait_until(lambda: len(node.audited()) > before + 1, what="another audit event")

    assert [line["event"] for line in node.audited()[before:]] == ["film.viewed"] * 2


def test_what_was_refused_is_an_audit_event(node: Node) -> None:
    body = {"kind": "accept", "prompt": "cardiomegaly"}
    refused = Asked(path=f"/api/v1/films/{UID}/corrections", event="correction.made", body=body)

    status, _ = node.left("POST", refused)
    peers.wait_until(lambda: node.audited()[-1]["outcome"] == "refused", what="an audit event")

    last = node.audited()[-1]
    assert (status, last["event"], last["study"]) == (409, "correction.made", STUDY)
