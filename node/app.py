"""One process of the service: builds its parts from the settings, starts them in order and stops them in reverse.

The model is opened before anybody may associate: a node that cannot read accepts nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from node import durable, log, processes, prompts
from node.config import Settings
from node.domain import PromptKind
from node.errors import InputError, Stopped
from node.http import HttpServer, Readiness
from node.identity import VERSION
from node.inference import Reader, open_reader, read_parity
from node.ledger import Ledger
from node.metrics import Counts, Metrics, Snapshot, SnapshotCollector
from node.order_store import OrderStore
from node.receiving import Receiving, open_receiving, opening
from node.roles import Process, Role, process_of
from node.spool import Spool
from node.working import Reading, Working, open_working


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process that does its part; the real ports, for settings that say 0, of what it has."""

    http_port: int
    dicom_port: int | None = None
    tls_port: int | None = None
    orders_port: int | None = None
    is_broken: Callable[[], bool]


@contextmanager
def run(
    settings: Settings,
    *,
    process: Process | None = None,
    reader: Reader | None = None,
    on_step: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Iterator[Running]:
    """Run the service, or one process of it, while the context is open; the process must end after it.

    reader: another reader than the settings' model; on_step: hears every checkpointed step
    Raises ConfigError or InputError when a part cannot be had, Stopped when `stop` is set while the start waits.
    """
    process, stop = process or Process(), stop or threading.Event()
    log.get().info("service.started", version=VERSION, executor=process.executor)
    metrics = Metrics()
    metrics.expect(destinations=[destination.name for destination in settings.destinations], prompts=())
    reading = _open_model(settings, metrics, reader) if process.reads else None
    with ExitStack() as parts:
        parts.enter_context(_only_one(settings, process))
        spool = _open_spool(settings)
        orders = OrderStore(settings.storage.directory)
        working = receiving = None
        if process.reads or process.sends:
            working = open_working(
                settings, process,
                spool=spool, orders=orders, metrics=metrics, reading=reading, on_step=on_step, stop=stop, parts=parts,
            )  # fmt: skip
        if process.receives:
            receiving = open_receiving(settings, spool=spool, orders=orders, metrics=metrics, parts=parts)

        def readiness() -> Readiness:
            return _readiness(spool, reading, working, receiving)

        metrics.registry.register(SnapshotCollector(lambda: _snapshot(settings, working, spool, readiness())))
        running = Running(
            http_port=_open_pages(settings, metrics, readiness, parts),
            dicom_port=None if receiving is None else receiving.listener.port,
            tls_port=None if receiving is None else receiving.listener.tls_port,
            orders_port=None if receiving is None or receiving.orders is None else receiving.orders.port,
            is_broken=lambda: working is not None and working.gate.is_broken,
        )
        parts.enter_context(processes.published(settings.storage, process, http_port=running.http_port))
        _say_ready(process, running)
        yield running
    log.get().info("service.stopped")


def serve(
    settings: Settings,
    *,
    only: Role | None = None,
    executor: str | None = None,
    reader: Reader | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> int:
    """Run until SIGTERM or SIGINT, and return 0. A second signal leaves at once; a step cut short is run again.

    Returns 1 when disk or database failed: the supervisor starts the process again, and it goes on where it was.
    """
    process = process_of(settings.storage, only=only, executor=executor)
    stop = threading.Event()

    def on_signal(_number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        with run(settings, process=process, reader=reader, on_step=on_step, stop=stop) as running:
            while not stop.wait(timeout=1.0):
                if running.is_broken():
                    return 1
    except Stopped:
        log.get().info("service.stopped")
    return 0


@contextmanager
def _only_one(settings: Settings, process: Process) -> Iterator[None]:
    """Let no second process do the same on one folder: it would run the first one's work again."""
    directory = settings.storage.directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = ExitStack()
        is_only = lock.enter_context(durable.try_lock(processes.lock_path(settings.storage, process)))
    except OSError as error:
        raise InputError(f"storage.directory {directory}: cannot be used ({error.strerror}); choose another") from error
    with lock:
        if not is_only:
            name = process.executor
            raise InputError(f"storage.directory {directory}: another {name} runs here; stop it, or set --executor")
        yield


def _open_model(settings: Settings, metrics: Metrics, reader: Reader | None) -> Reading:
    """Open the settings' model, where there is no other reader, and say which it is."""
    prompt_set = prompts.load(settings.model.prompts)
    reader = reader or open_reader(
        settings.model.directory,
        prompts=prompt_set,
        engine=settings.model.engine,
        threads=settings.model.threads,
        engines=settings.storage.directory / "engines",
        on_written=metrics.on_written,
    )
    identity = reader.identity
    model, names = f"{identity.name} {identity.version}", f"{prompt_set.name} {prompt_set.version}"
    metrics.build_info.labels(VERSION, model, names).set(1)
    metrics.engine_info.labels(identity.engine, next((one.reason for one in reader.fallbacks), "none")).set(1)
    for stage, proof in read_parity(settings.model.directory).items():
        metrics.parity_difference.labels(stage).set(proof["max_abs"])
        metrics.parity_tolerance.labels(stage).set(proof["tolerance"])
    metrics.expect(destinations=(), prompts=[one.key for one in prompt_set.prompts if one.kind is PromptKind.PATHOLOGY])
    for one in reader.fallbacks:
        log.get().warning("engine.fell_back", engine=one.engine, reason=one.reason, message=one.message)
    log.get().info(
        "model.opened", model=model, engine=identity.engine, prompts=names, weights_sha256=identity.weights_sha256
    )
    return Reading(reader=reader, prompts=prompt_set)


def _open_spool(settings: Settings) -> Spool:
    spool = Spool(settings.storage.directory, min_free_mib=settings.storage.min_free_mib)
    swept = spool.sweep(is_shared=bool(settings.storage.database_url))
    if swept:
        log.get().info("spool.swept", files=swept)
    return spool


def _open_pages(settings: Settings, metrics: Metrics, readiness: Callable[[], Readiness], parts: ExitStack) -> int:
    """Serve `/metrics`, `/live` and `/ready` until the service stops; the real port."""
    with opening("http", settings.http.host, settings.http.port):
        http = HttpServer(metrics, readiness, host=settings.http.host, port=settings.http.port)
    parts.callback(http.close)
    return http.port


def _readiness(
    spool: Spool, reading: Reading | None, working: Working | None, receiving: Receiving | None
) -> Readiness:
    """Say how each part is that this process has."""
    parts = {"disk": spool.has_room}
    facts: dict[str, object] = {}
    threads = []
    if receiving is not None:
        parts["listener"] = receiving.listener.is_listening
        if receiving.orders is not None:
            parts["orders"] = receiving.orders.is_listening
        threads.append(receiving.submitter.is_alive)
    if working is not None:
        threads.append(working.is_good)
    if reading is not None:
        parts["model"] = True
        facts["engine"] = reading.reader.identity.engine
        facts["fallbacks"] = {one.engine: one.reason for one in reading.reader.fallbacks}
    return Readiness(parts={**parts, "workers": all(threads)}, facts=facts)


def _snapshot(settings: Settings, working: Working | None, spool: Spool, readiness: Readiness) -> Snapshot:
    return Snapshot(
        counts=None if working is None else _counts(settings, working.ledger),
        spool_free_bytes=spool.free_bytes,
        spool_capacity_bytes=spool.capacity_bytes,
        spool_reserve_bytes=spool.reserve_bytes,
        ready=readiness.parts,
    )


def _counts(settings: Settings, ledger: Ledger) -> Counts:
    delayed, uncommitted = ledger.delayed_destinations(), ledger.uncommitted()
    names = [destination.name for destination in settings.destinations]
    return Counts(
        studies=ledger.study_counts(),
        deliveries={pair: count for pair, count in ledger.delivery_counts().items() if pair[0] in names},
        paused={name: name in delayed for name in names},
        oldest_waiting_seconds=ledger.oldest_waiting_seconds(),
        oldest_delivery_seconds=ledger.oldest_delivery_seconds(),
        uncommitted={name: uncommitted.get(name, (0, 0.0)) for name in names},
    )


def _say_ready(process: Process, running: Running) -> None:
    names = ("dicom_port", "tls_port", "orders_port", "http_port")
    ports = {name: port for name in names if (port := getattr(running, name)) is not None}
    log.get().info("service.ready", executor=process.executor, **ports)
