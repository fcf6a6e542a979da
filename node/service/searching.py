"""Fills in what studies are found by, where the ledger does not know it: it is older, or was lost and built again.

A film that comes and a round that ends record their own. Where nobody may see patients by the settings, those that
stand in the ledger are deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from node import log
from node.errors import where
from node.jobs.known_patients import note_patients
from node.outputs import wording
from node.periodic import Periodic
from node.prompt_set import PromptSet
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.web.studies import received_films

_PAUSE_SECONDS = 3600.0


class SearchFiller(Periodic):
    """Looks at once, and then every hour until closed; prompts: returns those in use.

    with_patients: whether somebody may see patients (`HttpSettings.shows_patients`)
    """

    def __init__(self, spool: Spool, ledger: Ledger, *, prompts: Callable[[], PromptSet], with_patients: bool) -> None:
        self._spool, self._ledger, self._prompts, self._with_patients = spool, ledger, prompts, with_patients
        super().__init__(self._try, name="searching", pause_seconds=_PAUSE_SECONDS, at_once=True)

    def _try(self) -> None:
        try:
            self._fill()
        except Exception as error:  # a boundary: errors of disk and database may have passed in an hour
            log.get().error("searching.failed", reason=where(error))

    def _fill(self) -> None:
        searchable = self._ledger.searchable
        searchable.forget_strays()
        if not self._with_patients and searchable.forget_patients():
            self._ledger.wipe()
        for study_uid in searchable.missing(with_patients=self._with_patients):
            if self._closing.is_set():
                return
            if self._with_patients:
                note_patients(self._spool, self._ledger, study_uid)
            if not self._spool.has_unread(study_uid):  # else its round records them
                searchable.set_findings(study_uid, self._reported(study_uid))

    def _reported(self, study_uid: str) -> set[str]:
        """Return the findings that are reported on a study; none if an answer has an unknown form."""
        try:
            films = [item.film for item in received_films(study_uid, self._spool, self._prompts()) if item.film]
            return {finding.prompt for film in films for finding in wording.reported(film)}
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return set()
