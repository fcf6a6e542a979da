"""What reads studies and sends results: model, ledger, durable engine, janitor; each as far as its process has to.

On PostgreSQL a process first waits for the server and for the lock of its name, and then looks after the others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from node import database, log, tls
from node.commitment import Commitments
from node.config import Settings
from node.domain import MESSAGE_KIND, Delivery, PromptSet
from node.executor import Engine
from node.gate import Gate
from node.handover import Heir, Lifeline
from node.inference import Reader
from node.janitor import Janitor
from node.ledger import Ledger
from node.metrics import Metrics
from node.order_store import OrderStore
from node.periodic import Periodic
from node.pipeline import WRITERS, Pipeline
from node.roles import Process
from node.sending import Sending
from node.spool import Spool
from node.steps import Steps, delivery_of
from node.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """An open model, and the prompts it is asked."""

    reader: Reader
    prompts: PromptSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """A running executor; gate: broken when the process must end."""

    ledger: Ledger
    gate: Gate
    threads: tuple[Periodic, ...]

    @property
    def is_good(self) -> bool:
        """Whether work gets on."""
        return not self.gate.is_broken and all(one.is_alive for one in self.threads)


def open_working(
    settings: Settings,
    process: Process,
    *,
    spool: Spool,
    orders: OrderStore,
    metrics: Metrics,
    reading: Reading | None,
    on_step: Callable[[str], None],
    stop: threading.Event,
    parts: ExitStack,
) -> Working:
    """Run an executor until `parts` are closed; the process must end then (`Engine.close`).

    reading: the model and what it is asked, where the process reads
    Raises Stopped when `stop` is set while it waits for the database or for its name.
    """
    gate = Gate()
    sql = database.open_ledger(settings.storage)
    parts.callback(sql.dispose)
    if database.is_server(sql):
        database.wait_for(sql, stop=stop)
        lifeline = Lifeline(sql, process.executor, stop=stop)
        parts.callback(lifeline.close)
        lifeline.watch(gate.break_down)
    ledger = Ledger(sql)
    sending = _sending(settings, spool=spool, ledger=ledger, metrics=metrics)
    _watch_certificates(settings, metrics)
    steps = None if reading is None else _steps(settings, sending, reading, orders)
    engine = Engine(database.open_engine(settings.storage), sending, steps, process=process, gate=gate, on_step=on_step)
    parts.callback(engine.close)
    threads: list[Periodic] = []
    if database.is_server(sql):
        database.create_views(sql)
        threads.append(Heir(sql, process.executor, engine.recover))
    if process.reads:
        with database.restoring(sql):
            _restore(settings, spool, ledger, engine)
        threads.append(Janitor(spool, ledger, orders, engine, keep_days=settings.storage.keep_days))
    for one in threads:
        parts.callback(one.close)
    return Working(ledger=ledger, gate=gate, threads=tuple(threads))


def _sending(settings: Settings, *, spool: Spool, ledger: Ledger, metrics: Metrics) -> Sending:
    return Sending(
        spool=spool,
        ledger=ledger,
        metrics=metrics,
        destinations={destination.name: destination for destination in settings.destinations},
        commitments=Commitments(ledger, settings.destinations, metrics),
        calling_aet=settings.listener.ae_title,
    )


def _watch_certificates(settings: Settings, metrics: Metrics) -> None:
    """Tell how many days each certificate lasts that is shown to a destination; none when it cannot be read."""

    def days(certificate: Path) -> float:
        try:
            return tls.days_left(certificate)
        except (OSError, ValueError):
            return 0.0

    for one in settings.destinations:
        if one.tls is not None and one.tls.certificate is not None:
            gauge = metrics.certificate_days.labels(f"destination {one.name}")
            gauge.set_function(partial(days, one.tls.certificate))


def _steps(settings: Settings, sending: Sending, reading: Reading, orders: OrderStore) -> Steps:
    wanted = {kind for destination in settings.destinations for kind in destination.outputs}
    spool, metrics, reader = sending.spool, sending.metrics, reading.reader
    pipeline = Pipeline(
        spool=spool,
        orders=orders,
        reader=reader,
        prompts=reading.prompts,
        zone=settings.site.zone,
        kinds=tuple(kind for kind in (*WRITERS, MESSAGE_KIND) if kind in wanted),
        timed=metrics.timed,
        on_read=Watch(spool, metrics, model=reader.identity, prompts=reading.prompts).note,
    )
    return Steps(
        pipeline=pipeline,
        ledger=sending.ledger,
        metrics=metrics,
        destinations=sending.destinations,
        stat_seconds=settings.study.stat_seconds,
    )


def _restore(settings: Settings, spool: Spool, ledger: Ledger, engine: Engine) -> None:
    """Bring back what a lost database knew: better sent twice, byte for byte the same, than never.

    Queued first and noted after that, so that a start cut short is made up for by the next. The ledger is read before
    the engine: what is done in between is not sent a second time.
    """
    engine.deliver(engine.forgotten(ledger.open_deliveries()))
    known = ledger.delivered_studies()
    for study_uid in spool.studies():
        deliveries = [] if study_uid in known else list(_deliveries(settings, spool, study_uid))
        if deliveries:
            engine.deliver(deliveries)
            for delivery in deliveries:
                ledger.add_delivery(delivery)
            log.get().warning("study.restored", study=study_uid, outputs=len(deliveries))
            if ledger.study_state(study_uid) is None:
                ledger.set_study(study_uid, "finished")


def _deliveries(settings: Settings, spool: Spool, study_uid: str) -> Iterator[Delivery]:
    """Every delivery of a study's finished rounds; what of them was made nobody knows any more."""
    for mark in spool.rounds(study_uid):
        for output in mark.outputs:
            for receiver in settings.destinations:
                if output.kind in receiver.outputs and spool.output_path(output).exists():
                    yield delivery_of(receiver.name, output)
