"""The stream of changes of the worklist: what it says, how many may watch, and that nobody who has gone is kept."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from node.errors import NodeError
from node.net.http_connections import Limits
from node.store import ledger_queries
from node.web import api, application
from node.web.dependencies import WebParts
from tests.support import films, peers
from tests.support.finished import parts_of
from tests.support.peers import LOOPBACK, free_port
from tests.support.service import Service, settings_for
from tests.support.serving import Served, serving
from tests.support.web_access import as_user

MOST = 16
QUICK = Limits(connections=128, header_seconds=5.0, stalled_seconds=1.0)
WATCH = b"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n"
CHANGED = b"event: studies\ndata: changed\n\n"


@contextmanager
def watched(tmp_path: Path) -> Iterator[tuple[Served, WebParts]]:
    """Serve the pages without a node behind them."""
    parts = parts_of(settings_for(tmp_path / "node", archive_port=104))
    with serving(application=as_user(application.build(parts)), limits=QUICK) as served:
        yield served, parts


def read_until(connection: socket.socket, wanted: bytes, content: bytes = b"") -> bytes:
    end = time.monotonic() + 20
    while wanted not in content:
        piece = connection.recv(4096)
        assert piece, f"the stream ended within {content!r}"
        assert time.monotonic() < end, "nothing more is told"
        content += piece
    return content


def test_arrival_and_end_of_a_film_are_told(tmp_path: Path) -> None:
    # So long a quiet time that the state can be asked for between arrival and end.
    settings = settings_for(tmp_path / "node", archive_port=free_port(), quiet_seconds=3.0)
    with Service(settings) as service:
        connection = http.client.HTTPConnection(LOOPBACK, service.http_port, timeout=30)
        connection.request("GET", "/api/v1/events")
        stream = connection.getresponse()
        assert stream.getheader("Cache-Control") == "no-store"
        states = [state_at_next_event(stream, service)]
        assert peers.send(films.thumbnail(), port=service.dicom_port) == 0
        while states[-1] != "finished":
            states.append(state_at_next_event(stream, service))
        connection.close()

    assert states[0] == ""
    assert len(states) >= 3, "its arrival is told before its end"


def state_at_next_event(stream: http.client.HTTPResponse, service: Service) -> str:
    """The state of the only study right after the next event; "" while there is none."""
    while stream.readline() != b"event: studies\n":
        pass
    studies = service.request("GET", "/api/v1/studies").json()["studies"]
    return studies[0]["state"] if studies else ""


def test_who_comes_back_to_a_study_is_told_at_once_and_then_of_questions_and_sent_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_POLL_SECONDS", 0.05)
    kinds: tuple[Literal["questions", "sent"], ...] = ("questions", "sent")
    with watched(tmp_path) as (served, parts):
        film = films.keep(parts.spool, films.thumbnail()).instance
        watch = WATCH.replace(b"/events", f"/events?study={film.study_uid}".encode()) % b"Last-Event-ID: 7\r\n"
        with served.connect(watch) as connection:
            read_until(connection, CHANGED)
            for kind in kinds:
                parts.spool.keep_document(film.study_uid, kind, "a" * 32, {})
                read_until(connection, CHANGED)


def test_only_so_many_may_watch_however_fast_they_come_and_who_goes_away_is_forgotten(tmp_path: Path) -> None:
    with watched(tmp_path) as (served, parts):
        with ExitStack() as clients:
            watching = [clients.enter_context(served.connect(WATCH % b"")) for _ in range(4 * MOST)]
            answers = [read_until(connection, b"\r\n\r\n") for connection in watching]

            statuses = sorted(int(answer.split(b" ")[1]) for answer in answers)
            assert statuses == [200] * MOST + [503] * 3 * MOST
            assert sum(b"retry-after: 5\r\n" in answer.lower() for answer in answers) == 3 * MOST
            assert not parts.streams.value
            assert b" 200 " in served.ask()
        peers.wait_until(lambda: parts.streams.value == MOST, what="nobody watches")
        with served.connect(WATCH % b"") as again:
            assert b" 200 " in read_until(again, b"\r\n\r\n")


def test_an_outage_of_the_database_ends_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(("first", NodeError("the database is away")))

    def fingerprint(_storage: object) -> str:
        answer = next(answers, "second")
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ledger_queries, "fingerprint", fingerprint)
    monkeypatch.setattr(api, "_POLL_SECONDS", 0.05)
    with watched(tmp_path) as (served, _), served.connect(WATCH % b"") as connection:
        for _ in range(2):
            read_until(connection, CHANGED)
