"""Follows updates of patients: finds the studies that they concern, and stores in each what changes, synced."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from node import log
from node.hl7.patient import PatientUpdate
from node.jobs.patient_numbers import PatientNumbers
from node.metrics import Metrics
from node.outputs import patient_update
from node.outputs.patient_update import StoredUpdate, header_of
from node.store.spool import Spool


class PatientUpdates:
    """Stores updates in the studies that the node still keeps.

    submit: has the next round of a study begin; never blocks
    """

    def __init__(self, spool: Spool, metrics: Metrics, *, submit: Callable[[str], None]) -> None:
        self._spool, self._metrics, self._submit = spool, metrics, submit
        self._lock = threading.Lock()
        self._numbers = PatientNumbers(spool)

    def prepare(self) -> None:
        """Have a thread read the numbers of all films that no index has yet, while the node starts."""
        threading.Thread(target=self._numbers.prepare, name="patient numbers", daemon=True).start()

    def follow(self, update: PatientUpdate, content: bytes) -> None:
        """Store what an update changes, synced, in every study that it concerns; a repeated call changes nothing.

        content: the message
        Raises OSError. Then some studies may follow the update already; the sender sends it again.
        """
        message = hashlib.sha256(content).hexdigest()[:32]
        with self._lock:
            concerned = self._numbers.studies_of(prior.number for prior in update.prior)
            changed = [study for study in concerned if self._follow(study, update, message)]
        self._metrics.patient_updates.labels("followed" if changed else "nothing").inc()
        for study in changed:
            log.get().info("patient.updated", study=study, kind=update.event)
            self._submit(study)

    def _follow(self, study: str, update: PatientUpdate, message: str) -> bool:
        """Store an update in one study; false if it changes nothing there. Raises OSError."""
        stored = patient_update.from_json(self._spool.documents(study, "patients"))
        files_of: dict[tuple[tuple[str, str], ...], set[str]] = {}  # by what changes in their headers
        for instance in self._spool.study(study).instances:
            if (header := header_of(instance.path, character_set=self._spool.character_set)) is not None:
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
