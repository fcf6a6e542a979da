"""Receives one DICOM file (PS3.10) in pieces, as a request over HTTP brings it, and stores its object.

The dataset is stored byte for byte as received, after preamble and file meta information of the node's own, as that of
a C-STORE is. So the same object is the same whichever way it came.
"""

from __future__ import annotations

from collections.abc import Callable

from pydicom.uid import UID

from node.dicom.file_head import FileMeta, read_head
from node.errors import NodeError, Refused, SyntaxRefused
from node.receive import contexts
from node.receive.intake import Intake
from node.store.incoming import Incoming
from node.store.received import Kept


class TooLong(NodeError):
    """An object exceeds `listener.max_object_mib`."""


class IncomingFile:
    """A file that is being received; for one thread at a time.

    meta: what the object is, once that is here and good
    """

    def __init__(self, intake: Intake) -> None:
        self.meta: FileMeta | None = None
        self._intake, self._head = intake, bytearray()
        self._incoming: Incoming | None = None
        self._size = 0
        self._failure: Refused | None = None

    def write(self, part: bytes) -> None:
        """Add bytes. If the object cannot be stored, they are dropped, as more of the request may follow.

        Raises TooLong.
        """
        if self._failure is not None:
            return
        try:
            self._add(part, is_last=False)
        except Refused as error:
            self._failure = error
        if self._size > self._intake.longest_bytes:
            raise TooLong("an object exceeds listener.max_object_mib; raise it, or send the object by C-STORE")

    def keep(self, *, is_stat: bool, tell: Callable[[str], None]) -> Kept:
        """Store the complete object, synced. Raises Refused when it cannot be stored, or is not complete.

        tell: gets the reason of a refusal for the log, as one request may bring many
        """
        with self._intake.attempt(tell):
            if self._failure is None:
                self._add(b"", is_last=True)
            if self._failure is not None:
                raise self._failure
            if self._incoming is None or self.meta is None:
                raise Refused("the file ends before its dataset; send it again")
            return self._intake.keep(
                self._incoming,
                sop_instance_uid=self.meta.sop_instance_uid,
                transfer_syntax_uid=self.meta.transfer_syntax_uid,
                size=self._size,
                is_stat=is_stat,
                sender={},
            )

    def discard(self) -> None:
        """Remove the file, unless the spool has taken it."""
        if self._incoming is not None:
            self._incoming.discard()

    def _add(self, part: bytes, *, is_last: bool) -> None:
        """Add bytes to the file, or to those that say what it is. Raises Refused."""
        if self._incoming is None:
            part = self._begin(part, is_last=is_last)
        if self._incoming is not None and part:
            self._size += len(part)
            self._incoming.write(part)

    def _begin(self, part: bytes, *, is_last: bool) -> bytes:
        """Collect bytes until they say what the object is; then begin the file, and return its dataset so far."""
        self._head += part
        found = read_head(bytes(self._head), is_whole=is_last)
        if found is None:
            return b""
        start, self.meta = found
        dataset = bytes(self._head[start:])
        self._head.clear()
        if not contexts.is_storage(UID(self.meta.sop_class_uid)):
            raise Refused("the object is not of a storage class; correct it at the sender")
        if self.meta.transfer_syntax_uid not in contexts.TRANSFER_SYNTAXES:
            raise SyntaxRefused("the node does not accept this transfer syntax; send another, such as explicit VR")
        self._incoming = self._intake.begin(
            sop_class_uid=self.meta.sop_class_uid,
            sop_instance_uid=self.meta.sop_instance_uid,
            transfer_syntax_uid=self.meta.transfer_syntax_uid,
            sender="",
        )
        return dataset
