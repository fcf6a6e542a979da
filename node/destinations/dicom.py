"""C-STORE SCU: one object, one association, and what its outcome means.

A warning status (Bxxx) means stored (PS3.4 B.2.3), and so does a duplicate: the peer has this object. Out of resources
and everything that happens to a connection will pass; a refused SOP class or an object the peer finds wrong will not.
"""

from __future__ import annotations

import socket
from pathlib import Path

from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pynetdicom import AE
from pynetdicom.association import Association

from node.config import DicomDestination
from node.errors import DestinationDown, GiveUp, RetryLater

_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 60

# PS3.7 C: success, duplicate SOP instance
_STORED = frozenset((0x0000, 0x0111))
# PS3.7 C: attribute value, attribute list, SOP instance, missing attribute (two), SOP class, not authorized
_HOPELESS = frozenset((0x0106, 0x0107, 0x0117, 0x0120, 0x0121, 0x0122, 0x0124))


def send(path: Path, destination: DicomDestination, *, calling_aet: str) -> None:
    """Send one file and wait for the answer.

    Raises RetryLater or GiveUp.
    """
    dataset = dcmread(path)
    association = _associate(dataset, destination, calling_aet=calling_aet)
    try:
        status = association.send_c_store(dataset)
    except RuntimeError as error:  # the association ended before the request left
        raise DestinationDown(f"{destination.name} ended the association") from error
    except ValueError as error:  # no accepted context fits
        raise GiveUp(_not_accepted(destination)) from error
    finally:
        if association.is_established:
            association.release()
    judge(status, destination.name)


def judge(status: Dataset, name: str) -> None:
    """Turn a C-STORE response into an outcome (PS3.4 B.2.3, PS3.7 C).

    Raises RetryLater or GiveUp.
    """
    code = status.get("Status", None)
    if code is None:
        raise DestinationDown(f"{name} gave no answer")
    if code in _STORED or code >> 12 == 0xB:
        return
    if code in _HOPELESS or code >> 8 == 0xA9 or code >> 12 == 0xC:
        raise GiveUp(f"{name} refused the object with status {code:04X}; see its log, then retry")
    raise RetryLater(f"{name} answered {code:04X}")


def _associate(dataset: Dataset, destination: DicomDestination, *, calling_aet: str) -> Association:
    """Open an association that proposes the object's class.

    Raises RetryLater when the peer cannot be reached or rejects.
    """
    entity = AE(ae_title=calling_aet)
    entity.connection_timeout = _CONNECT_SECONDS
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = _ANSWER_SECONDS
    own = dataset.file_meta.TransferSyntaxUID
    syntaxes = dict.fromkeys([own, ExplicitVRLittleEndian, ImplicitVRLittleEndian] if not own.is_compressed else [own])
    for syntax in syntaxes:
        entity.add_requested_context(dataset.SOPClassUID, syntax)
    association = entity.associate(destination.host, destination.port, ae_title=destination.ae_title)
    if association.is_rejected:
        raise DestinationDown(f"{destination.name} rejected the association; check both AE titles there")
    if association.accepted_contexts and association.is_established:
        _send_at_once(association)
        return association
    if association.rejected_contexts:
        association.abort()
        raise GiveUp(_not_accepted(destination))
    raise DestinationDown(f"{destination.name} cannot be reached at {destination.host}:{destination.port}")


def _not_accepted(destination: DicomDestination) -> str:
    return f"{destination.name} does not accept this SOP class; enable it there, then retry"


def _send_at_once(association: Association) -> None:
    """Switch Nagle's algorithm off: with it, and delayed acknowledgment at the peer, an object costs 40 ms more."""
    connection = association.dul.socket
    if connection is not None and connection.socket is not None:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
