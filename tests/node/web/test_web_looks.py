"""Looking at a film without a PACS: it is read, shown and asked about, and nothing of it is kept or sent."""

from __future__ import annotations

import stat
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
from tests.support.archived import ArchivedNode, StartNode

Content = dict[str, object]

DICOM, PNG, JPEG = "application/dicom", "image/png", "image/jpeg"


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> ArchivedNode:
    return start_node()


def taken(node: ArchivedNode, body: bytes, *, kind: str = DICOM) -> Content:
    """Have a film looked at; what the node says of it."""
    answer = node.service.request("POST", "/api/v1/looks", body, kind=kind)
    assert answer.status_code == 201, answer.text
    return cast(Content, answer.json())


def picture(kind: str) -> bytes:
    """A gray picture with a gradient, 300 columns and 200 rows."""
    content = BytesIO()
    gray = np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))
    Image.fromarray(gray).save(content, format=kind.partition("/")[2].upper())
    return content.getvalue()


def test_a_film_is_read_shown_and_asked_about(node: ArchivedNode) -> None:
    sent = films.thumbnail()

    look = taken(node, films.file_bytes(sent))

    film = cast(Content, look["film"])
    assert (film["status"], film["source"], film["columns"]) == ("read", sent.SOPInstanceUID, sent.Columns)
    assert film["impression"]
    shown = node.service.request("GET", f"/api/v1/looks/{look['id']}/picture")
    assert (shown.status_code, Image.open(BytesIO(shown.content)).size) == (200, (sent.Columns, sent.Rows))
    questions = {"questions": [{"prompt": "Edema"}, {"box": [20, 20, 60, 60]}]}
    status, answered = node.service.ask("POST", f"/api/v1/looks/{look['id']}/questions", questions)
    answers = cast(list[Content], answered["questions"])
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
def test_a_film_is_asked_in_words(node: ArchivedNode, text: str, said: str | None, asked: int) -> None:
    look = taken(node, films.file_bytes(films.thumbnail()))

    status, reply = node.service.ask("POST", f"/api/v1/looks/{look['id']}/replies", {"text": text})

    assert (status, reply["film"]) == (200, films.thumbnail().SOPInstanceUID)
    assert reply["text"] is None if said is None else said in str(reply["text"])
    assert len(cast(list[Content], reply["questions"])) == asked


@pytest.mark.parametrize("kind", [PNG, JPEG])
def test_a_picture_is_read_in_its_own_pixels(node: ArchivedNode, kind: str) -> None:
    look = taken(node, picture(kind), kind=kind)

    film = cast(Content, look["film"])
    assert (film["status"], film["columns"], film["rows"], film["notes"]) == ("read", 300, 200, ["view_unknown"])
    shown = node.service.request("GET", f"/api/v1/looks/{look['id']}/picture")
    assert (shown.status_code, Image.open(BytesIO(shown.content)).size) == (200, (300, 200))


def test_nothing_of_it_is_in_a_study_or_sent(node: ArchivedNode) -> None:
    taken(node, films.file_bytes(films.as_another(films.thumbnail(), "looked at", study="looked at")))

    assert list(Spool(node.directory).studies()) == []
    assert node.service.ask("GET", "/api/v1/studies")[1]["total"] == 0
    assert node.archive.requests == []
    (folder,) = (node.directory / "looks").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_only_the_newest_are_known(node: ArchivedNode) -> None:
    content = picture(PNG)
    looks = [taken(node, content, kind=PNG)["id"] for _ in range(MOST + 1)]

    assert node.service.request("GET", f"/api/v1/looks/{looks[0]}/picture").status_code == 404
    assert node.service.request("GET", f"/api/v1/looks/{looks[-1]}/picture").status_code == 200
    assert len(list((node.directory / "looks").glob("*/*"))) == MOST


def test_a_film_that_is_not_read_says_why(node: ArchivedNode) -> None:
    look = taken(node, films.file_bytes(films.lateral()))

    assert cast(Content, look["film"])["reason"] == "lateral"
    for route, body in (("questions", {"questions": [{"prompt": "Edema"}]}), ("replies", {"text": "effusion?"})):
        assert node.service.ask("POST", f"/api/v1/looks/{look['id']}/{route}", body)[0] == 409


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
def test_what_is_no_film_is_refused_and_not_kept(node: ArchivedNode, body: bytes, kind: str, status: int) -> None:
    before = len(list((node.directory / "looks").glob("*/*")))

    answer = node.service.request("POST", "/api/v1/looks", body, kind=kind)

    assert (answer.status_code, str(node.directory) in answer.text) == (status, False)
    assert len(list((node.directory / "looks").glob("*/*"))) == before


def test_a_dicom_film_in_color_keeps_its_reason(node: ArchivedNode) -> None:
    look = taken(node, films.file_bytes(films.color()))

    film = cast(Content, look["film"])
    assert (film["status"], film["reason"]) == ("not_processed", "color")


@pytest.mark.parametrize(("body", "status", "words"), REFUSED)
def test_a_question_is_refused_as_about_any_film(node: ArchivedNode, body: Content, status: int, words: str) -> None:
    look = taken(node, picture(PNG), kind=PNG)

    answer = node.service.request("POST", f"/api/v1/looks/{look['id']}/questions", body)

    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
    assert str(node.directory) not in answer.text


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


@contextmanager
def held(node: ArchivedNode) -> Iterator[None]:
    """Let the reader of a node wait."""
    hold = node.service.settings_path.with_name("hold")
    hold.touch()
    try:
        yield
    finally:
        hold.unlink()


@pytest.mark.drill(part="pages")
def test_films_that_wait_for_the_model_delay_no_page(node: ArchivedNode) -> None:
    film, pages = films.file_bytes(films.thumbnail()), ("/live", "/metrics", "/", "/api/v1/studies")

    with ThreadPoolExecutor(60) as pool:
        with held(node):
            looks = [pool.submit(node.service.request, "POST", "/api/v1/looks", film, kind=DICOM) for _ in range(60)]
            peers.wait_until(lambda: sum(each.done() for each in looks) >= 40, what="most are told to come again")
            began = time.monotonic()
            answers = [node.service.request("GET", path).status_code for path in pages]
            lasted = time.monotonic() - began
        statuses = Counter(each.result().status_code for each in looks)

    assert (answers, lasted < 5.0) == ([200] * len(pages), True)
    assert set(statuses) == {201, 503}
    assert statuses[201] >= 2
