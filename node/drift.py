"""Whether the network answers today's films as it answered its first: the population stability index, per prompt.

Pure. A window holds, for one scanner or for all, how the first `REFERENCE_FILMS` were answered and how the last
`CURRENT_FILMS` after them were, each answer as one of ten equal bins of its probability: nothing of a film but that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from node.domain import Json, JsonObject

REFERENCE_FILMS: Final = 500
CURRENT_FILMS: Final = 200
BINS: Final = 10

# A bin that is empty on one side only would make the index infinite. Half a film of the current window in every bin
# keeps it finite, and keeps single films in rare bins from raising the alert: with 1e-4 instead, chance alone does so
# in 1 to 3 of 100 windows where most films lie in one bin (tests/test_drift.py).
_FLOOR: Final = 0.5 / CURRENT_FILMS


def psi(reference: Sequence[int], current: Sequence[int]) -> float:
    """Compare two histograms of the same bins, each with something in it: the sum of (c - r) ln(c / r) over shares.

    0 where the shares are equal, and nowhere else; by custom, above 0.1 something moved, above 0.2 one must look.
    Chance alone comes to 0.06 on average with 500 and 200 films, and above 0.2 in fewer than 2 of 1,000 windows.
    """
    pairs = zip(_shares(reference), _shares(current), strict=True)
    return math.fsum((c - r) * math.log(c / r) for r, c in pairs)


def _shares(counts: Sequence[int]) -> list[float]:
    """Shares of the whole, all above 0; equal shares stay equal, different ones different."""
    whole = sum(counts)
    return [(count / whole + _FLOOR) / (1 + _FLOOR * len(counts)) for count in counts]


def bin_of(probability: float) -> int:
    """Which of the ten equal bins a probability, 0..1, falls into; 1 belongs to the last."""
    return min(int(probability * BINS), BINS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How the first films were answered and how the newest are; by prompt one digit, the bin, per film."""

    reference: Mapping[str, str] = field(default_factory=dict)
    current: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference_films(self) -> int:
        """Number of films in the reference."""
        return max(map(len, self.reference.values()), default=0)

    @property
    def current_films(self) -> int:
        """Number of films in the current window."""
        return max(map(len, self.current.values()), default=0)

    def with_film(self, probabilities: Mapping[str, float]) -> Window:
        """Add one film's answers, by prompt: to the reference until that is full, else in place of the oldest."""
        if self.reference_films < REFERENCE_FILMS:
            return Window(reference=_added(self.reference, probabilities, REFERENCE_FILMS), current=self.current)
        return Window(reference=self.reference, current=_added(self.current, probabilities, CURRENT_FILMS))

    def drift(self) -> dict[str, float]:
        """The index of every prompt; of none before both windows are full."""
        return {
            prompt: psi(_counts(self.reference[prompt]), _counts(bins))
            for prompt, bins in self.current.items()
            if len(bins) == CURRENT_FILMS and len(self.reference.get(prompt, "")) == REFERENCE_FILMS
        }

    def to_json(self) -> JsonObject:
        """As it is kept."""
        return {"reference": dict(self.reference), "current": dict(self.current)}


def window_from_json(content: JsonObject | None) -> Window:
    """What was kept; an empty window where nothing was, or anything that does not fit."""
    content = content or {}
    reference = _bins(content.get("reference"), REFERENCE_FILMS)
    current = _bins(content.get("current"), CURRENT_FILMS)
    return Window() if reference is None or current is None else Window(reference=reference, current=current)


def _added(films: Mapping[str, str], probabilities: Mapping[str, float], limit: int) -> dict[str, str]:
    return {
        prompt: (films.get(prompt, "") + str(bin_of(probability)))[-limit:]
        for prompt, probability in probabilities.items()
    }


def _counts(bins: str) -> list[int]:
    found = Counter(bins)
    return [found[str(number)] for number in range(BINS)]


def _bins(content: Json, limit: int) -> dict[str, str] | None:
    """By prompt a digit per film, at most `limit`; None where there is anything else, digits of other scripts too."""
    if not isinstance(content, dict):
        return None
    films = {prompt: bins for prompt, bins in content.items() if isinstance(bins, str)}
    fits = all(bins.isascii() and bins.isdecimal() and len(bins) <= limit for bins in films.values())
    return films if fits and len(films) == len(content) else None
