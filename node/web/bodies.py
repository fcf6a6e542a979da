"""Bodies of requests: how long they may be, and how they are taken in pieces, so that none is whole in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import anyio.to_thread
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from node.web.problems import problem_response

MIB: Final = 1024 * 1024
_USUAL_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = MIB


class BodyLimit:
    """Refuses a request whose body is too long with 413, at its header if that says so, else while it arrives.

    limits: of some paths in bytes; all others take 256 KiB
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
                raise HTTPException(413, _too_long(limit))
            return message

        await self._application(scope, counted, send)


async def take(request: Request, write: Callable[[bytes], None]) -> None:
    """Hand the body of a request to `write` in pieces of about 1 MiB; it is called in a thread of the pool.

    Raises ClientDisconnect when the client goes before the end, HTTPException 413 for a body that is too long.
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
