"""What must hold for every film: words and thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from models.contract import Box, FindingState
from models.decisions import PHANTOMS
from models.manifest import read_manifest
from node.domain import Film
from node.outputs import wording
from node.prompt_set import PromptSet
from tests.drills.sweep import patterns, said


@dataclass(slots=True, kw_only=True)
class Swept:
    """Counts over films, and what was wrong."""

    films: int = 0
    sentences: int = 0
    reported: int = 0
    by_network: int = 0
    words: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether something was read, and nothing was wrong."""
        return self.films > 0 and not self.faults

    def figures(self) -> dict[str, object]:
        """The counts, with the first faults."""
        return {
            "passed": self.passed,
            "films": self.films,
            "sentences": self.sentences,
            "reported_findings": self.reported,
            "with_a_sentence_of_the_network": self.by_network,
            "sentences_of": dict(sorted(self.words.items())),
            "faults": len(self.faults),
            "first_faults": self.faults[:20],
        }


def look(film: Film, regions: Mapping[str, Box], *, name: str, measured: frozenset[str], swept: Swept) -> None:
    """Count what is said of a film and note what is wrong; regions: the box of each region prompt, by its key."""
    reported = wording.reported(film)
    swept.films += 1
    swept.sentences += len(film.sentences)
    swept.reported += len(reported)
    swept.by_network += sum(
        found.sentence is not None and film.sentences[found.sentence].by.startswith("network") for found in reported
    )
    objections = [
        *(f"patterns: {fault}" for fault in patterns.contradictions_of(film, regions)),
        *(f"words: {fault}" for fault in said.objections(film, swept.words)),
        *incomplete(film, measured),
    ]
    swept.faults += [f"{name}: {objection}" for objection in objections]


def incomplete(film: Film, measured: frozenset[str]) -> Iterator[str]:
    """Name findings that are present unmeasured, reported without box or sentence, or contradicted and present."""
    for finding in film.findings:
        if finding.state in (FindingState.PRESENT, FindingState.INDETERMINATE) and finding.prompt not in measured:
            yield f"{finding.prompt} is {finding.state}, and its threshold was not measured"
        if finding.contradiction is not None and finding.state not in (
            FindingState.INDETERMINATE,
            FindingState.UNCALIBRATED,
        ):
            yield f"{finding.prompt} is {finding.state} and contradicted ({finding.contradiction})"
        if not finding.state.is_reported and finding.boxes:
            yield f"{finding.prompt} is absent and has a box"
        is_placed = finding.boxes or finding.place == "no_place"
        if finding.state.is_reported and (not is_placed or finding.sentence is None):
            yield f"{finding.prompt} is {finding.state} without box or sentence"


def measured_on(model: Path, population: str, prompts: PromptSet) -> frozenset[str]:
    """Read from the manifest whose thresholds may be trusted for films of a population: phantoms, real, or any."""
    if population == "any":
        return frozenset(prompt.key for prompt in prompts.prompts)
    decisions = read_manifest(model).decisions
    measurements = (decisions.on_phantoms() if population == "phantoms" else decisions).measurements
    return frozenset(
        key for key, made in measurements.items() if (made.measured_on == PHANTOMS) == (population == "phantoms")
    )
