"""Finds the films that wait for review, and counts all, where the ledger does not know them: it is older, or was lost.

A round records its own. So this has something to do after an upgrade or a loss only, and then for all studies: some
milliseconds each, in a thread of its own, while the node works.
"""

from __future__ import annotations

from collections.abc import Callable
from zoneinfo import ZoneInfo

from node import log
from node.errors import where
from node.outputs import counted, review
from node.periodic import Periodic
from node.prompt_set import PromptSet
from node.store.ledger import Ledger
from node.store.reviews import ReviewRow
from node.store.spool import Spool
from node.store.statistics import Rows
from node.store.study_facts import load
from node.web.studies import received_films

_PAUSE_SECONDS = 3600.0


class ReviewFinder(Periodic):
    """Looks at once, and then every hour until closed; prompts: returns those in use; zone: of the site."""

    def __init__(self, spool: Spool, ledger: Ledger, *, prompts: Callable[[], PromptSet], zone: ZoneInfo) -> None:
        self._spool, self._ledger, self._prompts, self._zone = spool, ledger, prompts, zone
        super().__init__(self._try, name="reviews", pause_seconds=_PAUSE_SECONDS, at_once=True)

    def _try(self) -> None:
        try:
            recorded = self._ledger.reviews.recorded() & self._ledger.statistics.recorded()
            for study_uid in self._spool.studies():
                if self._closing.is_set():
                    return
                if study_uid not in recorded and not self._spool.has_unread(study_uid):
                    reviews, counts = self._rows(study_uid)
                    self._ledger.reviews.fill(study_uid, reviews)
                    self._ledger.statistics.fill(study_uid, counts)
        except Exception as error:  # a boundary: errors of disk and database may have passed in an hour
            log.get().error("reviews.failed", reason=where(error))

    def _rows(self, study_uid: str) -> tuple[list[ReviewRow], Rows]:
        """Return the rows of a study; none if an answer has an unknown form, or the study is being removed."""
        try:
            seen, facts = received_films(study_uid, self._spool, self._prompts()), load(self._spool, study_uid)
            films = [item.film for item in seen if item.film is not None and item.rejected is None]
            return list(review.rows_of(facts, films)), counted.rows_of(facts, films, zone=self._zone)
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return [], Rows(films=(), findings=())
