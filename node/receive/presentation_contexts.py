"""The presentation contexts that the listener accepts: every proposed storage class, in every readable transfer syntax.

Private and retired classes are accepted too: if one class of a job is refused, some senders do not send the job's films
either (interoperability §6).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from pydicom.uid import (
    HTJ2K,
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
from pynetdicom.pdu_primitives import A_ASSOCIATE
from pynetdicom.presentation import PresentationContext, build_context
from pynetdicom.sop_class import (  # type: ignore[attr-defined]  # made at import time
    StorageCommitmentPushModel,
    Verification,
)

TRANSFER_SYNTAXES: Final = (
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
    HTJ2K,
    RLELossless,
)


def offered(requested: A_ASSOCIATE, *, may_send: bool, may_report: bool) -> list[PresentationContext]:
    """Return contexts: Verification, the storage classes that a sender proposes, a destination's storage commitment."""
    proposed = requested.presentation_context_definition_list
    asked = sorted({UID(context.abstract_syntax) for context in proposed if context.abstract_syntax})
    return [
        build_context(Verification),
        *(_storage(uid) for uid in asked if may_send and is_storage(uid)),
        *([_reports()] if may_report else []),
    ]


def is_storage(uid: UID) -> bool:
    """Return whether an abstract syntax is a storage class; retired, private and unknown classes count."""
    if uid.is_private or uid.type == "":
        return True
    return uid.type == "SOP Class" and "Storage" in uid.name and "Commitment" not in uid.name


@lru_cache(maxsize=1024)
def _storage(uid: UID) -> PresentationContext:
    """Build the context of one class; cached, because checking the 16 UIDs was the slowest part of an association."""
    return build_context(uid, list(TRANSFER_SYNTAXES))


def _reports() -> PresentationContext:
    """Accept storage commitment with the other side as SCP, the role in which it reports (PS3.4 J.2, PS3.7 D.3.3.4)."""
    context = build_context(StorageCommitmentPushModel)
    context.scu_role = context.scp_role = True
    return context
