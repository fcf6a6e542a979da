"""One process of the service: builds its parts from the settings, starts them in order and stops them.

The ports open before the model, which takes seconds, or minutes if TensorRT engines are built. Films are stored
meanwhile, and `/ready` answers 503 until they can be read. Before the ports open, only missing files of the model
directory are detected. A stop closes the ports first.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from node import log
from node.audit.trail import recording
from node.config import Settings
from node.dicom.identity import VERSION
from node.errors import INTERRUPTED, InputError, NodeError, Stopped, is_not_writable
from node.health.alerts import Alerts, post_alert
from node.health.checks import LastTroubles, troubles
from node.health.notices import Notice, Notices, post_notice
from node.jobs import processes
from node.jobs.answered_film import is_still_critical
from node.jobs.patients import Patients
from node.jobs.processes import Process, Role, process_of
from node.jobs.question_answerer import QuestionAnswerer
from node.metrics import Metrics, Snapshot, SnapshotCollector
from node.net.callers import Refusals
from node.net.http_connections import Limits
from node.orders.store import OrderStore
from node.outputs import batches
from node.prompt_set import PromptSet, PromptsInUse
from node.read import decoder_processes, prompts
from node.read.model import RadiographReader, check_files
from node.service.http import HttpServer, limits_for
from node.service.model import open_model
from node.service.receiver import open_receiving, opening
from node.service.running import Running
from node.service.shared import Shared, keep_between_films
from node.service.worker import open_working, writers_of
from node.settings.destinations import DestinationTable
from node.store import database
from node.store.folders import require_honest, require_known_format
from node.store.spool import Spool
from node.web.access import Access
from node.web.application import build
from node.web.dependencies import WebParts
from node.web.look_files import Looks

_STOP_POLL_SECONDS: Final = 0.2
_PROBES: Final = 32
"""Connections of probes and Prometheus at one time."""

_T = TypeVar("_T")


@contextmanager
def run(
    settings: Settings,
    *,
    process: Process | None = None,
    reader: Callable[[], RadiographReader] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    path: Path | None = None,
) -> Iterator[Running]:
    """Run the service, or one process of it, while the context is open; the process must end after it.

    reader: opens another reader than the settings' model; on_step: called with every checkpointed step
    path: the file of the settings, for `node reload`
    Raises ConfigError or InputError when a part cannot be opened, Stopped when `stop` is set, NodeError of a full disk.
    """
    process, stop = process or Process(), stop or threading.Event()
    metrics = Metrics()
    metrics.expect(destinations=[destination.name for destination in settings.destinations], prompts=())
    prompt_set = prompts.load(settings.model.prompts)
    if process.reads and reader is None:
        check_files(settings.model.directory, engine=settings.model.engine, reader=settings.model.reader)
    with _disk_named(settings), ExitStack() as parts, ExitStack() as ports:
        parts.enter_context(_only_one(settings, process))
        require_known_format(settings.storage.directory)  # before anything of it is changed
        parts.enter_context(recording(settings, metrics, executor=process.executor))
        parts.callback(log.get().info, "service.stopped")
        log.get().info("service.started", version=VERSION, executor=process.executor)
        _set_damaged_aside(database.LEDGER, settings)
        shared = _shared(settings, prompt_set, process, metrics)
        opened = Running(shared=shared)
        if process.receives:
            opened.receiving = open_receiving(shared, parts=ports)
        ports.callback(shared.spool.work.end)  # first of all: a stop that takes long may be cut short
        metrics.registry.register(SnapshotCollector(lambda: _snapshot(opened)))
        ports_by_name = {
            **({} if opened.receiving is None else opened.receiving.ports),
            "http_port": _open_pages(opened, parts),
            "probe_port": _open_probes(opened, parts),
        }
        opened.ports = {name: port for name, port in ports_by_name.items() if port is not None}
        parts.enter_context(processes.published(settings.storage, process, ports=opened.ports, settings=path))
        log.get().info("service.listening", executor=process.executor, **opened.ports)
        _set_damaged_aside(database.EXECUTOR, settings)
        _count_set_aside(settings, metrics)
        if process.reads:
            _open_model(opened, reader, stop)
            decoder_processes.of_this_process().start_child()
        if process.reads or process.sends:
            opened.working = open_working(
                shared, model=opened.model, answerer=opened.answerer, on_step=on_step, stop=stop, parts=parts
            )
        _open_alerts(opened, parts)
        if opened.receiving is not None:  # not before: an executor's first start makes the tables of its queues
            opened.receiving.submitter.start()
        log.get().info("service.ready", executor=process.executor, **opened.ports)
        yield opened


def serve(
    settings: Settings,
    *,
    only: Role | None = None,
    executor: str | None = None,
    reader: Callable[[], RadiographReader] | None = None,
    on_step: Callable[[str], None] = lambda _: None,
    path: Path | None = None,
) -> int:
    """Run until SIGTERM, and return 0, or until SIGINT, and return 130. A second signal ends the process at once.

    path: the file of the settings, which is read again on SIGHUP. If SIGHUP says that the terminal is gone, the process
    stops.

    An interrupted step is repeated at the next start.
    Returns 1 when disk or database failed: the supervisor starts the process again, and it continues its work. Raises
    NodeError, which also makes exit code 1, when the disk is not writable at the start.
    """
    keep_between_films()
    process = process_of(settings.storage, only=only, executor=executor)
    imported = batches.PRELOADED if writers_of(settings, process) else ()
    decoder_processes.of_this_process().start(*imported)  # it imports the decoders meanwhile
    stop = threading.Event()

    code = 0

    def on_signal(number: int, _frame: object) -> None:
        nonlocal code
        if stop.is_set():
            os._exit(1)
        code = INTERRUPTED if number == signal.SIGINT else 0
        stop.set()

    changed, on_terminal = threading.Event(), os.isatty(0)

    def on_hangup(number: int, frame: object) -> None:
        if path is None or (on_terminal and not os.isatty(0)):
            on_signal(number, frame)
        changed.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGHUP, on_hangup)
    with (
        suppress(Stopped),
        run(settings, process=process, reader=reader, on_step=on_step, stop=stop, path=path) as running,
    ):
        while not stop.wait(timeout=1.0):
            if running.is_broken:
                return 1
            if changed.is_set() and path is not None:
                changed.clear()
                running.reload(path)
    return code


@contextmanager
def _disk_named(settings: Settings) -> Iterator[None]:
    """Turn errors of a disk or a database into a NodeError that names it, after which a supervisor restarts the node.

    Such an error is no fault of settings or program. Raises any other error of the disk as it is.
    """
    directory = settings.storage.directory
    try:
        yield
    except database.FAILURES as error:
        if not (is_not_writable(error) or database.is_not_writable(error)):
            if isinstance(error, OSError):
                raise
            place = "storage.database_url" if settings.storage.database_url else f"storage.directory {directory}"
            remedy = "`node doctor` says what it lacks"
            if database.lacks_tables(error):
                remedy = "another version of this program made its tables: start that version again"
            raise NodeError(f"{place}: the database refuses ({database.complaint(error)}); {remedy}") from error
        why = error.strerror if isinstance(error, OSError) else "the database cannot be written"
        raise NodeError(
            f"storage.directory {directory}: the disk is not writable now ({why}); make room, or mount "
            "it for writing; the node starts when it is started again"
        ) from error


@contextmanager
def _only_one(settings: Settings, process: Process) -> Iterator[None]:
    """Hold the lock of this process on its folder: a second process with the same work would repeat it."""
    directory = settings.storage.directory
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = ExitStack()
        is_only = lock.enter_context(processes.held(settings.storage, process))
    except OSError as error:
        if is_not_writable(error):
            raise
        raise InputError(
            f"storage.directory {directory}: cannot be used ({error.strerror}); choose another folder"
        ) from error
    with lock:
        if not is_only:
            remedy = "stop it, or set --executor" if settings.storage.database_url else "stop it"
            raise InputError(f"storage.directory {directory}: another process {process.executor} runs here; {remedy}")
        yield


def _set_damaged_aside(name: str, settings: Settings) -> None:
    """Move a damaged SQLite file aside, so that the node can start: open work is restored from the spool."""
    path = database.set_damaged_aside(settings.storage, name)
    if path is not None:
        log.get().error("database.damaged", name=path.name)


def _count_set_aside(settings: Settings, metrics: Metrics) -> None:
    """Count also files of earlier starts: the alert needs a growing number, and misses a counter that starts at 1."""
    metrics.damaged.labels("database").inc(len(database.files_set_aside(settings.storage)))


def _open_model(opened: Running, reader: Callable[[], RadiographReader] | None, stop: threading.Event) -> None:
    shared = opened.shared
    model = _unless_stopped(lambda: open_model(shared.settings, shared.prompts.current, shared.metrics, reader), stop)
    opened.model = model
    opened.answerer = QuestionAnswerer(shared.spool, model, shared.metrics)


def _unless_stopped(work: Callable[[], _T], stop: threading.Event) -> _T:
    """Run work in a thread of its own and return its result; raise Stopped as soon as `stop` is set."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="start")
    future = pool.submit(work)
    pool.shutdown(wait=False)
    while not wait([future], timeout=_STOP_POLL_SECONDS).done:
        if stop.is_set():
            raise Stopped("stopped while the model was being opened")
    return future.result()


