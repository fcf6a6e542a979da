"""Reads the network's answer to a received film, and its corrections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydicom.dataset import Dataset

from node import log
from node.dicom import header_reading
from node.dicom.film_header import parse_header
from node.domain import Film, JsonObject
from node.errors import InputError, OtherForm, Undecodable
from node.outputs import corrected_film, vocabulary
from node.outputs.corrected_film import sides_of
from node.prompt_set import PromptSet
from node.read import routing
from node.store import study_facts
from node.store.correction import Correction, CorrectionKind, active
from node.store.received import Instance, Readings, answer_in, sop_instance_uid_of
from node.store.spool import Spool

REMOVED: Final = "the study of this film is being removed"


class UnusableFilm(InputError):
    """A film that is damaged on disk, or whose study is being removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredFilm:
    """A film that was read, with the network's answer.

    header: its file's, without pixels
    stored: its reading as stored, including the model's identity
    """

    instance: Instance
    answer: Film
    header: Dataset
    stored: JsonObject


def newest_reading(readings: Readings, instance: Instance) -> tuple[datetime, JsonObject] | None:
    """Return the newest reading of this version of an object, with its time; None if it has none.

    An object that gets no answer has no reading.

    readings: those of its study. Raises OtherForm if one of them that is damaged may be a newer reading of this object.
    """
    found = next((known for known in reversed(readings.intact) if known[1].get("file") == instance.path.name), None)
    newer = [str(path) for at, path in readings.damaged if found is None or at >= found[0]]
    if newer and (found is not None or not _is_left_alone(instance)):
        raise OtherForm(f"{', '.join(newer)}: damaged; have the study read again")
    return found


def _is_left_alone(instance: Instance) -> bool:
    try:
        header = parse_header(header_reading.read_header(instance.path))
    except (Undecodable, OSError):
        return False
    return routing.choose(header, routing.rules_for(None)).action is routing.Action.LEAVE


def read_film(spool: Spool, instance: Instance) -> AnsweredFilm:
    """Return a received film with its answer. Raises InputError if it has none, and UnusableFilm."""
    try:
        reading = newest_reading(spool.readings(instance.study_uid), instance)
    except OtherForm as error:
        raise UnusableFilm("an answer of this study is damaged on disk; have the study read again") from error
    if reading is None:
        raise InputError("this film has no answer yet; wait until it is read")
    return _with_header(instance, reading[1], spool)


def _with_header(instance: Instance, stored: JsonObject, spool: Spool) -> AnsweredFilm:
    try:
        header = header_reading.read_header(instance.path, character_set=spool.character_set)
        return AnsweredFilm(instance=instance, answer=answer_in(stored, instance), header=header, stored=stored)
    except FileNotFoundError as error:
        raise UnusableFilm(REMOVED) from error
    except Undecodable as error:
        raise UnusableFilm("this film is damaged on disk; send it again") from error
    except OtherForm as error:
        raise UnusableFilm("the answer to this film is not readable; have its study read again") from error


def corrections_of(spool: Spool, film: Instance) -> list[Correction]:
    """Return the corrections of a film, withdrawn ones included, oldest first."""
    return _of_film(film, spool.corrections(film.study_uid))


def as_corrected(film: AnsweredFilm, spool: Spool, prompts: PromptSet) -> Film:
    """Return a film's answer with its stored corrections applied."""
    return _corrected(film, corrections_of(spool, film.instance), prompts)


def is_still_critical(spool: Spool, study_uid: str, prompt: str, prompts: PromptSet) -> bool | None:
    """Return whether a finding of a study is critical by its newest answers, corrections and rejections.

    None if it may be, because a film that was read came again and is not read yet, or because corrections that are not
    released yet can be taken back. True if nobody can tell, because no film has an answer, or a file cannot be read; a
    film without a readable answer has the finding unless a reader rejected it.
    """
    films, unreadable, unread = list[AnsweredFilm](), list[Instance](), set[str]()
    try:
        facts, readings = study_facts.load(spool, study_uid), spool.readings(study_uid)
        for instance in facts.instances:
            if instance.sop_instance_uid in facts.rejected:
                continue
            try:
                if (reading := newest_reading(readings, instance)) is None:
                    unread.add(instance.sop_instance_uid)
                else:
                    films.append(_with_header(instance, reading[1], spool))
            except (InputError, OtherForm):
                unreadable.append(instance)
    except (OtherForm, OSError):
        return True
    if not films and not unreadable and not facts.rejected:
        return True
    released = [each for each in facts.corrections if each.id not in facts.waiting]
    now, settled = (
        any(
            vocabulary.is_critical(finding)
            for film in films
            for finding in _corrected(film, _of_film(film.instance, made), prompts).findings
            if finding.prompt == prompt
        )
        or not all(_is_rejected(prompt, _of_film(instance, made)) for instance in unreadable)
        for made in (facts.corrections, released)
    )
    answered = {sop_instance_uid_of(str(content.get("file"))) for _, content in readings.intact}
    return now if now is settled and (now or not answered & unread) else None


def _is_rejected(prompt: str, made: Iterable[Correction]) -> bool:
    """Return whether the corrections of a film say that it does not have a finding."""
    kinds = [each.kind for each in active(made) if each.prompt == prompt and each.kind is not CorrectionKind.REWORD]
    return kinds[-1:] == [CorrectionKind.REJECT]


def _of_film(film: Instance, made: Iterable[Correction]) -> list[Correction]:
    own = [correction for correction in made if correction.film == film.sop_instance_uid]
    return sorted(own, key=lambda correction: (correction.at, correction.id))


def _corrected(film: AnsweredFilm, made: list[Correction], prompts: PromptSet) -> Film:
    sides = sides_of(film.answer, film.header)
    return corrected_film.correct(film.answer, made, prompts=prompts, side_of=sides) if made else film.answer


def all_corrections(spool: Spool) -> Iterator[tuple[AnsweredFilm, list[Correction]]]:
    """Yield every corrected film that is still stored, with its corrections, oldest first."""
    for study_uid in spool.studies():
        for instance in spool.instances(study_uid) if spool.corrections(study_uid) else ():
            if own := corrections_of(spool, instance):
                try:
                    yield read_film(spool, instance), own
                except InputError:
                    log.get().warning("correction.film_unreadable", study=study_uid)
