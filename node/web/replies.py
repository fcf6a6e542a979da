"""Questions in words over the interface for programs: answered by rule from the report, else by the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request

from models.contract import Question
from node.answers.comparison import FilmComparison
from node.answers.questions import Query, Topic, is_plain_prompt, understand
from node.answers.replies import Proposal, Reply, answer, answer_by, for_network
from node.errors import InputError
from node.jobs.answered_film import AnsweredFilm, as_corrected, read_film
from node.jobs.patients import NOT_IN_ORDER, EarlierFilm, compare_films, obstacle_of
from node.read.manifest import read_change_error
from node.store.received import Instance
from node.store.study_facts import require_valid
from node.web.api import UID_PATTERN, AddressedFilm, add_film_route, film_of
from node.web.dependencies import Parts, WebParts
from node.web.problems import Problem, responses
from node.web.questions import NewLookWords, ask_network, box_of, limit, model_of
from node.web.users import audit, name_of

router = APIRouter(prefix="/api/v1", tags=["questions"])

_NOT_TOLD: Final = (
    "Only a user who has signed in is told which films are of one patient, and may compare them by words."
)
_CHOOSE: Final = "Choose the earlier film to compare with; a day in words chooses none."
_NO_EARLIER: Final = "This node has read no film that is known to be an earlier one of this patient."


class NewWords(NewLookWords):
    """A question in words, or a prompt; box: one on the film that it is about; earlier: the film to compare with.

    earlier_study: needed if several studies have a film with the UID of the earlier one
    """

    earlier: Annotated[str | None, Field(pattern=UID_PATTERN, max_length=64, description="SOP Instance UID")] = None
    earlier_study: Annotated[
        str | None, Field(pattern=UID_PATTERN, max_length=64, description="Study Instance UID of `earlier`")
    ] = None


class KnownEarlierFilm(BaseModel):
    """An earlier film of the same patient; at: the time in its header, "2026-11-02 14:30", local to the site."""

    film: str
    study: str
    at: str


class FoundChange(BaseModel):
    """What became of a finding; boxes, earlier_boxes: tracking UIDs of its boxes on the film and on the earlier one."""

    finding: str
    change: str
    text: str
    boxes: tuple[str, ...]
    earlier_boxes: tuple[str, ...]


class WordedReply(BaseModel):
    """The answer to a question in words.

    text: null if the words are a prompt, which only the network is asked
    findings, boxes: what the text rests on: keys of prompts, and tracking UIDs
    corrections: what the words correct, to confirm: nothing is corrected by them
    questions: what the network was asked, with its answer, as in the answer to `questions`; at most one
    earlier: films to compare with, the last one first; only for a user who has signed in, and a question on changes
    compared_with, compared_study: the film that was compared with; changes: what became of each finding
    """

    film: str
    text: str | None = None
    findings: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()
    corrections: tuple[Proposal, ...] = ()
    questions: list[dict[str, object]] = []
    earlier: list[KnownEarlierFilm] = []
    compared_with: str | None = None
    compared_study: str | None = None
    changes: list[FoundChange] = []


@add_film_route(router, "POST", "/replies", responses=responses(404, 409, 422, 429, 503))
def reply(parts: Parts, request: Request, film: AddressedFilm, new: NewWords) -> WordedReply:
    """Answer a question in words by rule from the report of the film; ask the network what the report does not say."""
    uid, prompts = film.sop_instance_uid, parts.prompts()
    query, box = understand(new.text, prompts), box_of(new.box)
    limit(parts, request)
    question: Question | None
    if is_plain_prompt(new.text, query, prompts):
        made, question = WordedReply(film=uid), new.as_prompt()
    else:
        known = _read(parts, film)
        shown = as_corrected(known, parts.spool, prompts)
        if query.topic is Topic.COMPARE and shown.is_read:
            made, question = _compared(parts, request, known, query=query, new=new), None
        else:
            said = answer(query, shown, box=box)
            question = for_network(query, said, prompts, box=box) if shown.is_read else None
            made = worded(uid, said)
    if question is not None:
        made.questions = ask_network(parts, request, film, [question])
    audit(request, "question.asked", study=film.study_uid, sop_instance_uid=uid)
    return made


def _read(parts: WebParts, film: Instance) -> AnsweredFilm:
    """Return a film with its answer. Raises Problem if it has none, or an archive has rejected it."""
    try:
        answered = read_film(parts.spool, film)
        require_valid(parts.spool, film)
        return answered
    except InputError as error:
        raise Problem(409, str(error)) from error


def _compared(parts: WebParts, request: Request, film: AnsweredFilm, *, query: Query, new: NewWords) -> WordedReply:
    """Answer a question on changes: by the named film, or else the last one, unless the words name a day.

    Only a user who has signed in may learn which films are of one patient.
    """
    uid, model = film.instance.sop_instance_uid, model_of(parts)
    error = read_change_error(parts.settings.model.directory, reader=parts.settings.model.reader)
    if (obstacle := obstacle_of(error, model.reader.identity)) is not None:
        return worded(uid, answer_by(obstacle, query))
    is_known = bool(name_of(request))
    known = parts.patients.earlier(film.instance, parts.spool) if is_known else []
    if new.earlier is not None:
        other = _named(parts, film, new.earlier, study=new.earlier_study or "")
        chosen = next((each for each in known if each.instance == other.instance), None)
    elif known and not any(map(str.isdigit, new.text)):
        chosen = known[0]
        other = _read(parts, chosen.instance)
    else:
        text = _NOT_TOLD if not is_known else _CHOOSE if known else _NO_EARLIER
        return worded(uid, Reply(text=text), known)
    about = "that was named" if chosen is None else f"of {_time(chosen)}"
    compared = compare_films(
        other, film, spool=parts.spool, prompts=model.prompts, error=error, model=model.reader.identity
    )
    audit(request, "question.asked", study=other.instance.study_uid, sop_instance_uid=other.instance.sop_instance_uid)
    made = worded(uid, answer_by(compared, query), known)
    made.text = f"Compared with the film {about}. {made.text}"
    made.compared_with, made.compared_study = other.instance.sop_instance_uid, other.instance.study_uid
    made.changes = _changes(compared, made.findings)
    return made


def _named(parts: WebParts, film: AnsweredFilm, uid: str, *, study: str) -> AnsweredFilm:
    """Return the earlier film that a request names. Raises Problem if it is none."""
    other = film_of(parts, uid, study=study)
    if not parts.patients.are_in_order(other, film.instance):
        raise Problem(409, NOT_IN_ORDER)
    return _read(parts, other)


def worded(uid: str, said: Reply, earlier: Sequence[EarlierFilm] = ()) -> WordedReply:
    """Return a reply as it is sent; uid: the film's UID; earlier: the films to compare with."""
    return WordedReply(
        film=uid,
        text=said.text,
        findings=said.findings,
        boxes=said.boxes,
        corrections=said.corrections,
        earlier=[
            KnownEarlierFilm(film=each.instance.sop_instance_uid, study=each.instance.study_uid, at=_time(each))
            for each in earlier
        ],
    )


def _changes(compared: FilmComparison, findings: tuple[str, ...]) -> list[FoundChange]:
    return [
        FoundChange(
            finding=found.prompt,
            change=found.change,
            text=found.text,
            boxes=found.later,
            earlier_boxes=found.earlier,
        )
        for found in compared.findings
        if found.prompt in findings
    ]


def _time(film: EarlierFilm) -> str:
    return f"{film.at:%Y-%m-%d %H:%M}"
