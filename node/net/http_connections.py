"""uvicorn with limits on connections, which it waits for without end and of which it refuses the newest.

uvicorn makes a `Connection` of each accepted one, which passes on what comes to uvicorn's own protocol for HTTP/1.1.
All that it looks at are the calls of asyncio and of ASGI: `docs/develop/decisions/http-server.md` says why.

The time for the first header includes the TLS handshake. That needs several turns, so a flood may close a probe's.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, cast

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from node.net.http_limits import CloseReason, ConnectionTable, Limits

LISTEN_BACKLOG: Final = 4096

_LONGEST_HEADER: Final = 16 * 1024
_KEEP_ALIVE_SECONDS: Final = 75  # longer than the usual intervals between two requests of Prometheus
_LAST_SECONDS: Final = 1
_STOP_SECONDS: Final = 0.1
_CROWD: Final = 30  # new connections in a second
_SWITCH_SECONDS: Final = 0.0005
_CONNECTION: Final = "connection"
_BODY_FIELDS: Final = {b"transfer-encoding", b"content-length"}
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_Fields: TypeAlias = Iterable[tuple[bytes, bytes]]


class LimitedServer:
    """uvicorn with limits. It logs no requests, reads no environment variables and stops within two seconds.

    listening: an open socket, which is closed when the server stops
    on_second: is called about once a second and must not block
    tls: returns the context for the next connection; None without TLS
    """

    def __init__(
        self,
        application: ASGIApp,
        listening: socket.socket,
        table: ConnectionTable,
        *,
        on_second: Callable[[], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._listening, self._table, self._on_second = listening, table, on_second
        self._freed_at, self._added, self._switch_seconds = 0.0, 0, sys.getswitchinterval()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            connection: Connection = scope["state"][_CONNECTION]
            await _Answer(connection, scope, receive, send).write(application)

        def accept(*, app_state: dict[str, object], **given: object) -> Connection:
            make: Callable[..., asyncio.Protocol] = H11Protocol
            return Connection(table, tls, lambda own: make(app_state={**app_state, _CONNECTION: own}, **given))

        self._server = uvicorn.Server(
            uvicorn.Config(
                answer,
                loop="asyncio",
                http=cast(type[asyncio.Protocol], accept),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # with a warning for every malformed request, any client could fill the log
                access_log=False,
                server_header=False,
                proxy_headers=False,
                forwarded_allow_ips=[],
                workers=1,
                h11_max_incomplete_event_size=_LONGEST_HEADER,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=2 * _LAST_SECONDS,
                callback_notify=self._look_after,
                timeout_notify=0,
                # Accepted in one turn of the loop: so few that each is read before it may be closed for others.
                backlog=max(table.limits.by_host // 4, 1),
            )
        )

    def run(self) -> None:
        """Serve until `close` is called."""
        asyncio.run(self._serve())

    def close(self) -> None:
        """Begin to stop: close idle connections, and the others when they are answered or after a second."""
        self._table.is_stopping = True
        self._server.should_exit = True

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_error)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        while not (self._table.is_stopping or serving.done()):
            await asyncio.sleep(_STOP_SECONDS)
        await asyncio.wait([serving], timeout=_LAST_SECONDS)
        self._table.close_all()
        sys.setswitchinterval(self._switch_seconds)
        await serving

    async def _look_after(self) -> None:
        """Do what is due each second.

        A thread that computes in Python gives the interpreter back after 5 ms, and takes it whenever this thread makes
        a system call, of which each new connection needs several. So threads take turns more often in a crowd.
        """
        self._listening.listen(LISTEN_BACKLOG)  # uvicorn lets no more wait than are accepted in one turn
        is_crowded = self._table.added - self._added > _CROWD
        sys.setswitchinterval(_SWITCH_SECONDS if is_crowded else self._switch_seconds)
        self._added = self._table.added
        self._table.close_overdue(time.monotonic())
        self._on_second()

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Close a connection when none can be accepted because the process has no descriptor left.

        asyncio, which tries again after a second, may report the same lack many times at once.
        """
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _OUT_OF_DESCRIPTORS):
            loop.default_exception_handler(context)
        elif loop.time() - self._freed_at > _LAST_SECONDS / 2:
            self._freed_at = loop.time()
            self._table.close_longest_idle("descriptors")


