"""Compares what two models say of the same films: states, boxes, probabilities, and how often readers agreed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from node.domain import Film, Finding, FindingState
from node.read.evidence import iou

READ = "read"
"""How the answer to a film that was read is counted; the others are counted by their reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmPair:
    """One film as the model in use and the other model answer it.

    judged: what a reader said of findings, by prompt: whether it is present
    """

    old: Film
    new: Film
    judged: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingComparison:
    """One finding on all films that both models read.

    states: the number of films by the states of old and new
    probabilities: of old and new, film by film
    boxes: how many boxes old and new drew
    overlaps: on each film where both drew boxes, the mean over all boxes of the largest overlap (IoU) with one of the
    other model
    judged: the number of films on which a reader said whether it is present; right: on how many of them old and new
    said the same; squared_errors: the mean squared differences (Brier scores) of old and new there, None without any
    judgments: of each of these films, whether the finding is present, and the probabilities of old and new
    """

    prompt: str
    states: Mapping[tuple[FindingState, FindingState], int]
    probabilities: tuple[tuple[float, float], ...]
    boxes: tuple[int, int]
    overlaps: tuple[float, ...]
    judged: int
    right: tuple[int, int]
    squared_errors: tuple[float, float] | None
    judgments: tuple[tuple[bool, float, float], ...] = ()

    @property
    def films(self) -> int:
        """The number of films."""
        return sum(self.states.values())

    @property
    def changed(self) -> int:
        """The number of films on which the state differs."""
        return sum(count for (old, new), count in self.states.items() if old is not new)

    def present(self, which: int) -> int:
        """On how many films the old (0) or the new (1) model calls it present."""
        return sum(count for states, count in self.states.items() if states[which] is FindingState.PRESENT)

    def mean_probability(self, which: int) -> float:
        """The mean probability of the old (0) or the new (1) model."""
        return sum(pair[which] for pair in self.probabilities) / max(len(self.probabilities), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenth:
    """The judgments of findings whose probability lies in one tenth: number 3 is 0.3 up to 0.4."""

    number: int
    judged: int
    present: int
    mean_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """All films and all findings.

    outcomes: the number of films by what became of them: `read`, or the reason why not, by old and by new
    changed: the number of films on which the state of a finding, or the outcome, differs
    only_old, only_new: findings that one of the prompt sets asks for
    """

    films: int
    outcomes: Mapping[tuple[str, str], int]
    changed: int
    findings: tuple[FindingComparison, ...]
    only_old: tuple[str, ...] = ()
    only_new: tuple[str, ...] = ()


def compare(pairs: Sequence[FilmPair], *, old: Sequence[str], new: Sequence[str]) -> ModelComparison:
    """Compare answers film by film; old, new: the keys of the findings that each prompt set asks for, in order."""
    both_read = [pair for pair in pairs if pair.old.is_read and pair.new.is_read]
    shared = [key for key in old if key in new]
    return ModelComparison(
        films=len(pairs),
        outcomes=Counter((_outcome(pair.old), _outcome(pair.new)) for pair in pairs),
        changed=sum(_has_changed(pair, shared) for pair in pairs),
        findings=tuple(_compare(key, both_read) for key in shared) if both_read else (),
        only_old=tuple(key for key in old if key not in new),
        only_new=tuple(key for key in new if key not in old),
    )


def _outcome(film: Film) -> str:
    return READ if film.reason is None else str(film.reason)


def _has_changed(pair: FilmPair, keys: Sequence[str]) -> bool:
    if _outcome(pair.old) != _outcome(pair.new):
        return True
    old, new = _states(pair.old), _states(pair.new)
    return any(old.get(key) is not new.get(key) for key in keys)


def _states(film: Film) -> dict[str, FindingState]:
    return {finding.prompt: finding.state for finding in film.findings}


def _compare(key: str, pairs: Sequence[FilmPair]) -> FindingComparison:
    found = [(_finding(pair.old, key), _finding(pair.new, key)) for pair in pairs]
    said = [(pair.judged[key], old, new) for pair, (old, new) in zip(pairs, found, strict=True) if key in pair.judged]
    judgments = tuple((there, *numbers) for there, old, new in said if (numbers := _numbers(old, new)) is not None)
    return FindingComparison(
        prompt=key,
        states=Counter((old.state, new.state) for old, new in found),
        probabilities=tuple(numbers for old, new in found if (numbers := _numbers(old, new)) is not None),
        boxes=(sum(len(old.boxes) for old, _ in found), sum(len(new.boxes) for _, new in found)),
        overlaps=tuple(_overlap(old, new) for old, new in found if old.boxes and new.boxes),
        judged=len(said),
        right=(sum(_agrees(old, there) for there, old, _ in said), sum(_agrees(new, there) for there, _, new in said)),
        squared_errors=_squared_errors(judgments) if judgments else None,
        judgments=judgments,
    )


def reliability(findings: Iterable[FindingComparison], which: int) -> list[Tenth]:
    """Return how often findings were present, by tenth of the probability of the old (0) or the new (1) model."""
    tenths: dict[int, list[tuple[bool, float]]] = {}
    for there, *probabilities in (judgment for found in findings for judgment in found.judgments):
        tenths.setdefault(min(int(probabilities[which] * 10), 9), []).append((there, probabilities[which]))
    return [
        Tenth(
            number=number,
            judged=len(said),
            present=sum(there for there, _ in said),
            mean_probability=sum(probability for _, probability in said) / len(said),
        )
        for number, said in sorted(tenths.items())
    ]


def calibration_error(tenths: Sequence[Tenth]) -> float:
    """Return the expected calibration error: the mean difference of probability and share present, by judgments."""
    off = sum(abs(tenth.mean_probability * tenth.judged - tenth.present) for tenth in tenths)
    return off / sum(tenth.judged for tenth in tenths)


def _finding(film: Film, key: str) -> Finding:
    return next(finding for finding in film.findings if finding.prompt == key)


def _agrees(finding: Finding, is_there: bool) -> bool:
    return (finding.state is FindingState.PRESENT) == is_there


def _numbers(old: Finding, new: Finding) -> tuple[float, float] | None:
    """Return both probabilities; None if a model leaves the finding out."""
    if old.probability is None or new.probability is None:
        return None
    return old.probability, new.probability


def _squared_errors(judgments: Sequence[tuple[bool, float, float]]) -> tuple[float, float]:
    old = sum((float(there) - before) ** 2 for there, before, _ in judgments)
    new = sum((float(there) - after) ** 2 for there, _, after in judgments)
    return old / len(judgments), new / len(judgments)


def _overlap(old: Finding, new: Finding) -> float:
    sides = ([found.box for found in old.boxes], [found.box for found in new.boxes])
    best = [max(iou(own, other) for other in others) for boxes, others in (sides, sides[::-1]) for own in boxes]
    return sum(best) / len(best)