def _shared(settings: Settings, prompt_set: PromptSet, process: Process, metrics: Metrics) -> Shared:
    return Shared(
        settings=settings,
        prompts=PromptsInUse(prompt_set),
        destinations=DestinationTable(settings.destinations),
        process=process,
        spool=_open_spool(settings),
        orders=OrderStore(settings.storage.directory, nobodys=settings.site.nobodys),
        metrics=metrics,
    )


def _open_spool(settings: Settings) -> Spool:
    """Open the spool, and remove files that were never acknowledged. Raises InputError for an unsuitable folder."""
    storage, is_shared = settings.storage, bool(settings.storage.database_url)
    require_honest(storage.directory, is_shared=is_shared)
    spool = Spool(storage.directory, min_free_mib=storage.min_free_mib, character_set=settings.site.character_set)
    if swept := spool.sweep(is_shared=is_shared):
        log.get().info("spool.swept", files=swept)
    return spool


def _open_pages(opened: Running, parts: ExitStack) -> int:
    """Serve the pages until the service stops; returns the real port."""
    shared, settings = opened.shared, opened.shared.settings
    looks = Looks(settings.storage.directory / "looks" / shared.process.executor)
    parts.callback(looks.close)
    refusals = Refusals()
    access = Access(settings.http, settings.storage.directory, refusals=refusals)
    web = WebParts(
        in_force=lambda: opened.shared.settings,
        prompts=lambda: shared.prompts.current,
        spool=shared.spool,
        metrics=shared.metrics,
        model=lambda: opened.model,
        looks=looks,
        patients=Patients(character_set=settings.site.character_set, nobodys=settings.site.nobodys),
        intake=lambda: None if opened.receiving is None else opened.receiving.listener.intake,
        answerer=lambda: opened.answerer,
        troubles=LastTroubles(lambda: troubles(opened.shared.settings)),
    )
    with opening("http.port", settings.http.host, settings.http.port):
        http = HttpServer(
            settings.http,
            shared.metrics,
            opened.readiness,
            limits=limits_for(settings.listener),
            application=access.protected(build(web, access)),
            refusals=refusals,
        )
    parts.callback(http.close)
    return http.port


