"""Questions about films: answers that a person sends, and objects of workstations that may contain questions.

    studies/<study>/questions/<id>.json      the question with its answer (`outputs.asked_question`)
    studies/<study>/sent/<id>.json           the order to send the answer, and the outputs that were written for it
    studies/<study>/objects/<uid>.json       the state of a workstation's object, which is answered once

The second and third are synced before anything is queued, so a loss of the databases loses neither an answer that was
accepted for sending nor a question that was received.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from models.documents import decode, encode
from node.domain import JsonObject, OutputObject
from node.errors import InputError
from node.store import files
from node.store.received import sop_instance_uid_of
from node.store.spool import Spool

_ID: Final = re.compile(r"[0-9a-f]{32}")
_GONE: Final = "this node does not have the question any more; its study may have been removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAnswer:
    """An answer that a person sends.

    question: its id
    outputs: written for it; empty until then
    is_released: whether its outputs may be sent: a check of the stored outputs found no objection
    reason: why it cannot be sent; "" if it can
    """

    question: str
    requested_at: datetime
    outputs: tuple[OutputObject, ...] = ()
    is_released: bool = False
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """Whether its outputs are still to be written or released."""
        return not (self.is_released or self.reason)


def question(spool: Spool, study_uid: str, question_id: str) -> JsonObject:
    """Return a stored question. Raises InputError if the node does not have it (any more)."""
    content = spool.document(study_uid, "questions", _checked(question_id))
    if content is None:
        raise InputError(_GONE)
    return content


def study_of(spool: Spool, question_id: str) -> str:
    """Return the study of a question. Raises InputError if the node does not have it (any more)."""
    for study_uid in spool.index.find(_checked(question_id)):
        if spool.document(study_uid, "questions", question_id) is not None:
            return study_uid
    raise InputError(_GONE)


def keep_answer(spool: Spool, study_uid: str, answer: SentAnswer) -> None:
    """Store a sent answer, synced; replaces its earlier state. Its question exists."""
    spool.keep_document(study_uid, "sent", _checked(answer.question), encode(answer))


def find_answer(spool: Spool, study_uid: str, question_id: str) -> SentAnswer | None:
    """Return a sent answer; None if nobody has sent it."""
    content = spool.document(study_uid, "sent", _checked(question_id))
    return (
        None if content is None else files.made(partial(decode, SentAnswer), content, place=f"sent/{question_id}.json")
    )


def answers_of(spool: Spool, study_uid: str) -> list[SentAnswer]:
    """Return the sent answers of a study, in the order in which they were sent."""
    found = spool.documents_as(partial(decode, SentAnswer), study_uid, "sent")
    return sorted(found, key=lambda answer: (answer.requested_at, answer.question))


def answer_outputs(spool: Spool, study_uid: str) -> Iterator[OutputObject]:
    """Yield the outputs that were written for the sent answers of a study."""
    for answer in answers_of(spool, study_uid):
        yield from answer.outputs


def released_outputs(spool: Spool, study_uid: str) -> Iterator[OutputObject]:
    """Yield the outputs of a study's sent answers that may be sent, or were."""
    for answer in answers_of(spool, study_uid):
        if not answer.is_open:
            yield from answer.outputs


def _checked(question_id: str) -> str:
    if not _ID.fullmatch(question_id):
        raise InputError("this is no id of a question")
    return question_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectMark:
    """The state of a workstation's object.

    file: its name in the spool
    received_at: aware UTC
    is_open: whether it is still to be processed
    questions: ids of its questions whose answers are sent
    reasons: why it, or a part of it, has no effect
    """

    file: str
    received_at: datetime
    is_open: bool = True
    questions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def sop_instance_uid(self) -> str:
        """The UID of the object."""
        return sop_instance_uid_of(self.file)


def keep_object(spool: Spool, study_uid: str, mark: ObjectMark) -> None:
    """Store the state of an object, synced. Raises FileNotFoundError if its study was removed."""
    spool.keep_document(study_uid, "objects", mark.sop_instance_uid, encode(mark))


def find_object(spool: Spool, study_uid: str, sop_instance_uid: str) -> ObjectMark | None:
    """Return the state of an object; None if it is unknown."""
    return next((mark for mark in objects_of(spool, study_uid) if mark.sop_instance_uid == sop_instance_uid), None)


def objects_of(spool: Spool, study_uid: str) -> list[ObjectMark]:
    """Return the states of a study's objects, in order of arrival."""
    found = spool.documents_as(partial(decode, ObjectMark), study_uid, "objects")
    return sorted(found, key=lambda mark: (mark.received_at, mark.file))
