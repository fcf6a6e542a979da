"""The files and corrections that a round covers, fixed once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from node.store.rounds import RoundMark
from node.store.study_facts import StudyFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round over a study: the files it covers, and when it began. Fixed once, in a checkpointed step.

    corrections: ids of the corrections that its answers follow
    destinations: the outputs that each destination gets, by name
    """

    study_uid: str
    number: int
    files: tuple[str, ...]
    created_at: datetime
    corrections: tuple[str, ...] = ()
    destinations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def plan(facts: StudyFacts, *, at: datetime, destinations: Mapping[str, tuple[str, ...]]) -> Round | None:
    """Plan the next round; None when no file is unread."""
    if not facts.unread:
        return None
    return Round(
        study_uid=facts.uid,
        number=max((mark.number for mark in facts.rounds), default=0) + 1,
        files=tuple(instance.path.name for instance in facts.instances),
        created_at=at.replace(microsecond=0),
        corrections=facts.followed_corrections,
        destinations=destinations,
    )


def again(study_uid: str, mark: RoundMark) -> Round:
    """Return the plan of a finished round."""
    return Round(
        study_uid=study_uid,
        number=mark.number,
        files=(*mark.files, *mark.parked),
        created_at=mark.created_at,
        corrections=mark.corrections,
        destinations=mark.destinations,
    )


def known_to(plan: Round, facts: StudyFacts) -> StudyFacts:
    """Return the facts at the time of a round's plan, without later arrivals, whenever it is written.

    The marks are those of the rounds before it. The answers that were sent stay: their objects are named in its notes.
    """
    return replace(
        facts,
        rounds=tuple(mark for mark in facts.rounds if mark.number < plan.number),
        notes={file: facts.notes[file] for file in plan.files if file in facts.notes},
        corrections=tuple(item for item in facts.corrections if item.id in plan.corrections),
    )
