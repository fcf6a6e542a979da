"""Fills in what the ledger does not know of stored studies, because it was lost and built again.

That is whom studies name, which of their films wait for review, and what statistics count. A film that comes and a
round that ends record their own. So this has something to do after a loss only, and then for all studies: some
milliseconds each, in a thread of its own, while the node works. Where nobody may see patients by the settings, those
that stand in the ledger are deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo

from node import log
from node.errors import where
from node.jobs.patients import note_patients
from node.outputs import counted
from node.prompt_set import PromptSet
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.store.statistics import Rows
from node.store.study_facts import load
from node.store.worklist import ReviewRow
from node.threads import Periodic
from node.web.studies import received_films

_PAUSE_SECONDS = 3600.0


class LedgerFiller(Periodic):
    """Looks at once, and then every hour until closed.

    prompts: returns those in use; zone: of the site
    with_patients: whether somebody may see patients (`HttpSettings.shows_patients`)
    """

    def __init__(
        self, spool: Spool, ledger: Ledger, *, prompts: Callable[[], PromptSet], zone: ZoneInfo, with_patients: bool
    ) -> None:
        self._spool, self._ledger, self._prompts = spool, ledger, prompts
        self._zone, self._with_patients = zone, with_patients
        super().__init__(self._try, name="ledger-filler", pause_seconds=_PAUSE_SECONDS, at_once=True)

    def _try(self) -> None:
        try:
            self._fill()
        except Exception as error:  # a boundary: errors of disk and database may have passed in an hour
            log.get().error("study.fill_failed", reason=where(error))

    def _fill(self) -> None:
        searchable, recorded = self._ledger.searchable, self._ledger.statistics.recorded()
        if not self._with_patients and searchable.forget_patients():
            self._ledger.wipe()
        unnamed = set(searchable.unnamed()) if self._with_patients else set()
        for study_uid in sorted(unnamed.union(self._spool.studies())):
            if self._closing.is_set():
                return
            if study_uid in unnamed:
                note_patients(self._spool, self._ledger, study_uid)
            if study_uid not in recorded and not self._spool.has_unread(study_uid):  # else its round records it
                self._ledger.statistics.fill(study_uid, *self._rows(study_uid))

    def _rows(self, study_uid: str) -> tuple[Rows, list[ReviewRow]]:
        """Return the rows of a study; none if an answer has an unknown form, or the study is being removed."""
        try:
            seen, facts = received_films(study_uid, self._spool, self._prompts()), load(self._spool, study_uid)
            films = [item.film for item in seen if item.film is not None and item.rejected is None]
            return counted.rows_of(facts, films, zone=self._zone), list(counted.review_rows(facts, films))
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return Rows(films=(), findings=()), []
