"""A patient's values in a film, and a person who does everything over the web: they stand only where they may.

They may stand on the page of a study and on the worklist for a user who has signed in, and in DICOM objects and
messages.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from pydicom.dataset import Dataset

from tests.support import films
from tests.support.archived import StartNode
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, run_command
from tests.support.traces import MARK, found_in, marked
from tests.support.web_access import PASSWORD

# The sender's pydicom warns of what this test makes it send.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

BASIC = {"Authorization": f"Basic {b64encode(f'ada:{PASSWORD}'.encode()).decode()}"}
OTHER = {"Authorization": f"Basic {b64encode(f'bob:{PASSWORD}'.encode()).decode()}"}
NOBODY: dict[str, str] = {}
JSON, DICOM = "application/json", "application/dicom"
OWN = ("application/dicom", "x-application/hl7-v2+er7", "image/png")
"""The media types of what is the patient's own."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that knows its users, and has read a film of a patient."""

    service: Service
    film: Dataset
    archive: ReceivingArchive

    @property
    def study(self) -> str:
        return str(self.film.StudyInstanceUID)

    @property
    def uid(self) -> str:
        return str(self.film.SOPInstanceUID)

    def ask(
        self, method: str, path: str, body: object = None, *, kind: str = JSON, who: dict[str, str] = BASIC
    ) -> httpx2.Response:
        """Send a request; a body in bytes is sent as it is, another one as JSON."""
        return self.service.request(method, path, body, kind=kind, **who)

    def json(self, method: str, path: str, body: object = None, *, kind: str = JSON) -> dict[str, object]:
        answer = self.ask(method, path, body, kind=kind)
        assert answer.is_success, (path, answer.text)
        found: dict[str, object] = answer.json()
        return found


def kind_of(answer: httpx2.Response) -> str:
    return answer.headers.get("content-type", "").partition(";")[0]


def parts_of(answer: httpx2.Response) -> bytes:
    """An answer with its header fields, for a search."""
    return b"\n".join((str(answer.headers.raw).encode(), answer.content))


ANOTHER = films.as_another(films.thumbnail(), "another", study="another")


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    started = start_node(users=["ada", "bob"])
    node = Node(service=started.service, film=marked(films.thumbnail()), archive=started.archive)
    node.service.read(node.film)
    node.archive.wait_for_kept(2)
    live_through(node)
    return node


def live_through(node: Node) -> None:
    """Do everything that a user can do with a study, so that all that it leaves is there to be searched."""
    film, study = f"/api/v1/films/{node.uid}", f"/api/v1/studies/{node.study}"
    about = {"questions": [{"prompt": "Edema", "box": [2, 3, 20, 30]}]}
    asked = node.json("POST", f"{film}/questions", about)["questions"]
    assert isinstance(asked, list)
    node.json("POST", f"/api/v1/questions/{asked[0]['id']}/send", {})
    node.json("POST", f"{film}/replies", {"text": "what changed?"})
    node.json("POST", f"{film}/corrections", {"kind": "reject", "prompt": "atelectasis", "id": "a" * 32})
    node.json("POST", f"{study}/retry", {})
    node.json("POST", "/api/v1/instances", films.file_bytes(marked(ANOTHER)), kind=DICOM)
    node.service.wait_for("study.finished", count=3)
    node.archive.wait_until(lambda: len(node.archive.kept) >= 8)


def looks_of(node: Node) -> Iterator[str]:
    """Addresses of a film that is looked at."""
    look = node.json("POST", "/api/v1/looks", films.file_bytes(node.film), kind=DICOM)
    assert found_in(json.dumps(look).encode()) == []
    asked = (("questions", {"questions": [{"prompt": "Edema"}]}), ("replies", {"text": "List the findings"}))
    for route, body in asked:
        said = node.json("POST", f"/api/v1/looks/{look['id']}/{route}", body)
        assert found_in(json.dumps(said).encode()) == []
    yield from (f"/upload/{look['id']}", f"/api/v1/looks/{look['id']}/picture")


def outputs_of(node: Node) -> Iterator[str]:
    outputs = node.json("GET", f"/api/v1/studies/{node.study}")["outputs"]
    assert isinstance(outputs, list)
    yield from (f"/api/v1/outputs/{output['uid']}" for output in outputs)


def paths_of(node: Node) -> list[str]:
    """What can be read of a node, but for the pages that name patients."""
    film = f"/api/v1/films/{node.uid}"
    return [
        *("/upload", "/metrics", "/live", "/ready", "/api/openapi.json", "/api/v1/prompts", "/api/v1/studies"),
        *("/api/v1/review", "/system", "/system/settings"),
        *(f"/api/v1/studies/{node.study}", f"{film}/questions", f"{film}/corrections", f"{film}/picture"),
        *outputs_of(node),
        *looks_of(node),
    ]


