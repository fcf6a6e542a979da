"""Accepts TCP and TLS connections, and starts an association on each when its request has arrived.

pynetdicom's own server does the TLS handshake in the thread that accepts, and counts a silent connection as an
association. Here a connection is pending, in a thread of its own, until its handshake and its whole A-ASSOCIATE-RQ have
arrived in time. Only then does pynetdicom get it, so no connection delays another one. Each host has a limit of pending
connections. At the limit the one that has waited longest is closed for the new one. So silent connections cannot keep
out an association request, which is pending for milliseconds only.

All hosts that no setting names share one limit, and only a few of their connections are read in a second, for the log
and `node status`. The others are closed as soon as they are accepted, so they cost known callers nothing that counts.
"""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.transport import RequestHandler, ThreadedAssociationServer

from node.errors import where
from node.net import pynetdicom_adapter
from node.net.association_pdus import Unacceptable, left, part, read_request, readable, titles
from node.net.callers import Call
from node.net.pynetdicom_adapter import MessageProvider, PduSocket
from node.net.tls import ServerTls, complaint
from node.receive.dimse import Reception
from node.receive.presentation_contexts import TRANSFER_SYNTAXES

_PLACES: Final = 32
_STRANGERS: Final = "strangers"
_MOST_OF_A_STRANGER: Final = 5  # connections from one unknown address that are read in a second
_MOST_STRANGERS: Final = 50  # and from all of them
_SYNTAXES: Final = frozenset(syntax.encode("ascii") for syntax in TRANSFER_SYNTAXES)
_ACCEPT_POLL_SECONDS: Final = 0.05
_COLLECTION_SECONDS: Final = 60.0
_ABORT_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 10.0


class PendingConnections:
    """Connections that are not associations yet, by host; at the limit the one that has waited longest is closed."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._waiting: defaultdict[str, dict[object, Callable[[], None]]] = defaultdict(dict)

    def enter(self, host: str, make_room: Callable[[], None]) -> Callable[[], None]:
        """Take a place; returns a function that gives it back and may be called repeatedly.

        make_room: called at most once, from another thread, when the place is needed; must not block
        """
        place = object()
        with self._changing:  # so that a connection that leaves now has either left or is ended, never both
            waiting = self._waiting[host]
            if len(waiting) >= _PLACES:
                waiting.pop(next(iter(waiting)))()
            waiting[place] = make_room

        def leave() -> None:
            with self._changing:
                waiting.pop(place, None)

        return leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The limits and callbacks of all connections of a listener; times in seconds.

    request_seconds: the time within which the handshake and A-ASSOCIATE-RQ must arrive
    idle_seconds: the limit for each PDU, in both directions
    is_known: returns whether a caller may connect from a host; must not block
    on_refused: gets the call, a reason, and details if known; without titles if no request came
    on_aborted: gets the call and a reason, once for each association
    on_turn: called many times a second, between two connections; must not block
    receive: accepts the messages of an association
    """

    pending: PendingConnections
    request_seconds: float
    idle_seconds: float
    is_known: Callable[[str], bool]
    on_refused: Callable[[Call, str, str | None], None]
    on_aborted: Callable[[Call, str], None]
    on_turn: Callable[[], None]
    receive: Callable[[Association], Reception]


class Server(ThreadedAssociationServer):
    """Accepts connections on one port until closed. With `tls`, every caller must show a certificate."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        entity: AE,
        address: tuple[str, int],
        *,
        terms: Terms,
        tls: ServerTls | None,
        handlers: list[evt.EventHandlerType],
    ) -> None:
        self.terms, self.tls = terms, tls
        pynetdicom_adapter.silence()
        self._collected_at = time.monotonic()
        self._handlers_changed, self._is_closing = threading.Condition(), False
        self._handlers_at_work: set[_Handler] = set()
        self._strangers, self._strangers_since = Counter[str](), time.monotonic()  # of this second, by address
        contexts = entity.supported_contexts
        super().__init__(
            entity, address, entity.ae_title, contexts, evt_handlers=handlers, request_handler=_Handler
        )  # fmt: skip
        self._accepting = threading.Thread(
            target=self.serve_forever, args=(_ACCEPT_POLL_SECONDS,), name="accept", daemon=True
        )
        self._accepting.start()

    @property
    def port(self) -> int:
        """The real port."""
        return int(self.server_address[1])

    @property
    def is_listening(self) -> bool:
        """Whether it still accepts connections."""
        return self._accepting.is_alive() and self.socket is not None and self.socket.fileno() >= 0

    def service_actions(self) -> None:
        """Collect garbage less often than pynetdicom does, because with a model in memory each collection is slow.

        Ended associations need it, because they contain reference cycles.
        """
        self.terms.on_turn()
        if time.monotonic() - self._collected_at > _COLLECTION_SECONDS:
            gc.collect()
            self._collected_at = time.monotonic()

    def verify_request(
        self, _request: socket.socket | tuple[bytes, socket.socket], client_address: tuple[str, int] | str
    ) -> bool:
        """Return whether a connection is read: one from a host that is not known only while few of them come."""
        host, now = str(client_address[0]), time.monotonic()
        if self.terms.is_known(host):
            return True
        if now - self._strangers_since > 1.0:
            self._strangers, self._strangers_since = Counter(), now
        if self._strangers[host] >= _MOST_OF_A_STRANGER or self._strangers.total() >= _MOST_STRANGERS:
            self.terms.on_refused(_call(host, ("", "")), "caller", None)
            return False
        self._strangers[host] += 1
        return True

    def handle_error(self, _request: object, client_address: tuple[str, int] | str) -> None:
        """Report a connection that ended by a fault of the node's own, such as no more threads."""
        error, call = sys.exception(), _call(str(client_address[0]), ("", ""))
        self.terms.on_refused(call, "failed", None if error is None else where(error))

    def enter(self, handler: _Handler) -> bool:
        """Record that a connection is being handled; false when the server is closing."""
        with self._handlers_changed:
            if not self._is_closing:
                self._handlers_at_work.add(handler)
            return not self._is_closing

    def leave(self, handler: _Handler) -> None:
        """Record that a connection was closed."""
        with self._handlers_changed:
            self._handlers_at_work.discard(handler)
            self._handlers_changed.notify_all()

    @property
    def is_closing(self) -> bool:
        """Whether connections end because this server closes."""
        return self._is_closing

    def close(self) -> None:
        """Stop accepting, abort every association, and wait until all have ended."""
        pynetdicom_adapter.close_port(self)
        with self._handlers_changed:
            self._is_closing = True
            for handler in self._handlers_at_work:
                handler.abort()
            self._handlers_changed.wait_for(lambda: not self._handlers_at_work, _ABORT_SECONDS)
            for handler in self._handlers_at_work:  # a peer that stopped within a PDU
                handler.cut()
            self._handlers_changed.wait_for(lambda: not self._handlers_at_work, _LAST_SECONDS)


