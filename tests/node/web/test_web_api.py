"""What hostile or careless clients send to the web application: each gets a described answer, and the node goes on."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from models.progress import quiet
from tests.drills.fuzz import requests
from tests.support.peers import LOOPBACK
from tests.support.service import Service
from tests.support.serving import read_to_end

LONG_UID = "1." + "2" * 63
MEGABYTE = b"x" * 2**20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, requests.Known]]:
    with requests.running(tmp_path_factory.mktemp("api")) as found:
        yield found


def sent(service: Service, request: bytes) -> bytes:
    """Send bytes, and read until the node closes."""
    with socket.create_connection((LOOPBACK, service.http_port), timeout=30) as connection:
        connection.sendall(request)
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
    connection = http.client.HTTPConnection(LOOPBACK, service.http_port, timeout=30)
    connection.request("GET", "/api/openapi.json")
    described = json.loads(connection.getresponse().read())
    connection.close()
    found = [path for path, operations in described["paths"].items() if method in operations]
    return [path.replace("{uid}", "1.2.3").replace("{look_id}", "0" * 32) for path in found]


def test_every_answer_is_one_that_the_description_names(node: tuple[Service, requests.Known]) -> None:
    service, known = node

    tally = requests.run(service, known, cases=300, seed=1, say=quiet)

    assert tally.passed, tally.figures
    assert tally.counts.total() > 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/studies/..%2f..%2fnode.toml",
        "/api/v1/outputs/..%2F..%2Fledger.sqlite",
        "/api/v1/films/%2e%2e/picture",
        "/api/v1/films/../../picture",
        "/api/v1/studies/1.2%00",
        "/api/v1/studies/1.2%0a",
        "/api/v1/studies/1.2%0d%0aX:1",
        "/api/v1/studies/*",
        "/api/v1/studies/[0-9]",
        "/api/v1/studies/1..2",
        f"/api/v1/studies/{LONG_UID}",
        "/api/v1/studies/%ff%fe",
        "/api/v1/looks/..%2fsecret/picture",
        "//api/v1/studies/1.2",
        "/api/v1/studies%0a/x",
    ],
)
def test_a_path_that_is_no_uid_finds_nothing(node: tuple[Service, requests.Known], path: str) -> None:
    answer = sent(node[0], requested("GET", path))

    assert status_of(answer) in (404, 422)
    assert problem_of(answer)["status"] == status_of(answer)


def test_a_body_of_100_mb_is_refused_by_other_routes(node: tuple[Service, requests.Known]) -> None:
    service, _ = node
    paths = [path for path in routes(service, "post") if not path.endswith(("instances", "dicomweb/studies", "looks"))]

    before = memory_of(service.pid)
    for path in paths:
        assert status_of(sent(service, requested("POST", path, f"Content-Length: {100 * 2**20}"))) == 413, path
        assert problem_of(sent(service, requested("POST", path, f"Content-Length: {10**15}")))["status"] == 413, path

    assert len(paths) >= 2
    assert memory_of(service.pid) - before < 20 * 2**20


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
    before = peak_of(service.pid)

    with socket.create_connection((LOOPBACK, service.http_port), timeout=60) as connection:
        connection.sendall(requested("POST", "/api/v1/instances", *fields))
        for _ in range(100):
            connection.sendall(MEGABYTE)
        answer = read_to_end(connection)

    assert status_of(answer) == 409
    assert peak_of(service.pid) - before < 40 * 2**20


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "BREW"])
def test_other_methods_are_refused(node: tuple[Service, requests.Known], method: str) -> None:
    service, _ = node
    for path in {*routes(service, "get"), *routes(service, "post")}:
        answer = sent(service, requested(method, path))

        assert (status_of(answer), problem_of(answer)["title"]) == (405, "Method Not Allowed"), path


@pytest.mark.parametrize(
    "kind", ["text/html", "application/x-www-form-urlencoded", "multipart/form-data", "", "x" * 4000]
)
def test_a_foreign_content_type_is_refused(node: tuple[Service, requests.Known], kind: str) -> None:
    service, _ = node
    for path in routes(service, "post"):
        answer = sent(service, requested("POST", path, f"Content-Type: {kind}", "Content-Length: 2") + b"{}")

        assert status_of(answer) in (404, 415, 422), path


def memory_of(pid: int) -> int:
    """The memory of a process now, in bytes."""
    return _status_of(pid, "VmRSS")


def peak_of(pid: int) -> int:
    """The most memory that a process had, in bytes."""
    return _status_of(pid, "VmHWM")


def _status_of(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"{key}:"))
    return int(value) * 1024
