"""STOW-RS and QIDO-RS (PS3.18 10.5 and 10.6): one request per call, and the meaning of its answer.

The bytes of the stored file are sent as they are. The text in which an archive refuses an object may quote the name,
number or dates of a patient, so of its answer only the status and the failure reasons are named.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree import ElementTree

from pydicom.dataset import Dataset

from node.check_result import Check, fault, note, ok
from node.deliver import dicom
from node.deliver.kinds import Asking, Calling, Sender
from node.deliver.web_request import BUSY, PROBE_SECONDS, WRONG_ADDRESS, WebAnswer, ask, parsed, require_open
from node.domain import Delivery, Json
from node.errors import GiveUp, RetryLater
from node.settings.destinations import DicomwebDestination

_FOUND_SECONDS: Final = 600.0
"""So long an archive may take until a query finds an object that it took."""
_NO_STUDY: Final = "2.25.0"
"""A study that no archive has: a probe asks for it, so no patient's data comes back."""

_STORED: Final = frozenset((200, 201, 202, 203, 204))
_FAILED: Final = 409
_HOPELESS: Final = frozenset((400, 406, 411, 413, 414, 415, 416, 417, 422, 431))
_FAILED_SEQUENCES: Final = ("00081198", "0008119A")
"""Failed SOP Sequence, and Other Failures Sequence for objects that the archive could not name (PS3.18 I.2)."""
_REASON, _INSTANCE = "00081197", "00080018"
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9A-Fa-f]{1,4}|[0-9A-Fa-f]{4}[hH]?")
_PROCESSING_FAILURE: Final = 0x0110
_LARGEST_STATUS: Final = 0xFFFF


def send(content: bytes, destination: DicomwebDestination, _calling: Calling) -> None:
    """Store the object of one DICOM file. Raises RetryLater, DestinationDown or GiveUp."""
    boundary = secrets.token_hex(16)
    body = b"".join(
        (
            f"--{boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode(),
            content,
            f"\r\n--{boundary}--\r\n".encode(),
        )
    )
    kind = f'multipart/related; type="application/dicom"; boundary={boundary}'
    judge(ask(destination, "POST", "/studies", content=body, kind=kind), destination.name)


def probe(destination: DicomwebDestination, _calling: Calling) -> None:
    """Check that a destination answers and takes the node's token. Raises DestinationDown."""
    _query(destination)


def _query(destination: DicomwebDestination) -> int:
    """Return the status of a query for no study. Raises DestinationDown."""
    answer = ask(destination, "GET", f"/studies?StudyInstanceUID={_NO_STUDY}&limit=1", seconds=PROBE_SECONDS)
    require_open(answer, destination.name)
    return answer.status


def examine(destination: DicomwebDestination, _calling: Calling) -> Iterator[Check]:
    """Ask for a study that no archive has; no object is sent."""
    name = f"destination {destination.name}"
    try:
        status = _query(destination)
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


def confirm(open_: Sequence[Delivery], destination: DicomwebDestination, asking: Asking) -> None:
    """Look for the objects at an archive; one that it has not after some minutes is lost there.

    Raises RetryLater or GiveUp.
    """
    for delivery in open_:
        if is_kept(delivery.study_uid, delivery.sop_instance_uid, destination):
            asking.commitments.note(asking.transaction_uid, kept=[delivery], failed={})
        elif time.time() > asking.sent_at + _FOUND_SECONDS:
            lost = f"{destination.name} does not find the object that it took; see its log, then retry"
            asking.commitments.note(asking.transaction_uid, kept=[], failed={delivery: lost})