class _Handler(RequestHandler):
    """One connection, from its first byte to the end of its association."""

    association: Association | None = None
    _made_room = _is_told = False

    def handle(self) -> None:
        """Admit a connection or refuse it; always close it."""
        server = cast(Server, self.server)
        try:
            if server.enter(self):
                self._handle(server)
        finally:
            with suppress(OSError):
                self.request.close()
            server.leave(self)

    def abort(self) -> None:
        """End the association from another thread; cut a connection that is not an association yet."""
        if self.association is None:
            self.cut()
        else:
            self.association.abort(block=False)

    def cut(self) -> None:
        """Cut the connection from another thread; TLS state is left alone, its own thread may be using it."""
        with suppress(OSError):
            socket.socket.shutdown(self.request, socket.SHUT_RDWR)

    def make_room(self) -> None:
        """End a connection that is not an association yet, to make room for another one."""
        self._made_room = True
        self.cut()

    def _handle(self, server: Server) -> None:
        terms, host, received = server.terms, str(self.client_address[0]), bytearray()

        def refuse(reason: str, message: str | None = None) -> None:
            if not server.is_closing:
                terms.on_refused(_call(host, titles(received)), "silent" if self._made_room else reason, message)

        end = time.monotonic() + terms.request_seconds
        leave = terms.pending.enter(host if terms.is_known(host) else _STRANGERS, self.make_room)
        try:
            if self._secure(server.tls, end):
                read_request(self.request, received, end)
                self._associate(
                    readable(received, syntaxes=_SYNTAXES), leave, call=_call(host, titles(received)), end=end
                )
        except Unacceptable as error:
            refuse(error.reason, str(error))
            part(self.request, error.answer)
        except TimeoutError:
            refuse("silent")
        except OSError:
            refuse("protocol")
        finally:
            leave()

    def _secure(self, tls: ServerTls | None, end: float) -> bool:
        """Wait for the first byte, and do the TLS handshake if this port uses TLS; false if nothing came.

        Raises TimeoutError, and Unacceptable for a handshake that fails.
        """
        plain = self.request
        try:
            plain.settimeout(left(end))
            if not plain.recv(1, socket.MSG_PEEK):
                return False  # as load balancers do to check that the port is open
            if tls is not None:
                self.request = tls.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                self.request.settimeout(left(end))
                self.request.do_handshake()
        except OSError as error:
            if tls is not None:
                raise Unacceptable(complaint(error), b"", reason="tls") from error
            if isinstance(error, TimeoutError):
                raise
            return False
        return True

    def _associate(self, request: bytes, leave: Callable[[], None], *, call: Call, end: float) -> None:
        """Pass a connection to pynetdicom, and wait for the end of its association.

        Raises Unacceptable when pynetdicom ends it without an answer.
        """
        server = cast(Server, self.server)
        terms = server.terms

        def tell_abort(reason: str) -> None:
            if not (self._is_told or server.is_closing):
                self._is_told = True
                terms.on_aborted(call, reason)

        association = pynetdicom_adapter.make_association(self)
        reception = terms.receive(association)
        messages = MessageProvider(
            association,
            open_dataset=reception.open_dataset,
            is_too_long=reception.is_too_long,
            on_aborted=tell_abort,
        )
        connection = PduSocket(
            messages, self.request, request_end=end, idle_seconds=terms.idle_seconds, on_admitted=leave
        )
        pynetdicom_adapter.attach(connection, request)
        self.association = association
        try:
            pynetdicom_adapter.run(association)
        finally:
            reception.discard()
            connection.discard()
        if association.acceptor.primitive is None:  # pynetdicom answers nothing when its own code raises
            raise Unacceptable("the association ended before its request was answered", b"", reason="failed")
        if not (association.is_released or association.is_rejected or association.is_aborted):
            tell_abort("protocol")


def _call(host: str, of: tuple[str, str]) -> Call:
    calling_aet, called_aet = of
    return Call(host=host, calling_aet=calling_aet, called_aet=called_aet)
