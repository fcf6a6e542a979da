"""Assembles the messages of one association within limits, and writes the dataset of a C-STORE directly to disk.

pynetdicom collects each message in memory, however long it gets, and passes it on when it is complete. Here the dataset
of a C-STORE request is written, hashed and counted while it arrives, so a film takes no memory, and the association of
an endless dataset is aborted. The presentation context decides how a request is handled; the SOP class that it names
does not.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Final

from pydicom.uid import UID
from pynetdicom.association import Association
from pynetdicom.dimse import DIMSEServiceProvider
from pynetdicom.dimse_messages import C_STORE_RQ, DIMSEMessage
from pynetdicom.dimse_primitives import C_STORE, DimsePrimitiveType, DimseServiceType
from pynetdicom.dsutils import create_file_meta, encode_file_meta
from pynetdicom.pdu_primitives import P_DATA
from pynetdicom.presentation import PresentationContext
from pynetdicom.service_class import StorageServiceClass

from node.domain import is_uid
from node.errors import Refused
from node.receive import contexts
from node.store.incoming import Incoming

_LONGEST_COMMAND: Final = 64 * 1024
_LONGEST_OTHER_DATASET: Final = 16 * 1024 * 1024
_MOST_UNANSWERED: Final = 16  # the node offers one at a time (PS3.7 D.3.3.3), but a PDU may hold thousands
_INVALID_PDU: Final = "Evt19"  # PS3.8 9.2.3: pynetdicom's state machine answers it with A-ABORT


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


class Reception(DIMSEServiceProvider):
    """Assembles messages until the association ends.

    receive: begins to receive an object; gets the first bytes of its file
    on_aborted: gets the reason why the association is aborted
    """

    def __init__(
        self,
        association: Association,
        *,
        longest_object: int,
        receive: Callable[[bytes], Incoming],
        on_aborted: Callable[[str], None],
    ) -> None:
        super().__init__(association)
        self._longest_object, self._receive_object, self._on_aborted = longest_object, receive, on_aborted
        self._datasets_on_disk: list[DatasetOnDisk] = []
        self._context_id: int | None = None
        self._messages = self._answers = 0

    @property
    def is_answering(self) -> bool:
        """Whether a received message is not answered yet."""
        return self._messages > self._answers

    def receive_primitive(self, primitive: P_DATA) -> None:
        """Add the content of one PDU to the current message; runs in the thread that reads the connection."""
        try:
            for value in primitive.presentation_data_value_list:
                self._check_order(*value)
                fragment = P_DATA()
                fragment.presentation_data_value_list.append(value)
                super().receive_primitive(fragment)
                self._land()
                if self.message is None:
                    self._messages += 1
                if self._messages - self._answers > _MOST_UNANSWERED:
                    raise ValueError("requests come faster than answers")
        except Exception:  # the boundary to pynetdicom's parser: an exception would end its thread
            self._abort("protocol")
        else:
            if self.message is not None and self._is_too_long(self.message):
                self._abort("length")

    def get_msg(self, block: bool = False) -> tuple[None, None] | tuple[int, DimseServiceType]:
        """Return the next message for pynetdicom; a C-STORE request is handled here, whatever class it names.

        pynetdicom aborts on each private or retired class, and takes a C-STORE that names Verification for an echo.
        """
        waiting = super().get_msg(block)
        context_id, message = waiting
        if not (isinstance(message, C_STORE) and message.is_valid_request):
            return waiting
        context = self._context(context_id)
        if context is None:
            return waiting
        try:
            StorageServiceClass(self.assoc).SCP(message, context)
        except Exception:  # a boundary: a peer that cannot accept an answer, such as one that asks for PDUs of 1 byte
            self._abort("protocol")
        return None, None

    def send_msg(self, primitive: DimsePrimitiveType, context_id: int) -> None:
        """Send an answer."""
        super().send_msg(primitive, context_id)
        self._answers += 1

    def discard(self) -> None:
        """Remove the files of requests that were not handled; only after the association has ended."""
        for dataset in self._datasets_on_disk:
            dataset.discard()

    def _check_order(self, context_id: int, fragment: bytes) -> None:
        """Raise ValueError for a fragment that does not continue the current message (PS3.7 6.3.1, PS3.8 E.2).

        All fragments come in one context, the command first. Otherwise an object would get another object's name or
        syntax.
        """
        if self.message is None:
            self._context_id = context_id
        is_of_command, is_expected = bool(fragment[0] & 1), type(self.message) in (type(None), DIMSEMessage)
        if is_of_command != is_expected or context_id != self._context_id:
            raise ValueError("the fragments do not form a message")

    def _context(self, context_id: int | None) -> PresentationContext | None:
        """Find an accepted context by its id."""
        return next((context for context in self.assoc.accepted_contexts if context.context_id == context_id), None)

    def _land(self) -> None:
        """Direct the dataset of a C-STORE request to disk as soon as its command is complete."""
        message = self.message
        if isinstance(message, C_STORE_RQ) and not isinstance(message.data_set, DatasetOnDisk):
            message.data_set = DatasetOnDisk(lambda: self._receive_object(self._beginning(message)))
            self._datasets_on_disk = [*self._datasets_on_disk[-_MOST_UNANSWERED - 1 :], message.data_set]

    def _beginning(self, message: C_STORE_RQ) -> bytes:
        """Return preamble and file meta information, which also name sender and receiver (PS3.10 7.1)."""
        command, association = message.command_set, self.assoc
        sop_class, sop_instance = UID(str(command.AffectedSOPClassUID)), UID(str(command.AffectedSOPInstanceUID))
        if not (is_uid(sop_class) and is_uid(sop_instance)):
            raise Refused("the request's SOP Class or Instance UID is not a valid UID; correct it at the sender")
        context = self._context(message.context_id)
        if context is None:
            raise ValueError("the context was not accepted")
        if not contexts.is_storage(UID(str(context.abstract_syntax))):
            raise Refused("the request's presentation context is not for storage; correct it at the sender")
        if sop_class != context.abstract_syntax:
            raise Refused("the request's SOP class is not that of its presentation context; correct it at the sender")
        meta = create_file_meta(
            sop_class_uid=sop_class, sop_instance_uid=sop_instance, transfer_syntax=context.transfer_syntax[0]
        )
        meta.SourceApplicationEntityTitle = association.requestor.ae_title.strip()
        meta.ReceivingApplicationEntityTitle = association.acceptor.ae_title.strip()
        return b"\0" * 128 + b"DICM" + encode_file_meta(meta)

    def _is_too_long(self, message: DIMSEMessage) -> bool:
        if message.encoded_command_set.tell() > _LONGEST_COMMAND:
            return True
        if isinstance(message.data_set, DatasetOnDisk):
            return message.data_set.size > self._longest_object
        return message.data_set is not None and message.data_set.tell() > _LONGEST_OTHER_DATASET

    def _abort(self, reason: str) -> None:
        self._on_aborted(reason)
        self.message = None
        self.dul.event_queue.put(_INVALID_PDU)
