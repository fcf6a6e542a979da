"""Takes orders by MLLP: who may connect, what is kept, what is answered.

A message is acknowledged after its orders are synced to disk and not before. Answers and log hold no patient data.
Nobody holds the port: of too many connections the one that was silent longest ends, and so does one that never reads
its answers or sends one useless message after the other.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from node import log
from node.config import OrdersSettings
from node.errors import where
from node.hl7 import mllp
from node.hl7.acknowledgment import Code, Complaint, acknowledge
from node.hl7.text import read
from node.order_store import OrderStore
from node.orders import OrderRefused, read_orders

_CONNECTIONS: Final = 20
_PATIENCE_SECONDS: Final = 30.0
_REFUSED_IN_A_ROW: Final = 10

# When the system asks a silent peer whether it is still there, how often then, and how many times in vain. Not every
# platform has all of them.
_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}

# HL7 table 0357
_NO_MESSAGE = Complaint(condition="100", text="this is no HL7 version 2 message; nothing was kept")
_NOT_KEPT = Complaint(condition="207", text="the order could not be kept; send it again later")


class OrderListener:
    """Accepts connections until closed.

    patience_seconds: how long the rest of a message, or the way of an answer, may take
    """

    def __init__(
        self,
        settings: OrdersSettings,
        store: OrderStore,
        *,
        zone: ZoneInfo,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._server = _Server(settings, store, zone, patience_seconds)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="orders", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The real port."""
        return int(self._server.server_address[1])

    @property
    def is_listening(self) -> bool:
        """Whether connections are still accepted."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop accepting, end every connection, and wait a little for the orders in hand.

        One that takes longer was not acknowledged, so its sender sends it again.
        """
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join(timeout=10)


class _Server(socketserver.ThreadingTCPServer):
    """One thread per connection, for so many connections and no more."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = _CONNECTIONS

    def __init__(self, settings: OrdersSettings, store: OrderStore, zone: ZoneInfo, patience_seconds: float) -> None:
        self.store, self.zone, self.patience_seconds = store, zone, patience_seconds
        self._hosts = settings.hosts
        self._open: dict[socket.socket, str] = {}  # and the host of each; who was silent longest comes first
        self._changed = threading.Condition()
        super().__init__((settings.host, settings.port), _Connection)

    def verify_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: tuple[str, int]
    ) -> bool:
        """Let in whom the settings name; at the limit, who was silent longest makes room."""
        host = client_address[0]
        if host not in self._hosts or not isinstance(request, socket.socket):
            log.get().warning("order.refused", reason="caller", host=host)
            return False
        with self._changed:
            if len(self._open) >= _CONNECTIONS:
                silent = next(iter(self._open))
                log.get().warning("order.refused", reason="silent", host=self._open.pop(silent))
                _end(silent)
            self._open[request] = host
        return True

    def heard(self, connection: socket.socket) -> None:
        """Note that a message came on a connection."""
        with self._changed:
            if (host := self._open.pop(connection, None)) is not None:
                self._open[connection] = host

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection that ended."""
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def end_connections(self, *, limit_seconds: float = 3.0) -> None:
        """Let every peer see the end of its connection, and wait for those who answer one."""
        with self._changed:
            for connection in self._open:
                _end(connection)
            self._changed.wait_for(lambda: not self._open, limit_seconds)

    def handle_error(self, request: object, client_address: object) -> None:
        """Never print what went wrong: it may quote a message."""


class _Connection(socketserver.BaseRequestHandler):
    """Answers the messages of one connection, one after the other."""

    server: _Server

    def finish(self) -> None:
        self.server.closed(self.request)

    def handle(self) -> None:
        try:
            _keep_alive(self.request)
            self._answer_all()
        except (mllp.BrokenFrame, OSError) as error:
            log.get().warning("order.refused", reason=type(error).__name__)

    def _answer_all(self) -> None:
        """Answer until the peer ends, or has sent nothing of use for a while. Raises BrokenFrame and OSError."""
        server, frames, refused = self.server, mllp.Frames(self.request), 0
        while (content := frames.next(idle_seconds=None, frame_seconds=server.patience_seconds)) is not None:
            server.heard(self.request)
            code, answer = _answer(content, server.store, server.zone)
            self.request.settimeout(server.patience_seconds)
            self.request.sendall(mllp.frame(answer))
            refused = 0 if code is Code.ACCEPT else refused + 1
            if refused == _REFUSED_IN_A_ROW:
                log.get().warning("order.refused", reason="too_many_refused", host=self.client_address[0])
                return


def _keep_alive(connection: socket.socket) -> None:
    """Let the system find out who vanished without a word. Raises OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, int(getattr(socket, name)), value)


def _end(connection: socket.socket) -> None:
    """Let the peer, and our thread that waits for it, see the end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _answer(content: bytes, store: OrderStore, zone: ZoneInfo) -> tuple[Code, bytes]:
    """Keep the orders of one message and write its acknowledgment."""
    now = datetime.now(UTC).astimezone(zone)
    try:
        message = read(content)
    except ValueError:
        log.get().warning("order.refused", reason="no_message")
        return Code.REJECT, acknowledge(None, Code.REJECT, now=now, complaint=_NO_MESSAGE)
    try:
        for change in read_orders(message):
            (store.forget if change.is_cancelled else store.keep)(change.order)
            log.get().info("order.kept", priority=change.order.priority, cancelled=change.is_cancelled)
    except OrderRefused as error:
        log.get().warning("order.refused", reason=str(error))
        return error.code, acknowledge(message, error.code, now=now, complaint=error.complaint)
    except Exception as error:  # the boundary to what anybody may send, and to the disk: say so, and go on
        log.get().error("order.refused", reason=where(error))
        return Code.REJECT, acknowledge(message, Code.REJECT, now=now, complaint=_NOT_KEPT)
    return Code.ACCEPT, acknowledge(message, Code.ACCEPT, now=now)
