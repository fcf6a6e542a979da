"""What a process needed in two parts of a day with the same load."""

from __future__ import annotations

from dataclasses import dataclass

from tests.drills.day.course import Plan
from tests.support.processes import Vitals


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Medians of both parts, in KiB and numbers."""

    before: Vitals
    after: Vitals

    @property
    def growth(self) -> float:
        """Of the memory, as a part of what it was."""
        return self.after.resident_kib / self.before.resident_kib - 1.0

    def is_flat(self, plan: Plan) -> bool:
        """Whether memory, threads and descriptors stayed as they were."""
        return (
            self.growth <= plan.most_growth
            and self.after.threads <= self.before.threads + plan.room
            and self.after.descriptors <= self.before.descriptors + plan.room
        )

    def figures(self) -> dict[str, object]:
        """Return it for the last line of a run."""
        return {
            "mib": [round(part.resident_kib / 1024, 1) for part in (self.before, self.after)],
            "growth": round(self.growth, 4),
            "threads": [self.before.threads, self.after.threads],
            "descriptors": [self.before.descriptors, self.after.descriptors],
        }
