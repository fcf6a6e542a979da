"""Removes what is older than `keep_days`: delivered studies, orders, and what the engine keeps of work that is over.
What processes left behind that are gone goes after a day.

Waiting or parked work never ages out. Of several processes on one folder, one cleans at a time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Protocol

from node import durable, log, processes
from node.errors import where
from node.ledger import Ledger
from node.order_store import OrderStore
from node.periodic import Periodic
from node.spool import Spool

_PAUSE_SECONDS = 3600.0
_GONE_AFTER = timedelta(days=1)


class History(Protocol):
    """What the durable engine keeps of work that is over."""

    def forget_older(self, limit: datetime) -> int:
        """Remove what was over before a time; how much it was."""
        ...


class Janitor(Periodic):
    """Looks at once, and then every hour until closed."""

    def __init__(self, spool: Spool, ledger: Ledger, orders: OrderStore, history: History, *, keep_days: float) -> None:
        self._spool, self._ledger, self._orders, self._history = spool, ledger, orders, history
        self._keep = timedelta(days=keep_days)
        super().__init__(self._try, name="janitor", pause_seconds=_PAUSE_SECONDS, at_once=True)

    def _try(self) -> None:
        try:
            self._clean()
        except Exception as error:  # a boundary: the disk and the database may ail, and be well in an hour
            log.get().error("janitor.failed", reason=where(error))

    def _clean(self) -> None:
        with durable.try_lock(self._spool.directory / "janitor.lock") as is_alone:
            if is_alone:
                self._remove_older(datetime.now(UTC))

    def _remove_older(self, now: datetime) -> None:
        for study_uid in removable(self._spool, self._ledger, now=now, keep=self._keep):
            if self._spool.remove_study(study_uid):
                self._forget(study_uid)
        for study_uid in removed(self._spool, self._ledger, limit=now - self._keep):
            self._forget(study_uid)
        self._orders.remove_older(now - self._keep)
        processes.remove_gone(self._spool.directory, before=now - _GONE_AFTER)
        forgotten = self._history.forget_older(now - self._keep)
        if forgotten:
            log.get().info("engine.cleaned", workflows=forgotten)

    def _forget(self, study_uid: str) -> None:
        self._ledger.forget(study_uid)
        log.get().info("study.removed", study=study_uid)


def removable(spool: Spool, ledger: Ledger, *, now: datetime, keep: timedelta) -> list[str]:
    """Studies that are old, finished and delivered."""
    return [
        study_uid
        for study_uid in spool.studies()
        if _is_old(spool, study_uid, now - keep)
        and ledger.study_state(study_uid) == "finished"
        and ledger.is_delivered(study_uid)
        and not spool.has_unread(study_uid)
    ]


def removed(spool: Spool, ledger: Ledger, *, limit: datetime) -> list[str]:
    """Studies that were finished before a time and left the disk, but not the ledger: a removal was cut short."""
    return [
        study_uid
        for study_uid in ledger.finished_studies(before=limit)
        if not spool.study(study_uid).instances and ledger.is_delivered(study_uid)
    ]


def _is_old(spool: Spool, study_uid: str, limit: datetime) -> bool:
    study = spool.study(study_uid)
    return bool(study.instances) and study.last_arrival < limit
