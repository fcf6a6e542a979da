"""The command that asks a running node: whom it tells the password, whom it trusts, and where it goes."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from models.contract import Question
from node.commands import ask
from node.commands.ask import FilmAddress, Login
from node.errors import InputError, NodeError

FILM, AWAY = FilmAddress(study=None, uid="1.2.3"), FilmAddress(study=None, uid="1.2.9")
EDEMA = Question(prompt="Edema")
ANNA = Login(user="anna", password="secret: \u00e4")


class Handler(BaseHTTPRequestHandler):
    """Notes requests; answers one question, or sends whoever asks for the film 1.2.9 elsewhere."""

    asked: list[tuple[str, str, object]]

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers.get("Authorization", ""), content))
        is_away = "1.2.9" in self.path
        self.send_response(302 if is_away else 201)
        if is_away:
            self.send_header("Location", f"http://127.0.0.1:{self.headers['Host'].rpartition(':')[2]}/elsewhere")
        self.end_headers()
        self.wfile.write(json.dumps({"questions": [{"prompt": "Edema"}]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def node() -> Iterator[HTTPServer]:
    Handler.asked = []
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_node_is_asked_as_a_user_and_through_no_proxy(node: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    answers = ask.ask(f"http://127.0.0.1:{node.server_port}/page", FILM, questions=[EDEMA], login=ANNA)

    assert answers == [{"prompt": "Edema"}]
    secret = b64encode("anna:secret: \u00e4".encode()).decode()
    body = {"questions": [{"prompt": "Edema", "box": None}]}
    assert Handler.asked == [("/api/v1/films/1.2.3/questions", f"Basic {secret}", body)]


def test_nobody_is_named_without_a_user(node: HTTPServer) -> None:
    ask.ask(f"http://127.0.0.1:{node.server_port}", FILM, questions=[EDEMA])

    assert [authorization for _, authorization, _ in Handler.asked] == [""]


def test_no_redirect_is_followed(node: HTTPServer) -> None:
    with pytest.raises(NodeError):
        ask.ask(f"http://127.0.0.1:{node.server_port}", AWAY, questions=[EDEMA], login=ANNA)

    assert [path for path, _, _ in Handler.asked] == ["/api/v1/films/1.2.9/questions"]


def test_a_password_is_not_sent_in_clear_to_another_machine() -> None:
    with pytest.raises(InputError, match="https:// only"):
        ask.ask("http://192.0.2.1:8080", FILM, questions=[EDEMA], login=ANNA)


def test_the_password_is_the_first_line_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_bytes(b" a b \r\nnotes\n")

    login = ask.login_of("anna", path)

    assert login == Login(user="anna", password=" a b ")
    assert "a b" not in repr(login)
    assert ask.login_of(None, None) is None


def test_a_password_that_cannot_be_typed_is_asked_for_in_a_file() -> None:
    program = "from node.commands import ask; ask.login_of('anna', None)"

    asked = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,  # without a terminal
        timeout=60,
    )

    assert asked.stderr.splitlines()[-1].endswith(
        "InputError: --user anna: there is no terminal to type the password in; name a file with it by "
        "--password-file FILE"
    )
    assert "may be echoed" not in asked.stderr.splitlines()[0]


def test_a_password_without_a_user_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--user"):
        ask.login_of(None, tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        ask.login_of("anna", tmp_path / "nothing")


def test_certificates_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing", encoding="utf-8")

    for name in ("ca.pem", "nothing.pem"):
        with pytest.raises(InputError, match="--ca"):
            ask.ask("https://127.0.0.1:9", FILM, questions=[EDEMA], ca=tmp_path / name)
