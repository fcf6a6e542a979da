"""The Storage and Verification SCP: who may associate, what is accepted, what is answered.

Every storage class is accepted at the association, private and retired ones too: a sender whose job meets one refused
class may drop the film beside it (INTEROP.md 6). Success is answered only after the spool has synced the object.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection
from io import BytesIO
from typing import cast

from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filereader import read_dataset
from pydicom.tag import Tag
from pydicom.uid import (
    JPEG2000,
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    JPEGLSNearLossless,
    RLELossless,
)
from pynetdicom import AE, evt
from pynetdicom.dimse_primitives import C_STORE
from pynetdicom.dsutils import encode_file_meta
from pynetdicom.pdu_primitives import A_ASSOCIATE
from pynetdicom.presentation import build_context
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]  # made at import time
from pynetdicom.transport import ThreadedAssociationServer

from node import attributes, log
from node.config import Caller, ListenerSettings
from node.errors import Failed, Refused, where
from node.metrics import Metrics
from node.spool import Spool

TRANSFER_SYNTAXES = (
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    ExplicitVRBigEndian,
    DeflatedExplicitVRLittleEndian,
    JPEGLosslessSV1,
    JPEGLossless,
    JPEG2000Lossless,
    JPEG2000,
    JPEGLSLossless,
    JPEGLSNearLossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    HTJ2KLossless,
    HTJ2KLosslessRPCL,
    RLELossless,
)

# PS3.8 9.3.4: result, source, reason of a rejection
_CALLER_UNKNOWN = (0x01, 0x01, 0x03)
_CALLED_UNKNOWN = (0x01, 0x01, 0x07)
_NO_ROOM = (0x02, 0x03, 0x01)

_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID = Tag("SOPInstanceUID"), Tag("StudyInstanceUID")
_HEADER_BYTES = 1024 * 1024
_ACSE_SECONDS = 10
_SUCCESS = 0x0000
_MAXIMUM_PDU = 128 * 1024


class Listener:
    """Accepts associations until closed. `on_kept` is told the study of every new object; it must not block."""

    def __init__(
        self, settings: ListenerSettings, spool: Spool, metrics: Metrics, *, on_kept: Callable[[str], None]
    ) -> None:
        self._settings, self._spool, self._metrics, self._on_kept = settings, spool, metrics, on_kept
        entity = AE(ae_title=settings.ae_title)
        entity.maximum_associations = settings.max_associations
        entity.maximum_pdu_size = _MAXIMUM_PDU
        entity.acse_timeout = _ACSE_SECONDS
        entity.add_supported_context(Verification)
        server = entity.start_server(
            (settings.host, settings.port),
            block=False,
            evt_handlers=[
                (evt.EVT_REQUESTED, self._on_requested),
                (evt.EVT_ACCEPTED, lambda _event: metrics.associations_accepted.inc()),
                (evt.EVT_REJECTED, self._on_rejected),
                (evt.EVT_C_ECHO, lambda _event: _SUCCESS),
                (evt.EVT_C_STORE, self._on_store),
            ],
        )
        self._entity, self._server = entity, cast(ThreadedAssociationServer, server)  # what block=False returns
        metrics.associations_open.set_function(lambda: len(entity.active_associations))

    @property
    def port(self) -> int:
        """The real port."""
        return int(self._server.server_address[1])

    @property
    def is_listening(self) -> bool:
        """Whether the socket still accepts."""
        return self._server.socket is not None and self._server.socket.fileno() >= 0

    def close(self) -> None:
        """Stop accepting and end every association."""
        self._entity.shutdown()

    def _on_requested(self, event: evt.Event) -> None:
        """Refuse who may not come in; offer a context for every storage class that is proposed."""
        requested = cast(A_ASSOCIATE, event.assoc.requestor.primitive)
        refusal, reason = self._refusal(
            calling_aet=requested.calling_ae_title,
            called_aet=requested.called_ae_title,
            host=event.assoc.requestor.address,
        )
        if refusal is not None:
            self._count_refused(reason, host=event.assoc.requestor.address)
            event.assoc.acse.send_reject(*refusal)
            event.assoc.kill()
            return
        contexts = requested.presentation_context_definition_list
        proposed = {UID(context.abstract_syntax) for context in contexts if context.abstract_syntax is not None}
        event.assoc.acceptor.supported_contexts = [
            build_context(Verification),
            *(build_context(uid, list(TRANSFER_SYNTAXES)) for uid in sorted(proposed) if is_storage(uid)),
        ]

    def _on_rejected(self, event: evt.Event) -> None:
        """Count what the library refuses by itself: one association too many."""
        self._count_refused("limit", host=event.assoc.requestor.address)

    def _count_refused(self, reason: str, *, host: str | None) -> None:
        self._metrics.associations_refused.labels(reason).inc()
        log.get().warning("association.refused", reason=reason, host=host)

    def _refusal(
        self, *, calling_aet: str, called_aet: str, host: str | None
    ) -> tuple[tuple[int, int, int] | None, str]:
        if not _may_call(self._settings.callers, calling_aet=calling_aet.strip(), host=host or ""):
            return _CALLER_UNKNOWN, "caller"
        if called_aet.strip() != self._settings.ae_title.strip():
            return _CALLED_UNKNOWN, "called_ae"
        if not self._spool.has_room:
            return _NO_ROOM, "disk"
        return None, ""

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
        request, syntax = cast(C_STORE, event.request), UID(event.context.transfer_syntax)
        body = event.encoded_dataset(include_meta=False)
        study_uid, sop_instance_uid = identify(body, syntax)
        if sop_instance_uid != str(request.AffectedSOPInstanceUID):
            raise Refused("the object's SOP Instance UID is not the one announced; correct it at the sender")
        meta = b"\0" * 128 + b"DICM" + encode_file_meta(_file_meta(event))
        kept = self._spool.keep(study_uid=study_uid, sop_instance_uid=sop_instance_uid, meta=meta, body=body)
        self._on_kept(study_uid)  # before anything that may fail, and for a repeated object too
        outcome = "kept" if kept.is_new else "repeated"
        self._metrics.instances.labels(outcome).inc()
        self._metrics.received_bytes.inc(len(body))
        log.get().info(f"instance.{outcome}", study=study_uid, sop_instance_uid=sop_instance_uid, bytes=len(body))
        return _SUCCESS

    def _refuse(self, error: Refused, *, reason: str) -> Dataset:
        self._metrics.instances.labels("refused").inc()
        self._metrics.failures.labels("receive", error.reason).inc()
        log.get().warning("instance.refused", reason=reason)
        answer = Dataset()
        answer.Status = error.status
        answer.ErrorComment = str(error)[:64]  # PS3.7 C.4.2: LO
        return answer


def is_storage(uid: UID) -> bool:
    """Say whether an abstract syntax stores objects: every storage class, retired ones, private and unknown ones."""
    if uid.is_private or uid.type == "":
        return True
    return uid.type == "SOP Class" and "Storage" in uid.name and "Commitment" not in uid.name


def _may_call(callers: Collection[Caller], *, calling_aet: str, host: str) -> bool:
    return any(caller.ae_title.strip() == calling_aet and host in caller.hosts for caller in callers)


def _file_meta(event: evt.Event) -> FileMetaDataset:
    """File meta information that also tells who sent the object to whom (PS3.10 7.1)."""
    meta = event.file_meta
    meta.SourceApplicationEntityTitle = event.assoc.requestor.ae_title.strip()
    meta.ReceivingApplicationEntityTitle = event.assoc.acceptor.ae_title.strip()
    return meta


def identify(body: bytes, syntax: UID) -> tuple[str, str]:
    """Read Study and SOP Instance UID of an encoded dataset; nothing behind them is looked at or inflated.

    Raises Refused when they cannot be read.
    """
    try:
        if syntax == DeflatedExplicitVRLittleEndian:
            body = zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, _HEADER_BYTES)
        with attributes.quiet():
            dataset = read_dataset(
                BytesIO(body),
                is_implicit_VR=syntax.is_implicit_VR,
                is_little_endian=syntax.is_little_endian,
                stop_when=lambda tag, _vr, _length: tag > _STUDY_INSTANCE_UID,
                specific_tags=[_SOP_INSTANCE_UID, _STUDY_INSTANCE_UID],
            )
            return str(dataset.StudyInstanceUID), str(dataset.SOPInstanceUID)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        raise Refused("the object has no readable Study and SOP Instance UID; correct it at the sender") from error