def _open_probes(opened: Running, parts: ExitStack) -> int | None:
    """Serve the pages for machines on a port of their own, if the settings name one; returns the real port."""
    settings = opened.shared.settings
    if settings.http.probe_port is None:
        return None
    with opening("http.probe_port", settings.http.host, settings.http.probe_port):
        http = HttpServer(
            replace(settings.http, port=settings.http.probe_port, probe_port=None),
            opened.shared.metrics,
            opened.readiness,
            limits=Limits(connections=_PROBES),
        )
    parts.callback(http.close)
    return http.port


def _open_alerts(opened: Running, parts: ExitStack) -> None:
    """Tell webhooks of troubles and critical findings until the service stops, if the settings name some."""
    settings = opened.shared.settings
    if settings.notify:
        send = partial(post_notice, node=settings.listener.ae_title)
        stands = partial(_stands, opened.shared)
        parts.callback(Notices(opened.shared.spool, settings.notify, send, stands=stands).close)
    if settings.alerts is None:
        return
    alerts = Alerts(
        settings.storage.directory,
        lambda: troubles(opened.shared.settings),
        partial(post_alert, settings=settings.alerts.webhook, node=settings.listener.ae_title),
        after_seconds=settings.alerts.after_seconds,
    )
    parts.callback(alerts.close)


def _stands(shared: Shared, notice: Notice) -> bool | None:
    return is_still_critical(shared.spool, notice.study, notice.finding, shared.prompts.current)


def _snapshot(opened: Running) -> Snapshot:
    spool, working = opened.shared.spool, opened.working
    disk = shutil.disk_usage(spool.directory)
    return Snapshot(
        at=datetime.now(UTC),
        overview=None if working is None else working.ledger.overview(),
        destinations=[destination.name for destination in opened.shared.settings.destinations],
        spool_free_bytes=disk.free,
        spool_capacity_bytes=disk.total,
        spool_reserve_bytes=spool.reserve_bytes,
        ready=opened.readiness().parts,
    )
