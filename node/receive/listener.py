"""The Storage and Verification SCP: accepts connections, admits callers, stores their objects, and answers.

It answers Success only after the spool has synced the object.

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
from dataclasses import replace
from typing import Final, cast

from pydicom.dataset import Dataset
from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.pdu_primitives import A_ASSOCIATE
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]  # made at import time
from pynetdicom.transport import RequestHandler, ThreadedAssociationServer

from node.config import Caller, ListenerSettings, ServerTlsSettings
from node.deliver import commitment
from node.deliver.commitment import Commitments
from node.errors import Refused, where
from node.metrics import Metrics
from node.net import pynetdicom_adapter
from node.net.association_pdus import Unacceptable, left, part, read_request, readable, titles
from node.net.callers import NO_ROOM, Call, Refusal, RefusalKey, Refusals, admit, caller_of, is_among, printable, to_do
from node.net.pynetdicom_adapter import MessageProvider, PduSocket
from node.net.tls import ServerTls, complaint
from node.receive import presentation_contexts
from node.receive.dimse import DatasetOnDisk, Reception
from node.receive.intake import Intake
from node.receive.presentation_contexts import TRANSFER_SYNTAXES
from node.store.spool import Spool

_ACSE_SECONDS: Final = 10
_SUCCESS: Final = 0x0000
_HIGH: Final = 0x0001  # PS3.7 9.1.1.1.5
_MAXIMUM_PDU: Final = 128 * 1024
_NO_LIMIT: Final = 2**31  # `callers` applies our own limit, which pynetdicom would count too late
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


class Listener:
    """Accepts associations until closed.

    on_kept: gets the study UID of every object that is to be read; must not block
    commitments: accepts storage commitment reports of destinations; None: no reports are accepted
    on_refused: gets every refusal that `Refusals` logs
    request_seconds: the time within which a connection must become an association
    Raises OSError when a port cannot be opened, or the files of `listener.tls` cannot be used.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        spool: Spool,
        metrics: Metrics,
        *,
        on_kept: Callable[[str], None],
        commitments: Commitments | None = None,
        on_refused: Callable[[RefusalKey, int], None] = lambda _key, _times: None,
        request_seconds: float = 10.0,
    ) -> None:
        self.settings, self._spool, self._metrics = settings, spool, metrics
        self.intake = Intake(settings, spool, metrics=metrics, on_kept=on_kept)
        self._commitments = commitments
        self._admitting, self.refusals = threading.Lock(), Refusals(on_logged=on_refused)
        self._open: dict[Association, Caller] = {}
        self.entity = application_entity(settings)
        self.pending, self.request_seconds = PendingConnections(), request_seconds
        self._ports = [_Port(self, (settings.host, settings.port), tls=None)]
        if settings.tls is not None:
            try:
                tls = self._certificate(settings.tls)
                self._ports.append(_Port(self, (settings.host, settings.tls.port), tls=tls))
            except BaseException:
                self._ports[0].close()
                raise
        metrics.associations_open.set_function(lambda: len(self._alive()))

    @property
    def port(self) -> int:
        """The real port."""
        return self._ports[0].number

    @property
    def tls_port(self) -> int | None:
        """The real port for TLS; None without TLS."""
        return self._ports[1].number if len(self._ports) > 1 else None

    @property
    def is_listening(self) -> bool:
        """Whether every port still accepts connections."""
        return all(port.is_listening for port in self._ports)

    def admit_only(self, callers: tuple[Caller, ...]) -> None:
        """Put other callers in force. Open associations go on."""
        self.settings = replace(self.settings, callers=callers)

    def close(self) -> None:
        """Stop accepting and end every association."""
        for port in self._ports:
            port.close()
        self.refusals.close()

    @property
    def handlers(self) -> list[evt.EventHandlerType]:
        """The handlers of an association."""
        return [
            (evt.EVT_REQUESTED, self._on_requested),
            (evt.EVT_ACCEPTED, lambda _event: self._metrics.associations_accepted.inc()),
            (evt.EVT_C_ECHO, lambda _event: _SUCCESS),
            (evt.EVT_C_STORE, self._on_store),
            (evt.EVT_N_EVENT_REPORT, self._on_report),
        ]

    def _certificate(self, tls: ServerTlsSettings) -> ServerTls:
        """Open the certificate and publish its remaining days in the metrics."""
        server_tls = ServerTls("listener", tls)
        self._metrics.certificate_days.labels("listener").set_function(lambda: server_tls.days_left)
        return server_tls

    def is_known(self, host: str) -> bool:
        """Whether a caller may connect from a host."""
        return any(is_among(host, caller.hosts) for caller in self.settings.callers)

    def _alive(self) -> dict[Association, Caller]:
        return {association: caller for association, caller in tuple(self._open.items()) if association.is_alive()}

    def _on_requested(self, event: evt.Event) -> None:
        """Refuse callers that are not admitted; offer the others the contexts that they may use."""
        association = event.assoc
        requested = cast(A_ASSOCIATE, association.requestor.primitive)
        call = Call(
            host=str(association.requestor.address),
            calling_aet=requested.calling_ae_title,
            called_aet=requested.called_ae_title,
        )
        try:
            refusal, message = self._admit(association, requested, call), None
        except Exception as error:  # a boundary: after an exception pynetdicom would admit the caller
            refusal, message = NO_ROOM, where(error)
        if refusal is not None:
            # Recorded first, which never blocks: `status` shows the refusal as soon as the caller gets its answer.
            self.report_refusal(call, refusal.reason, message)
            pynetdicom_adapter.reject(association, refusal.answer)

    def _admit(self, association: Association, requested: A_ASSOCIATE, call: Call) -> Refusal | None:
        """Admit an association and offer its contexts, or return why it is refused.

        Raises OSError when the disk fails.
        """
        may_report = self._commitments is not None and self._commitments.may_report(
            calling_aet=call.calling_aet,
            host=call.host,
            is_caller=caller_of(call, self.settings.callers) is not None,
        )
        with self._admitting:
            self._open = self._alive()
            admitted = admit(
                call,
                self.settings,
                may_report=may_report,
                has_room=self._spool.has_room,
                open_callers=list(self._open.values()),
            )
            if isinstance(admitted, Caller):
                self._open[association] = admitted
        if isinstance(admitted, Refusal):
            return admitted
        association.acceptor.supported_contexts = presentation_contexts.offered(
            requested, may_send=admitted in self.settings.callers, may_report=may_report
        )
        pynetdicom_adapter.admit(association)
        return None

    def report_refusal(self, call: Call, reason: str, message: str | None = None) -> None:
        """Count and log a refusal; the call has no titles if no request came."""
        self._metrics.associations_refused.labels(reason).inc()
        titles = (printable(call.calling_aet), printable(call.called_aet))
        message = message or to_do(reason, calling_aet=titles[0], own_title=self.settings.ae_title) or None
        self.refusals.note(RefusalKey("association.refused", reason, call.host, *titles), message=message)

    def report_abort(self, call: Call, reason: str) -> None:
        """Count and log that the node ends an association."""
        self._metrics.associations_aborted.labels(reason).inc()
        self.refusals.note(RefusalKey("association.aborted", reason, call.host, printable(call.calling_aet)))

    def _on_store(self, event: evt.Event) -> int | Dataset:
        """Keep one object, then answer. The only place where an object is acknowledged to a sender."""
        try:
            with self.intake.attempt():
                return self._keep(event)
        except Refused as error:
            return _refusal(error)

    def _keep(self, event: evt.Event) -> int:
        request = cast(C_STORE, event.request)
        dataset = request.DataSet
        if not isinstance(dataset, DatasetOnDisk):
            raise Refused("the request carries no object; correct it at the sender")
        requestor = event.assoc.requestor
        try:
            self.intake.keep(
                dataset.take(),
                sop_instance_uid=str(request.AffectedSOPInstanceUID),
                transfer_syntax_uid=str(event.context.transfer_syntax),
                size=dataset.size,
                is_stat=request.Priority == _HIGH or self._open[event.assoc].priority == "stat",
                sender={"calling_aet": requestor.ae_title.strip(), "host": str(requestor.address)},
            )
        finally:
            dataset.discard()
        return _SUCCESS

    def _on_report(self, event: evt.Event) -> tuple[int, None]:
        """Accept a destination's report on the objects that it was sent (PS3.4 J.3.3)."""
        calling_aet = event.assoc.requestor.ae_title
        if self._commitments is None:
            return commitment.PROCESSING_FAILURE, None
        try:
            event_type, information = int(str(event.event_type)), event.event_information
        except Exception:  # the boundary to pydicom's parser, which documents no set of exceptions
            return commitment.INVALID_ARGUMENT, None
        return self._commitments.take(event_type, information, calling_aet=calling_aet), None


