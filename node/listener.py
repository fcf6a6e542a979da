"""The Storage and Verification SCP: lets callers in, keeps what they send, and answers.

Success is answered only after the spool has synced the object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

from pydicom.dataset import Dataset
from pydicom.uid import UID
from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.pdu_primitives import A_ASSOCIATE
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]  # made at import time

from node import access, commitment, contexts, log
from node.access import Refusal
from node.commitment import Commitments
from node.config import Caller, ListenerSettings, ServerTlsSettings
from node.connections import Lobby, Server, Terms
from node.errors import Failed, Refused, where
from node.header import identify
from node.metrics import Metrics
from node.reception import Landing, Reception
from node.refusals import Refusals
from node.spool import Kept, Spool
from node.tls import ServerTls
from node.wire import GuardedSocket

_ACSE_SECONDS = 10
_SUCCESS = 0x0000
_HIGH = 0x0001  # PS3.7 9.1.1.1.5
_MAXIMUM_PDU = 128 * 1024
_MIB = 1024 * 1024
_NO_LIMIT = 2**31  # `access` keeps ours, which pynetdicom counts too late


class Listener:
    """Accepts associations until closed. `on_kept` is told the study of every object to be read; it must not block.

    commitments: takes what destinations report of what they were sent; without it, they may not
    lobby_seconds: within which a connection must have become an association
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
        lobby_seconds: float = 10.0,
    ) -> None:
        self._settings, self._spool, self._metrics, self._on_kept = settings, spool, metrics, on_kept
        self._commitments = commitments
        self._admitting, self._refusals = threading.Lock(), Refusals()
        self._open: dict[Association, Caller] = {}
        self._entity = _entity(settings)
        terms = Terms(
            lobby=Lobby(lambda host: any(access.is_among(host, one.hosts) for one in settings.callers)),
            lobby_seconds=lobby_seconds,
            idle_seconds=settings.idle_seconds,
            on_refused=self._on_refused,
            on_aborted=self._on_aborted,
            on_turn=self._refusals.tell,
            receive=self._receive,
        )
        self._plain = self._serve(settings.port, terms, tls=None)
        self._secure: Server | None = None
        if settings.tls is not None:
            try:
                self._secure = self._serve(settings.tls.port, terms, tls=self._certificate(settings.tls))
            except BaseException:
                self._plain.close()
                raise
        metrics.associations_open.set_function(lambda: len(self._alive()))

    @property
    def port(self) -> int:
        """The real port."""
        return self._plain.port

    @property
    def tls_port(self) -> int | None:
        """The real port for TLS, where there is one."""
        return None if self._secure is None else self._secure.port

    @property
    def is_listening(self) -> bool:
        """Whether every port still accepts."""
        return all(server.is_listening for server in self._servers)

    def close(self) -> None:
        """Stop accepting and end every association."""
        for server in self._servers:
            server.close()
        self._refusals.close()

    @property
    def _servers(self) -> list[Server]:
        return [server for server in (self._plain, self._secure) if server is not None]

    def _serve(self, port: int, terms: Terms, *, tls: ServerTls | None) -> Server:
        handlers: list[evt.EventHandlerType] = [
            (evt.EVT_REQUESTED, self._on_requested),
            (evt.EVT_ACCEPTED, lambda _event: self._metrics.associations_accepted.inc()),
            (evt.EVT_ABORTED, self._on_ended),
            (evt.EVT_C_ECHO, lambda _event: _SUCCESS),
            (evt.EVT_C_STORE, self._on_store),
            (evt.EVT_N_EVENT_REPORT, self._on_report),
        ]
        return Server(self._entity, (self._settings.host, port), terms=terms, tls=tls, handlers=handlers)

    def _certificate(self, tls: ServerTlsSettings) -> ServerTls:
        """Open the certificate and show in the metrics how long it is good for."""
        server_tls = ServerTls("listener", tls)
        self._metrics.certificate_days.labels("listener").set_function(lambda: server_tls.days_left)
        return server_tls

    def _alive(self) -> dict[Association, Caller]:
        return {association: caller for association, caller in tuple(self._open.items()) if association.is_alive()}

    def _receive(self, association: Association) -> Reception:
        """Let an association's films go to disk while they come."""
        return Reception(
            association,
            longest_object=self._settings.max_object_mib * _MIB,
            receive=self._spool.receive,
            on_aborted=lambda reason: self._on_aborted(reason, str(association.requestor.address)),
        )

    def _on_requested(self, event: evt.Event) -> None:
        """Refuse who may not come in; offer those who may what they may do here."""
        association = event.assoc
        try:
            refusal, message = self._admit(association), None
        except Exception as error:  # a boundary: pynetdicom would go on and let in whoever calls
            refusal, message = access.NO_ROOM, where(error)
        if refusal is not None:
            self._on_refused(refusal.reason, str(association.requestor.address), message)
            association.acse.send_reject(*refusal.answer)
            association.kill()

    def _admit(self, association: Association) -> Refusal | None:
        """Let an association in and offer it what it may do here, or say why not.

        Raises OSError when the disk fails.
        """
        requested = cast(A_ASSOCIATE, association.requestor.primitive)
        call = access.Call(
            calling_aet=requested.calling_ae_title,
            called_aet=requested.called_ae_title,
            host=str(association.requestor.address),
        )
        may_report = self._commitments is not None and self._commitments.may_report(
            calling_aet=call.calling_aet,
            host=call.host,
            is_caller=access.caller_of(call, self._settings.callers) is not None,
        )
        with self._admitting:
            self._open = self._alive()
            admitted = access.admit(
                call,
                self._settings,
                may_report=may_report,
                has_room=self._spool.has_room,
                open_callers=list(self._open.values()),
            )
            if isinstance(admitted, Caller):
                self._open[association] = admitted
        if isinstance(admitted, Refusal):
            return admitted
        association.acceptor.supported_contexts = contexts.offered(
            requested, may_send=admitted in self._settings.callers, may_report=may_report
        )
        cast(GuardedSocket, association.dul.socket).admit()
        return None

    def _on_refused(self, reason: str, host: str, message: str | None = None) -> None:
        self._metrics.associations_refused.labels(reason).inc()
        self._refusals.note("association.refused", reason=reason, host=host, message=message)

    def _on_aborted(self, reason: str, host: str) -> None:
        self._metrics.associations_aborted.labels(reason).inc()
        log.get().warning("association.aborted", reason=reason, host=host)

    def _on_ended(self, event: evt.Event) -> None:
        """Report an association that said nothing for too long; others that end by an abort have been, or just went."""
        if event.assoc.dul.idle_timer_expired():
            self._on_aborted("idle", str(event.assoc.requestor.address))

    def _on_store(self, event: evt.Event) -> int | Dataset:
        """Keep one object, then answer. The only place where an object is acknowledged."""
        try:
            with self._metrics.timed("receive"):
                return self._keep(event)
        except Refused as error:
            return self._refuse(error, reason=error.reason)
        except Exception as error:  # a boundary: whatever goes wrong with one object, the listener lives
            return self._refuse(Failed("the object could not be processed; send it again"), reason=where(error))

    def _keep(self, event: evt.Event) -> int:
        request = cast(C_STORE, event.request)
        landing = request.DataSet
        if not isinstance(landing, Landing):
            raise Refused("the request carries no object; correct it at the sender")
        try:
            incoming = landing.take()
            with incoming.open_dataset() as file:
                study_uid, sop_instance_uid = identify(file, UID(event.context.transfer_syntax))
            if sop_instance_uid != str(request.AffectedSOPInstanceUID):
                raise Refused("the object's SOP Instance UID is not the one announced; correct it at the sender")
            kept = self._spool.settle(incoming, study_uid=study_uid, sop_instance_uid=sop_instance_uid)
        finally:
            landing.discard()
        if not kept.is_conflict:
            if request.Priority == _HIGH or self._open[event.assoc].priority == "stat":
                self._spool.mark_urgent(study_uid)
            self._on_kept(study_uid)  # before anything that may fail, and for a repeated object too
        self._report(kept, landing.size)
        return _SUCCESS

    def _on_report(self, event: evt.Event) -> tuple[int, None]:
        """Take what a destination says of the objects it was sent (PS3.4 J.3.3)."""
        calling_aet = event.assoc.requestor.ae_title
        if self._commitments is None:
            return commitment.PROCESSING_FAILURE, None
        try:
            event_type, information = int(str(event.event_type)), event.event_information
        except Exception:  # the boundary to pydicom's parser, which documents no set of exceptions
            return commitment.INVALID_ARGUMENT, None
        return self._commitments.take(event_type, information, calling_aet=calling_aet), None

    def _report(self, kept: Kept, size: int) -> None:
        self._metrics.instances.labels(kept.outcome).inc()
        self._metrics.received_bytes.inc(size)
        say = log.get().warning if kept.outcome == "conflict" else log.get().info
        study_uid, sop_instance_uid = kept.instance.study_uid, kept.instance.sop_instance_uid
        say(f"instance.{kept.outcome}", study=study_uid, sop_instance_uid=sop_instance_uid, bytes=size)

    def _refuse(self, error: Refused, *, reason: str) -> Dataset:
        self._metrics.instances.labels("refused").inc()
        self._metrics.failures.labels("receive", error.reason).inc()
        log.get().warning("instance.refused", reason=reason)
        answer = Dataset()
        answer.Status = error.status
        answer.ErrorComment = str(error)[:64]  # PS3.7 C.4.2: LO
        return answer


def _entity(settings: ListenerSettings) -> AE:
    entity = AE(ae_title=settings.ae_title)
    entity.maximum_associations = _NO_LIMIT
    entity.maximum_pdu_size = _MAXIMUM_PDU
    entity.acse_timeout = _ACSE_SECONDS
    entity.network_timeout = settings.idle_seconds
    entity.add_supported_context(Verification)
    return entity
