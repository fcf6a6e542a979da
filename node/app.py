"""Builds every part of the service from its settings, starts them in order and stops them in reverse.

The model is opened before anybody may associate: a node that cannot read accepts nothing.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from node import log, prompts
from node.config import Settings
from node.domain import MESSAGE_KIND, PromptKind, PromptSet
from node.errors import InputError
from node.executor import Engine
from node.http import HttpServer, Readiness
from node.identity import VERSION
from node.inference import Reader, open_reader, read_parity
from node.janitor import Janitor
from node.ledger import Ledger, connect
from node.listener import Listener
from node.metrics import Metrics, Snapshot, SnapshotCollector
from node.order_listener import OrderListener
from node.order_store import OrderStore
from node.pipeline import WRITERS, Pipeline
from node.spool import Spool
from node.steps import Steps, delivery_of
from node.submitter import Submitter
from node.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that accepts films; the real ports, for settings that say 0."""

    dicom_port: int
    http_port: int
    orders_port: int | None
    is_broken: Callable[[], bool]


@contextmanager
def run(
    settings: Settings, *, reader: Reader | None = None, on_step: Callable[[str], None] = lambda _: None
) -> Iterator[Running]:
    """Run the whole service while the context is open; the process must end after it (`Engine.close`).

    reader: another reader than the settings' model; on_step: hears every checkpointed step
    Raises ConfigError or InputError when a part cannot be had.
    """
    log.get().info("service.started", version=VERSION)
    prompt_set = prompts.load(settings.model.prompts)
    metrics = Metrics()
    reader = reader or _open_model(settings, prompt_set, metrics)
    _publish_identity(settings, metrics, reader=reader, prompt_set=prompt_set)
    with ExitStack() as parts:
        parts.enter_context(_only_one(settings.storage.directory))
        spool = _open_spool(settings)
        is_complete = ledger_path(settings).exists() and engine_path(settings).exists()
        ledger = _open_ledger(settings, spool)
        parts.callback(ledger.close)
        orders = OrderStore(settings.storage.directory)
        steps = _steps(
            settings, spool=spool, orders=orders, ledger=ledger, metrics=metrics, reader=reader, prompt_set=prompt_set
        )
        engine = Engine(engine_path(settings), steps, settings.study, on_step=on_step)
        parts.callback(engine.close)
        if not is_complete:  # a database was lost: better sent twice, byte for byte the same, than never
            engine.deliver(ledger.open_deliveries())

        def touch(study_uid: str) -> None:
            ledger.set_study(study_uid, "receiving")
            engine.touch_study(study_uid)

        submitter = Submitter(touch)
        parts.callback(submitter.close)
        janitor = Janitor(spool, ledger, orders, keep_days=settings.storage.keep_days)
        parts.callback(janitor.close)
        with _opening("listener", settings.listener.host, settings.listener.port):
            listener = Listener(settings.listener, spool, metrics, on_kept=submitter.submit)
        parts.callback(listener.close)
        _submit_unread(spool, ledger, submitter)

        fallbacks = {one.engine: one.reason for one in reader.fallbacks}

        def readiness() -> Readiness:
            workers = submitter.is_alive and janitor.is_alive and not engine.is_broken
            return Readiness(
                parts={"listener": listener.is_listening, "model": True, "disk": spool.has_room, "workers": workers},
                facts={"engine": reader.identity.engine, "fallbacks": fallbacks},
            )

        metrics.registry.register(SnapshotCollector(lambda: _snapshot(settings, ledger, spool, readiness())))
        running = Running(
            dicom_port=listener.port,
            http_port=_open_pages(settings, metrics, readiness, parts),
            orders_port=_open_orders(settings, orders, parts),
            is_broken=lambda: engine.is_broken,
        )
        _publish(settings, running)
        yield running
    log.get().info("service.stopped")


def serve(settings: Settings, *, reader: Reader | None = None, on_step: Callable[[str], None] = lambda _: None) -> int:
    """Run until SIGTERM or SIGINT, and return 0. A second signal leaves at once; a step cut short is run again.

    Returns 1 when disk or database failed: the supervisor starts the node again, and it goes on where it was.
    """
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    with run(settings, reader=reader, on_step=on_step) as running:
        while not stop.wait(timeout=1.0):
            if running.is_broken():
                return 1
    return 0


def ledger_path(settings: Settings) -> Path:
    """Where our own tables lie."""
    return settings.storage.directory / "ledger.sqlite"


def engine_path(settings: Settings) -> Path:
    """Where the durable engine keeps its work."""
    return settings.storage.directory / "engine.sqlite"


def running_path(settings: Settings) -> Path:
    """Where a running service writes its process and real ports, for `node status`."""
    return settings.storage.directory / "running.json"


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Let no second node run on one directory: it would run the first one's work again."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise InputError(f"storage.directory {directory}: cannot be used ({error.strerror}); choose another") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"storage.directory {directory}: another node runs here; stop it first") from error
        yield


def _open_model(settings: Settings, prompt_set: PromptSet, metrics: Metrics) -> Reader:
    return open_reader(
        settings.model.directory,
        prompts=prompt_set,
        engine=settings.model.engine,
        threads=settings.model.threads,
        engines=settings.storage.directory / "engines",
        on_written=metrics.on_written,
    )


def _open_spool(settings: Settings) -> Spool:
    spool = Spool(settings.storage.directory, min_free_mib=settings.storage.min_free_mib)
    swept = spool.sweep()
    if swept:
        log.get().info("spool.swept", files=swept)
    return spool


