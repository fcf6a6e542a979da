"""TCP and TLS below the associations: nobody holds up anybody else.

pynetdicom's own server does the TLS handshake in the thread that accepts, and counts a silent connection as an
association. Here a connection waits in the lobby, in a thread of its own,
until its handshake and its whole A-ASSOCIATE-RQ have come in time; only then pynetdicom gets it. The lobby has a bound
for every known host, and one for all strangers together, so that no stranger keeps a known host out.
"""

from __future__ import annotations

import gc
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

from pynetdicom import AE, _config, evt
from pynetdicom.association import Association
from pynetdicom.transport import AssociationServer, RequestHandler, ThreadedAssociationServer

from node.reception import Reception
from node.tls import ServerTls, complaint
from node.wire import GuardedSocket, Unwelcome, left, read_request

_PLACES: Final = 32
_STRANGERS: Final = "strangers"
_ACCEPT_POLL_SECONDS: Final = 0.05
_COLLECTION_SECONDS: Final = 60.0
_FAREWELL_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 10.0


class Lobby:
    """Connections that are no associations yet, counted by host."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known, self._changing = is_known, threading.Lock()
        self._guests: Counter[str] = Counter()

    def enter(self, host: str) -> Callable[[], None] | None:
        """Take a place, and return how to leave it, which may be called again; None when there is none left."""
        guest = host if self._is_known(host) else _STRANGERS
        with self._changing:
            if self._guests[guest] >= _PLACES:
                return None
            self._guests[guest] += 1
        staying = [guest]

        def leave() -> None:
            with self._changing:
                if staying:
                    self._guests[staying.pop()] -= 1

        return leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for every connection of a listener; times in seconds.

    lobby_seconds: within which the handshake and A-ASSOCIATE-RQ must have come
    idle_seconds: within which each PDU must have come, and each of ours be taken
    on_refused: hears reason, host, and in the case of TLS what was wrong
    on_aborted: hears reason and host
    on_turn: is called many times a second, between two connections, and must not block
    receive: takes what an association sends
    """

    lobby: Lobby
    lobby_seconds: float
    idle_seconds: float
    on_refused: Callable[[str, str, str | None], None]
    on_aborted: Callable[[str, str], None]
    on_turn: Callable[[], None]
    receive: Callable[[Association], Reception]


class Server(ThreadedAssociationServer):
    """Accepts on one port until closed. With `tls`, nobody comes in without a certificate."""

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
        _config.LOG_HANDLER_LEVEL = "none"  # it would prepare a line about every PDU, which `log.mute` drops
        self._collected_at = time.monotonic()
        self._handlers_changed, self._is_closing = threading.Condition(), False
        self._handlers_at_work: set[_Handler] = set()
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
        """Whether it still accepts."""
        return self._accepting.is_alive() and self.socket is not None and self.socket.fileno() >= 0

    def service_actions(self) -> None:
        """Collect garbage less often than pynetdicom, for a model makes that slow: associations refer to themselves."""
        self.terms.on_turn()
        if time.monotonic() - self._collected_at > _COLLECTION_SECONDS:
            gc.collect()
            self._collected_at = time.monotonic()

    def enter(self, handler: _Handler) -> bool:
        """Note that a connection is being handled; false when it is too late for that."""
        with self._handlers_changed:
            if not self._is_closing:
                self._handlers_at_work.add(handler)
            return not self._is_closing

    def leave(self, handler: _Handler) -> None:
        """Note that a connection was closed."""
        with self._handlers_changed:
            self._handlers_at_work.discard(handler)
            self._handlers_changed.notify_all()

    @property
    def is_closing(self) -> bool:
        """Whether connections end because this server does."""
        return self._is_closing

    def close(self) -> None:
        """Accept nobody any more, abort every association, and wait until all are over."""
        socketserver.BaseServer.shutdown(self)
        AssociationServer.server_close(self)
        with self._handlers_changed:
            self._is_closing = True
            for handler in self._handlers_at_work:
                handler.abort()
            self._handlers_changed.wait_for(lambda: not self._handlers_at_work, _FAREWELL_SECONDS)
            for handler in self._handlers_at_work:  # a peer that stopped within a PDU
                handler.cut()
            self._handlers_changed.wait_for(lambda: not self._handlers_at_work, _LAST_SECONDS)


class _Handler(RequestHandler):
    """One connection, from its first byte to the end of its association."""

    association: Association | None = None

    def handle(self) -> None:
        """Let a connection in, or refuse it; always close it."""
        server = cast(Server, self.server)
        try:
            if server.enter(self):
                self._handle(server)
        finally:
            with suppress(OSError):
                self.request.close()
            server.leave(self)

    def abort(self) -> None:
        """End the association from another thread, or cut the connection of one that is none yet."""
        if self.association is None:
            self.cut()
        else:
            self.association.abort(block=False)

    def cut(self) -> None:
        """End the connection from another thread."""
        with suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)

    def _handle(self, server: Server) -> None:
        terms, host = server.terms, str(self.client_address[0])
        leave = terms.lobby.enter(host)
        try:
            if leave is None:
                raise Unwelcome("limit")
            end = time.monotonic() + terms.lobby_seconds
            self._secure(end)
            self._associate(read_request(self.request, end), leave, end=end)
        except Unwelcome as refused:
            if refused.reason is not None and not server.is_closing:
                terms.on_refused(refused.reason, host, refused.message)
        finally:
            if leave is not None:
                leave()

    def _secure(self, end: float) -> None:
        """Wait for the first byte, and do the TLS handshake where this port asks for it. Raises Unwelcome."""
        tls, plain = cast(Server, self.server).tls, self.request
        try:
            plain.settimeout(left(end))
            if not plain.recv(1, socket.MSG_PEEK):
                raise Unwelcome(None)  # as load balancers do to see whether somebody listens
            if tls is not None:
                secure = tls.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                self.request = secure
                secure.settimeout(left(end))
                secure.do_handshake()
        except OSError as error:
            if tls is None:
                raise Unwelcome("silent" if isinstance(error, TimeoutError) else None) from error
            raise Unwelcome("tls", complaint(error)) from error

    def _associate(self, first: bytes, leave: Callable[[], None], *, end: float) -> None:
        """Give a connection to pynetdicom, and wait for the end of its association."""
        terms = cast(Server, self.server).terms
        association = self._create_association()
        association.dul.event_queue.get_nowait()  # the socket made there has announced the connection; ours does, too
        association.dul.socket = GuardedSocket(
            association,
            self.request,
            first=first,
            leave_lobby=leave,
            lobby_end=end,
            idle_seconds=terms.idle_seconds,
            on_aborted=terms.on_aborted,
        )
        reception = terms.receive(association)
        association.dimse = reception
        self.association = association
        try:
            association.start()
            association.join()
        finally:
            association.dul.kill_dul()
            reception.discard()
