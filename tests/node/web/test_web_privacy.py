"""Every route in the hands of a user: the audit event that it leaves, and that no answer but a patient's own names one.

A patient's values may stand on the page of a study and on the worklist for a user who has signed in, and in DICOM
objects and messages. A new route needs an entry here.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2
import pytest

from node.web import application
from tests.support import films, peers
from tests.support.archived import StartNode
from tests.support.finished import parts_of
from tests.support.service import Line, Service, run_command, settings_for
from tests.support.traces import MARK, found_in, marked
from tests.support.web_access import BASIC, PASSWORD, routes_of

# The sender's pydicom warns of what this test makes it send.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

OTHER_USER = {"Authorization": f"Basic {b64encode(f'bob:{PASSWORD}'.encode()).decode()}"}
NOBODY: dict[str, str] = {}
JSON, DICOM, FORM = "application/json", "application/dicom", "application/x-www-form-urlencoded"
FILM = marked(films.thumbnail())
STUDY, UID = str(FILM.StudyInstanceUID), str(FILM.SOPInstanceUID)
ANOTHER = films.as_another(marked(films.thumbnail()), "another", study="another")
OF_FILM = f"/api/v1/films/{UID}"
OWN: Final = (DICOM, "x-application/hl7-v2+er7", "image/png")
"""The media types of what is the patient's own."""
NAMING: Final = {"GET /studies/{uid}", "GET /studies/{uid}/manage"}
"""Pages of a study, which name its patient."""
TOUCHES_NONE: Final = {
    *("GET /", "GET /api/v1/studies", "POST /search", "GET /review", "GET /review/next", "GET /api/v1/review"),
    *("GET /users", "GET /system", "GET /system/settings", "POST /api/v1/destinations/{name}/echo"),
    *("GET /api/v1/events", "GET /api/v1/prompts", "GET /statistics", "GET /statistics.csv", "GET /upload"),
    *("GET /api/openapi.json", "GET /interface", "GET /notices/{notice_id}", "GET /api/v1/findings", "GET /static"),
}
"""Lists of all studies and findings, what leads to a page of a study, and what knows no study."""
BY_HAND: Final = {
    "POST /api/v1/studies/{uid}/delete",
    "POST /api/v1/studies/{uid}/read",
    "DELETE /api/v1/questions/{question_id}",
}
"""What `test_web_study_actions` and `test_web_questions` try, with the audit event of each."""
UNNAMED: Final = (
    *("/upload", "/metrics", "/live", "/ready", "/api/openapi.json", "/api/v1/prompts", "/api/v1/studies"),
    *("/api/v1/review", "/system", "/system/settings"),
)
"""Pages that touch no study, and name nobody."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request to a route, and the audit event that it leaves; study: "" for a film that is in none."""

    path: str
    event: str
    body: object = None
    study: str = STUDY
    film: str = UID


