"""Finds the films that wait for review where the ledger does not know them: it is older, or was lost and built again.

A round records its own. So this has something to do after an upgrade or a loss only, and then for all studies: some
milliseconds each, in a thread of its own, while the node works.
"""

from __future__ import annotations

from collections.abc import Callable

from node import log
from node.errors import where
from node.outputs import review
from node.periodic import Periodic
from node.prompt_set import PromptSet
from node.store.ledger import Ledger
from node.store.reviews import ReviewRow
from node.store.spool import Spool
from node.store.study_facts import load
from node.web.studies import received_films

_PAUSE_SECONDS = 3600.0


class ReviewFinder(Periodic):
    """Looks at once, and then every hour until closed; prompts: returns those in use."""

    def __init__(self, spool: Spool, ledger: Ledger, *, prompts: Callable[[], PromptSet]) -> None:
        self._spool, self._ledger, self._prompts = spool, ledger, prompts
        super().__init__(self._try, name="reviews", pause_seconds=_PAUSE_SECONDS, at_once=True)

    def _try(self) -> None:
        try:
            recorded = self._ledger.reviews.recorded()
            for study_uid in self._spool.studies():
                if self._closing.is_set():
                    return
                if study_uid not in recorded and not self._spool.has_unread(study_uid):
                    self._ledger.reviews.fill(study_uid, self._rows(study_uid))
        except Exception as error:  # a boundary: errors of disk and database may have passed in an hour
            log.get().error("reviews.failed", reason=where(error))

    def _rows(self, study_uid: str) -> list[ReviewRow]:
        """Return the rows of a study; none if an answer has an unknown form, or the study is being removed."""
        try:
            seen = received_films(study_uid, self._spool, self._prompts())
            films = [item.film for item in seen if item.film is not None and item.rejected is None]
            return list(review.rows_of(load(self._spool, study_uid), films))
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return []
