"""What happens on a day and when: pure, drawn by a seed. Times are seconds of the simulated day from midnight."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from tests.drills.day.alerts import Due

HOUR: Final = 3600.0
MINUTE: Final = 60.0

FILMS_AN_HOUR: Final = (6, 5, 4, 4, 4, 6, 12, 30, 60, 80, 80, 60, 50, 60, 80, 80, 60, 40, 24, 20, 20, 16, 10, 8)
"""By hour of the day, 819 in all: a peak before noon, and an equal one after it, which is compared with it."""

CORRECTIONS_AN_HOUR: Final = 3
SHARE_SENT_AGAIN: Final = 0.05
_STUDY_OF_TWO: Final = 0.3
_AGAIN_AFTER: Final = 10 * MINUTE
_STRANGERS: Final = 30
_STRANGER_EVERY: Final = 10.0
_RETRY_AFTER: Final = 20 * MINUTE


class Kind(Enum):
    """What happens."""

    FILM = auto()
    AGAIN = auto()
    CORRECTION = auto()
    DOWN = auto()
    UP = auto()
    CONFLICT = auto()
    STRANGER = auto()
    REFUSAL = auto()
    RETRY = auto()


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens; study and film say which film a PACS sends."""

    at: float
    kind: Kind
    study: str = ""
    film: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A day or a part of it.

    scale: simulated seconds in a real one
    first_hour, hours: where the day begins, and how much of it is lived
    share: of the films of the day curve that come
    outages: hours of the day between which the archive is down, long enough that CxrAnswersLate is due however many
        films were drawn
    conflict, strangers, refusal: the hour of other pixels under a known UID, of a caller that is unknown, and of an
        object that the archive refuses and a person retries
    compared: two hours of equal load between which memory may grow by `most_growth`, and threads and descriptors by
        `room`; a comparison takes `over` hours
    slack_seconds: real ones that a node needs whatever the scale, as to see that an archive is back
    resolved_seconds: real ones in which the last alert ends
    """

    scale: float
    seed: int
    first_hour: float = 0.0
    hours: float = 24.0
    share: float = 1.0
    outages: tuple[tuple[float, float], ...] = ((11.0, 11.75), (17.0, 17.75))
    conflict: float | None = 13.0
    strangers: float | None = 6.0
    refusal: float | None = 21.0
    compared: tuple[float, float] = (9.0, 14.0)
    over: float = 2.0
    most_growth: float = 0.05
    room: int = 16
    slack_seconds: float = 12.0
    resolved_seconds: float = 60.0

    @property
    def slack(self) -> float:
        """The slack, in simulated seconds."""
        return self.slack_seconds * self.scale


def events(plan: Plan) -> list[Event]:
    """Everything that happens, in order."""
    return sorted([*_films(plan), *_corrections(plan), *_faults(plan)], key=lambda event: event.at)


def due(plan: Plan) -> list[Due]:
    """The alerts that must fire, once each, and when at the earliest and the latest."""
    expected = []
    for down, up in plan.outages:
        expected += [
            Due("CxrDestinationStopped", down * HOUR, up * HOUR + plan.slack),
            Due("CxrAnswersLate", up * HOUR, up * HOUR + 30 * MINUTE + plan.slack),
        ]
    for alert, hour in (
        ("CxrConflict", plan.conflict),
        ("CxrAssociationsRefused", plan.strangers),
        ("CxrParkedWork", plan.refusal),
    ):
        if hour is not None:
            expected.append(Due(alert, hour * HOUR, hour * HOUR + 20 * MINUTE + plan.slack))
    return expected


def _films(plan: Plan) -> Iterator[Event]:
    """Films at random moments of each hour, as many as the curve says, some in a study of two, some sent again."""
    draw, study = random.Random(plan.seed), ""
    moments = sorted(_moments(plan, draw, [plan.share * films for films in FILMS_AN_HOUR]))
    for number, at in enumerate(moments, 1):
        is_second = bool(study) and draw.random() < _STUDY_OF_TWO
        name = study if is_second else f"day {number}"
        yield Event(at, Kind.FILM, name, f"day film {number}")
        study = "" if is_second else name
        if draw.random() < SHARE_SENT_AGAIN:
            yield Event(at + _AGAIN_AFTER, Kind.AGAIN)


def _corrections(plan: Plan) -> Iterator[Event]:
    draw = random.Random(plan.seed + 1)
    for at in _moments(plan, draw, [CORRECTIONS_AN_HOUR] * len(FILMS_AN_HOUR)):
        yield Event(at, Kind.CORRECTION)


def _faults(plan: Plan) -> Iterator[Event]:
    for down, up in plan.outages:
        yield Event(down * HOUR, Kind.DOWN)
        yield Event(up * HOUR, Kind.UP)
    if plan.conflict is not None:
        yield Event(plan.conflict * HOUR, Kind.CONFLICT)
    if plan.strangers is not None:
        for number in range(_STRANGERS):
            yield Event(plan.strangers * HOUR + number * _STRANGER_EVERY, Kind.STRANGER)
    if plan.refusal is not None:
        yield Event(plan.refusal * HOUR, Kind.REFUSAL, "refused", "refused film")
        yield Event(plan.refusal * HOUR + _RETRY_AFTER, Kind.RETRY)


def _moments(plan: Plan, draw: random.Random, rates: list[float] | list[int]) -> Iterator[float]:
    """Moments of the part of the day that is lived, so many in each of its hours."""
    end = plan.first_hour + plan.hours
    for hour, rate in enumerate(rates):
        begin, until = max(hour, plan.first_hour), min(hour + 1.0, end)
        for _ in range(round(rate * max(until - begin, 0.0))):
            yield draw.uniform(begin, until) * HOUR
