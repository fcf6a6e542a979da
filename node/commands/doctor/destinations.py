"""Checks all destinations at once: connection, TLS, association, echo, and accepted SOP classes. Sends no object."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from node import config
from node.commands.doctor.checks import Check, fault, note, ok, run_check
from node.config import Settings
from node.deliver import connection, dicom, dicomweb, hl7
from node.errors import DestinationDown, RetryLater
from node.outputs.writers import classes_wanted
from node.settings.destinations import DestinationSettings, DicomDestination, DicomwebDestination, Hl7Destination

_LIMIT_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 5.0
_START: Final = "start it, or correct host, port and tls of this destination"


def check_destinations(settings: Settings, *, limit_seconds: float = _LIMIT_SECONDS) -> Iterator[Check]:
    """Ask every destination in a thread of its own; one that does not answer in time is a fault."""
    if not settings.destinations:
        yield note("destinations", config.NOTHING_IS_SENT)
        return
    calling_aet = settings.listener.ae_title
    pool = ThreadPoolExecutor(len(settings.destinations), thread_name_prefix="doctor")
    asked = [(destination, pool.submit(_ask, destination, calling_aet)) for destination in settings.destinations]
    wait([future for _, future in asked], timeout=limit_seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    for destination, future in asked:
        yield from _answer(destination, future, limit_seconds)


def _answer(
    destination: DestinationSettings, future: Future[tuple[Check, ...]], limit_seconds: float
) -> tuple[Check, ...]:
    if future.done():
        return future.result()
    address = f"{destination.host}:{destination.port}"
    return (fault(_name(destination), f"no answer from {address} in {limit_seconds:g} s; see its log and the network"),)


def _ask(destination: DestinationSettings, calling_aet: str) -> tuple[Check, ...]:
    match destination:
        case DicomDestination():
            return run_check(_name(destination), lambda: _ask_archive(destination, calling_aet))
        case Hl7Destination():
            return run_check(_name(destination), lambda: _ask_information_system(destination))
        case DicomwebDestination():
            return run_check(_name(destination), lambda: _ask_web_archive(destination))


def _ask_archive(destination: DicomDestination, calling_aet: str) -> Iterator[Check]:
    """Connect first: a failed connection gives its reason, which an association does not."""
    name = _name(destination)
    wanted = {uid: f"output {output}" for uid, output in classes_wanted(destination.outputs).items()}
    if destination.storage_commitment:
        wanted[dicom.STORAGE_COMMITMENT] = "storage_commitment"
    try:
        connection.connect(destination, limit_seconds=_CONNECT_SECONDS).close()
    except DestinationDown as error:
        yield fault(name, f"{error}; {_START}")
        return
    try:
        accepted = dicom.negotiate(destination, calling_aet=calling_aet, sop_classes=list(wanted))
    except DestinationDown as error:
        yield fault(
            name,
            f"{error}; it accepts connections, so see its log; the node calls itself {calling_aet} and the archive "
            f"{destination.ae_title}",
        )
        return
    refused = {uid: setting for uid, setting in wanted.items() if uid not in accepted}
    for uid, setting in refused.items():
        yield fault(name, f"does not accept {uid.name}; enable it there, or change {setting} of this destination")
    if refused:
        return
    address = f"{destination.ae_title} at {destination.host}:{destination.port}"
    classes = ", ".join(uid.name for uid in wanted)
    if dicom.VERIFICATION in accepted:
        yield ok(name, f"{address} answers C-ECHO from {calling_aet} and accepts {classes}")
    else:
        yield note(name, f"{address} accepts {classes} from {calling_aet}, but no C-ECHO; the node does not need it")


def _ask_information_system(destination: Hl7Destination) -> Iterator[Check]:
    name = _name(destination)
    try:
        if destination.tls is None:
            hl7.probe(destination)
        else:
            connection.explain(destination, limit_seconds=_CONNECT_SECONDS)
    except DestinationDown as error:
        yield fault(name, f"{error}; {_START}")
        return
    secured = " and TLS" if destination.tls is not None else ""
    yield ok(name, f"{destination.host}:{destination.port} accepts a connection{secured}; no message was sent")


def _ask_web_archive(destination: DicomwebDestination) -> Iterator[Check]:
    name = _name(destination)
    try:
        status = dicomweb.probe(destination)
    except RetryLater as error:
        yield fault(name, f"{error}; start it, or correct url, token_file and tls of this destination")
        return
    if status in (200, 204):
        yield ok(name, f"{destination.url} answers a query for no study; no object was sent")
    elif destination.storage_commitment:
        wish = "enable QIDO-RS there or set storage_commitment = false"
        yield fault(name, f"{destination.url} answers a query with {status}; {wish}, or correct url")
    else:
        yield note(name, f"{destination.url} answers a query with {status}; if it has no QIDO-RS, that is no fault")


def _name(destination: DestinationSettings) -> str:
    return f"destination {destination.name}"
