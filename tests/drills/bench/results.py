"""The limits of the benchmark, and what a run found, as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound of a figure.

    is_most: whether the figure may be at most `bound`; else it must be at least that
    films: the limit counts only if so many films at once are measured; 0: always
    int8: the limit counts only on a processor that computes in int8
    """

    part: str
    name: str
    bound: float
    is_most: bool = True
    films: int = 0
    int8: bool = False

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


def _least(part: str, name: str, bound: float, *, films: int = 0, int8: bool = False) -> Limit:
    return Limit(part=part, name=name, bound=bound, is_most=False, films=films, int8=int8)


LIMITS: Final = (
    Limit(part="opening", name="peak_gib_float32", bound=5.0),
    Limit(part="opening", name="peak_gib_int8", bound=2.2, int8=True),
    _least("generator", "generator_float32_same_tokens", 1.0),
    _least("report", "report_float32_ratio_1_film", 2.0, films=1),
    _least("report", "report_float32_ratio_4_films", 2.5, films=4),
    _least("report", "report_int8_ratio_1_film", 3.5, films=1, int8=True),
    *(_least("graphs", f"graph_{stage}_ratio", 1.4) for stage in ("encode_image", "find")),
    _least("receive", "receive_films_storescp_ratio", 0.75),
    _least("receive", "receive_films_orthanc_ratio", 1.0),
    _least("receive", "receive_small_storescp_ratio", 0.5),
    Limit(part="node", name="node_cost_pydicom_ratio", bound=5.0),
    _least("node", "node_share_of_cores", 0.5),
    Limit(part="node", name="node_turnaround_cost_ratio", bound=6.0),
    Limit(part="node", name="node_cost_with_studies_waiting_ratio", bound=1.1),
    _least("cores", "node_two_cores_ratio", 1.7),
    Limit(part="shipped", name="shipped_cost_pydicom_ratio", bound=6.0),
    _least("shipped", "shipped_share_of_cores", 0.5),
    Limit(part="shipped", name="shipped_answer_beside_films_ratio", bound=4.0),
    _least("shipped", "shipped_films_read_a_question", 0.5),
    Limit(part="runtimes", name="runtimes_that_did_not_answer_or_differ", bound=0.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a run found, by the names of its parts.

    conditions: the machine, its load, and what was measured
    errors: why a part has no figures
    int8_fault: why this machine does not compute in int8, whose limits then do not count; empty if it does
    """

    conditions: Mapping[str, object]
    chosen: Sequence[str]
    found: Mapping[str, Found]
    errors: Mapping[str, str]
    films: Sequence[int]
    int8_fault: str = ""

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits of the parts that were chosen."""
        return tuple(
            limit
            for limit in LIMITS
            if limit.part in self.chosen
            and (not limit.films or limit.films in self.films)
            and not (limit.int8 and self.int8_fault)
        )

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
            "chosen": list(self.chosen),
            "limits": {
                limit.name: {
                    "part": limit.part,
                    "figure": held.get(limit.name),
                    "at most" if limit.is_most else "at least": limit.bound,
                    "is_kept": limit.name not in missed,
                }
                for limit in self.limits
            },
            "errors": dict(self.errors),
            "int8_not_measured": self.int8_fault,
            **{name: dict(found.figures) for name, found in self.found.items()},
        }
