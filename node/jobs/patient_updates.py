"""Follows updates of patients: finds the studies that they concern, and stores in each what changes, synced."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Literal

from node import log
from node.domain import is_nobodys
from node.hl7.patient import PatientUpdate
from node.jobs import held_updates
from node.jobs.patient_numbers import PatientNumbers
from node.metrics import Metrics
from node.outputs import patient_update
from node.outputs.patient_update import header_of
from node.store import stored_updates
from node.store.spool import Spool
from node.store.stored_updates import StoredUpdate

_Kind = Literal["patients", "held"]
_Changes = tuple[_Kind, tuple[tuple[str, str], ...]]


class PatientUpdates:
    """Stores updates in the studies that the node still keeps.

    submit: has the next round of a study begin, or the study parked for an update that waits; never blocks
    nobodys: numbers that stand for no patient, as in `SiteSettings`: an update of one concerns no study
    """

    def __init__(
        self,
        spool: Spool,
        metrics: Metrics,
        *,
        submit: Callable[[str], None],
        nobodys: Collection[str] = frozenset(),
    ) -> None:
        self._spool, self._metrics, self._submit, self._nobodys = spool, metrics, submit, nobodys
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
            numbers = (prior.number for prior in update.prior)
            concerned = self._numbers.studies_of(one for one in numbers if not is_nobodys(one, self._nobodys))
            outcomes = {study: self._follow(study, update, message) for study in concerned}
        changed = [study for study, kinds in outcomes.items() if "patients" in kinds]
        held = [study for study, kinds in outcomes.items() if "held" in kinds]
        self._metrics.patient_updates.labels("followed" if changed else "held" if held else "nothing").inc()
        for study in changed:
            log.get().info("patient.updated", study=study, kind=update.event)
        for study in held:
            log.get().warning("patient.held", study=study, kind=update.event)
        for study in dict.fromkeys((*changed, *held)):
            self._submit(study)

    def _follow(self, study: str, update: PatientUpdate, message: str) -> set[_Kind]:
        """Store what an update changes in one study; returns where, if it was not stored before. Raises OSError.

        What changes the films of a name with which that of the update shares no letter waits for a person.
        """
        stored = stored_updates.of_study(self._spool, study)
        files_of: dict[_Changes, set[str]] = {}  # by what changes in their headers
        for instance in self._spool.study(study).instances:
            header = header_of(instance.path, character_set=self._spool.character_set)
            if header is not None:
                current = patient_update.corrected(header, instance.path.name, stored)
                if changes := patient_update.changes_of(update, current):
                    is_held = "PatientName" in changes and patient_update.names_another(update, current)
                    kind: _Kind = "held" if is_held else "patients"
                    key = (kind, tuple(sorted(changes.items())))
                    files_of.setdefault(key, set()).add(instance.path.name)
        new = set[_Kind]()
        for (place, values), files in files_of.items():
            # One that waits is kept once until the study has changed, however often a system sends it.
            told_by = message if place == "patients" else len(stored)
            name = hashlib.sha256(repr((told_by, update, values)).encode()).hexdigest()[:16]
            item = StoredUpdate(
                id=name, event=update.event, at=datetime.now(UTC), files=frozenset(files), changes=dict(values)
            )
            if held_updates.keep(self._spool, study, place, item):
                new.add(place)
        return new
