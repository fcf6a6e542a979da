"""Accepting HTTP connections for uvicorn, which waits without limit for the rest of a header.

A new connection is a `PendingConnection`, a socket and what it received, until its first header is complete. Only then
it becomes a `Connection` of uvicorn. So a connection that never completes a header costs little, and one whose request
is already there, as a probe's is, is recognized when it is accepted, however many others are accepted with it.

With TLS a new connection is a `Handshake` until the handshake is done, and becomes a `Connection` then. The time for
the first header includes the handshake. TLS connections need several turns, so a flood may close a probe's.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable
from typing import Final

import h11
import uvicorn
from starlette.types import ASGIApp, Scope
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from node.net.http_limits import CloseReason, ConnectionTable, Limits

LISTEN_BACKLOG: Final = 4096

_HEADER_END: Final = re.compile(rb"\n\r?\n")
_LONGEST_HEADER: Final = 16 * 1024
_KEEP_ALIVE_SECONDS: Final = 75  # longer than the usual intervals between two requests of Prometheus
_LAST_SECONDS: Final = 1
_PAUSE_SECONDS: Final = 0.2
_SWITCH_SECONDS: Final = 0.0005
_CALM_SECONDS: Final = 2.0
_LEFT: Final = "has_left"
_TWO_LENGTHS: Final = {b"transfer-encoding", b"content-length"}
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class LimitedServer(uvicorn.Server):
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
        self._switching = _ThreadSwitching()

        async def look_after() -> None:
            table.close_overdue(time.monotonic())
            self._switching.relax(time.monotonic())
            on_second()

        super().__init__(
            uvicorn.Config(
                application,
                loop="asyncio",
                http="h11",
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
                callback_notify=look_after,
                timeout_notify=0,
            )
        )
        self._listening, self._table, self._tls = listening, table, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets=[])
        self._acceptor = _Acceptor(
            self._listening, self._table, self._connection, switching=self._switching, tls=self._tls
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close idle connections at once, and the others when they are answered or after a second."""
        self._acceptor.close()
        self._switching.reset()
        self._table.close_idle()
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(_LAST_SECONDS, self._table.close_all)
        await super().shutdown(sockets)

    def _connection(self, pending: PendingConnection | Handshake) -> Connection:
        return Connection(self.config, self.server_state, self._table, pending)


class _ThreadSwitching:
    """Makes threads take turns more often while many connections arrive.

    A thread that computes in Python gives the interpreter back after 5 ms, and takes it whenever this thread makes a
    system call, of which each new connection needs several. Beside one such thread 31 connections a second were
    accepted, and with 0.5 ms 1,300. At other times the short interval would cost processor time, a few percent.
    """

    def __init__(self) -> None:
        self._usual = sys.getswitchinterval()
        self._calm_from = 0.0

    def hasten(self) -> None:
        """Use the short interval for at least two seconds."""
        if not self._calm_from:
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._calm_from = time.monotonic() + _CALM_SECONDS

    def relax(self, now: float) -> None:
        """Use the usual interval again if no call of `hasten` was recent."""
        if self._calm_from and now > self._calm_from:
            self.reset()

    def reset(self) -> None:
        """Use the usual interval."""
        self._calm_from = 0.0
        sys.setswitchinterval(self._usual)


