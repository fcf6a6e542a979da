"""What takes films and orders, and hands studies on to the durable engine. No database stands in front of a sender.

The database is first asked by the submitter's thread, when it has something to hand on: films are acknowledged while
PostgreSQL is away, and handed on once it is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from node import database
from node.commitment import Commitments
from node.config import Settings
from node.errors import InputError
from node.executor import Client
from node.ledger import Ledger
from node.listener import Listener
from node.metrics import Metrics
from node.order_listener import OrderListener
from node.order_store import OrderStore
from node.spool import Spool
from node.submitter import Submitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiving:
    """The open ports, and what must be good behind them."""

    listener: Listener
    submitter: Submitter
    orders: OrderListener | None


def open_receiving(
    settings: Settings, *, spool: Spool, orders: OrderStore, metrics: Metrics, parts: ExitStack
) -> Receiving:
    """Open the ports until `parts` are closed. Raises InputError when an address cannot be had."""
    ledger, client = Ledger(database.open_ledger(settings.storage)), Client(database.open_engine(settings.storage))
    parts.callback(ledger.close)
    parts.callback(client.close)

    def touch(study_uid: str, *, is_new: bool) -> None:
        state = ledger.study_state(study_uid)
        if state == "finished" and not spool.has_unread(study_uid):
            return  # what was answered came again
        if is_new or state != "parked":  # a parked one waits for a person, or for a new film
            ledger.set_study(study_uid, "receiving")
            client.touch_study(study_uid, settings.study)

    submitter = Submitter(touch, on_delayed=metrics.failures.labels("submit", "database").inc)
    parts.callback(submitter.close)
    with opening("listener", settings.listener.host, settings.listener.port):
        listener = Listener(
            settings.listener,
            spool,
            metrics,
            commitments=Commitments(ledger, settings.destinations, metrics),
            on_kept=submitter.submit,
        )
    parts.callback(listener.close)
    for study_uid in spool.studies():  # what was acknowledged and never finished
        if spool.has_unread(study_uid):
            submitter.submit(study_uid, is_new=False)
    return Receiving(listener=listener, submitter=submitter, orders=_open_orders(settings, orders, metrics, parts))


@contextmanager
def opening(table: str, host: str, port: int) -> Iterator[None]:
    """Say which setting to change when an address cannot be opened."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{table}: {host}:{port} cannot be opened ({error.strerror}); choose another") from error


def _open_orders(settings: Settings, orders: OrderStore, metrics: Metrics, parts: ExitStack) -> OrderListener | None:
    """Take orders, where the settings ask for it, until the service stops."""
    if settings.orders is None:
        return None
    with opening("orders", settings.orders.host, settings.orders.port):
        listener = OrderListener(settings.orders, orders, metrics, zone=settings.site.zone)
    parts.callback(listener.close)
    return listener
