"""The node's log on standard output: JSON lines, or lines for people, with a closed list of events and of fields.

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

from node import trace
from node.errors import where

EVENTS: Final = {
    "service.started": "the settings are read, the parts are being built",
    "service.listening": "the ports are open and films are stored; carries the real ports",
    "service.ready": "the model is open and films are read; carries the real ports",
    "service.stopped": "everything is closed",
    "model.opened": "the model is open; the hashes of its weights and graphs are right",
    "model.not_calibrated": "no threshold of some findings was measured; `message` names them, and how to measure one",
    "model.promoted": "another model than before is served; `films` films were compared, `changed` of them changed",
    "model.accepted": "another model than before is served without a comparison; the settings accept that",
    "runtime.fell_back": "a runtime cannot run here, the next one is tried; `reason` says why, `message` what to do",
    "association.refused": "a caller was not admitted; `reason` says why, `calling_aet` and `called_aet` are its "
    "titles, `times` counts repetitions within a minute",
    "association.aborted": "the node ended an association; `reason` says why, `times` counts repetitions",
    "connection.closed": "the node closed an HTTP connection; `reason` says why, `times` counts repetitions",
    "page.failed": "an HTTP page failed or took too long; `reason` says which and why",
    "access.closed": "nobody can sign in on this address: only /metrics, /live and /ready are served",
    "access.refused": "a request to a page or the API was refused; `reason` says why, `times` counts repetitions",
    "access.denied": "a user asked for what the role does not allow; `reason` is the route",
    "session.begun": "a user signed in",
    "session.refused": "a user did not sign in; `reason` says why; an unknown user is not named",
    "session.ended": "a user signed out",
    "passwords.reloaded": "the changed password file was read and is in use",
    "passwords.refused": "the password file, or lines of it, cannot be used; those users cannot sign in",
    "worklist.viewed": "audit: a user saw the patients of a list; `studies` says of how many studies",
    "study.viewed": "audit: a user opened a study",
    "study.retried": "audit: a user had parked work of a study run again",
    "film.viewed": "audit: a user opened the picture of a film",
    "output.downloaded": "audit: a user downloaded an output",
    "questions.viewed": "audit: a user listed what was asked about a film",
    "corrections.viewed": "audit: a user listed what was corrected on a film",
    "film.submitted": "audit: a user sent in a film",
    "question.asked": "audit: a user asked about a film",
    "film.corrected": "a reader's correction is stored; `kind` says what it does",
    "correction.made": "audit: a user corrected the answer to a film",
    "corrections.finished": "audit: a user let the corrections of a study leave",
    "correction.film_unreadable": "a corrected film, or its answer, is damaged on disk and is not exported",
    "question.answered": "an object's questions are answered and sent; `calling_aet` sent it, `reason` says what is "
    "left out",
    "question.dropped": "who asked over the interface closed the connection before the answer",
    "question.ignored": "a presentation state or report is no question by the settings, or came again changed",
    "question.refused": "a workstation's object cannot be answered; `calling_aet` sent it, `reason` says why",
    "question.removed": "audit: a user removed a question that the model had refused",
    "study.deleted": "audit: a user deleted a study; `reason` says why",
    "study.reread": "audit: a user had a study read again; `reason` says why",
    "question.sent": "audit: a user had an answer sent to the destinations",
    "configuration.reloaded": "the settings were read again; what changed is in use, `message` names it",
    "prompts.reloaded": "films and questions are read with another prompt set from now on; `prompts` names it",
    "configuration.refused": "the settings were read again and refused, `message` says why; the old ones stay in force",
    "certificate.reloaded": "changed certificate files were read and are in use",
    "certificate.refused": "changed certificate files cannot be used; the old ones stay in use",
    "instance.kept": "a received object is synced on disk; the sender got Success",
    "instance.repeated": "an object was received again; the sender got Success",
    "instance.repaired": "a received object replaced its own file, which was damaged",
    "instance.conflict": "an object has other pixels than the stored one with its UID; stored beside it, not read",
    "instance.doubled": "an object of another study has the same UID; both are read, `patients` says if they differ",
    "instance.refused": "a received object was not stored; `reason` says why; the sender got an error status; `times` "
    "counts those of one HTTP request",
    "spool.swept": "files that were never acknowledged were removed at start",
    "spool.set_aside": "a file or folder with a name that the node gives to nothing, `name`, was moved to `aside`",
    "study.delayed": "the durable executor did not accept a study; the node tries again",
    "study.submitted": "new files of a study will be processed after its quiet time",
    "study.ready": "a study is complete; a round begins",
    "film.decided": "one image was read or skipped; `reason` says why",
    "film.rejected": "a note of an archive rejects `films` films of a study for `reason`",
    "writer.failed": "a writer process failed (`reason`); this process writes the objects itself",
    "film.damaged": "a stored film differs from what was received; it is read when its sender sends it again",
    "output.damaged": "a stored output is missing or damaged; the node writes it again",
    "output.rewritten": "a damaged output was restored byte for byte; it is sent",
    "study.finished": "all outputs of a round are stored and their deliveries queued",
    "answer.written": "a person sent an answer; its objects are stored and their deliveries queued",
    "answer.refused": "an answer that a person sent cannot be written, `reason` says why; ask the question again",
    "outputs.voided": "`outputs` outputs of earlier rounds are rejected or withdrawn, and are not sent any more",
    "study.divided": "a study has films of several patients or accession numbers; each of its `parts` has results",
    "study.parked": "a round failed; a person must act (`node retry`)",
    "study.removed": "a delivered study was removed from disk after keep_days",
    "study.fill_failed": "what a lost database knew of studies could not be filled in; tried again in an hour",
    "retention.failed": "old studies could not be removed; the node tries again in an hour",
    "study.restored": "deliveries of a study that a lost database did not know were queued again",
    "database.damaged": "an SQLite file was damaged and moved aside under `name`; a new one is built from the spool",
    "database.waiting": "PostgreSQL does not answer; the start waits for it, `message` is the error",
    "executor.waiting": "another process with this executor's name still runs; the start waits for its end",
    "executor.recovered": "unfinished workflows of a dead executor were queued again",
    "executor.cleaned": "the executor's records of old workflows were removed",
    "workflow.lost": "a thread ended without a result; its work is tried again, or parked the third time; `reason`",
    "executor.broken": "a step met a full disk or a lost database; the process ends and must be started again",
    "delivery.begun": "an output is being sent to a destination (level `debug`)",
    "delivery.sent": "a destination accepted an output",
    "delivery.delayed": "a destination did not accept an output; the node tries again",
    "delivery.committed": "a destination confirmed that it keeps an output (storage commitment)",
    "commitment.delayed": "a destination could not be asked for storage commitment; the node asks again",
    "commitment.refused": "a commitment report fits no request or could not be stored; its sender got an error status",
    "destination.down": "a destination does not answer; its queue waits, and one probe checks whether it is back",
    "destination.back": "a destination answers again; waiting outputs are sent",
    "destination.examined": "an administrator asked a destination whether it answers; nothing was sent",
    "order.kept": "an order is synced on disk, or was removed because it was cancelled; its sender got AA",
    "order.unmatched": "`outputs` results lack order numbers: their order is not known to be for their patient",
    "order.refused": "a connection or message with orders was refused; `reason` says why, `times` counts repetitions",
    "delivery.parked": "a destination refuses an output permanently; a person must act (`node retry`)",
    "audit.delayed": "audit messages wait on disk: the collector did not take them; the node tries again",
    "audit.back": "the collector of audit messages takes them again",
    "audit.stopped": "audit messages are lost; `name` is the place that does not take them, `reason` says why",
    "audit.resumed": "audit messages are stored again; `times` of them were lost",
    "alert.sent": "the webhook or the mail server, `kind`, took a message that a trouble began or ended (`outcome`)",
    "alert.delayed": "a webhook or mail server did not take a message; the node tries again",
    "alert.lost": "a message about a trouble is not tried any more; `name` is the trouble",
    "library.warned": "a library logged a warning or an error at `where`; `times` counts repetitions",
}

FIELDS: Final = frozenset(
    """
    event level timestamp version model prompts engine weights_sha256 dicom_port http_port orders_port tls_port
    name host calling_aet called_aet reason study sop_instance_uid kind round stage instances bytes files read
    not_processed outputs seconds times destination attempts priority cancelled library message where executor workflows
    user outcome films changed compared_at compared_by questions corrections trace
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
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)
    mute()
    threading.excepthook = _on_lost_thread
    least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            partial(_drop_below, least),
            structlog.processors.add_log_level,
            *(_for_people() if for_people else _for_programs()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),  # observers get every event
        # One stream for all loggers: the lock that keeps two threads' lines apart belongs to the stream.
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _StreamThatNeverRaises(sys.stdout))),
        cache_logger_on_first_use=False,
    )


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
    mute()
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()])
    threading.excepthook = _on_lost_thread
    if not structlog.is_configured():
        structlog.configure(
            processors=[partial(_drop_below, logging.WARNING), structlog.processors.add_log_level, *_for_programs()],
            wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
            logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _StreamThatNeverRaises(sys.stderr))),
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
    """Return the logger; event names are the keys of EVENTS."""
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
    """Drop every field that FIELDS does not list; a line about a study names its trace, if traces are on."""
    if trace.is_on() and isinstance(study := event_dict.get("study"), str):
        event_dict["trace"] = trace.id_of(study)
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