class _Acceptor:
    """Accepts connections, and reads their first header or starts their TLS handshake."""

    def __init__(
        self,
        listening: socket.socket,
        table: ConnectionTable,
        connection: Callable[[PendingConnection | Handshake], Connection],
        *,
        switching: _ThreadSwitching,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._listening, self._table, self._connection = listening, table, connection
        self._switching, self._tls = switching, tls
        self._loop = asyncio.get_running_loop()
        # Accepted in one turn of the loop: few enough that each is read in the next turn before it may be closed.
        self._batch = max(table.limits.by_host // 2, 1)
        self._promotions: set[asyncio.Task[None]] = set()
        self._resume()

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _resume(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for number in range(self._batch):
            try:
                connection, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    continue  # this connection failed before it was accepted
                if number == 0:  # later there may be no connection: accept(2) takes a descriptor before it looks
                    self._free_a_descriptor()
                return
            connection.setblocking(False)
            if self._tls is None:
                self._begin(connection, str(address[0]))
            else:
                self._begin_tls(connection, str(address[0]), self._tls())
        self._switching.hasten()  # more connections may be waiting than one turn accepts

    def _begin(self, connection: socket.socket, host: str) -> None:
        pending = PendingConnection(connection, host=host, loop=self._loop)
        self._table.add(pending)
        self._read(pending)
        if not pending.is_answering and not pending.is_closed:
            self._loop.add_reader(connection.fileno(), self._read, pending)

    def _begin_tls(self, connection: socket.socket, host: str, context: ssl.SSLContext) -> None:
        handshake = Handshake(host=host)
        self._table.add(handshake)
        handshake.task = self._loop.create_task(self._shake_hands(handshake, connection, context))
        # A callback, because a task that is canceled before its first step runs no line of its own.
        handshake.task.add_done_callback(lambda _: None if handshake.is_done else connection.close())

    def _free_a_descriptor(self) -> None:
        """Close a connection because the process has no descriptor left, and pause so that others can use it."""
        self._table.close_longest_idle("descriptors")
        self._loop.remove_reader(self._listening)
        self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _read(self, pending: PendingConnection) -> None:
        """Read what has come of a header. When it is complete, or too long, uvicorn gets the connection."""
        try:
            content = pending.socket.recv(_LONGEST_HEADER)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if not content:  # the client has closed the connection
            self._table.remove(pending)
            pending.close()
            return
        pending.received += content
        if _HEADER_END.search(pending.received) or len(pending.received) > _LONGEST_HEADER:
            self._loop.remove_reader(pending.socket.fileno())
            pending.is_answering = True
            promotion = self._loop.create_task(self._promote(pending))
            self._promotions.add(promotion)
            promotion.add_done_callback(self._promotions.discard)

    async def _promote(self, pending: PendingConnection) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._connection(pending), pending.socket)
        except OSError:  # the client has closed the connection
            self._table.remove(pending)
            pending.socket.close()

    async def _shake_hands(self, handshake: Handshake, connection: socket.socket, context: ssl.SSLContext) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._connection(handshake), connection, ssl=context, ssl_shutdown_timeout=_LAST_SECONDS
            )
        except OSError:  # of TLS, or the client has closed the connection
            self._table.remove(handshake)


class PendingConnection:
    """A connection whose first header is not complete.

    `is_answering` becomes true when the header is complete, shortly before a `Connection` takes over the socket.
    """

    def __init__(self, connection: socket.socket, *, host: str, loop: asyncio.AbstractEventLoop) -> None:
        self.socket, self.host, self._loop = connection, host, loop
        self.received = bytearray()
        self.idle_since = time.monotonic()
        self.is_answering = self.is_closed = False

    def overdue(self, now: float, limits: Limits) -> CloseReason | None:
        """Return `silent` if the header took too long."""
        is_late = not self.is_answering and now - self.idle_since > limits.header_seconds
        return "silent" if is_late else None

    def close(self) -> None:
        """Close the socket, or leave it to the `Connection` that is about to take it over."""
        self.is_closed = True
        if not self.is_answering:
            self._loop.remove_reader(self.socket.fileno())
            self.socket.close()


class Handshake:
    """A connection whose TLS handshake is not done. `task` is the handshake; `is_done` becomes true at its end."""

    is_answering = False

    def __init__(self, *, host: str) -> None:
        self.host, self.idle_since, self.received = host, time.monotonic(), b""
        self.is_done = self.is_closed = False
        self.task: asyncio.Task[None] | None = None

    def overdue(self, now: float, limits: Limits) -> CloseReason | None:
        """Return `silent` if the handshake took too long."""
        return "silent" if now - self.idle_since > limits.header_seconds else None

    def close(self) -> None:
        """End the handshake, which closes the socket."""
        self.is_closed = True
        if self.task is not None:
            self.task.cancel()


def has_left(scope: Scope) -> bool:
    """Say whether the client of a request has closed the connection, or its sending direction; for any thread."""
    return _LEFT in scope.get("state", {})


class _Requests(h11.Connection):
    """Takes no request whose end two programs may see in different places (RFC 9112 6.1)."""

    is_refused = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what the client has sent. Raises h11.RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request) and {name for name, _ in event.headers} >= _TWO_LENGTHS:
            self.is_refused = True
            raise h11.RemoteProtocolError("Transfer-Encoding and Content-Length")
        return event


