"""Receives the messages of one association within limits, and writes the dataset of a C-STORE directly to disk.

A dataset is written, hashed and counted while it arrives, so a film takes no memory, and the association of an endless
dataset is aborted. The presentation context decides how a request is handled; the SOP class that it names does not.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final

from pydicom.dataset import Dataset
from pydicom.uid import UID
from pynetdicom.association import Association
from pynetdicom.presentation import PresentationContext

from node.domain import is_uid
from node.errors import Refused
from node.net.pynetdicom_adapter import MOST_UNANSWERED
from node.receive import presentation_contexts
from node.receive.intake import Intake
from node.store.incoming import Incoming

_LONGEST_COMMAND: Final = 64 * 1024
_LONGEST_OTHER_DATASET: Final = 16 * 1024 * 1024


class DatasetOnDisk(BytesIO):
    """The dataset of one C-STORE request; replaces pynetdicom's memory buffer with a file on disk."""

    def __init__(self, begin: Callable[[], Incoming]) -> None:
        super().__init__()
        self.size = 0
        self._incoming: Incoming | None = None
        self._failure: Refused | None = None
        try:
            self._incoming = begin()
        except Refused as error:
            self._failure = error

    def write(self, part: bytes) -> int:  # type: ignore[override]  # pynetdicom only writes bytes
        """Add bytes. If the object cannot be kept, they are dropped, because the sender sends it to the end anyway."""
        self.size += len(part)
        if self._incoming is not None and self._failure is None:
            try:
                self._incoming.write(part)
            except Refused as error:
                self._failure = error
        return len(part)

    def take(self) -> Incoming:
        """Return the received object. Raises Refused when it cannot be kept."""
        if self._failure is not None or self._incoming is None:
            raise self._failure or Refused("the object was not received")
        return self._incoming

    def discard(self) -> None:
        """Remove the file, unless the spool has taken it."""
        if self._incoming is not None:
            self._incoming.discard()


class Reception:
    """Limits the messages of one association, and gives the dataset of each C-STORE a file."""

    def __init__(self, association: Association, *, intake: Intake) -> None:
        self._association, self._intake = association, intake
        self._datasets_on_disk: list[DatasetOnDisk] = []

    def open_dataset(self, command: Dataset, context: PresentationContext | None) -> DatasetOnDisk:
        """Begin a file for the dataset of a C-STORE request; context: None if it was not accepted."""
        dataset = DatasetOnDisk(lambda: self._begin_file(command, context))
        self._datasets_on_disk = [*self._datasets_on_disk[-MOST_UNANSWERED - 1 :], dataset]
        return dataset

    def is_too_long(self, command_bytes: int, dataset: BytesIO | None) -> bool:
        """Return whether a message exceeds its limit: a command, an object, or another dataset."""
        if command_bytes > _LONGEST_COMMAND:
            return True
        if isinstance(dataset, DatasetOnDisk):
            return dataset.size > self._intake.longest_bytes
        return dataset is not None and dataset.tell() > _LONGEST_OTHER_DATASET

    def discard(self) -> None:
        """Remove the files of requests that were not handled; only after the association has ended."""
        for dataset in self._datasets_on_disk:
            dataset.discard()

    def _begin_file(self, command: Dataset, context: PresentationContext | None) -> Incoming:
        """Begin a file that names sender and receiver (PS3.10 7.1). Raises Refused for a request that is not valid."""
        sop_class, sop_instance = UID(str(command.AffectedSOPClassUID)), UID(str(command.AffectedSOPInstanceUID))
        if not (is_uid(sop_class) and is_uid(sop_instance)):
            raise Refused("the request's SOP Class or Instance UID is not a valid UID; correct it at the sender")
        if context is None:
            raise ValueError("the context was not accepted")
        if not presentation_contexts.is_storage(UID(str(context.abstract_syntax))):
            raise Refused("the request's presentation context is not for storage; correct it at the sender")
        if sop_class != context.abstract_syntax:
            raise Refused("the request's SOP class is not that of its presentation context; correct it at the sender")
        return self._intake.begin(
            sop_class_uid=sop_class,
            sop_instance_uid=sop_instance,
            transfer_syntax_uid=context.transfer_syntax[0],
            sender=self._association.requestor.ae_title.strip(),
        )
