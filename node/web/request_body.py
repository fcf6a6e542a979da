"""Bodies of requests: how long they may be, and how they are taken in pieces, so that none is whole in memory.

`RelatedParts` splits a multipart body while it arrives (RFC 2046 5.1): python-multipart takes neither text before the
first boundary nor lines that end without a carriage return, and senders of STOW-RS write both. Headers of parts are
ignored: the content of a part shows its kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Final

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.web.problems import Problem, problem_response

MIB: Final = 1024 * 1024
_USUAL_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = MIB
_LONGEST_BOUNDARY: Final = 70  # RFC 2046 5.1.1
_LONGEST_HEADERS: Final = 64 * 1024
_LONGEST_LINE: Final = 512
"""Of a delimiter with its padding: so many bytes may belong to one that is not complete."""
_END_OF_HEADERS: Final = re.compile(rb"\A\r?\n|\n\r?\n")


class BodyLimit:
    """Refuses a request whose body is too long with 413, by its header if possible, else while it arrives.

    limits: the largest bodies in bytes, by path; all others take 256 KiB
    """

    def __init__(self, application: ASGIApp, *, limits: Mapping[str, int]) -> None:
        self._application, self._limits = application, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        limit, count = self._limits.get(scope["path"], _USUAL_BYTES), 0
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            await problem_response(413, _too_long(limit))(scope, receive, send)
            return

        async def counted() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > limit:
                raise Problem(413, _too_long(limit))
            return message

        await self._application(scope, counted, send)


async def take(request: Request, write: Callable[[bytes], None]) -> None:
    """Hand the body of a request to `write` in pieces of about 1 MiB; it is called in a thread of the pool.

    Raises ClientDisconnect when the client goes before the end, and Problem for a body that is too long.
    """
    waiting = bytearray()
    async for part in request.stream():
        waiting += part
        if len(waiting) >= _PIECE_BYTES:
            await anyio.to_thread.run_sync(write, bytes(waiting))
            waiting.clear()
    if waiting:
        await anyio.to_thread.run_sync(write, bytes(waiting))


def _too_long(limit: int) -> str:
    amount = f"{limit // MIB} MiB" if limit >= MIB else f"{limit // 1024} KiB"
    return f"the body of this request exceeds {amount}; send less at a time"


class _State(Enum):
    PREAMBLE = auto()
    HEADERS = auto()
    CONTENT = auto()
    EPILOGUE = auto()


class RelatedParts:
    """The parts of one body, for one thread at a time. Raises Problem for a boundary that no body may have.

    begin, add, keep: called at the start of a part, with each piece of its content, and at its end
    """

    def __init__(
        self, boundary: bytes, *, begin: Callable[[], None], add: Callable[[bytes], None], keep: Callable[[], None]
    ) -> None:
        if not 0 < len(boundary) <= _LONGEST_BOUNDARY:
            raise Problem(400, "the boundary in the Content-Type is missing or too long")
        self._begin, self._add, self._keep = begin, add, keep
        self._state = _State.PREAMBLE
        self._delimiter = re.compile(rb"\n--" + re.escape(boundary) + rb"(--)?[ \t]*(\r?\n)")
        self._waiting = bytearray(b"\n")  # a delimiter may begin the body
        self._has_returns = True

    def write(self, piece: bytes) -> None:
        """Parse the next bytes of the body. Raises Problem, and the errors of what it calls."""
        self._waiting += piece
        while self._step():
            pass

    def end(self) -> None:
        """Take the end of the body. Raises Problem if that is within a part."""
        self.write(b"\r\n")  # the last line may lack it
        if self._state in (_State.HEADERS, _State.CONTENT):
            raise Problem(400, "the body ends within a part; send it again")

    def _step(self) -> bool:
        """Parse as far as possible; false if more bytes are needed."""
        if self._state is _State.EPILOGUE:
            self._waiting.clear()
            return False
        return self._take_headers() if self._state is _State.HEADERS else self._take_text()

    def _take_headers(self) -> bool:
        found = _END_OF_HEADERS.search(self._waiting)
        if found is None:
            if len(self._waiting) > _LONGEST_HEADERS:
                raise Problem(400, "the headers of a part are too long")
            return False
        end = found.end()
        del found, self._waiting[:end]  # a match holds the bytes that it was found in
        self._state = _State.CONTENT
        self._begin()
        return True

    def _take_text(self) -> bool:
        """Take the text before the next delimiter, and the delimiter's line."""
        found = self._delimiter.search(self._waiting)
        if found is None:
            self._pass_on(len(self._waiting) - _LONGEST_LINE)
            return False
        (begin, end), is_last, ending = found.span(), found[1] is not None, found[2]
        del found  # a match holds the bytes that it was found in
        if self._state is _State.PREAMBLE:
            self._has_returns = ending == b"\r\n"
        if self._has_returns and self._waiting[begin - 1 : begin] == b"\r":
            begin -= 1
        self._pass_on(begin)
        del self._waiting[: end - begin]
        if self._state is _State.CONTENT:
            self._keep()
        self._state = _State.EPILOGUE if is_last else _State.HEADERS
        return True

    def _pass_on(self, count: int) -> None:
        """Pass on the next bytes, and forget them."""
        if count <= 0:
            return
        if self._state is _State.CONTENT:
            self._add(bytes(self._waiting[:count]))
        del self._waiting[:count]