def _open_ledger(settings: Settings, spool: Spool) -> Ledger:
    """Open the ledger; one that is new is filled from the marks of finished rounds.

    What was delivered of them nobody knows any more.
    """
    is_new = not ledger_path(settings).exists()
    ledger = Ledger(connect(ledger_path(settings)))
    for study_uid in spool.studies() if is_new else ():
        for mark in spool.rounds(study_uid):
            ledger.set_study(study_uid, "finished")
            for output, receiver in itertools.product(mark.outputs, settings.destinations):
                if output.kind in receiver.outputs and spool.output_path(output).exists():
                    ledger.add_delivery(delivery_of(receiver.name, output))
    return ledger


@contextmanager
def _opening(table: str, host: str, port: int) -> Iterator[None]:
    """Say which setting to change when an address cannot be opened."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{table}: {host}:{port} cannot be opened ({error.strerror}); choose another") from error


def _open_orders(settings: Settings, orders: OrderStore, parts: ExitStack) -> int | None:
    """Take orders, where the settings ask for it, until the service stops; the real port."""
    if settings.orders is None:
        return None
    with _opening("orders", settings.orders.host, settings.orders.port):
        listener = OrderListener(settings.orders, orders, zone=settings.site.zone)
    parts.callback(listener.close)
    return listener.port


def _open_pages(settings: Settings, metrics: Metrics, readiness: Callable[[], Readiness], parts: ExitStack) -> int:
    """Serve `/metrics`, `/live` and `/ready` until the service stops; the real port."""
    with _opening("http", settings.http.host, settings.http.port):
        http = HttpServer(metrics, readiness, host=settings.http.host, port=settings.http.port)
    parts.callback(http.close)
    return http.port


def _publish(settings: Settings, running: Running) -> None:
    content = {"pid": os.getpid(), "dicom_port": running.dicom_port, "http_port": running.http_port}
    running_path(settings).write_text(json.dumps(content), encoding="utf-8")
    ports = {"dicom_port": running.dicom_port, "http_port": running.http_port, "orders_port": running.orders_port}
    log.get().info("service.ready", **{name: port for name, port in ports.items() if port is not None})


def _publish_identity(settings: Settings, metrics: Metrics, *, reader: Reader, prompt_set: PromptSet) -> None:
    identity = reader.identity
    model, names = f"{identity.name} {identity.version}", f"{prompt_set.name} {prompt_set.version}"
    metrics.build_info.labels(VERSION, model, names).set(1)
    metrics.engine_info.labels(identity.engine, next((one.reason for one in reader.fallbacks), "none")).set(1)
    for stage, proof in read_parity(settings.model.directory).items():
        metrics.parity_difference.labels(stage).set(proof["max_abs"])
        metrics.parity_tolerance.labels(stage).set(proof["tolerance"])
    metrics.expect(
        destinations=[destination.name for destination in settings.destinations],
        prompts=[prompt.key for prompt in prompt_set.prompts if prompt.kind is PromptKind.PATHOLOGY],
    )
    for one in reader.fallbacks:
        log.get().warning("engine.fell_back", engine=one.engine, reason=one.reason, message=one.message)
    log.get().info(
        "model.opened", model=model, engine=identity.engine, prompts=names, weights_sha256=identity.weights_sha256
    )


def _steps(
    settings: Settings,
    *,
    spool: Spool,
    orders: OrderStore,
    ledger: Ledger,
    metrics: Metrics,
    reader: Reader,
    prompt_set: PromptSet,
) -> Steps:
    wanted = {kind for destination in settings.destinations for kind in destination.outputs}
    pipeline = Pipeline(
        spool=spool,
        orders=orders,
        reader=reader,
        prompts=prompt_set,
        zone=settings.site.zone,
        kinds=tuple(kind for kind in (*WRITERS, MESSAGE_KIND) if kind in wanted),
        timed=metrics.timed,
        on_read=Watch(spool, metrics, model=reader.identity, prompts=prompt_set).note,
    )
    return Steps(
        pipeline=pipeline,
        ledger=ledger,
        metrics=metrics,
        destinations={destination.name: destination for destination in settings.destinations},
        calling_aet=settings.listener.ae_title,
    )


def _submit_unread(spool: Spool, ledger: Ledger, submitter: Submitter) -> None:
    """Look at what was acknowledged and never finished; parked studies wait for a person."""
    for study_uid in spool.studies():
        if spool.has_unread(study_uid) and ledger.study_state(study_uid) != "parked":
            submitter.submit(study_uid)


def _snapshot(settings: Settings, ledger: Ledger, spool: Spool, readiness: Readiness) -> Snapshot:
    delayed = ledger.delayed_destinations()
    names = [destination.name for destination in settings.destinations]
    return Snapshot(
        studies=ledger.study_counts(),
        deliveries={pair: count for pair, count in ledger.delivery_counts().items() if pair[0] in names},
        paused={name: name in delayed for name in names},
        oldest_waiting_seconds=ledger.oldest_waiting_seconds(),
        oldest_delivery_seconds=ledger.oldest_delivery_seconds(),
        spool_free_bytes=spool.free_bytes,
        spool_capacity_bytes=spool.capacity_bytes,
        spool_reserve_bytes=spool.reserve_bytes,
        ready=readiness.parts,
    )
