"""Removes data older than `keep_days`: delivered studies, orders, and the executor's records of ended workflows.
Files of processes that no longer exist are removed after a day.

Waiting or parked work is never removed. If several processes share a folder, only one of them cleans at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from node import log
from node.errors import OtherForm
from node.health import notices
from node.jobs import processes
from node.orders.store import OrderStore
from node.store import files, questions
from node.store.ledger import Ledger
from node.store.spool import Spool
from node.threads import Periodic

_PAUSE_SECONDS = 3600.0
_GONE_AFTER = timedelta(days=1)


class Retention(Periodic):
    """Cleans at once, and then every hour until closed.

    forget_older: removes the records of workflows that ended before a time, and returns their number
    """

    def __init__(
        self,
        spool: Spool,
        ledger: Ledger,
        orders: OrderStore,
        forget_older: Callable[[datetime], int],
        *,
        keep_days: float,
    ) -> None:
        self._spool, self._ledger, self._orders, self._forget_older = spool, ledger, orders, forget_older
        self._keep = timedelta(days=keep_days)
        super().__init__(self._clean, name="retention", pause_seconds=_PAUSE_SECONDS, at_once=True)

    def _clean(self) -> None:
        with files.try_lock(self._spool.directory / "retention.lock") as is_alone:
            if is_alone:
                self._remove_older(datetime.now(UTC))

    def _remove_older(self, now: datetime) -> None:
        for study_uid in removable(self._spool, self._ledger, now=now, keep=self._keep):
            if self._spool.remove_study(study_uid):
                self._forget(study_uid)
        for study_uid in removed(self._spool, self._ledger, limit=now - self._keep):
            self._forget(study_uid)
        self._ledger.wipe()
        self._orders.remove_older(now - self._keep)
        processes.remove_gone(self._spool.directory, before=now - _GONE_AFTER)
        notices.remove_gone(self._spool)
        forgotten = self._forget_older(now - self._keep)
        if forgotten:
            log.get().info("executor.cleaned", workflows=forgotten)

    def _forget(self, study_uid: str) -> None:
        self._ledger.forget(study_uid)
        log.get().info("study.removed", study=study_uid)


def removable(spool: Spool, ledger: Ledger, *, now: datetime, keep: timedelta) -> list[str]:
    """Return the studies that are old, finished and delivered, with the answers that were sent."""
    return [
        study_uid
        for study_uid in spool.studies()
        if _is_old(spool, study_uid, now - keep)
        and ledger.study_state(study_uid) == "finished"
        and ledger.is_delivered(study_uid)
        and not spool.has_unread(study_uid)
        and _is_answered(spool, study_uid)
    ]


def removed(spool: Spool, ledger: Ledger, *, limit: datetime) -> list[str]:
    """Return studies that were finished before a time and are gone from disk but not from the ledger.

    Such a study remains when its removal was interrupted.
    """
    return [
        study_uid
        for study_uid in ledger.finished_studies(before=limit)
        if not spool.instances(study_uid) and ledger.is_delivered(study_uid)
    ]


def _is_answered(spool: Spool, study_uid: str) -> bool:
    """Return whether no answer of a study is still to be sent; one that cannot be read may be."""
    try:
        return not any(answer.is_open for answer in questions.answers_of(spool, study_uid))
    except OtherForm as error:
        log.get().error("retention.failed", study=study_uid, reason=str(error))
        return False


def _is_old(spool: Spool, study_uid: str, limit: datetime) -> bool:
    instances = spool.instances(study_uid)
    return bool(instances) and instances[-1].received_at < limit
