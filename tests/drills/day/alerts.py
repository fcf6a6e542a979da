"""Which alerts fired, how often and when, against those that were due: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Due:
    """An alert that must begin to fire between two times, once."""

    alert: str
    earliest: float
    latest: float


@dataclass(frozen=True, slots=True)
class Firing:
    """One time that an alert fired, from its first to its last moment; labels: all of them as one text."""

    alert: str
    labels: str
    began: float
    ended: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fired:
    """What an alert trail says of a day.

    times: how often each alert fired; missing: those that were due and did not; unexpected: those that were not due, or
    that fired again; unresolved: those that fire at the end
    """

    times: dict[str, int]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    unresolved: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether each alert that was due fired once and ended, and no other fired."""
        return not (self.missing or self.unexpected or self.unresolved)


def judge(firings: Iterable[Firing], due: Iterable[Due], *, unresolved: Iterable[str] = ()) -> Fired:
    """Match what fired with what was due; of several firings of one alert in its time, one is expected."""
    left = sorted(firings, key=lambda firing: firing.began)
    times = dict(sorted(Counter(firing.alert for firing in left).items()))
    missing = []
    for expected in due:
        found = next((firing for firing in left if _fits(firing, expected)), None)
        if found is None:
            missing.append(f"{expected.alert} from {_time(expected.earliest)} to {_time(expected.latest)}")
        else:
            left.remove(found)
    unexpected = tuple(f"{firing.alert} at {_time(firing.began)} ({firing.labels})" for firing in left)
    return Fired(times=times, missing=tuple(missing), unexpected=unexpected, unresolved=tuple(sorted(unresolved)))


def firings(
    states: Iterable[tuple[dict[str, str], Sequence[tuple[float, float]]]],
    activations: Iterable[tuple[dict[str, str], Sequence[tuple[float, float]]]],
) -> list[Firing]:
    """Return each time that an alert fired.

    states: of each series of ALERTS that fires, its labels, and times and values of its samples
    activations: the same of ALERTS_FOR_STATE, whose value is when the alert became active: it tells an alert that
        fires again from one of which a sample is missing
    """
    active = {_labels(labels): dict(samples) for labels, samples in activations}
    found = []
    for labels, samples in states:
        text, since = _labels(labels), dict[float, list[float]]()
        for at, _ in samples:
            since.setdefault(active.get(text, {}).get(at, 0.0), []).append(at)
        found += [Firing(labels["alertname"], text, min(times), max(times)) for times in since.values()]
    return found


def _fits(firing: Firing, expected: Due) -> bool:
    return firing.alert == expected.alert and expected.earliest <= firing.began <= expected.latest


def _labels(labels: dict[str, str]) -> str:
    """The labels that tell one alert from another."""
    own = {name: value for name, value in labels.items() if name not in ("__name__", "alertstate")}
    return ", ".join(f"{name}={value}" for name, value in sorted(own.items()))


def _time(seconds: float) -> str:
    """A time of the simulated day."""
    minutes = round(seconds / 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
