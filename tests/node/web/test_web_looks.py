"""Looking at a film without a PACS: it is read, shown and asked about, and nothing of it is kept or sent."""

from __future__ import annotations

import http.client
import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image

from node.domain import Film, Reason
from node.store.spool import Spool
from node.web.look_files import MOST, Looks
from tests.node.web.test_web_questions import REFUSED
from tests.support import films, peers
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import Service, settings_for

Content = dict[str, object]

DICOM, PNG, JPEG = "application/dicom", "image/png", "image/jpeg"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A running node with an archive."""

    service: Service
    archive: ReceivingArchive
    directory: Path

    def ask(self, path: str, body: bytes | None = None, *, kind: str = "application/json") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(LOOPBACK, self.service.http_port, timeout=60)
        headers = {} if body is None else {"Content-Type": kind}
        connection.request("GET" if body is None else "POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        answered = (answer.status, answer.read())
        connection.close()
        return answered

    def look(self, body: bytes, *, kind: str = DICOM) -> Content:
        status, answer = self.ask("/api/v1/looks", body, kind=kind)
        assert status == 201, answer
        return cast(Content, json.loads(answer))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("looks") / "node"
    with ReceivingArchive() as archive, Service(settings_for(directory, archive_port=archive.port)) as service:
        yield Node(service=service, archive=archive, directory=directory)


def picture(kind: str) -> bytes:
    """A gray picture with a gradient, 300 columns and 200 rows."""
    content = BytesIO()
    gray = np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))
    Image.fromarray(gray).save(content, format=kind.partition("/")[2].upper())
    return content.getvalue()


def test_a_film_is_read_shown_and_asked_about(node: Node) -> None:
    sent = films.thumbnail()

    look = node.look(films.file_bytes(sent))

    film = cast(Content, look["film"])
    assert (film["status"], film["source"], film["columns"]) == ("read", sent.SOPInstanceUID, sent.Columns)
    assert film["impression"]
    status, shown = node.ask(f"/api/v1/looks/{look['id']}/picture")
    assert (status, Image.open(BytesIO(shown)).size) == (200, (sent.Columns, sent.Rows))
    question = json.dumps({"questions": [{"prompt": "Edema"}, {"box": [20, 20, 60, 60]}]}).encode()
    status, answered = node.ask(f"/api/v1/looks/{look['id']}/questions", question)
    answers = cast(list[Content], json.loads(answered)["questions"])
    assert (status, [answer["prompt"] for answer in answers]) == (200, ["Edema", None])
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
def test_a_film_is_asked_in_words(node: Node, text: str, said: str | None, asked: int) -> None:
    look = node.look(films.file_bytes(films.thumbnail()))

    status, answered = node.ask(f"/api/v1/looks/{look['id']}/replies", json.dumps({"text": text}).encode())

    reply = cast(Content, json.loads(answered))
    assert (status, reply["film"]) == (200, films.thumbnail().SOPInstanceUID)
    assert reply["text"] is None if said is None else said in str(reply["text"])
    assert len(cast(list[Content], reply["questions"])) == asked


@pytest.mark.parametrize("kind", [PNG, JPEG])
def test_a_picture_is_read_in_its_own_pixels(node: Node, kind: str) -> None:
    look = node.look(picture(kind), kind=kind)

    film = cast(Content, look["film"])
    assert (film["status"], film["columns"], film["rows"], film["notes"]) == ("read", 300, 200, ["view_unknown"])
    status, shown = node.ask(f"/api/v1/looks/{look['id']}/picture")
    assert (status, Image.open(BytesIO(shown)).size) == (200, (300, 200))


def test_nothing_of_it_is_in_a_study_or_sent(node: Node) -> None:
    node.look(films.file_bytes(films.as_another(films.thumbnail(), "looked at", study="looked at")))

    assert list(Spool(node.directory).studies()) == []
    assert json.loads(node.ask("/api/v1/studies")[1])["total"] == 0
    assert node.archive.requests == []
    (folder,) = (node.directory / "looks").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_only_the_newest_are_known(node: Node) -> None:
    content = picture(PNG)
    looks = [node.look(content, kind=PNG)["id"] for _ in range(MOST + 1)]

    assert node.ask(f"/api/v1/looks/{looks[0]}/picture")[0] == 404
    assert node.ask(f"/api/v1/looks/{looks[-1]}/picture")[0] == 200
    assert len(list((node.directory / "looks").glob("*/*"))) == MOST


def test_a_film_that_is_not_read_says_why(node: Node) -> None:
    look = node.look(films.file_bytes(films.lateral()))

    assert cast(Content, look["film"])["reason"] == "lateral"
    question = json.dumps({"questions": [{"prompt": "Edema"}]}).encode()
    assert node.ask(f"/api/v1/looks/{look['id']}/questions", question)[0] == 409
    assert node.ask(f"/api/v1/looks/{look['id']}/replies", b'{"text": "effusion?"}')[0] == 409


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
def test_what_is_no_film_is_refused_and_not_kept(node: Node, body: bytes, kind: str, status: int) -> None:
    before = len(list((node.directory / "looks").glob("*/*")))

    found, answer = node.ask("/api/v1/looks", body, kind=kind)

    assert (found, str(node.directory) in answer.decode()) == (status, False)
    assert len(list((node.directory / "looks").glob("*/*"))) == before


@pytest.mark.parametrize("kind", [PNG, JPEG])
def test_a_picture_with_colors_is_refused_and_says_why(node: Node, kind: str) -> None:
    content = BytesIO()
    gray = np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))
    false_colors = Image.merge("RGB", list(map(Image.fromarray, (gray, np.flipud(gray[:, ::-1]), gray))))
    false_colors.save(content, format=kind.partition("/")[2].upper())

    status, answer = node.ask("/api/v1/looks", content.getvalue(), kind=kind)

    detail = json.loads(answer)["detail"]
    assert (status, "the picture has colors" in detail, "header" in detail) == (422, True, False)


def test_a_dicom_film_in_color_keeps_its_reason(node: Node) -> None:
    look = node.look(films.file_bytes(films.color()))

    film = cast(Content, look["film"])
    assert (film["status"], film["reason"]) == ("not_processed", "color")


@pytest.mark.parametrize(("body", "status", "words"), REFUSED)
def test_a_question_is_refused_as_about_any_film(node: Node, body: Content, status: int, words: str) -> None:
    look = node.look(picture(PNG), kind=PNG)

    answered, said = node.ask(f"/api/v1/looks/{look['id']}/questions", json.dumps(body).encode())

    assert (answered, words in json.loads(said)["detail"]) == (status, True)
    assert str(node.directory) not in said.decode()


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
