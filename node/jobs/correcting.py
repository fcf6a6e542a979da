"""Takes a reader's correction of a film: checks it, stores it synced, and has the study's outputs made again."""

from __future__ import annotations

from contextlib import closing

from node import log
from node.config import Settings
from node.errors import InputError, RetryLater
from node.jobs.answered_film import REMOVED, AnsweredFilm, UnusableFilm, corrections_of
from node.jobs.executor import Client
from node.metrics import Metrics
from node.outputs.corrected_film import objection, sides_of
from node.outputs.rejected_films import require_valid
from node.prompt_set import PromptSet
from node.store import database
from node.store.correction import Correction, to_json
from node.store.ledger import is_away
from node.store.spool import Spool


def correct(
    film: AnsweredFilm, new: Correction, *, settings: Settings, spool: Spool, metrics: Metrics, prompts: PromptSet
) -> None:
    """Take a correction of a film; when this returns it is stored, and the study's next round follows it.

    A correction that is stored already changes nothing, so a call may be repeated.
    Raises InputError with the reason for a correction that cannot be made, and RetryLater if the database does not
    answer: then the correction is stored, and followed in the study's next round or after the next start.
    """
    known = corrections_of(spool, film.instance)
    if all(correction.id != new.id for correction in known):
        require_valid(spool, film.instance)
        sides = sides_of(film.answer, film.header)
        if (reason := objection(film.answer, known, new, prompts=prompts, side_of=sides)) is not None:
            raise InputError(reason)
        try:
            spool.keep_document(new.study_uid, "corrections", new.id, to_json(new))
        except FileNotFoundError as error:
            raise UnusableFilm(REMOVED) from error
        corrected = {correction.id: correction.prompt for correction in known}
        metrics.corrections.labels(new.kind, new.prompt or corrected[new.withdraws]).inc()
        log.get().info("film.corrected", study=new.study_uid, sop_instance_uid=new.film, kind=new.kind)
    try:
        with closing(Client(database.open_executor_database(settings.storage))) as client:
            client.run_study(new.study_uid)
    except Exception as error:
        if is_away(error):
            said = "the correction is stored, but the database does not answer; the next start of the node follows it"
            raise RetryLater(said) from error
        raise