class Connection(asyncio.Protocol):
    """A connection: passes on what comes to uvicorn's protocol, and knows how long its client takes for it."""

    transport: asyncio.Transport

    def __init__(
        self,
        table: ConnectionTable,
        tls: Callable[[], ssl.SSLContext] | None,
        make_http: Callable[[Connection], asyncio.Protocol],
    ) -> None:
        self.table, self._tls, self._make_http = table, tls, make_http
        self.host, now = "", time.monotonic()
        self.is_answering = self.has_left = False
        self.awaits_body = self.is_taking_body = False
        self.incomplete_since: float | None = now  # when the client began what is not complete
        self._http: asyncio.Protocol | None = None  # from the end of the handshake until the connection is lost
        self._early = bytearray()  # what came before the end of the handshake was noticed
        self._handshake: asyncio.Task[None] | None = None
        self._unsent, self._sent_at = 0, now
        self._received, self._received_at = 0, now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with HTTP, or with the TLS handshake before it."""
        self.transport = cast(asyncio.Transport, transport)
        self.host = str(transport.get_extra_info("peername")[0])
        self.table.add(self)
        if self._tls is None:
            self._open()
        else:
            self.transport.pause_reading()
            self._handshake = asyncio.create_task(self._shake_hands(self.transport, self._tls()))

    async def _shake_hands(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(plain, self, context, server_side=True, ssl_shutdown_timeout=_LAST_SECONDS)
        except OSError:  # of TLS, or the client has closed the connection
            secured = None
        if secured is None or plain.is_closing():
            self.table.remove(self)
            plain.abort()
            return
        self.transport = secured
        self._open()

    def _open(self) -> None:
        self._http = self._make_http(self)
        self._http.connection_made(self.transport)
        if self._early:
            self._pass_on(self._http, bytes(self._early))

    def data_received(self, data: bytes) -> None:
        """Note when something began that is not complete, and pass it on."""
        self._received += len(data)
        if self.incomplete_since is None and not self.awaits_body:
            self.incomplete_since = time.monotonic()
        if self._http is None:
            self._early += data
        else:
            self._pass_on(self._http, data)

    def _pass_on(self, http: asyncio.Protocol, data: bytes) -> None:
        try:
            http.data_received(data)
        except h11.LocalProtocolError:  # uvicorn would answer 400 within another answer
            self.transport.abort()
        if self.transport.is_closing():  # uvicorn has answered 400, and must not answer in another way as well
            self.table.note_malformed(self)
            self._lose()

    def eof_received(self) -> bool:
        """Still answer a client that has closed its sending direction after the request, which TLS does not allow."""
        self.has_left = True
        return self.is_answering and self._tls is None

    def pause_writing(self) -> None:
        """Pass it on."""
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        if self._http is not None:
            self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the table."""
        self.has_left = True
        self.table.remove(self)
        self._lose()

    def _lose(self) -> None:
        """Tell uvicorn, of no error, because after one its keep-alive timer would run on."""
        if self._http is not None:
            self._http.connection_lost(None)
            self._http = None

    def overdue(self, now: float, limits: Limits) -> CloseReason | None:
        """Return `silent` if the client takes too long to send, `stalled` if it takes none of its answer."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._sent_at = now
        self._unsent = unsent
        if now - self._sent_at > limits.stalled_seconds:
            return "stalled"
        since = None if self.is_answering else self.incomplete_since
        is_late = since is not None and now - since > limits.header_seconds
        return "silent" if is_late or self._is_body_late(now, limits) else None

    def _is_body_late(self, now: float, limits: Limits) -> bool:
        """Whether a body that the answer needs comes too slowly. It does not while the program takes none of it."""
        if not self.is_taking_body or self._received >= limits.body_bytes:
            self._received, self._received_at = 0, now
        return now - self._received_at > limits.stalled_seconds

    def close(self) -> None:
        """Close the connection now, without an answer."""
        self.transport.abort()


class _Answer:
    """One request and its answer, between the application and uvicorn."""

    def __init__(self, connection: Connection, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection, self._scope, self._receive, self._send = connection, scope, receive, send
        self._is_last = scope["http_version"] != "1.1" or _says_close(scope["headers"])
        self._is_complete = False

    async def write(self, application: ASGIApp) -> None:
        """Let the application answer, but no request whose end two programs may see in different places.

        RFC 9112 6.1 is about requests that have both Content-Length and Transfer-Encoding.
        """
        fields = dict(self._scope["headers"])
        connection = self._connection
        connection.is_answering, connection.incomplete_since = True, None
        connection.awaits_body = b"transfer-encoding" in fields or fields.get(b"content-length", b"0") != b"0"
        try:
            if fields.keys() >= _BODY_FIELDS:
                connection.table.note_malformed(connection)
                await self._refuse()
            else:
                await application(self._scope, self._take, self._give)
        finally:
            if not self._is_complete:  # uvicorn answers 500, or closes the connection within an answer
                self._complete()

    async def _refuse(self) -> None:
        fields = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        await self._give({"type": "http.response.start", "status": 400, "headers": fields})
        await self._give({"type": "http.response.body", "body": b"Transfer-Encoding and Content-Length"})

    async def _take(self) -> Message:
        self._connection.is_taking_body = self._connection.awaits_body
        try:
            message = await self._receive()
        finally:
            self._connection.is_taking_body = False
        if message["type"] == "http.request" and not message.get("more_body"):
            self._connection.awaits_body = False
        return message

    async def _give(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_last |= _says_close(message.get("headers", ()))
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._complete()
            if self._connection.has_left:
                self._connection.transport.close()
            elif self._connection.transport.is_closing() and not self._is_last:  # what came behind is no request
                self._connection.table.note_malformed(self._connection)

    def _complete(self) -> None:
        """Make the connection idle; the client has time for the rest of what it has begun."""
        self._is_complete = True
        connection, now = self._connection, time.monotonic()
        connection.is_answering = False
        connection.table.touch(connection)
        if connection.awaits_body or connection.incomplete_since is not None:
            connection.incomplete_since = now


def has_left(scope: Scope) -> bool:
    """Say whether the client of a request has closed the connection, or its sending direction; for any thread."""
    connection: Connection | None = scope.get("state", {}).get(_CONNECTION)
    return connection is not None and connection.has_left


def _says_close(fields: _Fields) -> bool:
    return any(name.lower() == b"connection" and b"close" in value.lower() for name, value in fields)
