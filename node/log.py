"""What the node says: JSON lines on standard output, with a closed list of events and of fields.

A field leaves only if FIELDS lists it: UIDs, counts, seconds and names of our own things. Patient name, id, dates,
accession numbers and generated text are not on the list, so no call can let them out by mistake.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final, TextIO, cast

import structlog

from node.errors import where

EVENTS: Final = {
    "service.started": "settings are read, parts are being built",
    "service.ready": "listener, HTTP and worker are up; carries the real ports",
    "service.stopped": "everything is closed",
    "model.opened": "weights, graphs and their hashes are good",
    "engine.fell_back": "a wanted engine does not run here, the next is tried; `reason` says why, `message` what to do",
    "association.refused": "a caller was not let in; `reason` says why, `times` how often again within a minute",
    "association.aborted": "an association was ended by the node; `reason` says why",
    "certificate.reloaded": "certificate files have changed on disk and are in use",
    "certificate.refused": "changed certificate files cannot be used; the old ones stay in use",
    "instance.kept": "a received object is synced on disk; the sender got Success",
    "instance.repeated": "the same object was kept before; the sender got Success",
    "instance.conflict": "an object came with other pixels under a known UID; kept beside it, not read",
    "instance.refused": "a received object was not kept; `reason` says why, the sender knows",
    "spool.swept": "files that were never acknowledged were removed at start",
    "study.delayed": "the durable engine did not take a study; it is handed on again",
    "study.submitted": "something new of a study will be looked at after its quiet time",
    "study.ready": "a study is complete; a round begins",
    "film.decided": "one image is read, answered or left alone; `reason` says why",
    "study.finished": "all outputs of a round are stored and handed to delivery",
    "study.parked": "a round failed; a person must look (`node retry`)",
    "study.removed": "a delivered study left the disk after keep_days",
    "janitor.failed": "old studies could not be removed; tried again in an hour",
    "study.restored": "deliveries of a study that the database knew nothing of were queued again",
    "database.waiting": "PostgreSQL does not answer; the start waits for it, `message` says what it said",
    "executor.waiting": "another process with this executor's name is still there; the start waits for its end",
    "executor.recovered": "what a dead executor had in hand went back into its queues",
    "engine.cleaned": "what the durable engine kept of old work was removed",
    "engine.broken": "a step met a full disk or a lost database; the process ends and starts again",
    "delivery.sent": "one output reached one destination",
    "delivery.delayed": "a destination did not take an output; it is tried again",
    "delivery.committed": "a destination said that it keeps an output (storage commitment)",
    "commitment.delayed": "a destination could not be asked to commit to what it was sent; it is asked again",
    "commitment.refused": "an answer to no request of ours, or one that could not be kept; its sender knows",
    "destination.down": "a destination does not answer; its queue waits, one probe looks for its return",
    "destination.back": "it answers again; what waited goes out",
    "order.kept": "an order is synced on disk, or removed when it was cancelled; its sender got AA",
    "order.refused": "a connection or a message with orders was not taken; `reason` says why, the sender knows",
    "delivery.parked": "a destination will not take an output; a person must look (`node retry`)",
    "library.warned": "a library logged a warning or an error",
}

FIELDS: Final = frozenset(
    """
    event level timestamp version model prompts engine weights_sha256 dicom_port http_port orders_port tls_port
    name host reason study sop_instance_uid kind round stage instances bytes files read not_processed outputs
    seconds times destination attempts priority cancelled library message where executor workflows
    """.split()
)


def configure(*, level: str = "info") -> None:
    """Send JSON lines to standard output, libraries included; call once, at start."""
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)
    mute()
    threading.excepthook = _on_lost_thread
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _keep_listed,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # One stream for all loggers: the lock that keeps two threads' lines apart belongs to the stream.
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Steadfast(sys.stdout))),
        cache_logger_on_first_use=False,
    )


def adopt(library: str) -> None:
    """Take a library's own log handlers away, so that what it says comes as our lines."""
    logging.getLogger(library).handlers.clear()
    logging.getLogger(library).propagate = True


def mute() -> None:
    """Silence the libraries that quote what objects and peers say: pydicom in warnings too, pynetdicom in its log."""
    warnings.simplefilter("ignore")
    for library in ("pydicom", "pynetdicom"):
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)


def get() -> structlog.typing.FilteringBoundLogger:
    """Return the logger; event names are the keys of EVENTS."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def _keep_listed(_logger: object, _method: str, event_dict: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Drop every field that FIELDS does not list."""
    return {key: value for key, value in event_dict.items() if key in FIELDS}


def _on_lost_thread(lost: threading.ExceptHookArgs) -> None:
    """Say where a library's thread ended, without the text of its error."""
    place = where(lost.exc_value) if lost.exc_value is not None else lost.exc_type.__name__
    get().error("library.warned", library=lost.thread.name if lost.thread else "thread", where=place)


class _Steadfast:
    """A stream that never fails its writer: a log that cannot be written must not decide what happens to a film."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class _LibraryHandler(logging.Handler):
    """Turns library warnings into our lines; only the durable engine's text is known to be free of patient data."""

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"library": record.name, "where": f"{record.module}:{record.lineno}"}
        if record.name.startswith("dbos"):
            facts["message"] = record.getMessage()[:300]
        say = get().error if record.levelno >= logging.ERROR else get().warning
        say("library.warned", **facts)
