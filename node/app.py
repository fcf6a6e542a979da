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
from node.domain import PromptSet
from node.errors import InputError
from node.identity import VERSION
from node.inference import Reader, open_reader
from node.janitor import Janitor
from node.ledger import Ledger, connect
from node.listener import Listener
from node.metrics import HttpServer, Metrics, Readiness, Snapshot, SnapshotCollector
from node.pipeline import WRITERS, Pipeline
from node.spool import Spool
from node.steps import Steps, delivery_of
from node.submitter import Submitter
from node.workflow import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that accepts films; the real ports, for settings that say 0."""

    dicom_port: int
    http_port: int
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
    reader = reader or open_reader(
        settings.model.directory, prompts=prompt_set, engine=settings.model.engine, threads=settings.model.threads
    )
    metrics = _metrics(reader, prompt_set)
    with ExitStack() as parts:
        parts.enter_context(_only_one(settings.storage.directory))
        spool = _open_spool(settings)
        is_complete = ledger_path(settings).exists() and engine_path(settings).exists()
        ledger = _open_ledger(settings, spool)
        parts.callback(ledger.close)
        metrics.registry.register(SnapshotCollector(lambda: _snapshot(ledger, spool)))
        steps = _steps(settings, spool=spool, ledger=ledger, metrics=metrics, reader=reader, prompt_set=prompt_set)
        engine = Engine(engine_path(settings), steps, settings.study, on_step=on_step)
        parts.callback(engine.close)
        if not is_complete:  # a database was lost: better sent twice, byte for byte the same, than never
            engine.deliver(ledger.open_deliveries())

        def touch(study_uid: str) -> None:
            ledger.set_study(study_uid, "receiving")
            engine.touch_study(study_uid)

        submitter = Submitter(touch)
        parts.callback(submitter.close)
        janitor = Janitor(spool, ledger, keep_days=settings.storage.keep_days)
        parts.callback(janitor.close)
        with _opening("listener", settings.listener.host, settings.listener.port):
            listener = Listener(settings.listener, spool, metrics, on_kept=submitter.submit)
        parts.callback(listener.close)
        _submit_unread(spool, ledger, submitter)

        def readiness() -> Readiness:
            workers = submitter.is_alive and janitor.is_alive and not engine.is_broken
            return Readiness(
                parts={"listener": listener.is_listening, "model": True, "disk": spool.has_room, "workers": workers}
            )

        with _opening("http", settings.http.host, settings.http.port):
            http = HttpServer(metrics, readiness, host=settings.http.host, port=settings.http.port)
        parts.callback(http.close)
        running = Running(dicom_port=listener.port, http_port=http.port, is_broken=lambda: engine.is_broken)
        _publish(settings, running)
        log.get().info("service.ready", dicom_port=running.dicom_port, http_port=running.http_port)
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


def _publish(settings: Settings, running: Running) -> None:
    content = {"pid": os.getpid(), "dicom_port": running.dicom_port, "http_port": running.http_port}
    running_path(settings).write_text(json.dumps(content), encoding="utf-8")


def _metrics(reader: Reader, prompt_set: PromptSet) -> Metrics:
    identity = reader.identity
    metrics = Metrics()
    model, names = f"{identity.name} {identity.version}", f"{prompt_set.name} {prompt_set.version}"
    metrics.build_info.labels(VERSION, model, names).set(1)
    log.get().info(
        "model.opened", model=model, engine=identity.engine, prompts=names, weights_sha256=identity.weights_sha256
    )
    return metrics


def _steps(
    settings: Settings, *, spool: Spool, ledger: Ledger, metrics: Metrics, reader: Reader, prompt_set: PromptSet
) -> Steps:
    wanted = {kind for destination in settings.destinations for kind in destination.outputs}
    pipeline = Pipeline(
        spool=spool,
        reader=reader,
        prompts=prompt_set,
        zone=settings.site.zone,
        kinds=tuple(kind for kind in WRITERS if kind in wanted),
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


def _snapshot(ledger: Ledger, spool: Spool) -> Snapshot:
    return Snapshot(
        studies=ledger.study_counts(),
        oldest_waiting_seconds=ledger.oldest_waiting_seconds(),
        spool_free_bytes=spool.free_bytes,
    )
