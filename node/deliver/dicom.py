"""C-STORE, C-ECHO and storage commitment as SCU, and the meaning of each status.

A warning status (Bxxx) means stored (PS3.4 B.2.3), and so does a duplicate: the peer has this object. Out of resources
and all connection errors are temporary. A refused SOP class or an object that the peer finds wrong is permanent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from io import BytesIO
from typing import Final

from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import UID, ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.dimse_messages import N_EVENT_REPORT_RSP
from pynetdicom.pdu import A_ASSOCIATE_RJ
from pynetdicom.presentation import PresentationContext, build_context
from pynetdicom.sop_class import (  # type: ignore[attr-defined]  # made at import time
    StorageCommitmentPushModel,
    Verification,
)

from node.check_result import Check, fault, note, ok
from node.deliver.connections import START, Associations, connect, ended, explain, tls_context
from node.deliver.kinds import Asking, Calling, Sender
from node.domain import Delivery
from node.errors import DestinationDown, GiveUp, RetryLater
from node.net.pynetdicom_adapter import prepare, send_at_once, was_answered_out_of_turn
from node.outputs.writers import classes_wanted, sop_class_of
from node.settings.destinations import DicomDestination

OnReport = Callable[[int, Dataset], int]
"""Gets event type and information of an N-EVENT-REPORT; returns the status to answer with."""

VERIFICATION: Final = UID(Verification)
STORAGE_COMMITMENT: Final = UID(StorageCommitmentPushModel)

_CONNECT_SECONDS: Final = 10
_ACCEPT_SECONDS: Final = 60
PROBE_SECONDS: Final = 5
_LOOK_SECONDS: Final = 0.1

NATIVE: Final = (ExplicitVRLittleEndian, ImplicitVRLittleEndian)

# PS3.7 C: success, duplicate SOP instance
_STORED: Final = frozenset((0x0000, 0x0111))
# PS3.7 C: attribute value, attribute list, SOP instance, missing attribute (two), SOP class, not authorized
_HOPELESS: Final = frozenset((0x0106, 0x0107, 0x0117, 0x0120, 0x0121, 0x0122, 0x0124))

# PS3.4 J.3: the well-known instance and the action; success, and a transaction that the peer has already
_PUSH_MODEL_INSTANCE: Final = "1.2.840.10008.1.20.1.1"
_REQUEST_COMMITMENT: Final = 1
_ASKED: Final = frozenset((0x0000, 0x0131))
# PS3.7 C: no such SOP class, SOP class not supported, not authorized
_NO_COMMITMENT: Final = frozenset((0x0118, 0x0122, 0x0124))


def send(content: bytes, destination: DicomDestination, calling: Calling) -> None:
    """Send the object of one DICOM file and wait for the answer; without open associations, its own ends at once.

    Raises RetryLater or GiveUp.
    """
    dataset, began = dcmread(BytesIO(content)), time.monotonic()
    open_ = calling.associations or Associations(idle_seconds=0.0)
    syntax = dataset.file_meta.TransferSyntaxUID
    association = open_.take(destination, sop_class=dataset.SOPClassUID, syntax=syntax)
    if association is not None:
        try:
            with open_.used(association, destination):
                return _store(dataset, association, destination)
        except DestinationDown:  # its peer may have ended it at this moment; the object may be sent twice
            if time.monotonic() - began >= destination.answer_seconds:
                raise
    contexts = storage_contexts(dataset)
    if calling.associations is not None:
        known = {context.abstract_syntax for context in contexts}
        others = [uid for uid in classes_wanted(destination.outputs) if uid not in known]
        contexts += [build_context(uid, native) for uid in others for native in NATIVE]
    association = _associate(contexts, destination, calling_aet=calling.ae_title, refusal=_not_accepted(destination))
    with open_.used(association, destination):
        _store(dataset, association, destination)


def _store(dataset: Dataset, association: Association, destination: DicomDestination) -> None:
    try:
        status = association.send_c_store(dataset)
    except RuntimeError as error:  # the association ended before the request left
        raise DestinationDown(f"{destination.name} ended the association") from error
    except ValueError as error:  # no accepted context fits
        raise GiveUp(_not_accepted(destination)) from error
    _check_turn(association, destination)
    judge(status, destination.name)


def _check_turn(association: Association, destination: DicomDestination) -> None:
    """Raise DestinationDown if a response does not match its request, whose outcome is then unknown."""
    if was_answered_out_of_turn(association):
        raise DestinationDown(f"{destination.name} answered another request than the one it was sent; see its log")


def storage_contexts(dataset: Dataset) -> list[PresentationContext]:
    """Propose the transfer syntax of an object, and the other native one if it is native; a context for each."""
    own = dataset.file_meta.TransferSyntaxUID
    syntaxes = dict.fromkeys([own, *NATIVE] if not own.is_compressed else [own])
    return [build_context(dataset.SOPClassUID, syntax) for syntax in syntaxes]


def judge(status: Dataset, name: str) -> None:
    """Turn a C-STORE response into an outcome (PS3.4 B.2.3, PS3.7 C).

    Raises RetryLater or GiveUp.
    """
    code = status.get("Status", None)
    if code is None:
        raise DestinationDown(f"{name} gave no answer; if it is slow, raise destinations.answer_seconds")
    if code in _STORED or code >> 12 == 0xB:
        return
    if code in _HOPELESS or code >> 8 == 0xA9 or code >> 12 == 0xC:
        raise GiveUp(f"{name} refused the object with status {code:04X}; see its log, then retry")
    raise RetryLater(f"{name} answered {code:04X}")


def echo(destination: DicomDestination, calling: Calling) -> None:
    """Check that a destination answers; any answer to the association request counts. Raises DestinationDown."""
    _negotiate(destination, calling_aet=calling.ae_title)


def _negotiate(destination: DicomDestination, *, calling_aet: str, sop_classes: Sequence[UID] = ()) -> frozenset[UID]:
    """Propose SOP classes and Verification, and send a C-ECHO if that is accepted (PS3.4 A); nothing else is sent.

    Returns the accepted classes. Raises DestinationDown.
    """
    contexts = [build_context(sop_class, list(NATIVE)) for sop_class in (Verification, *sop_classes)]
    try:
        association = _associate(
            contexts, destination, calling_aet=calling_aet, refusal="", limit_seconds=PROBE_SECONDS
        )
    except GiveUp:  # it accepted none of them
        return frozenset()
    with ended(association):
        accepted = frozenset(context.abstract_syntax for context in association.accepted_contexts)
        if Verification in accepted:
            try:
                status = association.send_c_echo()
            except RuntimeError as error:
                raise DestinationDown(f"{destination.name} ended the association") from error
            _check_turn(association, destination)
            if "Status" not in status:
                raise DestinationDown(f"{destination.name} gave no answer")
    return frozenset(uid for uid in accepted if uid is not None)


def examine(destination: DicomDestination, calling: Calling) -> Iterator[Check]:
    """Connect first: a failed connection gives its reason, which an association does not."""
    name = f"destination {destination.name}"
    wanted = {uid: f"output {output}" for uid, output in classes_wanted(destination.outputs).items()}
    if destination.storage_commitment:
        wanted[STORAGE_COMMITMENT] = "storage_commitment"
    try:
        connect(destination, limit_seconds=PROBE_SECONDS).close()
    except DestinationDown as error:
        yield fault(name, f"{error}; {START}")
        return
    try:
        accepted = _negotiate(destination, calling_aet=calling.ae_title, sop_classes=list(wanted))
    except DestinationDown as error:
        yield fault(
            name,
            f"{error}; it accepts connections, so see its log; the node calls itself {calling.ae_title} and the "
            f"archive {destination.ae_title}",
        )
        return
    refused = {uid: setting for uid, setting in wanted.items() if uid not in accepted}
    for uid, setting in refused.items():
        yield fault(name, f"does not accept {uid.name}; enable it there, or change {setting} of this destination")
    if refused:
        return
    address = f"{destination.ae_title} at {destination.host}:{destination.port}"
    classes = ", ".join(uid.name for uid in wanted)
    if VERIFICATION in accepted:
        yield ok(name, f"{address} answers C-ECHO from {calling.ae_title} and accepts {classes}")
    else:
        yield note(
            name, f"{address} accepts {classes} from {calling.ae_title}, but no C-ECHO; the node does not need it"
        )


def confirm(open_: Sequence[Delivery], destination: DicomDestination, asking: Asking) -> None:
    """Ask a destination to commit to objects that it was sent (PS3.4 J.3.2), and wait briefly for its report.

    The report may come on this association or on another one, now or in hours (PS3.4 J.3.3).
    Raises RetryLater or GiveUp.
    """
    reporting = _Reporting(partial(asking.commitments.take, calling_aet=destination.ae_title))
    association = _associate(
        [build_context(StorageCommitmentPushModel, list(NATIVE))],
        destination,
        calling_aet=asking.calling.ae_title,
        refusal=_no_commitment(destination),
        handlers=[(evt.EVT_N_EVENT_REPORT, reporting.on_report), (evt.EVT_DIMSE_SENT, reporting.on_sent)],
    )
    with ended(association):
        try:
            status, _ = association.send_n_action(
                _request(open_, asking.transaction_uid),
                _REQUEST_COMMITMENT,
                StorageCommitmentPushModel,
                _PUSH_MODEL_INSTANCE,
            )
        except RuntimeError as error:
            raise DestinationDown(f"{destination.name} ended the association") from error
        _check_turn(association, destination)
        judge_request(status, destination)
        end = time.monotonic() + asking.report_seconds
        while association.is_established and time.monotonic() < end and not asking.is_over():
            time.sleep(_LOOK_SECONDS)
        reporting.finish()


def judge_request(status: Dataset, destination: DicomDestination) -> None:
    """Turn an N-ACTION response into an outcome (PS3.4 J.3.2.1.4, PS3.7 C).

    Raises RetryLater or GiveUp.
    """
    code = status.get("Status", None)
    if code is None:
        raise DestinationDown(f"{destination.name} gave no answer")
    if code in _NO_COMMITMENT:
        raise GiveUp(_no_commitment(destination))
    if code not in _ASKED:
        raise RetryLater(f"{destination.name} answered the request for storage commitment with {code:04X}")


class _Reporting:
    """Handles reports on one association; `finish` waits until the last report was answered."""

    def __init__(self, on_report: OnReport) -> None:
        self._on_report, self._is_idle = on_report, threading.Event()
        self._is_idle.set()

    def on_report(self, event: evt.Event) -> tuple[int, None]:
        self._is_idle.clear()
        return self._on_report(int(event.event_type or 0), event.event_information), None

    def on_sent(self, event: evt.Event) -> None:
        if isinstance(event.message, N_EVENT_REPORT_RSP):
            self._is_idle.set()

    def finish(self) -> None:
        self._is_idle.wait(PROBE_SECONDS)


def _request(deliveries: Sequence[Delivery], transaction_uid: str) -> Dataset:
    """Return the information of an N-ACTION that names the objects (PS3.4 J.3.2.1.1)."""
    request = Dataset()
    request.TransactionUID = transaction_uid
    request.ReferencedSOPSequence = []
    for delivery in deliveries:
        item = Dataset()
        item.ReferencedSOPClassUID = sop_class_of(delivery.kind)
        item.ReferencedSOPInstanceUID = delivery.sop_instance_uid
        request.ReferencedSOPSequence.append(item)
    return request


def _associate(
    contexts: list[PresentationContext],
    destination: DicomDestination,
    *,
    calling_aet: str,
    refusal: str,
    limit_seconds: float | None = None,
    handlers: Sequence[tuple[evt.NotificationEvent | evt.InterventionEvent, Callable[[evt.Event], object]]] = (),
) -> Association:
    """Open an association.

    refusal: the message if none of its contexts is accepted
    Raises DestinationDown when the peer cannot be reached or rejects, GiveUp when it accepts none of the contexts.
    """
    entity = application_entity(destination, calling_aet=calling_aet, limit_seconds=limit_seconds)
    context = tls_context(destination)
    rejections: list[A_ASSOCIATE_RJ] = []
    association = entity.associate(
        destination.host,
        destination.port,
        contexts=contexts,
        ae_title=destination.ae_title,
        evt_handlers=[
            (evt.EVT_CONN_OPEN, lambda event: prepare(event.assoc)),
            (evt.EVT_PDU_RECV, partial(_keep_rejection, rejections)),
            *handlers,
        ],
        tls_args=None if context is None else (context, destination.host),
    )
    if rejections:
        raise DestinationDown(
            f"{destination.name} rejected the association ({_reason(rejections[0])}); check both AE titles there"
        )
    if association.is_established:
        send_at_once(association)
        return association
    if association.rejected_contexts and not association.accepted_contexts:
        association.abort()
        raise GiveUp(refusal)
    if destination.tls is not None:
        explain(destination, limit_seconds=PROBE_SECONDS)
    raise DestinationDown(f"{destination.name} cannot be reached at {destination.host}:{destination.port}")


def application_entity(destination: DicomDestination, *, calling_aet: str, limit_seconds: float | None = None) -> AE:
    """Return the application entity for a destination; limit_seconds: limit of each step; None: the step's own."""
    entity = AE(ae_title=calling_aet)
    entity.connection_timeout = limit_seconds or _CONNECT_SECONDS
    entity.acse_timeout = limit_seconds or _ACCEPT_SECONDS
    entity.dimse_timeout = entity.network_timeout = limit_seconds or destination.answer_seconds
    return entity


def _keep_rejection(rejections: list[A_ASSOCIATE_RJ], event: evt.Event) -> None:
    """Keep a rejection as it comes: pynetdicom 3.0.4 forgets one that comes before its thread waits for the answer."""
    if isinstance(event.pdu, A_ASSOCIATE_RJ):
        rejections.append(event.pdu)


def _reason(rejection: A_ASSOCIATE_RJ) -> str:
    """Return the reason of a rejection in the words of PS3.8 9.3.4, or as its numbers where that has no words."""
    try:
        return rejection.reason_str.lower().replace("ae ", "AE ")
    except ValueError:
        return f"source {rejection.source}, reason {rejection.reason_diagnostic}"


def _not_accepted(destination: DicomDestination) -> str:
    return f"{destination.name} does not accept this SOP class; enable it there, then retry"


def _no_commitment(destination: DicomDestination) -> str:
    return (
        f"{destination.name} does not offer storage commitment; enable it there or set storage_commitment = false, "
        "then retry"
    )


SENDER: Final[Sender[DicomDestination]] = Sender(
    send=send,
    probe=echo,
    examine=examine,
    confirm=confirm,
    silence="{} never reported whether it keeps the object; make sure that its reports reach the node's DICOM port",
)
