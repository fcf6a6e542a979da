"""Bodies of requests to the web application: too long ones, endless ones, and those that come too slowly."""

from __future__ import annotations

import json
import time
from typing import Annotated

from fastapi import Body, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from node.net.http_connections import Limits
from node.web import problems, request_body
from node.web.request_body import BodyLimit
from tests.support.serving import read_to_end, serving

QUICK = Limits(connections=8, header_seconds=0.5, stalled_seconds=0.5, body_bytes=1000)


def application() -> FastAPI:
    """An application that counts a body, one that parses it, and one that takes its time with it."""
    made = FastAPI()
    problems.install(made, lambda _request, status, text: Response(text, status_code=status))
    made.add_middleware(BodyLimit, limits={"/count": 2_000_000, "/think": 5_000_000})

    @made.post("/count")
    async def count(request: Request) -> list[int]:
        pieces: list[bytes] = []
        await request_body.take(request, pieces.append)
        return [sum(map(len, pieces)), max(map(len, pieces), default=0)]

    @made.post("/parse")
    def parse(content: Annotated[dict[str, str], Body()]) -> int:
        return len(content)

    @made.post("/think")
    async def think(request: Request) -> str:
        await request_body.take(request, lambda _part: time.sleep(0.4))
        return "done"

    return made


def posted(path: str, *, length: int | None) -> bytes:
    """The header of a request; length: None if its body comes in chunks."""
    body = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n{body}\r\n\r\n".encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def chunks(count: int, *, size: int) -> bytes:
    return (f"{size:x}\r\n".encode() + b" " * size + b"\r\n") * count + b"0\r\n\r\n"


def test_a_body_comes_in_pieces_and_complete() -> None:
    with serving(application=application()) as served:
        answer = served.ask(posted("/count", length=1_900_000) + b"x" * 1_900_000)

    total, largest = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert total == 1_900_000
    assert largest < 1_500_000


def test_a_body_that_says_or_turns_out_to_be_too_long_is_refused() -> None:
    with serving(application=application()) as served:
        said = [
            served.ask(posted(path, length=length))
            for path, length in (("/count", 2_000_001), ("/parse", 300_000), ("/parse", 10**9))
        ]
        turned_out = [
            served.ask(posted(path, length=None) + chunks(40, size=64 * 1024)) for path in ("/count", "/parse")
        ]

    assert [status_of(answer) for answer in (*said, *turned_out)] == [413] * 5
    assert all(json.loads(answer.partition(b"\r\n\r\n")[2])["title"] for answer in said)


def test_a_body_that_stops_or_comes_byte_by_byte_is_cut_off() -> None:
    begun, slow = posted("/count", length=1000) + b"x" * 10, posted("/count", length=100_000)
    with serving(application=application(), limits=QUICK) as served, served.connect(begun) as connection:
        served.wait_for_close("silent")
        assert read_to_end(connection) == b""
    with serving(application=application(), limits=QUICK) as served, served.connect(slow) as connection:
        served.send_byte_by_byte(connection)
        assert served.closed("silent") == 1


def test_a_steady_body_and_the_program_have_the_time_that_they_need() -> None:
    with serving(application=application(), limits=QUICK) as served:
        with served.connect(posted("/count", length=100_000)) as connection:
            for _ in range(50):
                connection.sendall(b"x" * 2000)
                time.sleep(0.05)
            steady = read_to_end(connection)
        thoughtful = served.ask(posted("/think", length=4_000_000) + b"x" * 4_000_000)

    assert [status_of(answer) for answer in (steady, thoughtful)] == [200, 200]