def bad_requests(node: Node) -> Iterator[tuple[str, str, object, str]]:
    """Requests that hold a patient's values where a careless program quotes them: method, path, body, its type."""
    name, film = quote(f"{MARK}^{MARK}ö"), f"/api/v1/films/{node.uid}"
    for path in ("/api/v1/studies", "/api/v1/outputs", "/studies", "/upload", "/static"):
        yield "GET", f"{path}/{name}", None, JSON
    yield from (("GET", path, None, JSON) for path in (f"/{name}", f"/?q={name}", f"/api/v1/studies?q={name}"))
    yield "GET", f"{film}/picture?center={name}&width={name}", None, JSON
    yield "GET", f"/studies/{node.study}?film={name}", None, JSON
    yield "POST", f"/api/v1/questions/{name}/send", {}, JSON
    for path in (f"{film}/questions", f"{film}/replies", f"{film}/corrections"):
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
    for field in ("state", "finding", "destination", "from", "sort"):
        yield "GET", f"/?{field}={name}", None, JSON
    yield "GET", f"/?search={name}", None, JSON
    yield "POST", "/search", MARK.encode() * 100, "multipart/form-data"
    yield "POST", "/login", f"user={MARK}&password={MARK}".encode(), "application/x-www-form-urlencoded"


def traces(answers: dict[str, httpx2.Response]) -> dict[str, list[str]]:
    return {path: found for path, said in answers.items() if (found := found_in(parts_of(said)))}


def test_no_answer_but_study_and_lists_names_a_patient(node: Node) -> None:
    answers = {path: node.ask("GET", path) for path in paths_of(node)}

    assert {said.status_code for said in answers.values()} == {200}
    assert traces({path: said for path, said in answers.items() if kind_of(said) not in OWN}) == {}


def test_only_a_user_who_has_signed_in_sees_the_patient(node: Node) -> None:
    own, paths = ("/", "/review", f"/studies/{node.study}"), paths_of(node)

    answers = {path: node.ask("GET", path, who=NOBODY) for path in (*own, *paths)}

    assert traces(answers) == {}
    assert {path for path, said in answers.items() if said.status_code == 200} == {"/metrics", "/live", "/ready"}
    assert all(found_in(parts_of(node.ask("GET", page))) for page in own)


def test_a_search_stands_in_no_address_and_for_no_one_else(node: Node) -> None:
    form = "application/x-www-form-urlencoded"

    unsigned = node.ask("POST", "/search", f"text={MARK}".encode(), kind=form, who=NOBODY)
    asked = node.ask("POST", "/search", f"text={MARK}".encode(), kind=form)
    place = asked.headers["location"]

    assert (unsigned.status_code, asked.status_code) == (401, 303)
    assert found_in(parts_of(asked)) == []
    assert node.study in node.ask("GET", place).text
    assert found_in(parts_of(node.ask("GET", place, who=NOBODY))) == []
    assert found_in(parts_of(node.ask("GET", place, who=OTHER))) == []


def test_no_refusal_quotes_what_was_sent(node: Node) -> None:
    answers = {str(request): node.ask(*request[:3], kind=request[3]) for request in bad_requests(node)}

    assert traces(answers) == {}
    assert {said.status_code for said in answers.values() if said.status_code >= 500} == set()
    refused = [said.status_code >= 400 or 'id="refused"' in said.text for said in answers.values()]
    assert sum(refused) > len(answers) - 4


def test_what_a_user_typed_is_not_logged(node: Node) -> None:
    film = f"/api/v1/films/{ANOTHER.SOPInstanceUID}"
    answered = node.ask("POST", f"{film}/questions", {"questions": [{"prompt": f"{MARK} effusion"}]})
    node.ask("POST", f"{film}/replies", {"text": f"has {MARK} an effusion?"})
    reworded = {"kind": "reword", "prompt": "atelectasis", "text": f"{MARK} has atelectasis."}
    node.ask("POST", f"{film}/corrections", reworded)

    assert answered.status_code == 201
    assert found_in(parts_of(node.ask("GET", "/metrics"))) == []


def test_commands_tell_nothing_of_a_patient(node: Node, tmp_path: Path) -> None:
    settings, exported = node.service.settings_path, tmp_path / "corrections.jsonl"

    for arguments in (
        ("explain", node.uid, settings),
        ("explain", node.uid, settings, "--json"),
        ("status", settings, "--json"),
        ("corrections", settings, "--export", exported),
    ):
        asked = run_command(*arguments)
        assert asked.returncode == 0, asked.stderr
        assert found_in(f"{asked.stdout}\n{asked.stderr}".encode()) == [], arguments

    assert exported.is_file()


def test_no_log_line_holds_a_value_of_a_patient(node: Node) -> None:
    for request in bad_requests(node):
        node.ask(*request[:3], kind=request[3])

    node.service.wait_for("correction.made")
    assert found_in(json.dumps(node.service.lines, ensure_ascii=False).encode()) == []
