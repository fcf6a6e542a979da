"""Looking at a film without a PACS: it is read, shown and asked about, and nothing of it is kept or sent."""

from __future__ import annotations

import re
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from PIL import Image
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message

from node.domain import Film, Reason
from node.web.look_files import MOST, Looks
from node.web.looks import look_at
from node.web.problems import Problem
from node.web.rate_limit import RateLimit
from tests.node.web.test_web_questions import REFUSED
from tests.support import films, peers
from tests.support.finished import Finished

Content = dict[str, Any]
DICOM, PNG, JPEG = "application/dicom", "image/png", "image/jpeg"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("looks") / "node", rate=RateLimit(burst=1000, seconds=1.0))


@pytest.fixture(scope="module")
def client(node: Finished) -> TestClient:
    return node.client()


def taken(client: TestClient, body: bytes, *, kind: str = DICOM) -> Content:
    """Have a film looked at; what the node says of it."""
    answer = client.post("/api/v1/looks", content=body, headers={"Content-Type": kind})
    assert answer.status_code == 201, answer.text
    found: Content = answer.json()
    return found


def shown(client: TestClient, look: Content) -> Image.Image:
    return Image.open(BytesIO(client.get(f"/api/v1/looks/{look['id']}/picture").content))


def picture(kind: str) -> bytes:
    """A gray picture with a gradient, 300 columns and 200 rows."""
    content = BytesIO()
    gray = np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))
    Image.fromarray(gray).save(content, format=kind.partition("/")[2].upper())
    return content.getvalue()


def test_a_film_is_read_shown_and_asked_about_but_is_in_no_study(node: Finished, client: TestClient) -> None:
    sent = films.thumbnail()
    look = taken(client, films.file_bytes(sent))
    film = look["film"]
    assert (film["status"], film["source"], film["columns"]) == ("read", sent.SOPInstanceUID, sent.Columns)
    assert film["impression"]
    assert look["seconds"] == 900
    page = client.get(f"/upload/{look['id']}").text
    (until,) = re.findall('<time datetime="([^"]*)">', page)
    assert 880 < (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds() <= 900
    assert "/manage" not in page and "Results" not in page, "it is in no study"
    assert shown(client, look).size == (sent.Columns, sent.Rows)
    questions = {"questions": [{"prompt": "Edema"}, {"box": [20, 20, 60, 60]}]}
    answered = client.post(f"/api/v1/looks/{look['id']}/questions", json=questions)
    answers = answered.json()["questions"]
    assert (answered.status_code, [answer["prompt"] for answer in answers]) == (200, ["Edema", None])
    assert answers[1]["box"] == [20, 20, 60, 60]

    assert (list(node.spool.studies()), node.ledger.open_deliveries()) == ([], [])
    assert client.get("/api/v1/studies").json()["total"] == 0
    folder = node.spool.directory / "looks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_film_is_asked_in_words(client: TestClient) -> None:
    look = taken(client, films.file_bytes(films.thumbnail()))
    for text, said, asked in (
        ("is there atelectasis?", "telectasis", 0),
        ("Edema", None, 1),
        ("tip of the line?", "the network is asked", 1),
        ("what changed?", "compared with no other film", 0),
    ):
        reply = client.post(f"/api/v1/looks/{look['id']}/replies", json={"text": text}).json()
        assert (reply["film"], len(reply["questions"])) == (films.thumbnail().SOPInstanceUID, asked)
        assert reply["text"] is None if said is None else said in reply["text"]


@pytest.mark.parametrize("kind", [PNG, JPEG])
def test_a_picture_is_read_in_its_own_pixels(client: TestClient, kind: str) -> None:
    look = taken(client, picture(kind), kind=kind)
    film = look["film"]
    assert (film["status"], film["columns"], film["rows"], film["notes"]) == ("read", 300, 200, ["view_unknown"])
    assert shown(client, look).size == (300, 200)


def test_only_the_newest_are_known(node: Finished, client: TestClient) -> None:
    looks = [taken(client, picture(PNG), kind=PNG)["id"] for _ in range(MOST + 1)]
    statuses = [client.get(f"/api/v1/looks/{looks[place]}/picture").status_code for place in (0, -1)]
    assert (statuses, len(list((node.spool.directory / "looks").iterdir()))) == ([404, 200], MOST)


def test_a_film_that_is_not_read_says_why(client: TestClient) -> None:
    for film, reason in ((films.lateral(), "lateral"), (films.color(), "color")):
        look = taken(client, films.file_bytes(film))
        assert (look["film"]["status"], look["film"]["reason"]) == ("not_processed", reason)
        for route, body in (("questions", {"questions": [{"prompt": "Edema"}]}), ("replies", {"text": "effusion?"})):
            assert client.post(f"/api/v1/looks/{look['id']}/{route}", json=body).status_code == 409


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"no film", DICOM, 422),
        (b"no picture", PNG, 422),
        (b"", JPEG, 422),
        (films.file_bytes(films.non_image("SR")), DICOM, 422),
        (b"{}", "application/json", 415),
        (picture(PNG), PNG, 503),
    ],
    ids=["no film", "no picture", "nothing", "a report", "another type", "below the reserve of the disk"],
)
def test_what_is_no_film_or_has_no_room_is_refused_and_not_kept(
    node: Finished, client: TestClient, monkeypatch: pytest.MonkeyPatch, body: bytes, kind: str, status: int
) -> None:
    before = sorted(node.spool.directory.glob("looks/*"))
    if status == 503:
        monkeypatch.setattr(node.spool, "reserve_bytes", 2**60)
    answer = client.post("/api/v1/looks", content=body, headers={"Content-Type": kind})
    assert (answer.status_code, "disk" in answer.json()["detail"]) == (status, status == 503)
    assert str(node.spool.directory) not in answer.text
    assert sorted(node.spool.directory.glob("looks/*")) == before


