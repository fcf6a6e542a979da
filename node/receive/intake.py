"""Stores objects, whichever way they came: by C-STORE, or in a request over HTTP. The same checks hold for both.

An object is acknowledged only after `Intake.keep` has returned: it is synced on disk then.

A request over HTTP brings a DICOM file (PS3.10) in pieces. Its dataset is stored byte for byte as received, after
preamble and file meta information of the node's own, as that of a C-STORE is. So the same object is the same whichever
way it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pydicom.uid import UID
from pynetdicom.dsutils import create_file_meta, encode_file_meta

from node import log
from node.config import ListenerSettings
from node.dicom.file_head import SUFFICIENT, FileMeta, read_head
from node.dicom.header import identify
from node.errors import Failed, NodeError, Refused, SyntaxRefused, is_not_writable, where
from node.metrics import Metrics
from node.receive import presentation_contexts
from node.store.incoming import Incoming, full
from node.store.received import Kept
from node.store.spool import Spool
from node.store.study_facts import elsewhere

_MIB: Final = 1024 * 1024
_PREAMBLE: Final = b"\0" * 128 + b"DICM"


def tell_refused(reason: str, *, times: int = 1) -> None:
    """Log that objects were not stored; times: how many of one request."""
    log.get().warning("instance.refused", reason=reason, **({"times": times} if times > 1 else {}))


class Intake:
    """Stores objects and hands their studies on; may be called from several threads.

    on_kept: gets the study UID of every object that is to be read; must not block
    """

    def __init__(
        self, settings: ListenerSettings, spool: Spool, *, metrics: Metrics, on_kept: Callable[[str], None]
    ) -> None:
        self._ae_title, self.longest_bytes = settings.ae_title, settings.max_object_mib * _MIB
        self._spool, self._metrics, self._on_kept = spool, metrics, on_kept

    def begin(self, *, sop_class_uid: str, sop_instance_uid: str, transfer_syntax_uid: str, sender: str) -> Incoming:
        """Begin the file of an object with preamble and file meta information of the node's own (PS3.10 7.1).

        sender: its AE title; blank if it has none
        Raises SpoolFull when the disk cannot store it.
        """
        meta = create_file_meta(
            sop_class_uid=UID(sop_class_uid),
            sop_instance_uid=UID(sop_instance_uid),
            transfer_syntax=UID(transfer_syntax_uid),
        )
        if sender:
            meta.SourceApplicationEntityTitle = sender
        meta.ReceivingApplicationEntityTitle = self._ae_title
        return self._spool.receive(_PREAMBLE + encode_file_meta(meta))

    def keep(
        self,
        incoming: Incoming,
        *,
        sop_instance_uid: str,
        transfer_syntax_uid: str,
        size: int,
        is_stat: bool,
        sender: Mapping[str, str],
    ) -> Kept:
        """Store a complete object, synced, and hand its study on.

        sop_instance_uid: as announced before the object; size: dataset size in bytes
        is_stat: whether its study is to be read first
        sender: its `calling_aet` and `host` for the log; empty for a request over HTTP, which its user is logged for
        Raises Refused when the object cannot be stored.
        """
        with incoming.open_dataset() as file:
            study_uid, found = identify(file, UID(transfer_syntax_uid))
        if found != sop_instance_uid:
            raise Refused("the object's SOP Instance UID is not the one announced; correct it at the sender")
        kept = self._spool.settle(incoming, study_uid=study_uid, sop_instance_uid=sop_instance_uid)
        if not kept.is_conflict:
            if is_stat:
                self._spool.mark_stat(study_uid)
            self._on_kept(study_uid)  # before anything that may fail, and for a repeated object too
        self._report(kept, size, sender)
        return kept

    @contextmanager
    def attempt(self, tell: Callable[[str], None] = tell_refused) -> Iterator[None]:
        """Time the storage of one object, count a failure, and log its reason. Raises Refused for every failure."""
        try:
            with self._metrics.timed("receive"):
                yield
        except Refused as error:
            self._count(error, tell)
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a boundary: a failure with one object must not stop the others
            if isinstance(error, OSError) and is_not_writable(error):
                refused = full(error)
                self._count(refused, tell)
                raise refused from error
            failed = Failed("the object could not be processed; send it again")
            self._count(failed, tell, reason=where(error))
            raise failed from error

    def _count(self, error: Refused, tell: Callable[[str], None], *, reason: str = "") -> None:
        self._metrics.instances.labels("refused").inc()
        self._metrics.failures.labels("receive", error.reason).inc()
        tell(reason or error.reason)

    def _report(self, kept: Kept, size: int, sender: Mapping[str, str]) -> None:
        others = elsewhere(self._spool, kept.instance) if kept.outcome == "kept" else []
        self._metrics.instances.labels("doubled" if others else kept.outcome).inc()
        self._metrics.received_bytes.inc(size)
        say = log.get().warning if kept.outcome == "conflict" else log.get().info
        study_uid, sop_instance_uid = kept.instance.study_uid, kept.instance.sop_instance_uid
        say(f"instance.{kept.outcome}", study=study_uid, sop_instance_uid=sop_instance_uid, bytes=size, **sender)
        for other in others:
            log.get().warning(
                "instance.doubled",
                study=study_uid,
                sop_instance_uid=sop_instance_uid,
                other_study=other.study_uid,
            )


class TooLong(NodeError):
    """An object exceeds `listener.max_object_mib`."""


class IncomingFile:
    """A file that is being received; for one thread at a time.

    meta: the object's identity, once received and valid
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

        tell: gets the reason of a refusal for the log; one request may have many
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
        """Add bytes to the file, or to those of its header. Raises Refused."""
        if self._incoming is None:
            part = self._begin(part, is_last=is_last)
        if self._incoming is not None and part:
            self._size += len(part)
            self._incoming.write(part)

    def _begin(self, part: bytes, *, is_last: bool) -> bytes:
        """Collect bytes until they identify the object; then begin the file, and return its dataset so far."""
        self._head += part
        if len(self._head) < SUFFICIENT and not is_last:
            return b""
        start, self.meta = read_head(bytes(self._head))
        dataset = bytes(self._head[start:])
        self._head.clear()
        if not presentation_contexts.is_storage(UID(self.meta.sop_class_uid)):
            raise Refused("the object is not of a storage class; correct it at the sender")
        if self.meta.transfer_syntax_uid not in presentation_contexts.TRANSFER_SYNTAXES:
            raise SyntaxRefused("the node does not accept this transfer syntax; send another, such as explicit VR")
        self._incoming = self._intake.begin(
            sop_class_uid=self.meta.sop_class_uid,
            sop_instance_uid=self.meta.sop_instance_uid,
            transfer_syntax_uid=self.meta.transfer_syntax_uid,
            sender="",
        )
        return dataset