class Connection(H11Protocol):
    """A connection on which at least one complete header has come, or with TLS the handshake is done."""

    def __init__(
        self, config: uvicorn.Config, state: ServerState, table: ConnectionTable, pending: PendingConnection | Handshake
    ) -> None:
        super().__init__(config, state, app_state={})
        self.conn = self._requests = _Requests(h11.SERVER, _LONGEST_HEADER)
        self._table, self._pending = table, pending
        self.host, self.idle_since = pending.host, pending.idle_since
        self._incomplete_since: float | None = None  # when the client began a header or body that is not complete
        self._unsent, self._sent_at = 0, time.monotonic()
        self._received, self._received_at = 0, time.monotonic()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Take over from the `PendingConnection` or the `Handshake`."""
        super().connection_made(transport)
        self._table.replace(self._pending, self)
        if isinstance(self._pending, Handshake):
            self._pending.is_done = True
            self._incomplete_since = self._pending.idle_since
        if self._pending.is_closed:
            transport.abort()
        elif self._pending.received:
            self.data_received(bytes(self._pending.received))

    def data_received(self, data: bytes) -> None:
        """Count what the client sends."""
        self._received += len(data)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the table, and stop the keep-alive timer, which uvicorn leaves running after a reset."""
        super().connection_lost(exc)
        self._note_left()
        self._unset_keepalive_if_required()
        self._table.remove(self)

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn always closes
        """Still answer a client that has closed its sending direction after the request, which TLS does not allow."""
        self._note_left()
        if self.is_answering:
            self.cycle.keep_alive = False
        return self.is_answering and not isinstance(self._pending, Handshake)

    def handle_events(self) -> None:
        """Act on what the client has sent."""
        super().handle_events()
        self._note_progress()

    def _note_left(self) -> None:
        if self.scope is not None:  # a request has come
            self.scope["state"][_LEFT] = True

    def send_400_response(self, msg: str) -> None:
        """Answer 400 where no answer has begun; otherwise close the connection, where uvicorn would raise."""
        self._table.note_malformed(self)
        if self.conn.our_state is h11.IDLE or self._requests.is_refused:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        """Become idle until the next request."""
        super().on_response_complete()
        self.idle_since = time.monotonic()
        self._table.replace(self, self)
        self._note_progress()

    @property
    def is_answering(self) -> bool:
        """Whether a complete header has come and its answer is not written yet."""
        return self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def overdue(self, now: float, limits: Limits) -> CloseReason | None:
        """Return `silent` if the client takes too long to send, `stalled` if it takes none of its answer."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent < self._unsent:
            self._sent_at = now
        self._unsent = unsent
        if now - self._sent_at > limits.stalled_seconds:
            return "stalled"
        is_late = self._incomplete_since is not None and now - self._incomplete_since > limits.header_seconds
        return "silent" if is_late or self._is_body_late(now, limits) else None

    def _is_body_late(self, now: float, limits: Limits) -> bool:
        """Whether a body that the answer needs comes too slowly. It does not while the program takes none of it."""
        is_sending = self.is_answering and self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused
        if not is_sending or self._received >= limits.body_bytes:
            self._received, self._received_at = 0, now
        return now - self._received_at > limits.stalled_seconds

    def close(self) -> None:
        """Close the connection now, without an answer."""
        self.transport.abort()

    def _note_progress(self) -> None:
        is_between_requests = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self.is_answering or is_between_requests or self.transport.is_closing():
            self._incomplete_since = None
        elif self._incomplete_since is None:
            self._incomplete_since = time.monotonic()
