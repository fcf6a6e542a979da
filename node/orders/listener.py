"""Receives orders by MLLP: admission of peers, storage of orders, and acknowledgments.

A message is acknowledged only after its orders are synced to disk. Answers and log contain no patient data. No peer can
block the port: when too many connections are open, the one that was silent longest is closed. A connection also ends if
its peer never reads the answers. Each connection has a thread, which also does its TLS handshake.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, cast
from zoneinfo import ZoneInfo

from node import log
from node.config import OrdersSettings
from node.errors import where
from node.hl7 import mllp
from node.hl7.acknowledgment import AcknowledgmentCode, Complaint, acknowledge
from node.hl7.text import Message, TooManyRepetitions, is_batch, read
from node.metrics import Metrics
from node.net import callers
from node.net.callers import RefusalKey, Refusals
from node.net.tls import ServerTls, complaint
from node.orders.messages import OrderChange, OrderRefused, read_orders
from node.orders.store import OrderStore

_CONNECTIONS: Final = 20
_PATIENCE_SECONDS: Final = 30.0
"""The limit for a handshake, for the rest of a message, and for sending an answer."""
_LAST_SECONDS: Final = 3.0
_SECONDS_TO_KEEP_ALIVE: Final = 60  # after this silence the system asks whether the peer is still there

# HL7 table 0357
_NO_MESSAGE = Complaint(condition="100", text="this is not an HL7 version 2 message; nothing was stored")
_BATCH = Complaint(
    condition="200", text="a batch, or several messages in one frame, is not taken; send each message in its own frame"
)
_NOT_KEPT = Complaint(condition="207", text="the message could not be stored; send it again later")


class OrderListener(socketserver.ThreadingTCPServer):
    """Accepts connections until closed, a thread for each; with `settings.tls`, only of peers with a certificate.

    Raises OSError when the address cannot be opened, and as `ServerTls` does.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = _CONNECTIONS

    def __init__(self, settings: OrdersSettings, store: OrderStore, metrics: Metrics, *, zone: ZoneInfo) -> None:
        self._settings, self._store, self._metrics, self._zone = settings, store, metrics, zone
        self._refusals = Refusals()
        self._open: dict[socket.socket, str] = {}  # and the host of each; who was silent longest comes first
        self._changed = threading.Condition()
        self._tls = tls = None if settings.tls is None else ServerTls("orders", settings.tls)
        if tls is not None:
            metrics.certificate_days.labels("orders").set_function(lambda: tls.days_left)
        super().__init__((settings.host, settings.port), _Connection)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="orders", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The real port."""
        return int(self.server_address[1])

    @property
    def is_listening(self) -> bool:
        """Whether connections are still accepted."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop accepting, end every connection, and wait briefly for those with an answer under way.

        An order that takes longer was not acknowledged, so its sender sends it again.
        """
        self.shutdown()
        with self._changed:
            for connection in self._open:
                _end(connection)
            self._changed.wait_for(lambda: not self._open, _LAST_SECONDS)
        self._refusals.close()
        self.server_close()
        self._thread.join(timeout=10)

    def verify_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: tuple[str, int]
    ) -> bool:
        """Let in whom the settings name, before anything else is done for a connection."""
        is_known = callers.is_among(client_address[0], self._settings.hosts)
        if not is_known:
            self.refuse("caller", host=client_address[0])
        return is_known

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: tuple[str, int]
    ) -> None:
        """Handle a connection in a thread of its own; at the limit, who was silent longest makes room."""
        connection, host = cast(socket.socket, request), client_address[0]
        if self._tls is not None:
            context = self._tls.context()
            connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._changed:
            if len(self._open) >= _CONNECTIONS:
                silent = next(iter(self._open))
                self.refuse("silent", host=self._open.pop(silent))
                _end(silent)
            self._open[connection] = host
            self._count()
        super().process_request(connection, client_address)

    def answer(self, content: bytes, *, host: str) -> bytes:
        """Answer AA once the whole order is synced to disk, otherwise AE or AR; answers contain no patient data."""
        now, message, reason = datetime.now(UTC).astimezone(self._zone), None, "content"
        try:
            message = _message(content, character_set=self._settings.character_set)
            for change in read_orders(message):
                self._keep(change)
        except OrderRefused as error:
            refused, said = error, str(error)
        except TooManyRepetitions as error:
            said = str(error)
            refused = OrderRefused(AcknowledgmentCode.ERROR, Complaint(condition="102", text=said))
        except Exception as error:  # the boundary to foreign messages and the disk: answer AR, and go on
            refused, reason, said = OrderRefused(AcknowledgmentCode.REJECT, _NOT_KEPT), "not_kept", where(error)
        else:
            return acknowledge(message, AcknowledgmentCode.ACCEPT, now=now)
        self._metrics.orders.labels("refused").inc()
        self.refuse(reason, host=host, said=said)
        return acknowledge(message, refused.code, now=now, complaint=refused.complaint)

    def _keep(self, change: OrderChange) -> None:
        """Raises OSError."""
        (self._store.forget if change.is_cancelled else self._store.keep)(change.order)
        self._metrics.orders.labels("cancelled" if change.is_cancelled else "kept").inc()
        log.get().info("order.kept", priority=change.order.priority, cancelled=change.is_cancelled)

    def refuse(self, reason: str, *, host: str, said: str | None = None) -> None:
        """Count and log a refused message, or a connection that is refused or ends because of an error of its peer."""
        self._metrics.orders_refused.labels(reason).inc()
        self._refusals.note(RefusalKey("order.refused", said or reason, host))

    def service_actions(self) -> None:
        """Log repeated refusals, between two connections."""
        self._refusals.tell()

    def heard(self, connection: socket.socket) -> None:
        """Record that a message came on a connection."""
        with self._changed:
            if (host := self._open.pop(connection, None)) is not None:
                self._open[connection] = host

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection that has ended."""
        with self._changed:
            self._open.pop(connection, None)
            self._count()
            self._changed.notify_all()

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the error may quote a message."""

    def _count(self) -> None:
        self._metrics.order_connections_open.set(len(self._open))


class _Connection(socketserver.BaseRequestHandler):
    """Answers the messages of one connection in order."""

    server: OrderListener

    def finish(self) -> None:
        self.server.closed(self.request)

    def handle(self) -> None:
        host = self.client_address[0]
        try:
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SECONDS_TO_KEEP_ALIVE)
            if isinstance(self.request, ssl.SSLSocket):
                self.request.settimeout(_PATIENCE_SECONDS)
                self.request.do_handshake()
            self._answer_all(host)
        except ssl.SSLError as error:
            self.server.refuse("tls", host=host, said=f"tls: {complaint(error)}")
        except (mllp.BrokenFrame, OSError) as error:
            self.server.refuse("connection", host=host, said=type(error).__name__)

    def _answer_all(self, host: str) -> None:
        """Answer until the peer ends. Raises BrokenFrame and OSError."""
        server, frames = self.server, mllp.Frames(self.request)
        while (content := frames.next(idle_seconds=None, frame_seconds=_PATIENCE_SECONDS)) is not None:
            server.heard(self.request)
            answer = server.answer(content, host=host)
            self.request.settimeout(_PATIENCE_SECONDS)
            self.request.sendall(mllp.frame(answer))


def _message(content: bytes, *, character_set: str) -> Message:
    """Read a message. Raises OrderRefused for bytes that are not exactly one."""
    if is_batch(content):
        raise OrderRefused(AcknowledgmentCode.REJECT, _BATCH)
    try:
        return read(content, default=character_set)
    except ValueError as error:
        raise OrderRefused(AcknowledgmentCode.REJECT, _NO_MESSAGE) from error


def _end(connection: socket.socket) -> None:
    """Shut the connection down, so that the peer and the thread that waits for it see its end.

    Uses the socket's own method: that of TLS would first return to plain text, while an answer may be under way.
    """
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
