"""Takes orders by MLLP: who may connect, what is kept, what is answered.

A message is acknowledged after its orders are synced to disk and not before. Answers and log hold no patient data.
Nobody holds the port: of too many connections the one that was silent longest ends, and so does one that never reads
its answers or sends one useless message after the other. With TLS the handshake belongs to the connection's own thread.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

from node import access, log
from node.config import OrdersSettings
from node.errors import where
from node.hl7 import mllp
from node.hl7.acknowledgment import Code, Complaint, acknowledge
from node.hl7.text import read
from node.metrics import Metrics
from node.order_store import OrderStore
from node.orders import OrderChange, OrderRefused, read_orders
from node.refusals import Refusals
from node.tls import ServerTls, complaint

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
    """Accepts connections until closed; with `settings.tls`, from those alone who show a certificate.

    patience_seconds: how long a handshake, the rest of a message, or the way of an answer may take
    Raises OSError when the address cannot be opened, and as `ServerTls` does.
    """

    def __init__(
        self,
        settings: OrdersSettings,
        store: OrderStore,
        metrics: Metrics,
        *,
        zone: ZoneInfo,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        tls = None if settings.tls is None else ServerTls("orders", settings.tls)
        if tls is not None:
            metrics.certificate_days.labels("orders").set_function(lambda: tls.days_left)
        desk = _Desk(store, metrics, zone)
        self._server = _Server(settings, desk, metrics, tls=tls, patience_seconds=patience_seconds)
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


class _Desk:
    """Keeps the orders of one message and writes its acknowledgment."""

    def __init__(self, store: OrderStore, metrics: Metrics, zone: ZoneInfo) -> None:
        self._store, self._metrics, self._zone = store, metrics, zone

    def answer(self, content: bytes) -> tuple[Code, bytes]:
        """Answer AA once every order is synced to disk, else AE or AR; the patient is in no answer."""
        now = datetime.now(UTC).astimezone(self._zone)
        try:
            message = read(content)
        except ValueError:
            self._refuse("content", said="no_message")
            return Code.REJECT, acknowledge(None, Code.REJECT, now=now, complaint=_NO_MESSAGE)
        try:
            for change in read_orders(message):
                self._keep(change)
        except OrderRefused as error:
            self._refuse("content", said=str(error))
            return error.code, acknowledge(message, error.code, now=now, complaint=error.complaint)
        except Exception as error:  # the boundary to what anybody may send, and to the disk: say so, and go on
            self._refuse("not_kept", said=where(error))
            return Code.REJECT, acknowledge(message, Code.REJECT, now=now, complaint=_NOT_KEPT)
        return Code.ACCEPT, acknowledge(message, Code.ACCEPT, now=now)

    def _keep(self, change: OrderChange) -> None:
        """Raises OSError."""
        (self._store.forget if change.is_cancelled else self._store.keep)(change.order)
        self._metrics.orders.labels("cancelled" if change.is_cancelled else "kept").inc()
        log.get().info("order.kept", priority=change.order.priority, cancelled=change.is_cancelled)

    def _refuse(self, reason: str, *, said: str) -> None:
        self._metrics.orders.labels("refused").inc()
        self._metrics.orders_refused.labels(reason).inc()
        (log.get().error if reason == "not_kept" else log.get().warning)("order.refused", reason=said)


class _Server(socketserver.ThreadingTCPServer):
    """One thread per connection, for so many connections and no more."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = _CONNECTIONS

    def __init__(
        self,
        settings: OrdersSettings,
        desk: _Desk,
        metrics: Metrics,
        *,
        tls: ServerTls | None,
        patience_seconds: float,
    ) -> None:
        self.desk, self.patience_seconds = desk, patience_seconds
        self._hosts, self._tls, self._metrics = settings.hosts, tls, metrics
        self._refusals = Refusals()
        self._open: dict[socket.socket, str] = {}  # and the host of each; who was silent longest comes first
        self._changed = threading.Condition()
        super().__init__((settings.host, settings.port), _Connection)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Accept a connection. Raises OSError."""
        connection, address = super().get_request()
        if self._tls is None:
            return connection, address
        context = self._tls.context()
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def verify_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: tuple[str, int]
    ) -> bool:
        """Let in whom the settings name; at the limit, who was silent longest makes room."""
        host = client_address[0]
        if not access.is_among(host, self._hosts) or not isinstance(request, socket.socket):
            self.refuse("caller", host=host)
            return False
        with self._changed:
            if len(self._open) >= _CONNECTIONS:
                silent = next(iter(self._open))
                self.refuse("silent", host=self._open.pop(silent))
                _end(silent)
            self._open[request] = host
            self._count()
        return True

    def refuse(self, reason: str, *, host: str, said: str | None = None) -> None:
        """Count and log a connection that is not let in or ends for its own fault."""
        self._metrics.orders_refused.labels(reason).inc()
        self._refusals.note("order.refused", reason=said or reason, host=host)

    def service_actions(self) -> None:
        """Between two connections: tell how often the same was refused."""
        self._refusals.tell()

    def heard(self, connection: socket.socket) -> None:
        """Note that a message came on a connection."""
        with self._changed:
            if (host := self._open.pop(connection, None)) is not None:
                self._open[connection] = host

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection that ended."""
        with self._changed:
            self._open.pop(connection, None)
            self._count()
            self._changed.notify_all()

    def end_connections(self, *, limit_seconds: float = 3.0) -> None:
        """Let every peer see the end of its connection, and wait for those who answer one."""
        with self._changed:
            for connection in self._open:
                _end(connection)
            self._changed.wait_for(lambda: not self._open, limit_seconds)
        self._refusals.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Never print what went wrong: it may quote a message."""

    def _count(self) -> None:
        self._metrics.order_connections_open.set(len(self._open))


class _Connection(socketserver.BaseRequestHandler):
    """Answers the messages of one connection, one after the other."""

    server: _Server

    def finish(self) -> None:
        self.server.closed(self.request)

    def handle(self) -> None:
        host = self.client_address[0]
        try:
            _keep_alive(self.request)
            if isinstance(self.request, ssl.SSLSocket):
                self.request.settimeout(self.server.patience_seconds)
                self.request.do_handshake()
            self._answer_all(host)
        except ssl.SSLError as error:
            self.server.refuse("tls", host=host, said=f"tls: {complaint(error)}")
        except (mllp.BrokenFrame, OSError) as error:
            self.server.refuse("connection", host=host, said=type(error).__name__)

    def _answer_all(self, host: str) -> None:
        """Answer until the peer ends, or has sent nothing of use for a while. Raises BrokenFrame and OSError."""
        server, frames, refused = self.server, mllp.Frames(self.request), 0
        while (content := frames.next(idle_seconds=None, frame_seconds=server.patience_seconds)) is not None:
            server.heard(self.request)
            code, answer = server.desk.answer(content)
            self.request.settimeout(server.patience_seconds)
            self.request.sendall(mllp.frame(answer))
            refused = 0 if code is Code.ACCEPT else refused + 1
            if refused == _REFUSED_IN_A_ROW:
                return server.refuse("useless", host=host)


def _keep_alive(connection: socket.socket) -> None:
    """Let the system find out who vanished without a word. Raises OSError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, int(getattr(socket, name)), value)


def _end(connection: socket.socket) -> None:
    """Let the peer, and our thread that waits for it, see the end.

    The socket's own method, not that of TLS: the latter first goes back to plain text, and an answer may be under way.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
