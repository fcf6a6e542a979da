"""The node's log on standard output: JSON lines, or lines for people, with a closed list of fields.

A field is written only if FIELDS lists it: UIDs, counts, seconds and names of the node's own things. Patient name, id,
dates, accession numbers and generated text are not on the list, so no call can log them by mistake.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, TextIO, cast

import structlog

from node.errors import where

FIELDS: Final = frozenset(
    """
    event level timestamp version model prompts engine weights_sha256 dicom_port http_port orders_port probe_port
    tls_port
    name host calling_aet called_aet reason study sop_instance_uid kind round stage instances bytes files read
    not_processed outputs seconds times destination attempts priority cancelled library message where executor workflows
    user outcome films changed compared_at compared_by questions corrections
    parts thresholds studies other_study patients
    """.split()
)


MUTED: Final = ("pydicom", "pynetdicom", "python_multipart")
"""Libraries that quote objects and peers."""
_TOLD_EVERY_SECONDS: Final = 60.0
_MOST_PLACES: Final = 100


def configure(*, form: str = "auto", level: str = "info") -> None:
    """Write lines to standard output, also those of libraries; call once, at start.

    form: `json`, `console` (a line for people, with local time), or `auto`: `console` on a terminal, else `json`
    """
    for_people = sys.stdout.isatty() if form == "auto" else form == "console"
    _take_libraries(instead=True)
    _write(sys.stdout, _for_people() if for_people else _for_programs(), level=level)


@contextmanager
def observed(observer: Callable[[Mapping[str, object]], None]) -> Iterator[None]:
    """Hand every event, also one below the level that is written, to an observer, with the fields of FIELDS.

    The observer is called by the thread that logs: it must not wait or raise.
    """

    def tell(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
        observer(_keep_listed(_logger, _method, event))
        return event

    structlog.configure(processors=[tell, *structlog.get_config()["processors"]])
    try:
        yield
    finally:
        rest = [processor for processor in structlog.get_config()["processors"] if processor is not tell]
        structlog.configure(processors=rest)


def begin() -> None:
    """Keep what libraries and the node say beside a command's result on standard error, as events; until `configure`.

    Python would print a library's own words there, which may quote a film.
    """
    _take_libraries(instead=False)
    if not structlog.is_configured():
        _write(sys.stderr, _for_programs(), level="warning")


def _take_libraries(*, instead: bool) -> None:
    """Format libraries' messages as lines; instead: replace existing handlers, or only add one if there are none."""
    mute()
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=instead)
    threading.excepthook = _on_lost_thread


def _write(stream: TextIO, form: tuple[structlog.typing.Processor, ...], *, level: str) -> None:
    least = partial(_drop_below, logging.getLevelNamesMapping()[level.upper()])
    structlog.configure(
        processors=[least, structlog.processors.add_log_level, *form],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # observers get every event
        # One stream for all loggers: the lock that keeps two threads' lines apart belongs to the stream.
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _StreamThatNeverRaises(stream))),
        cache_logger_on_first_use=False,
    )


def adopt(library: str) -> None:
    """Remove a library's own log handlers, so that its messages become lines of this log."""
    logging.getLogger(library).handlers.clear()
    logging.getLogger(library).propagate = True


def mute() -> None:
    """Silence libraries that quote objects and peers: pydicom, its warnings included, pynetdicom, and multipart."""
    warnings.simplefilter("ignore")
    for library in MUTED:
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
        logging.getLogger(library).disabled = True  # pydicom sets the level of its own logger when it is imported


def get() -> structlog.typing.FilteringBoundLogger:
    """Return the logger; docs/operate/monitoring.md says what each event means."""
    logger: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return logger


def _drop_below(
    least: int, _logger: object, method: str, event_dict: MutableMapping[str, object]
) -> MutableMapping[str, object]:
    """End the way of an event below the level that is written."""
    if logging.getLevelNamesMapping()[method.upper()] < least:
        raise structlog.DropEvent
    return event_dict


def _keep_listed(_logger: object, _method: str, event_dict: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Drop every field that FIELDS does not list."""
    return {key: value for key, value in event_dict.items() if key in FIELDS}


def _escape(_logger: object, _method: str, event_dict: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Quote a text that a terminal would obey, or that would end its line."""
    return {
        key: repr(value) if isinstance(value, str) and not value.isprintable() else value
        for key, value in event_dict.items()
    }


def _for_people() -> tuple[structlog.typing.Processor, ...]:
    """Time of day as on the wall, an event in its own column, colors on a terminal."""
    renderer = structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty(), pad_event_to=24)
    return structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False), _keep_listed, _escape, renderer


def _for_programs() -> tuple[structlog.typing.Processor, ...]:
    return structlog.processors.TimeStamper(fmt="iso", utc=True), _keep_listed, structlog.processors.JSONRenderer()


def _on_lost_thread(lost: threading.ExceptHookArgs) -> None:
    """Log where a library's thread ended, without the text of its error."""
    place = where(lost.exc_value) if lost.exc_value is not None else lost.exc_type.__name__
    get().error("library.warned", library=lost.thread.name if lost.thread else "thread", where=place)


class _StreamThatNeverRaises:
    """A stream that never raises: a failure to write the log must not affect a film."""

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
    """Turns library warnings into log lines, one a minute for each place in a library.

    Only the text of the durable executor has no patient data.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[str, str, int], tuple[float, int]] = {}  # when, and how often it came again since

    def emit(self, record: logging.LogRecord) -> None:
        """Log where a record comes from; one that came again within a minute is counted in the next line."""
        place, now = (record.name, record.module, record.lineno), time.monotonic()
        told_at, again = self._told.pop(place, (-math.inf, 0))
        if now - told_at < _TOLD_EVERY_SECONDS:
            self._told[place] = (told_at, again + 1)
            return
        if len(self._told) >= _MOST_PLACES:
            del self._told[next(iter(self._told))]
        self._told[place] = (now, 0)
        facts: dict[str, str | int] = {"library": record.name, "where": f"{record.module}:{record.lineno}"}
        if again:
            facts["times"] = again + 1
        if record.name.startswith("dbos"):
            facts["message"] = record.getMessage()[:300]
        say = get().error if record.levelno >= logging.ERROR else get().warning
        say("library.warned", **facts)
