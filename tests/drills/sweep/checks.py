"""What must hold for every film: words, answers, thresholds and unknown words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from models.contract import FindingState, PromptKind, Question
from models.decisions import PHANTOMS
from models.manifest import read_manifest
from node.domain import Film, Finding
from node.outputs import wording
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.film import film_of
from node.read.model import FilmAnswer, RadiographReader
from node.read.prompt_names import names_of
from tests.drills.sweep import patterns, said

UNKNOWN: Final = (
    "banana",
    "Tuberculosis",
    "Pleural effusion and a giraffe",
    "Pneumothorax of the left kitchen",
    "xyzzy",
)
"""Prompts with a word that no radiologist uses, or that the shipped model never learned."""


@dataclass(slots=True, kw_only=True)
class Swept:
    """Counts over films, and what was wrong; agreed: questions of the set that are answered as the report does."""

    films: int = 0
    sentences: int = 0
    reported: int = 0
    by_network: int = 0
    questions: int = 0
    agreed: int = 0
    words: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether something was read, and nothing was wrong."""
        return self.films > 0 and not self.faults and self.agreed == self.questions

    def figures(self) -> dict[str, object]:
        """The counts, with the first faults."""
        return {
            "passed": self.passed,
            "films": self.films,
            "sentences": self.sentences,
            "reported_findings": self.reported,
            "with_a_sentence_of_the_network": self.by_network,
            "questions": self.questions,
            "agreed": self.agreed,
            "sentences_of": dict(sorted(self.words.items())),
            "faults": len(self.faults),
            "first_faults": self.faults[:20],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A reader, its prompts, and the findings whose thresholds were measured on such films."""

    reader: RadiographReader
    prompts: PromptSet
    measured: frozenset[str]

    def look(self, name: str, image: Radiograph, swept: Swept) -> None:
        """Read a film and ask about it; note what is wrong."""
        reading = self.reader.read(image, self.prompts)
        film = film_of(reading, image, self.prompts, source="1.2.3", model=self.reader.identity, ratio=reading.ratio)
        reported = wording.reported(film)
        swept.films += 1
        swept.sentences += len(film.sentences)
        swept.reported += len(reported)
        swept.by_network += sum(
            found.sentence is not None and film.sentences[found.sentence].by.startswith("network") for found in reported
        )
        objections = [
            *(f"patterns: {fault}" for fault in patterns.contradictions_of(film, reading.regions)),
            *(f"words: {fault}" for fault in said.objections(film, swept.words)),
            *incomplete(film, self.measured),
            *self._unknown(image),
        ]
        for question, fault in self._questions(image, film, swept.films):
            swept.questions += 1
            swept.agreed += fault is None
            if fault is not None:
                objections.append(f"ask {question!r}: {fault}")
        swept.faults += [f"{name}: {objection}" for objection in objections]

    def _unknown(self, image: Radiograph) -> Iterator[str]:
        answers = self.reader.ask(self.reader.see(image), [Question(prompt=text) for text in UNKNOWN], self.prompts)
        for answer in answers:
            if answer.boxes or answer.state is not None or not answer.never_learned:
                yield f"unknown words {answer.question.prompt!r} are answered"

    def _questions(self, image: Radiograph, film: Film, number: int) -> Iterator[tuple[str, str | None]]:
        """Ask in every phrase of the set, and by one more name of each prompt, which the number of the film chooses.

        Yields the text and how its answer differs from the report.
        """
        names = [(prompt, list(names_of(prompt))) for prompt in self.prompts.prompts]
        asked = [
            (prompt, text)
            for prompt, own in names
            for phrase in prompt.phrases
            for text in (phrase, phrase.upper(), own[number % len(own)])
        ]
        answers = self.reader.ask(self.reader.see(image), [Question(prompt=text) for _, text in asked], self.prompts)
        reported = {finding.prompt: finding for finding in film.findings}
        for (prompt, text), answer in zip(asked, answers, strict=True):
            if prompt.kind is PromptKind.PATHOLOGY:
                yield text, _difference(answer, reported[prompt.key], film)
            elif prompt.kind is PromptKind.REGION:
                yield text, None if answer.state is None else f"a region is {answer.state}"


def _difference(answer: FilmAnswer, finding: Finding, film: Film) -> str | None:
    told = "" if finding.sentence is None else film.sentences[finding.sentence].text
    pairs = {
        "state": (answer.state, finding.state),
        "positive": (answer.positive, finding.state is FindingState.PRESENT),
        "score": (answer.score, finding.probability),
        "reason": (answer.contradiction, finding.contradiction),
        "boxes": ([found.box for found in answer.boxes], [found.box for found in finding.boxes]),
        "sentence": (answer.sentence, told),
    }
    differing = [f"{name} {asked!r}, reported {said!r}" for name, (asked, said) in pairs.items() if asked != said]
    return "; ".join(differing) or None


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
