"""Takes a radiologist's correction of a film: checks it, stores it synced, and starts a new round of the study.

The round starts when the radiologist has finished, or some time after the last correction in the study (`gathering`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

from models.documents import encode
from node import log
from node.config import Settings
from node.errors import InputError, RetryLater
from node.jobs import gathering
from node.jobs.answered_film import REMOVED, AnsweredFilm, UnusableFilm, corrections_of
from node.jobs.executor import Client
from node.jobs.gathering import Waiting
from node.metrics import Metrics
from node.outputs.corrected_film import objection, sides_of
from node.prompt_set import PromptSet
from node.store import database
from node.store.correction import Correction
from node.store.ledger import is_away
from node.store.spool import Spool
from node.store.study_facts import require_valid

_NOT_QUEUED: Final = (
    "the correction is stored, but the database does not answer; ask again, or the next start of the node follows it"
)


def correct(
    film: AnsweredFilm,
    new: Correction,
    *,
    is_last: bool,
    settings: Settings,
    spool: Spool,
    metrics: Metrics,
    prompts: PromptSet,
) -> None:
    """Store a correction of a film; a round will follow it.

    Idempotent: a correction that is stored already changes nothing.
    is_last: whether the radiologist has finished, so that all corrections of the study are released now
    Raises InputError with the reason for an invalid correction, and RetryLater if the database does not answer: then
    the correction is stored, and followed after the next start.
    """
    known = corrections_of(spool, film.instance)
    if all(correction.id != new.id for correction in known):
        require_valid(spool, film.instance)
        sides = sides_of(film.answer, film.header)
        if (reason := objection(film.answer, known, new, prompts=prompts, side_of=sides)) is not None:
            raise InputError(reason)
        try:
            spool.keep_document(new.study_uid, "corrections", new.id, encode(new))
        except FileNotFoundError as error:
            raise UnusableFilm(REMOVED) from error
        corrected = {correction.id: correction.prompt for correction in known}
        metrics.corrections.labels(new.kind, new.prompt or corrected[new.withdraws]).inc()
        log.get().info("film.corrected", study=new.study_uid, sop_instance_uid=new.film, kind=new.kind)
    quiet_seconds = settings.corrections.quiet_seconds
    if is_last or not quiet_seconds:
        finish(new.study_uid, settings=settings, spool=spool)
        return
    with _queueing(settings) as client:
        client.run_gather(new.study_uid, new.id, quiet_seconds)


def finish(study_uid: str, *, settings: Settings, spool: Spool) -> Waiting:
    """Release all waiting corrections of a study, and return them.

    Raises RetryLater if the database does not answer: then the release is stored, and followed after the next start.
    """
    found = gathering.waiting(spool, study_uid)
    gathering.release(spool, study_uid, found)
    if gathering.are_released(spool, study_uid):  # also after an earlier call without a database
        with _queueing(settings) as client:
            client.run_study(study_uid)
    return found


@contextmanager
def _queueing(settings: Settings) -> Iterator[Client]:
    """Open the client that queues work. Raises RetryLater if the database does not answer."""
    try:
        with closing(Client(database.open_executor_database(settings.storage))) as client:
            yield client
    except Exception as error:
        if is_away(error):
            raise RetryLater(_NOT_QUEUED) from error
        raise
