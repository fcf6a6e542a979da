"""The Storage and Verification SCP: admits callers, stores their objects, and answers.

It answers Success only after the spool has synced the object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

from pydicom.dataset import Dataset
from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.pdu_primitives import A_ASSOCIATE
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]  # made at import time

from node.config import Caller, ListenerSettings, ServerTlsSettings
from node.deliver import commitment
from node.deliver.commitment import Commitments
from node.errors import Refused, where
from node.metrics import Metrics
from node.net import pynetdicom_adapter
from node.net.callers import NO_ROOM, Call, Refusal, RefusalKey, Refusals, admit, caller_of, is_among, printable, to_do
from node.net.tls import ServerTls
from node.receive import presentation_contexts
from node.receive.dimse import DatasetOnDisk, Reception
from node.receive.intake import Intake
from node.receive.server import PendingConnections, Server, Terms
from node.store.spool import Spool

_ACSE_SECONDS = 10
_SUCCESS = 0x0000
_HIGH = 0x0001  # PS3.7 9.1.1.1.5
_MAXIMUM_PDU = 128 * 1024
_NO_LIMIT = 2**31  # `callers` applies our own limit, which pynetdicom would count too late


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
        self._settings, self._spool, self._metrics = settings, spool, metrics
        self.intake = Intake(settings, spool, metrics=metrics, on_kept=on_kept)
        self._commitments = commitments
        self._admitting, self._refusals = threading.Lock(), Refusals(on_logged=on_refused)
        self._open: dict[Association, Caller] = {}
        self._entity = application_entity(settings)
        terms = Terms(
            pending=PendingConnections(),
            request_seconds=request_seconds,
            idle_seconds=settings.idle_seconds,
            is_known=self._is_known,
            on_refused=self._on_refused,
            on_aborted=self._on_aborted,
            on_turn=self._refusals.tell,
            receive=partial(Reception, intake=self.intake),
        )
        self._servers = [self._serve(settings.port, terms, tls=None)]
        if settings.tls is not None:
            try:
                self._servers.append(self._serve(settings.tls.port, terms, tls=self._certificate(settings.tls)))
            except BaseException:
                self._servers[0].close()
                raise
        metrics.associations_open.set_function(lambda: len(self._alive()))

    @property
    def port(self) -> int:
        """The real port."""
        return self._servers[0].port

    @property
    def tls_port(self) -> int | None:
        """The real port for TLS; None without TLS."""
        return self._servers[1].port if len(self._servers) > 1 else None

    @property
    def is_listening(self) -> bool:
        """Whether every port still accepts connections."""
        return all(server.is_listening for server in self._servers)

    def admit_only(self, callers: tuple[Caller, ...]) -> None:
        """Put other callers in force. Open associations go on."""
        self._settings = replace(self._settings, callers=callers)

    def close(self) -> None:
        """Stop accepting and end every association."""
        for server in self._servers:
            server.close()
        self._refusals.close()

    def _serve(self, port: int, terms: Terms, *, tls: ServerTls | None) -> Server:
        handlers: list[evt.EventHandlerType] = [
            (evt.EVT_REQUESTED, self._on_requested),
            (evt.EVT_ACCEPTED, lambda _event: self._metrics.associations_accepted.inc()),
            (evt.EVT_C_ECHO, lambda _event: _SUCCESS),
            (evt.EVT_C_STORE, self._on_store),
            (evt.EVT_N_EVENT_REPORT, self._on_report),
        ]
        return Server(self._entity, (self._settings.host, port), terms=terms, tls=tls, handlers=handlers)

    def _certificate(self, tls: ServerTlsSettings) -> ServerTls:
        """Open the certificate and publish its remaining days in the metrics."""
        server_tls = ServerTls("listener", tls)
        self._metrics.certificate_days.labels("listener").set_function(lambda: server_tls.days_left)
        return server_tls

    def _is_known(self, host: str) -> bool:
        return any(is_among(host, caller.hosts) for caller in self._settings.callers)

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
            self._on_refused(call, refusal.reason, message)
            pynetdicom_adapter.reject(association, refusal.answer)

    def _admit(self, association: Association, requested: A_ASSOCIATE, call: Call) -> Refusal | None:
        """Admit an association and offer its contexts, or return why it is refused.

        Raises OSError when the disk fails.
        """
        may_report = self._commitments is not None and self._commitments.may_report(
            calling_aet=call.calling_aet,
            host=call.host,
            is_caller=caller_of(call, self._settings.callers) is not None,
        )
        with self._admitting:
            self._open = self._alive()
            admitted = admit(
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
        association.acceptor.supported_contexts = presentation_contexts.offered(
            requested, may_send=admitted in self._settings.callers, may_report=may_report
        )
        pynetdicom_adapter.admit(association)
        return None

    def _on_refused(self, call: Call, reason: str, message: str | None = None) -> None:
        """Count and log a refusal."""
        self._metrics.associations_refused.labels(reason).inc()
        titles = (printable(call.calling_aet), printable(call.called_aet))
        message = message or to_do(reason, calling_aet=titles[0], own_title=self._settings.ae_title) or None
        self._refusals.note(RefusalKey("association.refused", reason, call.host, *titles), message=message)

    def _on_aborted(self, call: Call, reason: str) -> None:
        self._metrics.associations_aborted.labels(reason).inc()
        self._refusals.note(RefusalKey("association.aborted", reason, call.host, printable(call.calling_aet)))

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
