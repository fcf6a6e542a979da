"""uvicorn with limits: on open connections, and on the time that a client may take.

The node accepts each connection itself and hands it to uvicorn's protocol for HTTP/1.1. So a connection counts, and its
time runs, from its first moment: `docs/develop/decisions.md` has the reasons. A new connection is always accepted.
At the limit one is closed for it: one that is idle before one that is being answered, of the address that has most
before others, and of these the one that has been idle longest.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import h11
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

_LONGEST_HEADER: Final = 16 * 1024
_KEEP_ALIVE_SECONDS: Final = 75  # longer than the usual intervals between two requests of Prometheus
_LAST_SECONDS: Final = 1
_PAUSE_SECONDS: Final = 0.1
_CONNECTION: Final = "connection"
_AMBIGUOUS: Final = PlainTextResponse("Transfer-Encoding and Content-Length", 400, {"connection": "close"})
"""For a request whose end two programs may see in different places (RFC 9112 6.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many connections may be open, and how long a client may take.

    header_seconds: from the connection, or the first byte of its next request, to the end of the header
    stalled_seconds: for sending the next `body_bytes` of a body, or without taking any more of an answer
    """

    connections: int
    header_seconds: float = 5.0
    stalled_seconds: float = 10.0
    body_bytes: int = 64 * 1024


class LimitedServer:
    """uvicorn with limits. It logs no requests, reads no environment variables and stops within two seconds.

    listening: an open socket that does not block; it is closed when the server stops
    on_closed: gets the reason (one of `metrics.HTTP_CLOSED`) and the address of a connection that the limits close
    on_second: is called about once a second and must not block
    tls: returns the context for the next connection; None without TLS
    """

    def __init__(
        self,
        application: ASGIApp,
        listening: socket.socket,
        limits: Limits,
        *,
        on_closed: Callable[[str, str], None],
        on_second: Callable[[], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._application, self._listening, self._limits, self._tls = application, listening, limits, tls
        self._on_closed, self._on_second = on_closed, on_second
        self._open: dict[Connection, None] = {}  # the longest idle comes first
        self._config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # with a warning for every malformed request, any client could fill the log
            access_log=False,
            workers=1,  # or it reads WEB_CONCURRENCY
            forwarded_allow_ips=[],  # or it reads FORWARDED_ALLOW_IPS
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=_LONGEST_HEADER,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=2 * _LAST_SECONDS,
            callback_notify=self._look_after,
            timeout_notify=0,
        )
        self._server = uvicorn.Server(self._config)

    def run(self) -> None:
        """Serve until `close` is called."""
        asyncio.run(self._serve())

    def close(self) -> None:
        """Begin to stop: close idle connections, and the others when they are answered or after a second."""
        self._server.should_exit = True

    async def _serve(self) -> None:
        accepting, serving = (asyncio.create_task(each) for each in (self._accept(), self._server.serve(sockets=[])))
        while not (self._server.should_exit or serving.done()):
            await asyncio.sleep(_PAUSE_SECONDS)
        accepting.cancel()
        self._listening.close()
        await asyncio.wait([serving], timeout=_LAST_SECONDS)
        for connection in list(self._open):
            connection.abort()
        await serving

    async def _accept(self) -> None:
        while True:
            try:
                plain, (host, *_) = await asyncio.get_running_loop().sock_accept(self._listening)
            except OSError:  # the process has no descriptor left, whether a connection waits or not
                waiting = select.poll()
                waiting.register(self._listening, select.POLLIN)
                if waiting.poll(0):
                    self._close_idlest()
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._open) >= self._limits.connections:
                self._close_idlest()
            connection = Connection(self._config, self._server.server_state, host, self._limits, self._open)
            connection.opening = asyncio.create_task(self._begin(connection, plain))
            await asyncio.sleep(0)  # earlier connections are read first

    async def _begin(self, connection: Connection, plain: socket.socket) -> None:
        """Begin with HTTP, or with the TLS handshake before it."""
        try:
            tls = None if self._tls is None else self._tls()
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, plain, ssl=tls, ssl_shutdown_timeout=None if tls is None else _LAST_SECONDS
            )
        except (OSError, asyncio.CancelledError):  # of TLS; or a limit, or the client, has closed it
            self._open.pop(connection, None)
            plain.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"][_CONNECTION]
        is_ambiguous = {name for name, _ in scope["headers"]} >= {b"transfer-encoding", b"content-length"}
        left, count, is_coming = self._limits.stalled_seconds, 0, True

        async def receive_in_time() -> Message:
            nonlocal left, count, is_coming
            began = time.monotonic()
            try:
                async with asyncio.timeout(left if is_coming else None):
                    message = await receive()
            except TimeoutError:
                self._close(connection, "silent")
                return {"type": "http.disconnect"}
            left, count = left - (time.monotonic() - began), count + len(message.get("body", b""))
            if count >= self._limits.body_bytes:
                left, count = self._limits.stalled_seconds, 0
            is_coming = bool(message.get("more_body"))
            return message

        connection.answers += 1
        try:
            await (_AMBIGUOUS if is_ambiguous else self._application)(scope, receive_in_time, send)
        finally:
            connection.answers -= 1
            has_next = bool(connection.conn.trailing_data[0])
            connection.until = time.monotonic() + (self._limits.header_seconds if has_next else _KEEP_ALIVE_SECONDS)
            if self._open.pop(connection, connection) is None:  # the least idle open connection
                self._open[connection] = None

    async def _look_after(self) -> None:
        """Run the checks of each second."""
        now = time.monotonic()
        for connection in list(self._open):
            if now - connection.taken_at(now) > self._limits.stalled_seconds:
                self._close(connection, "stalled")
            elif not connection.answers and now > connection.until:
                self._close(connection, "silent")
        self._on_second()

    def _close_idlest(self) -> None:
        of_host = Counter(each.host for each in self._open)
        chosen = min(self._open, key=lambda each: (each.answers > 0, -of_host[each.host]), default=None)
        if chosen is not None:
            self._close(chosen, "limit")

    def _close(self, connection: Connection, reason: str) -> None:
        self._on_closed(reason, connection.host)
        self._open.pop(connection, None)
        connection.abort()


class Connection(H11Protocol):
    """uvicorn's protocol, which knows from the first moment on how long its client may take.

    until: when a header must be complete, if none is being answered; answers: how many are
    """

    opening: asyncio.Task[None]

    def __init__(
        self, config: uvicorn.Config, state: ServerState, host: str, limits: Limits, others: dict[Connection, None]
    ) -> None:
        super().__init__(config, state, {_CONNECTION: self})
        self.host, self.answers, self._limits, self._others = host, 0, limits, others
        self._waiting, self._taken_at = 0, time.monotonic()
        self.until = time.monotonic() + limits.header_seconds
        others[self] = None

    def data_received(self, data: bytes) -> None:
        """Give the next header no more time than the first, and pass the data on."""
        self.until = min(self.until, time.monotonic() + self._limits.header_seconds)
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # it would answer 400 within another answer
            self.transport.abort()
        if self.transport.is_closing():  # it has answered 400, and must not answer in another way as well
            super().connection_lost(None)

    def taken_at(self, now: float) -> float:
        """Return when the client was last seen to read waiting bytes; `now` if none wait."""
        waiting = 0
        if self.transport is not None:
            waiting = self.transport.get_write_buffer_size()
        if waiting == 0 or waiting < self._waiting:
            self._taken_at = now
        self._waiting = waiting
        return self._taken_at

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave, and pass on that there was no error: after one, the keep-alive timer would run on."""
        super().connection_lost(None)
        self._others.pop(self, None)

    def abort(self) -> None:
        """Close the connection now, without an answer."""
        self.opening.cancel()
        if self.transport is not None:
            self.transport.abort()


def has_left(scope: Scope) -> bool:
    """Return whether the client of a request has closed the connection; for any thread."""
    connection: Connection | None = scope.get("state", {}).get(_CONNECTION)
    return connection is not None and connection.transport.is_closing()