def routes_with(*, output: str, question: str, look: str) -> dict[str, Asked]:
    """A request to each route that touches a study or a film."""
    about: dict[str, object] = {"questions": [{"prompt": "Edema", "box": [2, 3, 20, 30]}]}
    words: dict[str, object] = {"text": "list the findings"}
    of_films = (
        ("GET", "picture", "film.viewed", None),
        ("GET", "questions", "questions.viewed", None),
        ("POST", "questions", "question.asked", about),
        ("POST", "replies", "question.asked", words),
        ("GET", "corrections", "corrections.viewed", None),
        ("POST", "corrections", "correction.made", {"kind": "reject", "prompt": "atelectasis"}),
    )
    found = dict[str, Asked]()
    for address, path in (
        ("/api/v1/films/{uid}", OF_FILM),
        ("/api/v1/studies/{study}/films/{uid}", f"/api/v1/studies/{STUDY}/films/{UID}"),
    ):
        for method, what, event, body in of_films:
            found[f"{method} {address}/{what}"] = Asked(path=f"{path}/{what}", event=event, body=body)

    def of_study(route: str, path: str, event: str, body: object = None) -> None:
        found[route] = Asked(path=path, event=event, body=body, film="")

    def of_look(route: str, path: str, event: str = "film.viewed", body: object = None) -> None:
        found[route] = Asked(path=path, event=event, body=body, study="")

    api = f"/api/v1/studies/{STUDY}"
    of_study("GET /studies/{uid}", f"/studies/{STUDY}", "study.viewed")
    of_study("GET /studies/{uid}/manage", f"/studies/{STUDY}/manage", "study.viewed")
    of_study("GET /api/v1/studies/{uid}", api, "study.viewed")
    of_study("POST /api/v1/questions/{question_id}/send", f"/api/v1/questions/{question}/send", "question.sent", {})
    of_study("POST /api/v1/studies/{uid}/finish", f"{api}/finish", "corrections.finished", {})
    of_study("POST /api/v1/studies/{uid}/retry", f"{api}/retry", "study.retried", {})
    found["GET /api/v1/outputs/{uid}"] = Asked(path=f"/api/v1/outputs/{output}", event="output.downloaded", film=output)
    sent = {"study": str(ANOTHER.StudyInstanceUID), "film": str(ANOTHER.SOPInstanceUID)}
    for path in ("/api/v1/instances", "/api/v1/dicomweb/studies"):
        found[f"POST {path}"] = Asked(path=path, event="film.submitted", body=films.file_bytes(ANOTHER), **sent)
    look_path = f"/api/v1/looks/{look}"
    of_look("POST /api/v1/looks", "/api/v1/looks", body=films.file_bytes(FILM))
    of_look("GET /api/v1/looks/{look_id}/picture", f"{look_path}/picture")
    of_look("POST /api/v1/looks/{look_id}/questions", f"{look_path}/questions", "question.asked", about)
    of_look("POST /api/v1/looks/{look_id}/replies", f"{look_path}/replies", "question.asked", words)
    of_look("GET /upload/{look_id}", f"/upload/{look}")
    return found


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that knows its users, has read a film and answered a question; requests: one to each route."""

    service: Service
    requests: dict[str, Asked]

    def ask(
        self, method: str, path: str, body: object = None, *, kind: str = "", who: dict[str, str] = BASIC
    ) -> httpx2.Response:
        """Send a request; a body in bytes is sent as it is, by default as a DICOM file, another one as JSON."""
        kind = kind or (DICOM if isinstance(body, bytes) else JSON)
        return self.service.request(method, path, body, kind=kind, **who)

    def audited(self) -> list[Line]:
        return [line for line in list(self.service.lines) if "outcome" in line and "user" in line]

    def left(self, method: str, path: str, body: object = None) -> tuple[httpx2.Response, list[Line]]:
        """Send a request; the answer, and the audit events that it left."""
        before = len(self.audited())
        answer = self.ask(method, path, body)
        peers.wait_until(lambda: len(self.audited()) > before, what=f"an audit event of {path}")
        return answer, self.audited()[before:]


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    started = start_node(users=["ada", "bob"])
    made = Node(service=started.service, requests={})
    made.service.read(FILM)
    started.archive.wait_for_kept(2)
    outputs: list[dict[str, Any]] = made.ask("GET", f"/api/v1/studies/{STUDY}").json()["outputs"]
    asked = made.ask("POST", f"{OF_FILM}/questions", {"questions": [{"prompt": "Edema"}]}).json()["questions"]
    look = made.ask("POST", "/api/v1/looks", films.file_bytes(FILM)).json()["id"]
    made.requests.update(routes_with(output=outputs[0]["uid"], question=asked[0]["id"], look=look))
    return made


def parts(answer: httpx2.Response) -> bytes:
    """An answer with its header fields, for a search."""
    return b"\n".join((str(answer.headers.raw).encode(), answer.content))


def test_every_touch_of_a_study_is_an_audit_event_and_no_answer_names_a_patient(tmp_path: Path, node: Node) -> None:
    made = parts_of(settings_for(tmp_path / "node", archive_port=104))
    assert set(routes_of(application.build(made).routes)) == {*node.requests, *TOUCHES_NONE, *BY_HAND}
    wrong, named = {}, {}
    for route, asked in node.requests.items():
        answer, lines = node.left(route.partition(" ")[0], asked.path, asked.body)
        said = [(line["event"], line["user"], line["outcome"]) for line in lines]
        uids = [(line.get("study", ""), line.get("sop_instance_uid", "")) for line in lines]
        if (said, uids) != ([(asked.event, "ada", "done")], [(asked.study, asked.film)]):
            wrong[route] = (answer.status_code, lines)
        is_own = answer.headers.get("content-type", "").partition(";")[0] in OWN
        if route not in NAMING and not is_own and found_in(parts(answer)):
            named[route] = found_in(parts(answer))
    assert (wrong, named) == ({}, {})
    answers = {path: node.ask("GET", path) for path in UNNAMED}
    assert {answer.status_code for answer in answers.values()} == {200}
    assert {path: found for path, answer in answers.items() if (found := found_in(parts(answer)))} == {}


def test_a_moved_window_is_an_audit_event_once_a_minute_and_what_was_refused_is_one(node: Node) -> None:
    path, before = f"{OF_FILM}/picture?size=64", len(node.audited())
    windows = [f"{path}&center={center}&width=50" for center in range(100, 105)]
    assert {node.ask("GET", window).status_code for window in windows} == {200}
    peers.wait_until(lambda: len(node.audited()) > before, what="the event of all windows")
    assert node.left("GET", path)[0].status_code == 200
    assert [line["event"] for line in node.audited()[before:]] == ["film.viewed"] * 2

    answer, (line,) = node.left("POST", f"{OF_FILM}/corrections", {"kind": "accept", "prompt": "cardiomegaly"})
    said = (answer.status_code, line["event"], line["study"], line["outcome"])
    assert said == (409, "correction.made", STUDY, "refused")


def test_only_a_user_who_has_signed_in_sees_the_patient(node: Node) -> None:
    own = ("/", "/review", f"/studies/{STUDY}")
    paths = [asked.path for route, asked in node.requests.items() if route.startswith("GET ")]
    answers = {path: node.ask("GET", path, who=NOBODY) for path in (*own, *UNNAMED, *paths)}
    assert {path for path, answer in answers.items() if found_in(parts(answer))} == set()
    assert {path for path, answer in answers.items() if answer.status_code == 200} == {"/metrics", "/live", "/ready"}
    assert all(found_in(parts(node.ask("GET", page))) for page in own)


def test_a_search_stands_in_no_address_and_for_no_one_else(node: Node) -> None:
    unsigned, asked = (
        node.ask("POST", "/search", f"text={MARK}".encode(), kind=FORM, who=who) for who in (NOBODY, BASIC)
    )
    place = asked.headers["location"]
    assert (unsigned.status_code, asked.status_code) == (401, 303)
    assert found_in(parts(asked)) == []
    assert STUDY in node.ask("GET", place).text
    assert found_in(parts(node.ask("GET", place, who=NOBODY))) == []
    assert found_in(parts(node.ask("GET", place, who=OTHER_USER))) == []


def bad_requests() -> Iterator[tuple[str, str, object, str]]:
    """Requests that hold a patient's values where a careless program quotes them: method, path, body, its type."""
    name = quote(f"{MARK}^{MARK}ö")
    for path in ("/api/v1/studies", "/api/v1/outputs", "/studies", "/upload", "/static"):
        yield "GET", f"{path}/{name}", None, JSON
    yield from (("GET", path, None, JSON) for path in (f"/{name}", f"/?q={name}", f"/api/v1/studies?q={name}"))
    yield "GET", f"{OF_FILM}/picture?center={name}&width={name}", None, JSON
    yield "GET", f"/studies/{STUDY}?film={name}", None, JSON
    yield "POST", f"/api/v1/questions/{name}/send", {}, JSON
    for path in (f"{OF_FILM}/questions", f"{OF_FILM}/replies", f"{OF_FILM}/corrections"):
        for body in ({MARK: MARK}, MARK, [MARK], MARK.encode(), {"kind": MARK, "text": [MARK], "questions": MARK}):
            yield "POST", path, body, JSON
    cut = films.file_bytes(marked(films.thumbnail()))[:-1000]
    for path in ("/api/v1/instances", "/api/v1/looks"):
        yield "POST", path, cut, DICOM
        yield "POST", path, MARK.encode() * 100, DICOM
        yield "POST", path, cut, f"{MARK}/{MARK}"
        yield "POST", path, cut, f'multipart/related; type="application/dicom"; boundary="{MARK}"'
    no_uid = films.changed(marked(films.thumbnail()), {"StudyInstanceUID": f"{MARK}.1"})
    yield "POST", "/api/v1/instances", films.file_bytes(no_uid), DICOM
    for field in ("state", "finding", "destination", "from", "sort", "search"):
        yield "GET", f"/?{field}={name}", None, JSON
    yield "POST", "/search", MARK.encode() * 100, "multipart/form-data"
    yield "POST", "/login", f"user={MARK}&password={MARK}".encode(), FORM