def is_kept(study_uid: str, sop_instance_uid: str, destination: DicomwebDestination) -> bool:
    """Return whether an archive finds an object that it was sent (PS3.18 10.6). Raises RetryLater or GiveUp."""
    query = f"/studies/{study_uid}/instances?SOPInstanceUID={sop_instance_uid}"
    answer = ask(destination, "GET", query)
    require_open(answer, destination.name)
    if answer.status in (204, 404):
        return False
    if answer.status in BUSY:
        raise RetryLater(f"{destination.name} answered a query for an object with {answer.status}")
    if answer.status != 200:
        raise GiveUp(
            f"{destination.name} answered a query for an object with {answer.status}; enable QIDO-RS there or set "
            "storage_commitment = false, then retry"
        )
    found = parsed(answer.body)
    instances = found if isinstance(found, list) else []
    return any(sop_instance_uid in _values(item, _INSTANCE) for item in instances)


def judge(answer: WebAnswer, name: str) -> None:
    """Turn the answer to a request to store into an outcome (PS3.18 10.5.3). Raises RetryLater or GiveUp."""
    require_open(answer, name)
    is_stored = answer.status in _STORED
    reasons = list(_reasons(answer.body)) if is_stored or answer.status == _FAILED else []
    for reason in reasons:
        _judge_reason(reason, name)
    if is_stored or reasons:
        return
    if answer.status in WRONG_ADDRESS:
        raise GiveUp(f"{name} has no STOW-RS at this address ({answer.status}); correct destinations.url, then retry")
    if answer.status == _FAILED or answer.status in _HOPELESS:
        raise GiveUp(f"{name} refused the object with status {answer.status}; see its log, then retry")
    raise RetryLater(f"{name} answered {answer.status}")


def _reasons(body: bytes) -> Iterator[Json]:
    """Yield the failure reason of each object that an archive names as failed, in JSON or XML (PS3.18 F, PS3.19 A)."""
    if body.lstrip().startswith(b"<"):
        yield from _reasons_in_xml(body)
        return
    said = parsed(body)
    for item in (item for sequence in _FAILED_SEQUENCES for item in _values(said, sequence)):
        if isinstance(item, dict):
            yield next(iter(_values(item, _REASON)), _PROCESSING_FAILURE)


def _reasons_in_xml(body: bytes) -> Iterator[Json]:
    try:
        attributes = [item for item in ElementTree.fromstring(body).iter() if item.tag.endswith("DicomAttribute")]
    except ElementTree.ParseError:
        return
    for sequence in (item for item in attributes if item.get("tag", "").upper() in _FAILED_SEQUENCES):
        for failed in sequence:
            found = (item for item in failed if item.get("tag") == _REASON)
            yield next(("".join(item.itertext()) for item in found), _PROCESSING_FAILURE)


def _judge_reason(reason: Json, name: str) -> None:
    """Judge the failure reason of an object as the status of a C-STORE, which has the same values (PS3.18 I.2.2)."""
    status = Dataset()
    status.Status = _number(reason)
    dicom.judge(status, name)


def _number(reason: Json) -> int:
    """Read a failure reason; some archives write it as text, in decimals (`43264`) or as the standard does (`A900`)."""
    if isinstance(reason, bool) or not isinstance(reason, int | float | str):
        return _PROCESSING_FAILURE
    if not isinstance(reason, str):
        return int(reason) if 0 <= reason <= _LARGEST_STATUS else _PROCESSING_FAILURE
    text = reason.strip()
    if text.isdecimal() and text.isascii() and not text.startswith("0"):
        return _number(int(text[:9]))
    return int(text.rstrip("hH"), 16) if _HEXADECIMAL.fullmatch(text) else _PROCESSING_FAILURE


def _values(item: Json, tag: str) -> list[Json]:
    """Return the values of an attribute in the DICOM JSON model (PS3.18 F.2); none if it has another form."""
    element = item.get(tag) if isinstance(item, dict) else None
    values = element.get("Value") if isinstance(element, dict) else None
    return values if isinstance(values, list) else []


SENDER: Final[Sender[DicomwebDestination]] = Sender(
    send=send, probe=probe, examine=examine, confirm=confirm, silence="{} never found the object that it took"
)
