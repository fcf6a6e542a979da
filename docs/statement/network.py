"""What the node accepts, proposes and answers on the network, asked of the code that decides it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Final

from pydicom._uid_dict import UID_dictionary
from pydicom.dataset import Dataset
from pydicom.uid import UID, ComputedRadiographyImageStorage
from pynetdicom import AE
from pynetdicom.pdu_primitives import A_ASSOCIATE
from pynetdicom.presentation import build_context

from node.config import Caller, ListenerSettings, ServerTlsSettings, SiteSettings
from node.deliver import commitment, connections, dicom, dicomweb
from node.deliver.web_request import WebAnswer
from node.dicom import identity
from node.dicom.film_header import parse_header
from node.errors import DestinationDown, Failed, GiveUp, Refused, RetryLater, SpoolFull, SyntaxRefused
from node.jobs.executor import SENDS_AT_ONCE
from node.net import association_pdus
from node.net.association_pdus import Unacceptable
from node.net.callers import Call, Refusal, admit
from node.read import routing
from node.read.routing import Action
from node.receive import presentation_contexts
from node.receive.listener import application_entity
from node.settings.destinations import DicomDestination, DicomwebDestination, TlsSettings
from tests.support import films, pdus

Rows = list[Sequence[str]]

_ARCHIVE: Final = DicomDestination(name="archive", ae_title="ARCHIVE", host="192.0.2.4", port=104)
_FAILURES: Final[Mapping[type[Exception], str]] = {
    DestinationDown: "the destination counts as down: it waits",  # a kind of RetryLater
    GiveUp: "the delivery is parked, for a person",
    RetryLater: "tried again",
}
"""What the node does with a delivery, by the error that its status raises."""
_HOST, _CALLER = "192.0.2.9", "MODALITY"


def named(uid: UID) -> Sequence[str]:
    """Return name and UID, as cells."""
    return (f"{uid.name} (retired)" if uid.is_retired else uid.name, f"`{uid}`")


def product() -> Rows:
    """Return what the statement is about."""
    return [
        ("product", "version", "manufacturer"),
        (identity.PROGRAM, identity.VERSION, identity.MANUFACTURER),
    ]


@cache
def _actions() -> dict[UID, Action]:
    """Return what happens to a frontal chest film in each storage class of the standard that the listener accepts."""
    known = [UID(uid) for uid in UID_dictionary if presentation_contexts.is_storage(UID(uid))]
    film = films.thumbnail()
    return {uid: routing.choose(parse_header(films.of_class(film, uid)), routing.RULES).action for uid in known}


def classes_read() -> Rows:
    """Return the classes of which films are read."""
    return _classes(Action.READ)


def classes_answered() -> Rows:
    """Return the classes of images that are answered with "not processed"."""
    return _classes(Action.ANSWER)


def classes_left_alone() -> Rows:
    """Return the classes of which objects are kept and get no answer."""
    return _classes(Action.LEAVE)


def _classes(wanted: Action) -> Rows:
    found = sorted((named(uid) for uid, action in _actions().items() if action is wanted), key=lambda row: row[0])
    return [("SOP class", "UID"), *found]


def transfer_syntaxes() -> Rows:
    """Return the transfer syntaxes that the listener accepts for every storage class."""
    return [("transfer syntax", "UID"), *map(named, presentation_contexts.TRANSFER_SYNTAXES)]


def accepted_contexts() -> Rows:
    """Return the presentation contexts that the listener accepts, by who proposes them."""
    proposed = (dicom.VERIFICATION, ComputedRadiographyImageStorage, UID("1.2.3.4"), dicom.STORAGE_COMMITMENT)
    request = A_ASSOCIATE()
    request.presentation_context_definition_list = [build_context(uid) for uid in proposed]
    callers = {"`[[listener.callers]]`": (True, False), "a destination that is to commit": (False, True)}
    rows: Rows = [("proposed", "by", "accepted transfer syntaxes", "the node is")]
    for caller, (may_send, may_report) in callers.items():
        for context in presentation_contexts.offered(request, may_send=may_send, may_report=may_report):
            uid = UID(str(context.abstract_syntax))
            is_of_list = tuple(context.transfer_syntax) == presentation_contexts.TRANSFER_SYNTAXES
            syntaxes = "the list below" if is_of_list else ", ".join(syntax.name for syntax in context.transfer_syntax)
            role = "SCU, by role selection" if context.scp_role else "SCP"
            rows.append((_NAMES.get(uid, uid.name), caller, syntaxes, role))
    return rows


_NAMES: Final = {
    UID(ComputedRadiographyImageStorage): "any storage class of the standard",
    UID("1.2.3.4"): "any private or unknown class",
}


def settings() -> Rows:
    """Return the settings of the DICOM services with their defaults."""
    tables: list[tuple[str, type]] = [
        ("listener", ListenerSettings),
        ("listener.tls", ServerTlsSettings),
        ("listener.callers", Caller),
        ("destinations", DicomDestination),
        ("destinations.tls", TlsSettings),
        ("site", SiteSettings),
    ]
    return _defaults(tables)


def web_settings() -> Rows:
    """Return the settings of an archive by DICOMweb with their defaults."""
    return _defaults([("destinations", DicomwebDestination)])


def _defaults(tables: Iterable[tuple[str, type]]) -> Rows:
    rows: Rows = [("setting", "default")]
    for table, kind in tables:
        fields = [field for field in dataclasses.fields(kind) if field.name not in ("tls", "callers")]
        rows += [(f"`{table}.{field.name}`", _default(field)) for field in fields]
    return rows


def _default(field: dataclasses.Field[object]) -> str:
    match field.default:
        case dataclasses.MISSING:
            return "to be set"
        case None:
            return "none"
        case "":
            return "empty"
        case tuple() as values:
            return ", ".join(f"`{value}`" for value in values)
        case bool() as value:
            return f"`{str(value).lower()}`"
        case float() as value:
            return f"`{value:g}`"
        case value:
            return f"`{value}`"


def accepting() -> Rows:
    """Return the parameters of associations that the node accepts."""
    listener = ListenerSettings()
    entity = application_entity(listener)
    return [
        *_identity(entity),
        ("associations at once", f"{listener.max_associations} (`listener.max_associations`)"),
        ("longest object", f"{listener.max_object_mib} MiB (`listener.max_object_mib`); longer: A-ABORT"),
        ("ARTIM and ACSE timeout", f"{entity.acse_timeout:g} s"),
        (
            "silence since the last PDU or the last answer, or a pause within a PDU",
            f"{entity.network_timeout:g} s (`listener.idle_seconds`); then A-ABORT",
        ),
    ]


def calling() -> Rows:
    """Return the parameters of associations that the node requests."""
    entity = dicom.application_entity(_ARCHIVE, calling_aet="CHEX")
    return [
        *_identity(entity),
        ("associations at once", f"{SENDS_AT_ONCE} for each destination, and {SENDS_AT_ONCE} for its commitment"),
        ("TCP connection", f"{entity.connection_timeout:g} s"),
        ("A-ASSOCIATE and A-RELEASE response", f"{entity.acse_timeout:g} s, {connections.RELEASE_SECONDS} s"),
        ("DIMSE response", f"{entity.dimse_timeout:g} s (`destinations.answer_seconds`)"),
        ("C-ECHO of a probe", f"{dicom.PROBE_SECONDS} s for each step"),
    ]


def _identity(entity: AE) -> Rows:
    return [
        ("parameter", "value"),
        ("application context", "`1.2.840.10008.3.1.1.1`"),
        ("Implementation Class UID", f"`{entity.implementation_class_uid}` (of the library pynetdicom)"),
        ("Implementation Version Name", f"`{entity.implementation_version_name}`"),
        ("maximum PDU length that is received", f"{entity.maximum_pdu_size} bytes"),
        ("asynchronous operations window", "not negotiated: one request at a time"),
    ]


def rejections() -> Rows:
    """Return when the listener rejects an association, and with which result, source and reason."""
    caller = Caller(ae_title=_CALLER, hosts=(_HOST,), max_associations=1)
    listener = ListenerSettings(callers=(caller,))
    calls = {
        "calling AE title and address are not among `[[listener.callers]]`": _refusal(listener, calling="STRANGER"),
        "the called AE title is not `listener.ae_title`": _refusal(listener, called="OTHER"),
        "the disk is below `storage.min_free_mib`": _refusal(listener, has_room=False),
        "`listener.max_associations`, or that of the caller, are open": _refusal(listener, open_callers=[caller]),
        "the protocol version lacks its lowest bit": _unacceptable(pdus.request(version=2)),
        "a context has an even id, or two have one id, or there is none": _unacceptable(pdus.request(contexts=b"")),
    }
    rows: Rows = [("when", "result", "source", "reason")]
    for when, refusal in calls.items():
        answer = A_ASSOCIATE()
        answer.result, answer.result_source, answer.diagnostic = refusal.answer
        rows.append(
            (
                when,
                f"{refusal.answer[0]} {answer.result_str.lower()}",
                f"{refusal.answer[1]} {answer.source_str}",
                f"{refusal.answer[2]} {answer.reason_str.lower().replace('ae ', 'AE ')}",
            )
        )
    return rows


def _refusal(
    listener: ListenerSettings,
    *,
    calling: str = _CALLER,
    called: str = "",
    has_room: bool = True,
    open_callers: Sequence[Caller] = (),
) -> Refusal:
    call = Call(calling_aet=calling, called_aet=called or listener.ae_title, host=_HOST)
    found = admit(call, listener, may_report=False, has_room=has_room, open_callers=open_callers)
    assert isinstance(found, Refusal)
    return found


def _unacceptable(request: bytes) -> Refusal:
    """Return how a request is rejected before anybody looks at its titles."""
    try:
        association_pdus.readable(request, syntaxes=())
    except Unacceptable as error:
        result, source, reason = error.answer[-3:]
        return Refusal(reason=error.reason, answer=(result, source, reason))
    raise AssertionError("the request is taken")


def store_answers() -> Rows:
    """Return the statuses that the listener answers to a C-STORE."""
    meanings: dict[type[Refused], tuple[str, str]] = {
        SpoolFull: (
            "Out of resources",
            "the disk is below `storage.min_free_mib`, or full; send the object again later",
        ),
        Failed: ("Processing failure", "something of the node's failed; send the object again"),
        Refused: (
            "Cannot understand",
            "the object is not what was announced, has no valid UIDs, or has them twice; correct the sender",
        ),
    }
    # A syntax that is not accepted has no presentation context, so only a request over HTTP may name it.
    kinds = {Refused, *Refused.__subclasses__()} - {SyntaxRefused}
    assert kinds == meanings.keys()
    rows = [(f"`{kind.status:04X}`", *words) for kind, words in meanings.items()]
    return [
        ("status", "meaning", "when"),
        ("`0000`", "Success", "bytes, name and folder of the object are synced"),
        *rows,
    ]


def store_outcomes() -> Rows:
    """Return what the node does at each status of a C-STORE response."""
    return _of_dimse(lambda status: dicom.judge(status, "archive"), done="the object counts as sent")


def commitment_outcomes() -> Rows:
    """Return what the node does at each status of an N-ACTION response."""
    return _of_dimse(lambda status: dicom.judge_request(status, _ARCHIVE), done="the node waits for the report")


def web_outcomes() -> Rows:
    """Return what the node does at each HTTP status of a STOW-RS response without a failed object."""
    found = _found(
        lambda code: dicomweb.judge(WebAnswer(status=code), "archive"),
        range(100, 600),
        done="the object counts as sent",
    )
    return _outcomes(found, _each, silence="tried again")


def _of_dimse(judge: Callable[[Dataset], None], *, done: str) -> Rows:
    status = Dataset()
    status.Status = 0

    def judge_code(code: int) -> None:
        status[0x0000, 0x0900].value = code
        judge(status)

    return _outcomes(_found(judge_code, range(0x10000), done=done), _ranges, silence=_FAILURES[DestinationDown])


def _found(judge: Callable[[int], None], codes: Iterable[int], *, done: str) -> dict[str, list[int]]:
    """Return the codes by what the node does at them; judge: raises an error for what does not count as done."""
    found: dict[str, list[int]] = {done: [], **{words: [] for words in _FAILURES.values()}}
    for code in codes:
        outcome = done
        try:
            judge(code)
        except tuple(_FAILURES) as error:
            outcome = next(words for kind, words in _FAILURES.items() if isinstance(error, kind))
        found[outcome].append(code)
    return found


def _outcomes(found: Mapping[str, list[int]], written: Callable[[Iterable[int]], str], *, silence: str) -> Rows:
    """Return the rows of a table; what most codes lead to is said of all that no row names."""
    most = max(found.values(), key=len)
    rows = [("any other" if codes is most else written(codes), outcome) for outcome, codes in found.items() if codes]
    return [("status", "what the node does"), *rows, ("no answer in time", silence)]


def _each(codes: Iterable[int]) -> str:
    return ", ".join(f"`{code}`" for code in codes)


def _ranges(codes: Iterable[int]) -> str:
    """Write codes as hexadecimal numbers, those that follow each other as a range."""
    texts = []
    for _, group in groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0]):
        run = [code for _, code in group]
        texts.append(f"`{run[0]:04X}`" + (f" to `{run[-1]:04X}`" if len(run) > 1 else ""))
    return ", ".join(texts)


def failure_reasons() -> Rows:
    """Return the failure reasons of a commitment report that the node names."""
    return [
        ("failure reason", "in `status` and log"),
        *((f"`{code:04X}`", words) for code, words in sorted(commitment.FAILURE_REASONS.items())),
        ("any other", "failure"),
    ]


def report_answers() -> Rows:
    """Return the statuses that the node answers to an N-EVENT-REPORT."""
    return [
        ("status", "meaning", "when"),
        (f"`{commitment.SUCCESS:04X}`", "Success", "the report is in the database, synced"),
        (f"`{commitment.NO_SUCH_EVENT:04X}`", "No such event type", "the event type is neither 1 nor 2"),
        (
            f"`{commitment.INVALID_ARGUMENT:04X}`",
            "Invalid argument value",
            "the report cannot be parsed, or names no transaction of this destination",
        ),
        (f"`{commitment.PROCESSING_FAILURE:04X}`", "Processing failure", "the database does not take the report"),
    ]
