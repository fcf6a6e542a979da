"""The storage commitment SCP of a `ReceivingArchive` (PS3.4 J): it answers as an archive does, or as none should."""

from __future__ import annotations

import threading
from collections.abc import Collection
from enum import Enum, auto

from pydicom import Dataset
from pydicom.sequence import Sequence
from pynetdicom import AE, build_role, evt
from pynetdicom.association import Association
from pynetdicom.dimse_messages import N_ACTION_RSP
from pynetdicom.sop_class import StorageCommitmentPushModel  # type: ignore[attr-defined]  # made at import time

from tests.support.peers import LOOPBACK

INSTANCE = "1.2.840.10008.1.20.1.1"
NO_SUCH_OBJECT = 0x0112


class Answer(Enum):
    """What the archive does about a request that it has taken."""

    AT_ONCE = auto()  # on the same association
    FAIL = auto()  # at once as well: it has none of the objects
    NEVER = auto()
    BUSY = auto()  # it does not even take the request


class Committing:
    """`requests` has the information of every N-ACTION that was taken, `reported` the statuses of its answers."""

    def __init__(self, answer: Answer = Answer.AT_ONCE) -> None:
        self.answer = answer
        self.requests: list[Dataset] = []
        self.reported: list[int | None] = []
        self._taken: dict[Association, tuple[Dataset, Answer]] = {}
        self._responding = set[Association]()
        self._came = threading.Condition()

    @property
    def handlers(self) -> list[evt.EventHandlerType]:
        """What the archive's server is started with."""
        return [
            (evt.EVT_N_ACTION, self._on_action),
            (evt.EVT_DIMSE_SENT, self._on_response),
            (evt.EVT_PDU_SENT, self._on_sent),
        ]

    def wait_for_requests(self, count: int) -> list[Dataset]:
        """Wait until it was asked so often, and return all of it."""
        with self._came:
            if not self._came.wait_for(lambda: len(self.requests) >= count, 60.0):
                raise AssertionError(f"asked {len(self.requests)} times instead of {count}")
            return list(self.requests)

    def _on_action(self, event: evt.Event) -> tuple[int, None]:
        if self.answer is Answer.BUSY:
            return 0x0213, None
        with self._came:
            self.requests.append(event.action_information)
            self._taken[event.assoc] = self.requests[-1], self.answer
            self._came.notify_all()
        return 0x0000, None

    def _on_response(self, event: evt.Event) -> None:
        """Note that the next PDU is the response to an N-ACTION: pynetdicom tells of a message before it is sent."""
        if isinstance(event.message, N_ACTION_RSP) and event.assoc in self._taken:
            self._responding.add(event.assoc)

    def _on_sent(self, event: evt.Event) -> None:
        """Answer only after the response was sent: the fragments of two messages must not mix."""
        if event.assoc in self._responding:
            self._responding.discard(event.assoc)
            request, answer = self._taken.pop(event.assoc)
            if answer is not Answer.NEVER:
                threading.Thread(target=self._answer, args=(event.assoc, request, answer), daemon=True).start()

    def _answer(self, association: Association, request: Dataset, answer: Answer) -> None:
        self.reported.append(_send(association, request, failed=uids(request) if answer is Answer.FAIL else ()))


def uids(request: Dataset) -> list[str]:
    """The SOP Instance UIDs that a request names."""
    return [item.ReferencedSOPInstanceUID for item in request.ReferencedSOPSequence]


def report(request: Dataset, *, port: int, calling_ae: str = "ARCHIVE") -> int | None:
    """Answer a request on an association of its own, now or much later. The status, or None without an association."""
    entity = AE(ae_title=calling_ae)
    entity.add_requested_context(StorageCommitmentPushModel)
    role = build_role(StorageCommitmentPushModel, scp_role=True)
    association = entity.associate(LOOPBACK, port, ae_title="CHEX", ext_neg=[role])
    if not association.is_established:
        return None
    try:
        return _send(association, request, failed=())
    finally:
        association.release()


def _send(association: Association, request: Dataset, *, failed: Collection[str]) -> int | None:
    information = Dataset()
    information.TransactionUID = request.TransactionUID
    kept = [item for item in request.ReferencedSOPSequence if item.ReferencedSOPInstanceUID not in failed]
    lost = [item for item in request.ReferencedSOPSequence if item.ReferencedSOPInstanceUID in failed]
    if kept:
        information.ReferencedSOPSequence = Sequence(kept)
    for item in lost:
        item.FailureReason = NO_SUCH_OBJECT
    if lost:
        information.FailedSOPSequence = Sequence(lost)
    status, _ = association.send_n_event_report(information, 2 if lost else 1, StorageCommitmentPushModel, INSTANCE)
    return None if "Status" not in status else int(status.Status)