def test_a_film_whose_upload_is_cancelled_is_not_kept(node: Finished) -> None:
    before = sorted(node.spool.directory.glob("looks/*"))

    async def upload() -> bool:
        with anyio.CancelScope() as uploading:

            async def receive() -> Message:
                uploading.cancel()
                await anyio.sleep_forever()
                return {}

            await look_at(node.parts, Request({"type": "http", "headers": [(b"content-type", PNG.encode())]}, receive))
        return uploading.cancelled_caught

    assert anyio.run(upload)
    assert sorted(node.spool.directory.glob("looks/*")) == before


def test_a_question_is_refused_as_about_any_film(node: Finished, client: TestClient) -> None:
    look = taken(client, picture(PNG), kind=PNG)
    for body, status, words in REFUSED:
        answer = client.post(f"/api/v1/looks/{look['id']}/questions", json=body)
        assert (answer.status_code, words in str(answer.json()["detail"])) == (status, True), body
        assert str(node.spool.directory) not in answer.text


def test_a_film_is_forgotten_after_its_time_at_the_end_and_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / "looks"
    looks = Looks(folder, seconds=0.3, pause_seconds=0.05)
    file, path = looks.create(".png")
    with file:
        file.write(b"film")
    look = looks.add(path, Film(source="1.2", reason=Reason.BLANK))
    assert looks.find(look.id) == look
    peers.wait_until(lambda: not path.exists(), what="the film is removed")
    assert looks.find(look.id) is None
    looks.close()
    assert not folder.exists()
    folder.mkdir()
    (folder / "film.dcm").write_bytes(b"what a killed process left")
    Looks(folder).close()
    assert not folder.exists()


def test_two_have_the_model_eight_wait_and_more_are_sent_away_at_once(tmp_path: Path) -> None:
    looks, leave = Looks(tmp_path / "looks"), threading.Event()
    looks.close()

    def wait() -> str:
        try:
            with looks.turn():
                leave.wait(30)
                return "read"
        except Problem as problem:
            return str(problem.status_code)

    with ThreadPoolExecutor(30) as pool:
        waiting = [pool.submit(wait) for _ in range(30)]
        peers.wait_until(lambda: sum(each.done() for each in waiting) == 20, what="all but ten are told to come again")
        leave.set()
        outcomes = sorted(each.result() for each in waiting)
    assert outcomes == ["503"] * 20 + ["read"] * 10
