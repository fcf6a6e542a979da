"""Follows updates of patients: finds the studies that they concern, and stores in each what changes, synced.

No index of patients is on disk: the numbers in the films are read once for each study and process, and again only when
files came to the study.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from pydicom.dataset import Dataset

from node import log
from node.errors import Undecodable, is_of_file
from node.hl7.patient import PatientUpdate
from node.metrics import Metrics
from node.outputs import patient_update
from node.outputs.patient import read_text
from node.outputs.patient_update import StoredUpdate
from node.read import decoding
from node.store import received
from node.store.spool import Spool


class PatientUpdates:
    """Stores updates in the studies that the node still keeps.

    submit: has the next round of a study begin; never blocks
    """

    def __init__(self, spool: Spool, metrics: Metrics, *, submit: Callable[[str], None]) -> None:
        self._spool, self._metrics, self._submit = spool, metrics, submit
        self._lock = threading.Lock()
        self._numbers: dict[str, tuple[int, frozenset[str]]] = {}  # by study: time of its folder, numbers in its films

    def follow(self, update: PatientUpdate, content: bytes) -> None:
        """Store what an update changes, synced, in every study that it concerns; a repeated call changes nothing.

        content: the message
        Raises OSError. Then some studies may follow the update already; the sender sends it again.
        """
        message = hashlib.sha256(content).hexdigest()[:32]
        with self._lock:
            changed = [study for study in list(self._spool.studies()) if self._follow(study, update, message)]
        self._metrics.patient_updates.labels("followed" if changed else "nothing").inc()
        for study in changed:
            log.get().info("patient.updated", study=study, kind=update.event)
            self._submit(study)

    def _follow(self, study: str, update: PatientUpdate, message: str) -> bool:
        """Store an update in one study; false if it changes nothing there. Raises OSError."""
        stored = patient_update.from_json(self._spool.documents(study, "patients"))
        wanted = {prior.number for prior in update.prior}
        known = {known.changes.get("PatientID", "") for known in stored}
        if wanted.isdisjoint(known | self._numbers_of(study)):
            return False
        files_of: dict[tuple[tuple[str, str], ...], set[str]] = {}  # by what changes in their headers
        for instance in self._spool.study(study).instances:
            if (header := _header(instance.path)) is not None:
                current = patient_update.corrected(header, instance.path.name, stored)
                if changes := patient_update.changes_of(update, current):
                    files_of.setdefault(tuple(sorted(changes.items())), set()).add(instance.path.name)
        is_new = False
        for values, files in files_of.items():
            name = hashlib.sha256(repr((message, update, values)).encode()).hexdigest()[:16]
            if not any(item.id.endswith(name) for item in stored):
                number, now = len(stored) + 1, datetime.now(UTC)
                self._keep(study, StoredUpdate(
                    id=f"{number:06d}-{name}", event=update.event, at=now, files=frozenset(files), changes=dict(values)
                ))  # fmt: skip
                is_new = True
        return is_new

    def _keep(self, study: str, update: StoredUpdate) -> None:
        """Store an update, unless the study is being removed. Raises OSError."""
        try:
            self._spool.keep_document(study, "patients", update.id, patient_update.to_json(update))
        except FileNotFoundError:
            return

    def _numbers_of(self, study: str) -> frozenset[str]:
        """Return the numbers of patients in the films of a study, as received."""
        folder = self._spool.received_path(study, "")
        try:
            at = folder.stat().st_mtime_ns
        except FileNotFoundError:
            self._numbers.pop(study, None)
            return frozenset()
        if study not in self._numbers or self._numbers[study][0] != at:
            headers = map(_header, received.newest(folder))
            self._numbers[study] = at, frozenset(read_text(header, "PatientID") for header in headers if header)
        return self._numbers[study][1]


def _header(path: Path) -> Dataset | None:
    """Read the header of a received object; None if it is damaged, removed, or this program's own."""
    try:
        return decoding.read_header(path)
    except Undecodable:
        return None
    except OSError as error:
        if is_of_file(error):
            return None
        raise
