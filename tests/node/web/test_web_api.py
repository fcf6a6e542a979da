"""The interface as it is described, and what hostile or careless clients get: each a described answer."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, cast

import pytest
import schemathesis
from fastapi import Body, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from models.progress import quiet
from node.net.http_connections import Limits
from node.settings.http import HttpSettings
from node.web import application, problems, request_body
from node.web.openapi import describe
from node.web.request_body import BodyLimit
from node.web.users import Role, role_of
from tests.drills.fuzz import requests
from tests.support import processes
from tests.support.finished import parts_of
from tests.support.peers import LOOPBACK
from tests.support.service import Service, settings_for
from tests.support.serving import read_to_end, serving
from tests.support.web_access import ADDRESS, PASSWORD, opened, users_in


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, requests.Known]]:
    with requests.running(tmp_path_factory.mktemp("api")) as found:
        yield found


def sent(service: Service, request: bytes, part: bytes = b"", *, times: int = 0) -> bytes:
    """Send a request and parts of its body, and read until the node closes."""
    with socket.create_connection((LOOPBACK, service.http_port), timeout=60) as connection:
        connection.sendall(request)
        for _ in range(times):
            connection.sendall(part)
        return read_to_end(connection)


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def problem_of(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower(), answer[:300]
    return cast("dict[str, object]", json.loads(body))


def requested(method: str, path: str, *fields: str) -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *fields, "", "")).encode()


def routes(service: Service, method: str) -> list[str]:
    """The paths of the interface that take a method."""
    described = service.request("GET", "/api/openapi.json").json()
    found = [path for path, operations in described["paths"].items() if method in operations]
    return [path.replace("{uid}", "1.2.3").replace("{look_id}", "0" * 32) for path in found]


def test_every_answer_is_one_that_the_description_names(node: tuple[Service, requests.Known]) -> None:
    service, known = node

    tally = requests.run(service, known, cases=300, seed=1, say=quiet)

    assert tally.passed, tally.figures
    assert tally.counts.total() > 200


def test_a_path_that_is_no_uid_finds_nothing(node: tuple[Service, requests.Known]) -> None:
    for path in (
        "/api/v1/studies/..%2f..%2fnode.toml",
        "/api/v1/outputs/..%2F..%2Fledger.sqlite",
        "/api/v1/films/%2e%2e/picture",
        *(f"/api/v1/studies/{uid}" for uid in ("1.2%00", "1.2%0d%0aX:1", "[0-9]", "1." + "2" * 63, "%ff%fe")),
        "/api/v1/looks/..%2fsecret/picture",
        "//api/v1/studies/1.2",
    ):
        answer = sent(node[0], requested("GET", path))
        assert status_of(answer) in (404, 422), path
        assert problem_of(answer)["status"] == status_of(answer)


def test_a_body_of_100_mb_is_refused_by_other_routes(node: tuple[Service, requests.Known]) -> None:
    service, _ = node
    paths = [path for path in routes(service, "post") if not path.endswith(("instances", "dicomweb/studies", "looks"))]

    before = processes.status_of(service.pid, "VmRSS")
    for path in paths:
        assert status_of(sent(service, requested("POST", path, f"Content-Length: {100 * 2**20}"))) == 413, path
        assert problem_of(sent(service, requested("POST", path, f"Content-Length: {10**15}")))["status"] == 413, path

    assert len(paths) >= 2
    assert processes.status_of(service.pid, "VmRSS") - before < 20 * 1024


def test_a_body_that_is_no_json_is_refused(node: tuple[Service, requests.Known]) -> None:
    service, known = node
    path = f"/api/v1/looks/{known['look_id'][0]}/questions"
    for body in (b"\xff\xfe\x00", b"{", b"[" * 100_000, b"null", b'{"questions": [{"prompt": "\\ud800"}]}', b"NaN"):
        fields = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        answer = sent(service, requested("POST", path, *fields) + body)

        assert status_of(answer) in (400, 422), body[:40]
        assert problem_of(answer)["status"] == status_of(answer)


def test_100_mb_of_no_film_take_no_memory(node: tuple[Service, requests.Known]) -> None:
    service, _ = node
    fields = ("Content-Type: application/dicom", f"Content-Length: {100 * 2**20}")
    before = processes.status_of(service.pid, "VmHWM")

    answer = sent(service, requested("POST", "/api/v1/instances", *fields), b"x" * 2**20, times=100)

    assert status_of(answer) == 409
    assert processes.status_of(service.pid, "VmHWM") - before < 40 * 1024


def test_other_methods_are_refused(node: tuple[Service, requests.Known]) -> None:
    service, _ = node
    for path in {*routes(service, "get"), *routes(service, "post")}:
        for method in ("PUT", "DELETE", "PATCH", "TRACE", "BREW"):
            answer = sent(service, requested(method, path))
            assert (status_of(answer), problem_of(answer)["title"]) == (405, "Method Not Allowed"), (method, path)


READER: Final = ("bob", PASSWORD)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client at a node with users, behind the real access rules."""
    folder = tmp_path_factory.mktemp("described")
    http = HttpSettings(password_file=users_in(folder, "bob:reader"))
    settings = replace(settings_for(folder / "node", archive_port=104), http=http)
    parts = parts_of(settings)
    with opened(http, folder) as access:
        called = access.protected(application.build(parts, access))
        yield TestClient(called, base_url=ADDRESS, client=("127.0.0.1", 50000), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def described(client: TestClient) -> Mapping[str, Any]:
    found: Mapping[str, Any] = client.get("/api/openapi.json", auth=READER).json()
    return found


def test_nobody_and_a_reader_get_the_answers_that_are_described(
    client: TestClient, described: Mapping[str, Any]
) -> None:
    page = client.get("/interface", auth=READER).text
    assert not re.search(r"<script|(?:src|href)=\"(?![/#])|`", page), "it fetches nothing from elsewhere"
    schemes = described["components"]["securitySchemes"]
    operations = [(path, *each) for path, methods in described["paths"].items() for each in methods.items()]
    for path, word, operation in operations:
        method = word.upper()
        asked = re.sub(r"\{\w+\}", "1.2.3", path)
        assert f"<code>{method} {path}</code>" in page
        assert re.fullmatch(r"[A-Z][a-z]+ .*[^.]", operation["summary"]), (method, path)
        assert client.request(method, asked).status_code == 401
        assert {"401", "403"} <= set(operation["responses"])
        assert all(name in schemes for needed in operation["security"] for name in needed)
        if role_of(f"{method} {path}") is Role.ADMINISTRATOR:
            assert client.request(method, asked, auth=READER).status_code == 403
            assert operation["responses"]["403"]["description"].startswith("for administrators")
    asking = [path for path in described["paths"] if path.endswith(("}/questions", "}/replies"))]
    may_refuse = [path for path in asking if "429" in described["paths"][path]["post"]["responses"]]
    assert (len(asking), may_refuse) == (6, asking)


def test_behind_a_proxy_alone_no_password_and_no_session_is_asked_for() -> None:
    routes = {method: {"description": "List all.", "responses": {}} for method in ("get", "post")}
    http = HttpSettings(trusted_proxy=("192.0.2.1",), user_header="x-user")

    described = describe(lambda: {"paths": {"/api/v1/studies": routes}}, http)["paths"]["/api/v1/studies"]

    assert (described["get"]["security"], described["post"]["security"]) == ([{}], [{"token": []}])


def test_the_description_is_valid_and_made_when_somebody_asks_for_it(
    described: Mapping[str, Any], tmp_path: Path
) -> None:
    schemathesis.openapi.from_dict(dict(described)).validate()
    assert [server["url"] for server in described["servers"]] == ["/"]
    built = application.build(parts_of(settings_for(tmp_path / "node", archive_port=104)))
    assert built.openapi_schema is None
    assert "ProblemDocument" in built.openapi()["components"]["schemas"]
    assert built.openapi() is built.openapi()


def counting() -> FastAPI:
    """An application that counts a body, one that parses it, and one that takes its time with it."""
    made = FastAPI()
    problems.install(made, lambda _request, status, text: Response(text, status_code=status))
    made.add_middleware(BodyLimit, limits={"/count": 2_000_000, "/think": 5_000_000})

    @made.post("/count")
    async def count(request: Request) -> list[int]:
        pieces: list[bytes] = []
        await request_body.take(request, pieces.append)
        return [sum(map(len, pieces)), max(map(len, pieces), default=0)]

    @made.post("/think")
    async def think(request: Request) -> str:
        await request_body.take(request, lambda _part: time.sleep(0.4))
        return "done"

    @made.post("/parse")
    def parse(content: Annotated[dict[str, str], Body()]) -> int:
        return len(content)

    return made


def test_a_body_comes_in_pieces_and_one_that_says_or_turns_out_to_be_too_long_is_refused() -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with serving(application=counting()) as served:
        answer = served.ask(requested("POST", "/count", "Content-Length: 1900000") + b"x" * 1_900_000)
        said = [
            served.ask(requested("POST", path, f"Content-Length: {length}"))
            for path, length in (("/count", 2_000_001), ("/parse", 300_000), ("/parse", 10**9))
        ]
        turned_out = [
            served.ask(requested("POST", path, "Transfer-Encoding: chunked") + chunk * 40 + b"0\r\n\r\n")
            for path in ("/count", "/parse")
        ]

    total, largest = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (total, largest < 1_500_000) == (1_900_000, True)
    assert [status_of(answer) for answer in (*said, *turned_out)] == [413] * 5
    assert all(problem_of(answer)["title"] for answer in said)


def test_a_client_waits_while_the_program_takes_its_time_with_a_body() -> None:
    limits = Limits(connections=8, header_seconds=0.5, stalled_seconds=0.5, body_bytes=1000)
    with serving(application=counting(), limits=limits) as served:
        answer = served.ask(requested("POST", "/think", "Content-Length: 4000000") + b"x" * 4_000_000)

    assert status_of(answer) == 200
