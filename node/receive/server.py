"""Accepts TCP and TLS connections, and starts an association on each when its request has arrived.

pynetdicom's own server does the TLS handshake in the thread that accepts, and counts a silent connection as an
association. Here a connection from a known host is pending, in a thread of its own, until its handshake and its whole
A-ASSOCIATE-RQ have arrived in time. Only then does pynetdicom get it, so no connection delays another one. Each host
has a limit of pending connections. At the limit the one that has waited longest is closed for the new one. So silent
connections cannot keep out an association request, which is pending for milliseconds only.

Who calls is looked at first, and the rest of the request only if that host and title may call. A connection from
another host waits among the `Strangers`, and gets a thread only if its title lets it in.
"""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, cast

from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.transport import RequestHandler, ThreadedAssociationServer

from node.errors import where
from node.net import association_pdus, pynetdicom_adapter
from node.net.admission import Call, Refusal
from node.net.pdu_reader import PduReader, left
from node.net.pynetdicom_adapter import AssociationRequest
from node.net.tls import ServerTls, complaint
from node.receive.association_request import NotAssociated, part, read_head, read_rest
from node.receive.dimse import Reception
from node.receive.strangers import ClientAddress, Stranger, Strangers

_PLACES: Final = 32
_MEETING_SECONDS: Final = 1.0
"""For the handshake and the titles of one stranger, while the others wait."""
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
    is_known: says whether a caller may come from a host; must not block
    turn_away: says why a call is refused, as far as its host and titles tell
    on_refused: gets the call, a reason, and what was wrong if more is known; without titles if no request came
    on_aborted: gets the call and a reason, once for each association
    on_turn: called many times a second, between two connections; must not block
    receive: accepts the messages of an association
    """

    pending: PendingConnections
    request_seconds: float
    idle_seconds: float
    is_known: Callable[[str], bool]
    turn_away: Callable[[Call], Refusal | None]
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
        self.heads: dict[socket.socket, bytes] = {}  # of the requests of strangers that may call
        self._strangers = Strangers(
            self._meet_stranger,
            wait_seconds=terms.request_seconds,
            on_refused=lambda host, reason: terms.on_refused(_call(host, ("", "")), reason, None),
        )
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

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: tuple[str, int] | str
    ) -> None:
        """Handle a connection from a known host in a thread of its own; let another one wait among the strangers."""
        if self.terms.is_known(str(client_address[0])):
            super().process_request(request, client_address)
        else:
            self._strangers.add(cast(socket.socket, request), cast(ClientAddress, client_address))

    def _meet_stranger(self, stranger: Stranger) -> None:
        """Refuse a stranger, or let a thread handle it if its title may call from its host."""
        is_let_in = False
        try:
            head = _meet(stranger, stranger.host, server=self, end=time.monotonic() + _MEETING_SECONDS)
            self.heads[stranger.request] = head
            super().process_request(stranger.request, stranger.address)
            is_let_in = True
        except NotAssociated as refused:
            if refused.reason is not None:
                self.terms.on_refused(_call(stranger.host, refused.titles), refused.reason, refused.message)
        except Exception:  # a boundary: a fault with one stranger must not end the thread that meets the others
            self.handle_error(stranger.request, stranger.address)
        finally:
            if not is_let_in:
                self.heads.pop(stranger.request, None)
                with suppress(OSError):
                    stranger.request.close()

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
        self._strangers.close()
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
        terms, host = server.terms, str(self.client_address[0])
        leave = terms.pending.enter(host, self.make_room)
        try:
            end = time.monotonic() + terms.request_seconds
            head = server.heads.pop(self.request, None) or _meet(self, host, server=server, end=end)
            request = read_rest(self.request, head, end)
            self._associate(request, leave, titles=association_pdus.titles(head), end=end)
        except NotAssociated as refused:
            reason = "silent" if self._made_room else refused.reason
            if reason is not None and not server.is_closing:
                terms.on_refused(_call(host, refused.titles), reason, refused.message)
        finally:
            leave()

    def _associate(
        self, request: AssociationRequest, leave: Callable[[], None], *, titles: tuple[str, str], end: float
    ) -> None:
        """Pass a connection to pynetdicom, and wait for the end of its association.

        Raises NotAssociated when pynetdicom ends it without an answer.
        """
        server = cast(Server, self.server)
        terms, call = server.terms, _call(str(self.client_address[0]), titles)

        def tell_abort(reason: str) -> None:
            if not (self._is_told or server.is_closing):
                self._is_told = True
                terms.on_aborted(call, reason)

        association = pynetdicom_adapter.make_association(self)
        reader = PduReader(
            self.request,
            leave_pending=leave,
            request_end=end,
            idle_seconds=terms.idle_seconds,
            on_aborted=tell_abort,
        )
        reception = terms.receive(association)
        pynetdicom_adapter.attach(
            association,
            self.request,
            request=request,
            reader=reader,
            open_dataset=reception.open_dataset,
            is_too_long=reception.is_too_long,
            on_aborted=tell_abort,
        )
        self.association = association
        try:
            pynetdicom_adapter.run(association)
        finally:
            reception.discard()
        if not pynetdicom_adapter.was_answered(association):
            raise NotAssociated("failed", "the association ended before its request was answered", titles=titles)
        if not pynetdicom_adapter.was_ended(association):
            tell_abort("protocol")


class _Arrived(Protocol):
    """Holds a connection; with TLS another object takes its place before the handshake."""

    request: socket.socket


def _meet(arrived: _Arrived, host: str, *, server: Server, end: float) -> bytes:
    """Read who calls, and nothing more; return that. Raises NotAssociated, after an answer to who may not call."""
    _secure(arrived, server.tls, end)
    head = read_head(arrived.request, end)
    call = _call(host, association_pdus.titles(head))
    refusal = server.terms.turn_away(call)
    if refusal is not None:
        # Recorded first, which never blocks: `status` shows the refusal as soon as the caller gets its answer.
        server.terms.on_refused(call, refusal.reason, None)
        part(arrived.request, association_pdus.rejection(*refusal.answer))
        raise NotAssociated(None)
    return head


def _secure(arrived: _Arrived, tls: ServerTls | None, end: float) -> None:
    """Wait for the first byte, and do the TLS handshake if this port uses TLS. Raises NotAssociated."""
    plain = arrived.request
    try:
        plain.settimeout(left(end))
        if not plain.recv(1, socket.MSG_PEEK):
            raise NotAssociated(None)  # as load balancers do to check that the port is open
        if tls is not None:
            secure = tls.context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            arrived.request = secure
            secure.settimeout(left(end))
            secure.do_handshake()
    except OSError as error:
        if tls is None:
            raise NotAssociated("silent" if isinstance(error, TimeoutError) else None) from error
        raise NotAssociated("tls", complaint(error)) from error


def _call(host: str, titles: tuple[str, str]) -> Call:
    calling_aet, called_aet = titles
    return Call(host=host, calling_aet=calling_aet, called_aet=called_aet)