def test_neither_commands_nor_metrics_tell_of_a_patient(node: Node, tmp_path: Path) -> None:
    settings, exported = node.service.settings_path, tmp_path / "corrections.jsonl"
    for arguments in (
        ("explain", UID, settings),
        ("status", settings, "--json"),
        ("corrections", settings, "--export", exported),
    ):
        asked = run_command(*arguments)
        assert asked.returncode == 0, asked.stderr
        assert found_in(f"{asked.stdout}\n{asked.stderr}".encode()) == [], arguments
    assert exported.is_file()
    assert found_in(parts(node.ask("GET", "/metrics"))) == []


def test_no_refusal_quotes_what_was_sent_and_no_log_line_a_patient_or_what_a_user_typed(node: Node) -> None:
    other = films.as_another(FILM, "typed", study="typed")  # other tests find nothing that was typed about theirs
    node.service.read(other)
    path = f"/api/v1/studies/{other.StudyInstanceUID}/films/{other.SOPInstanceUID}"
    assert node.ask("POST", f"{path}/questions", {"questions": [{"prompt": f"{MARK} effusion"}]}).status_code == 201
    node.ask("POST", f"{path}/replies", {"text": f"has {MARK} an effusion?"})
    reworded = {"kind": "reword", "prompt": "pleural_effusion", "text": f"{MARK} has an effusion."}
    assert node.ask("POST", f"{path}/corrections", reworded).status_code == 202

    answers = {str(request): node.ask(*request[:3], kind=request[3]) for request in bad_requests()}

    assert {request: found for request, answer in answers.items() if (found := found_in(parts(answer)))} == {}
    assert {answer.status_code for answer in answers.values() if answer.status_code >= 500} == set()
    refused = [answer.status_code >= 400 or 'id="refused"' in answer.text for answer in answers.values()]
    assert sum(refused) > len(answers) - 4
    node.service.wait_for("correction.made")
    assert found_in(json.dumps(node.service.lines, ensure_ascii=False).encode()) == []
    known = {"event", "level", "timestamp", "user", "host", "outcome", "study", "sop_instance_uid", "studies"}
    assert [line for line in node.audited() if not known >= line.keys()] == []
