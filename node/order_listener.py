"""Takes orders by MLLP: who may connect, what is kept, what is answered.

A message is acknowledged after its orders are synced to disk and not before. Answers and log hold no patient data.
"""

from __future__ import annotations

import socketserver
import threading
from contextlib import suppress
from datetime import UTC, datetime
from socket import SHUT_RDWR, SO_KEEPALIVE, SOL_SOCKET, socket
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
_FRAME_SECONDS: Final = 30.0

# HL7 table 0357
_NO_MESSAGE = Complaint(condition="100", text="this is no HL7 version 2 message; nothing was kept")
_NOT_KEPT = Complaint(condition="207", text="the order could not be kept; send it again later")


class OrderListener:
    """Accepts connections until closed."""

    def __init__(self, settings: OrdersSettings, store: OrderStore, *, zone: ZoneInfo) -> None:
        self._server = _Server(settings, store, zone)
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
        """Stop accepting and end every connection; an order in hand is still kept, and answered if that is possible."""
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join(timeout=10)


class _Server(socketserver.ThreadingTCPServer):
    """One thread per connection, for so many connections and no more."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = _CONNECTIONS

    def __init__(self, settings: OrdersSettings, store: OrderStore, zone: ZoneInfo) -> None:
        self.store, self.zone, self._hosts = store, zone, settings.hosts
        self._open: set[socket] = set()
        self._changed = threading.Condition()
        super().__init__((settings.host, settings.port), _Connection)

    def verify_request(self, request: socket | tuple[bytes, socket], client_address: tuple[str, int]) -> bool:
        """Let in whom the settings name, while there is room; the system finds out who vanished (keep-alive)."""
        host = client_address[0]
        with self._changed:
            reason = "caller" if host not in self._hosts else "busy" if len(self._open) >= _CONNECTIONS else None
            if reason is None and isinstance(request, socket):
                request.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
                self._open.add(request)
        if reason is not None:
            log.get().warning("order.refused", reason=reason, host=host)
        return reason is None

    def closed(self, connection: socket) -> None:
        """Forget a connection that ended."""
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def end_connections(self, *, limit_seconds: float = 10.0) -> None:
        """Let every peer see the end of its connection, and wait for those who answer one."""
        with self._changed:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(SHUT_RDWR)
            self._changed.wait_for(lambda: not self._open, limit_seconds)

    def handle_error(self, request: object, client_address: object) -> None:
        """Never print what went wrong: it may quote a message."""


class _Connection(socketserver.BaseRequestHandler):
    """Answers the messages of one connection, one after the other."""

    server: _Server

    def finish(self) -> None:
        self.server.closed(self.request)

    def handle(self) -> None:
        frames = mllp.Frames(self.request)
        try:
            while (content := frames.next(idle_seconds=None, frame_seconds=_FRAME_SECONDS)) is not None:
                self.request.sendall(mllp.frame(_answer(content, self.server.store, self.server.zone)))
        except (mllp.BrokenFrame, OSError) as error:
            log.get().warning("order.refused", reason=type(error).__name__)


def _answer(content: bytes, store: OrderStore, zone: ZoneInfo) -> bytes:
    """Keep the orders of one message and write its acknowledgment."""
    now = datetime.now(UTC).astimezone(zone)
    try:
        message = read(content)
    except ValueError:
        log.get().warning("order.refused", reason="no_message")
        return acknowledge(None, Code.REJECT, now=now, complaint=_NO_MESSAGE)
    try:
        for change in read_orders(message):
            (store.forget if change.is_cancelled else store.keep)(change.order)
            log.get().info("order.kept", priority=change.order.priority, cancelled=change.is_cancelled)
    except OrderRefused as error:
        log.get().warning("order.refused", reason=str(error))
        return acknowledge(message, error.code, now=now, complaint=error.complaint)
    except Exception as error:  # the boundary to what anybody may send, and to the disk: say so, and go on
        log.get().error("order.refused", reason=where(error))
        return acknowledge(message, Code.REJECT, now=now, complaint=_NOT_KEPT)
    return acknowledge(message, Code.ACCEPT, now=now)