def _refusal(error: Refused) -> Dataset:
    answer = Dataset()
    answer.Status = error.status
    answer.ErrorComment = str(error)[:64]  # PS3.7 C.4.2: LO
    return answer


def application_entity(settings: ListenerSettings) -> AE:
    """Return the entity that is called: its title, limits and timeouts."""
    entity = AE(ae_title=settings.ae_title)
    entity.maximum_associations = _NO_LIMIT
    entity.maximum_pdu_size = _MAXIMUM_PDU
    entity.acse_timeout = _ACSE_SECONDS
    entity.network_timeout = settings.idle_seconds
    entity.add_supported_context(Verification)
    return entity


class _Port(ThreadedAssociationServer):
    """Accepts connections on one port until closed. With `tls`, every caller must show a certificate."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, listener: Listener, address: tuple[str, int], *, tls: ServerTls | None) -> None:
        self.listener, self.tls = listener, tls
        pynetdicom_adapter.silence()
        self._collected_at = time.monotonic()
        self._handlers_changed, self.is_closing = threading.Condition(), False
        self._handlers_at_work: set[_Handler] = set()
        self._strangers, self._strangers_since = Counter[str](), time.monotonic()  # of this second, by address
        entity = listener.entity
        super().__init__(
            entity,
            address,
            entity.ae_title,
            entity.supported_contexts,
            evt_handlers=listener.handlers,
            request_handler=_Handler,
        )
        self._accepting = threading.Thread(
            target=self.serve_forever, args=(_ACCEPT_POLL_SECONDS,), name="accept", daemon=True
        )
        self._accepting.start()

    @property
    def number(self) -> int:
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
        self.listener.refusals.tell()
        if time.monotonic() - self._collected_at > _COLLECTION_SECONDS:
            gc.collect()
            self._collected_at = time.monotonic()

    def verify_request(
        self, _request: socket.socket | tuple[bytes, socket.socket], client_address: tuple[str, int] | str
    ) -> bool:
        """Return whether a connection is read: one from a host that is not known only while few of them come."""
        host, now = str(client_address[0]), time.monotonic()
        if self.listener.is_known(host):
            return True
        if now - self._strangers_since > 1.0:
            self._strangers, self._strangers_since = Counter(), now
        if self._strangers[host] >= _MOST_OF_A_STRANGER or self._strangers.total() >= _MOST_STRANGERS:
            self.listener.report_refusal(_call(host, ("", "")), "caller")
            return False
        self._strangers[host] += 1
        return True

    def handle_error(self, _request: object, client_address: tuple[str, int] | str) -> None:
        """Report a connection that ended by a fault of the node's own, such as no more threads."""
        error, call = sys.exception(), _call(str(client_address[0]), ("", ""))
        self.listener.report_refusal(call, "failed", None if error is None else where(error))

    def enter(self, handler: _Handler) -> bool:
        """Record that a connection is being handled; false when the server is closing."""
        with self._handlers_changed:
            if not self.is_closing:
                self._handlers_at_work.add(handler)
            return not self.is_closing

    def leave(self, handler: _Handler) -> None:
        """Record that a connection was closed."""
        with self._handlers_changed:
            self._handlers_at_work.discard(handler)
            self._handlers_changed.notify_all()

    def close(self) -> None:
        """Stop accepting, abort every association, and wait until all have ended."""
        pynetdicom_adapter.close_port(self)
        with self._handlers_changed:
            self.is_closing = True
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
        port = cast(_Port, self.server)
        try:
            if port.enter(self):
                self._handle(port)
        finally:
            with suppress(OSError):
                self.request.close()
            port.leave(self)

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

    def _handle(self, port: _Port) -> None:
        listener, host, received = port.listener, str(self.client_address[0]), bytearray()

        def refuse(reason: str, message: str | None = None) -> None:
            if not port.is_closing:
                listener.report_refusal(_call(host, titles(received)), "silent" if self._made_room else reason, message)

        end = time.monotonic() + listener.request_seconds
        leave = listener.pending.enter(host if listener.is_known(host) else _STRANGERS, self.make_room)
        try:
            if self._secure(port.tls, end):
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
        port = cast(_Port, self.server)

        def tell_abort(reason: str) -> None:
            if not (self._is_told or port.is_closing):
                self._is_told = True
                port.listener.report_abort(call, reason)

        association = pynetdicom_adapter.make_association(self)
        reception = Reception(association, intake=port.listener.intake)
        messages = MessageProvider(
            association,
            open_dataset=reception.open_dataset,
            is_too_long=reception.is_too_long,
            on_aborted=tell_abort,
        )
        connection = PduSocket(
            messages, self.request, request_end=end, idle_seconds=port.listener.settings.idle_seconds, on_admitted=leave
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
