"""Receives films and orders, and hands studies to the durable executor. No sender waits for a database.

Only the submitter's thread uses the database, when it hands on a study. So films are acknowledged while PostgreSQL is
down, and handed on when it is back. Nothing is lost if the process dies in between: at start, the spool lists every
study with files that no finished round covers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

from node import log
from node.deliver.commitment import Commitments
from node.errors import InputError, OtherForm, is_not_writable, reason_of
from node.jobs import gathering
from node.jobs.executor import Client
from node.jobs.object_questions import take
from node.jobs.patients import note_patients
from node.jobs.processes import path_of
from node.net.callers import RefusedCallers
from node.orders.listener import OrderListener
from node.receive.listener import Listener
from node.service.shared import Shared
from node.store import database
from node.store.ledger import Ledger
from node.store.worklist import has_patient

_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """The open ports and the parts behind them.

    damaged: set when a database turns out to be damaged; the process must end, and its next start repairs that
    """

    listener: Listener
    submitter: Submitter
    orders: OrderListener | None
    damaged: threading.Event

    @property
    def ports(self) -> dict[str, int | None]:
        """The real ports by their name in log lines; None for those that are not open."""
        orders_port = None if self.orders is None else self.orders.port
        return {"dicom_port": self.listener.port, "tls_port": self.listener.tls_port, "orders_port": orders_port}


def open_receiving(shared: Shared, *, parts: ExitStack) -> Receiving:
    """Open the ports until `parts` are closed. Raises InputError when an address cannot be opened."""
    settings, spool, metrics = shared.settings, shared.spool, shared.metrics
    ledger, client = (
        Ledger(database.open_ledger(settings.storage)),
        Client(database.open_executor_database(settings.storage)),
    )
    parts.callback(ledger.close)
    parts.callback(client.close)

    damaged = threading.Event()
    submitter = Submitter(
        _touch(shared, ledger, client, damaged), on_delayed=metrics.failures.labels("submit", "database").inc
    )
    parts.callback(submitter.close)
    refused = RefusedCallers(path_of(settings.storage, shared.process, "refused-callers"))
    parts.callback(refused.close)
    with opening("listener.port", settings.listener.host, settings.listener.port):
        listener = Listener(
            settings.listener,
            spool,
            metrics,
            commitments=Commitments(ledger, shared.destinations, metrics),
            on_kept=submitter.submit,
            on_refused=refused.note,
        )
    parts.callback(listener.close)
    for study_uid in spool.studies():  # acknowledged before, and not finished
        if spool.has_unread(study_uid):
            submitter.submit(study_uid, is_new=False)
    return Receiving(
        listener=listener,
        submitter=submitter,
        orders=_open_orders(shared, parts),
        damaged=damaged,
    )


def _touch(shared: Shared, ledger: Ledger, client: Client, damaged: threading.Event) -> Callable[[str, bool], bool]:
    """Return the function that hands a study to the executor; it sets `damaged` when a database is damaged."""
    spool = shared.spool

    @cache
    def planned_at_start() -> dict[str, frozenset[str] | None]:
        return client.planned_files()

    @cache
    def gathering_at_start() -> dict[str, str]:
        return client.gathering()

    def is_needed(study_uid: str, is_new: bool) -> bool:
        unread = spool.unread(study_uid)
        if is_new:
            return bool(unread) or ledger.study_state(study_uid) != "finished"  # or a film that was read came again
        if (parked_at := ledger.parked_at(study_uid)) is not None:  # parked: it waits for a person, or for a new film
            # A study that was parked in the future: the clock was set back since, so times give no order.
            return parked_at > time.time() or any(instance.received_at.timestamp() > parked_at for instance in unread)
        planned = planned_at_start().get(study_uid, frozenset())
        return planned is not None and not {instance.path.name for instance in unread} <= planned

    def touch(study_uid: str, is_new: bool) -> bool:
        take(spool, study_uid, settings=shared.settings.questions, run_object=client.run_object)
        if not is_new:
            gathering.wait_again(
                spool,
                study_uid,
                client.run_gather,
                quiet_seconds=shared.settings.corrections.quiet_seconds,
                queued=gathering_at_start(),
            )
        if not is_needed(study_uid, is_new):
            return False
        ledger.set_study(study_uid, "receiving")
        if shared.settings.http.shows_patients and not has_patient(ledger.tables, study_uid):
            note_patients(spool, ledger, study_uid)
        client.touch_study(study_uid, shared.settings.study)
        return True

    def touch_or_park(study_uid: str, is_new: bool) -> bool:
        try:
            return touch(study_uid, is_new)
        except OtherForm as error:  # of this study alone: the studies behind it do not wait
            reason, failure = reason_of(error)
            ledger.set_study(study_uid, "parked", stage="submit", reason=reason)
            shared.metrics.failures.labels("submit", failure).inc()
            log.get().error("study.parked", study=study_uid, stage="submit", reason=reason)
            return False
        except Exception as error:
            if database.is_damaged(error):
                damaged.set()
            raise

    return touch_or_park


class Submitter:
    """Collects studies, and hands them on from `start` until `close`, in a thread of its own, which may block.

    It hands on a study at once, but each study at most once a second, because more objects of an association that is
    still sending follow. It keeps the studies that the executor did not accept. While the database does not answer, it
    tries once a second, however many studies wait.

    touch_study: notifies the executor of a study's unread files, if needed, and returns whether it was; gets
    the study and whether a file arrived now, false for a study found at start; may block or raise
    on_delayed: called each time the executor did not accept a study
    """

    def __init__(
        self, touch_study: Callable[[str, bool], bool], *, on_delayed: Callable[[], object] = lambda: None
    ) -> None:
        self._touch_study, self._on_delayed = touch_study, on_delayed
        self._waiting: dict[str, bool] = {}  # by study: whether a file arrived now
        self._resting: dict[str, float] = {}  # by study that was just handed on: when it may be handed on again
        self._failed_until = 0.0  # nothing is handed on before, of `time.monotonic`
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that hands studies on."""
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, study_uid: str, *, is_new: bool = True) -> None:
        """Record that a study has unread files; never blocks."""
        with self._changed:
            self._waiting[study_uid] = is_new or self._waiting.get(study_uid, False)
            self._changed.notify()

    def close(self) -> None:
        """Hand on the waiting studies, once, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._due()
            self._hand_on(batch)

    def _due(self) -> tuple[dict[str, bool], bool]:
        """Wait until studies may be handed on, and return them; all of them at the end, and whether that is now."""
        with self._changed:
            while not self._closing:
                now = time.monotonic()
                if now < self._failed_until:
                    self._changed.wait(self._failed_until - now)
                    continue
                self._resting = {study: until for study, until in self._resting.items() if until > now}
                due = {study: is_new for study, is_new in self._waiting.items() if study not in self._resting}
                if due:
                    self._waiting = {study: is_new for study, is_new in self._waiting.items() if study not in due}
                    return due, False
                next_time = min((self._resting[study] for study in self._waiting), default=None)
                self._changed.wait(None if next_time is None else next_time - now)
            due = dict(self._waiting)
            self._waiting.clear()
            return due, True

    def _hand_on(self, batch: dict[str, bool]) -> None:
        """Hand on studies in order until the executor does not accept one; that study and the rest wait."""
        while batch:
            study_uid, is_new = next(iter(batch.items()))
            del batch[study_uid]
            try:
                is_submitted = self._touch_study(study_uid, is_new)
            except Exception as error:  # the executor's database: try again after any error
                log.get().warning("study.delayed", study=study_uid, reason=type(error).__name__)
                self._on_delayed()
                batch[study_uid] = is_new
                self._failed_until = time.monotonic() + _PAUSE_SECONDS
                break
            self._resting[study_uid] = time.monotonic() + _PAUSE_SECONDS
            if is_submitted:
                log.get().info("study.submitted", study=study_uid)
        for study_uid, is_new in batch.items():
            self.submit(study_uid, is_new=is_new)


@contextmanager
def opening(key: str, host: str, port: int) -> Iterator[None]:
    """Turn a failure to open an address into an InputError that names the setting; key: the port's setting."""
    table = key.split(".")[0]
    try:
        yield
    except OSError as error:
        if is_not_writable(error):
            raise
        raise InputError(
            f"{table}: {host}:{port} cannot be opened ({error.strerror}); set another {key}, or {table}.host"
        ) from error


def _open_orders(shared: Shared, parts: ExitStack) -> OrderListener | None:
    """Receive orders until the service stops, if the settings ask for it."""
    settings = shared.settings
    if settings.orders is None:
        return None
    with opening("orders.port", settings.orders.host, settings.orders.port):
        listener = OrderListener(settings.orders, shared.orders, shared.metrics, zone=settings.site.zone)
    parts.callback(listener.close)
    return listener
