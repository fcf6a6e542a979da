"""The limits of the benchmark, and what a run found, as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound of a figure.

    is_most: whether the figure may be at most `bound`; else it must be at least that
    needs: the limit counts only in a run that has all of these: "4 films" at once, "int8", exported "graphs"
    """

    part: str
    name: str
    bound: float
    is_most: bool
    needs: frozenset[str]

    def allows(self, figure: float | None) -> bool:
        """Say whether a figure keeps the limit; one that was not measured does not."""
        if figure is None or not math.isfinite(figure):
            return False
        return figure <= self.bound if self.is_most else figure >= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a part found; held: the figures that have limits, by the limit's name."""

    figures: Mapping[str, object]
    held: Mapping[str, float] = field(default_factory=dict)


def _most(part: str, name: str, bound: float, *needs: str) -> Limit:
    return Limit(part=part, name=name, bound=bound, is_most=True, needs=frozenset(needs))


def _least(part: str, name: str, bound: float, *needs: str) -> Limit:
    return Limit(part=part, name=name, bound=bound, is_most=False, needs=frozenset(needs))


LIMITS: Final = (
    _most("opening", "peak_gib_float32", 5.0),
    _most("opening", "peak_gib_int8", 2.2, "int8"),
    _least("report", "report_float32_ratio_1_films", 2.0, "1 films"),
    _least("report", "report_float32_ratio_4_films", 2.5, "4 films"),
    _least("report", "report_int8_ratio_1_films", 3.5, "1 films", "int8"),
    _least("report", "report_encode_image_ratio", 1.4, "1 films", "graphs"),
    _least("report", "report_find_ratio", 1.4, "1 films", "graphs"),
    _least("receive", "receive_films_storescp_ratio", 0.75),
    _least("receive", "receive_films_orthanc_ratio", 1.0),
    _least("receive", "receive_small_storescp_ratio", 0.5),
    _most("node", "node_cost_pydicom_ratio", 5.0),
    _least("node", "node_share_of_cores", 0.5),
    _most("node", "node_turnaround_cost_ratio", 6.0),
    _most("shipped", "shipped_cost_pydicom_ratio", 6.0),
    _least("shipped", "shipped_share_of_cores", 0.5),
    _most("shipped", "shipped_answer_beside_films_ratio", 4.0),
    _least("shipped", "shipped_films_read_a_question", 0.5),
    _most("runtimes", "runtimes_that_did_not_answer_or_differ", 0.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a run found, by the names of its parts.

    conditions: the machine, its load, and what was measured
    errors: why a part has no figures; has: what limits may need
    """

    conditions: Mapping[str, object]
    chosen: Sequence[str]
    found: Mapping[str, Found]
    errors: Mapping[str, str]
    has: AbstractSet[str]

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of the parts that were chosen."""
        return tuple(limit for limit in LIMITS if limit.part in self.chosen and limit.needs <= self.has)

    @property
    def held(self) -> dict[str, float]:
        """The figures that are held against limits, by the limit's name; those of parts that failed are missing."""
        return {name: round(figure, 4) for found in self.found.values() for name, figure in found.held.items()}

    @property
    def missed(self) -> tuple[str, ...]:
        """The names of the limits that were not kept."""
        return tuple(limit.name for limit in self.limits if not limit.allows(self.held.get(limit.name)))

    @property
    def passed(self) -> bool:
        """Whether every part that was chosen has figures, and they keep all limits."""
        return not self.errors and not self.missed

    def document(self) -> dict[str, object]:
        """Return all as JSON has it."""
        held, missed = self.held, self.missed
        return {
            "passed": self.passed,
            "conditions": dict(self.conditions),
            "limits": {
                limit.name: {
                    "figure": held.get(limit.name),
                    "at most" if limit.is_most else "at least": limit.bound,
                    "is_kept": limit.name not in missed,
                }
                for limit in self.limits
            },
            "errors": dict(self.errors),
            **{name: dict(found.figures) for name, found in self.found.items()},
        }
