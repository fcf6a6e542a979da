"""Looking at a film without a PACS: it is read, shown and asked about, and nothing of it is kept or sent."""

from __future__ import annotations

import re
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset
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


def size_of(client: TestClient, look: Content) -> tuple[int, int]:
    shown = client.get(f"/api/v1/looks/{look['id']}/picture")
    assert shown.status_code == 200
    return Image.open(BytesIO(shown.content)).size


def picture(kind: str) -> bytes:
    """A gray picture with a gradient, 300 columns and 200 rows."""
    content = BytesIO()
    gray = np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))
    Image.fromarray(gray).save(content, format=kind.partition("/")[2].upper())
    return content.getvalue()


def test_a_film_is_read_shown_and_asked_about(client: TestClient) -> None:
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
    assert size_of(client, look) == (sent.Columns, sent.Rows)
    questions = {"questions": [{"prompt": "Edema"}, {"box": [20, 20, 60, 60]}]}
    answered = client.post(f"/api/v1/looks/{look['id']}/questions", json=questions)
    answers = answered.json()["questions"]
    assert (answered.status_code, [answer["prompt"] for answer in answers]) == (200, ["Edema", None])
    assert answers[1]["box"] == [20, 20, 60, 60]


@pytest.mark.parametrize(
    ("text", "said", "asked"),
    [
        ("is there atelectasis?", "telectasis", 0),
        ("Edema", None, 1),
        ("tip of the line?", "the network is asked", 1),
        ("what changed?", "compared with no other film", 0),
    ],
)
def test_a_film_is_asked_in_words(client: TestClient, text: str, said: str | None, asked: int) -> None:
    look = taken(client, films.file_bytes(films.thumbnail()))
    reply = client.post(f"/api/v1/looks/{look['id']}/replies", json={"text": text}).json()
    assert reply["film"] == films.thumbnail().SOPInstanceUID
    assert reply["text"] is None if said is None else said in reply["text"]
    assert len(reply["questions"]) == asked


@pytest.mark.parametrize("kind", [PNG, JPEG])
def test_a_picture_is_read_in_its_own_pixels(client: TestClient, kind: str) -> None:
    look = taken(client, picture(kind), kind=kind)
    film = look["film"]
    assert (film["status"], film["columns"], film["rows"], film["notes"]) == ("read", 300, 200, ["view_unknown"])
    assert size_of(client, look) == (300, 200)


def test_nothing_of_it_is_in_a_study_or_sent(node: Finished, client: TestClient) -> None:
    taken(client, films.file_bytes(films.as_another(films.thumbnail(), "looked at", study="looked at")))
    assert list(node.spool.studies()) == []
    assert client.get("/api/v1/studies").json()["total"] == 0
    assert node.ledger.open_deliveries() == []
    folder = node.spool.directory / "looks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_only_the_newest_are_known(node: Finished, client: TestClient) -> None:
    content = picture(PNG)
    looks = [taken(client, content, kind=PNG)["id"] for _ in range(MOST + 1)]
    statuses = [client.get(f"/api/v1/looks/{looks[place]}/picture").status_code for place in (0, -1)]
    assert statuses == [404, 200]
    assert len(list((node.spool.directory / "looks").iterdir())) == MOST


@pytest.mark.parametrize(("film", "reason"), [(films.lateral, "lateral"), (films.color, "color")])
def test_a_film_that_is_not_read_says_why(client: TestClient, film: Callable[[], Dataset], reason: str) -> None:
    look = taken(client, films.file_bytes(film()))
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
    ],
)
def test_what_is_no_film_is_refused_and_not_kept(
    node: Finished, client: TestClient, body: bytes, kind: str, status: int
) -> None:
    before = sorted(node.spool.directory.glob("looks/*"))
    answer = client.post("/api/v1/looks", content=body, headers={"Content-Type": kind})
    assert (answer.status_code, str(node.spool.directory) in answer.text) == (status, False)
    assert sorted(node.spool.directory.glob("looks/*")) == before


def test_below_the_reserve_of_the_disk_nothing_is_looked_at(
    node: Finished, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(node.spool.directory.glob("looks/*"))
    monkeypatch.setattr(node.spool, "reserve_bytes", 2**60)
    answer = client.post("/api/v1/looks", content=picture(PNG), headers={"Content-Type": PNG})
    assert (answer.status_code, "disk" in answer.json()["detail"]) == (503, True)
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


@pytest.mark.parametrize(("body", "status", "words"), REFUSED)
def test_a_question_is_refused_as_about_any_film(
    node: Finished, client: TestClient, body: Content, status: int, words: str
) -> None:
    look = taken(client, picture(PNG), kind=PNG)
    answer = client.post(f"/api/v1/looks/{look['id']}/questions", json=body)
    assert (answer.status_code, words in str(answer.json()["detail"])) == (status, True)
    assert str(node.spool.directory) not in answer.text


def test_a_film_is_forgotten_after_its_time_and_at_the_end(tmp_path: Path) -> None:
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


def test_what_a_killed_process_left_is_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "looks").mkdir()
    (tmp_path / "looks" / "film.dcm").write_bytes(b"film")
    Looks(tmp_path / "looks").close()
    assert not (tmp_path / "looks").exists()


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
