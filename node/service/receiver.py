"""Receives films and orders, and hands studies to the durable executor. No sender waits for a database.

Only the submitter's thread uses the database, when it hands on a study. So films are acknowledged while PostgreSQL is
down, and handed on when it is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from node.deliver.commitment import Commitments
from node.errors import InputError, takes_nothing
from node.jobs import gathering
from node.jobs.executor import Client
from node.jobs.object_questions import take
from node.jobs.patients import note_patients
from node.jobs.processes import refused_callers_path
from node.jobs.submitter import Submitter
from node.net.callers import RefusedCallers
from node.orders.listener import OrderListener
from node.receive.listener import Listener
from node.service.shared import Shared
from node.store import database
from node.store.ledger import Ledger


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
    def orders_port(self) -> int | None:
        """The real port for orders; None if none are taken."""
        return None if self.orders is None else self.orders.port

    @property
    def is_broken(self) -> bool:
        """Whether the process must end."""
        return self.damaged.is_set()


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
    refused = RefusedCallers(refused_callers_path(settings.storage, shared.process))
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
            # A study that was parked in the future: the clock was set back since, and says nothing of the order.
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
        if shared.settings.http.shows_patients and not ledger.searchable.has_patient(study_uid):
            note_patients(spool, ledger, study_uid)
        client.touch_study(study_uid, shared.settings.study)
        return True

    def touch_or_break(study_uid: str, is_new: bool) -> bool:
        try:
            return touch(study_uid, is_new)
        except Exception as error:
            if database.is_damaged(error):
                damaged.set()
            raise

    return touch_or_break


@contextmanager
def opening(key: str, host: str, port: int) -> Iterator[None]:
    """Turn a failure to open an address into an InputError that names the setting; key: of the port."""
    table = key.split(".")[0]
    try:
        yield
    except OSError as error:
        if takes_nothing(error):
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
