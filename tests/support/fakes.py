"""Small stand-ins that keep one of our own protocols; every other peer in the tests is real."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from models.contract import (
    Fallback,
    FindingState,
    PromptKind,
    PromptReading,
    Question,
    ScoredBox,
    Sentence,
    StageDifference,
)
from node.domain import ModelIdentity
from node.errors import InputError
from node.prompt_set import Prompt, PromptSet
from node.read.decoding import Radiograph
from node.read.model import FilmAnswer, RadiographReader, Reading, SeenFilm

_STATES = (FindingState.PRESENT, FindingState.ABSENT, FindingState.INDETERMINATE, FindingState.ABSENT)
_PROBABILITIES = {FindingState.PRESENT: 0.83, FindingState.INDETERMINATE: 0.46, FindingState.ABSENT: 0.07}


class Panic(BaseException):
    """What a library in Rust raises when it panics: no subclass of Exception."""


class ScriptedReader(RadiographReader):
    """Says the same of every film; it depends on nothing but `version`, and one file.

    hold: while this file exists, every reading waits
    critical: while this file exists, a pneumothorax is present
    deadly: while this file exists, a film of so many columns as it says kills the process after 0.3 s, and the reading
        of any other takes a second: long enough to be in hand then
    """

    gray = "voi"
    ages: Container[int] | None = None
    fallbacks: tuple[Fallback, ...] = ()
    parity: Mapping[str, StageDifference] = MappingProxyType(
        {"find.boxes": StageDifference(max_abs=1e-6, tolerance=1e-4)}
    )

    def __init__(
        self,
        version: str = "1",
        *,
        hold: Path | None = None,
        critical: Path | None = None,
        deadly: Path | None = None,
    ) -> None:
        self._hold, self._critical, self._deadly = hold, critical, deadly
        self.identity = ModelIdentity(name="scripted", version=version, weights_sha256="0" * 64, engine="scripted")

    def prepare(self, prompts: PromptSet) -> None:
        if words := [prompt.key for prompt in prompts.prompts if "unlearned" in prompt.phrases]:
            raise InputError(f"prompt {words[0]}: this model never learned: unlearned; use other words")

    def square(self, columns: int, rows: int) -> tuple[float, float, float, float]:
        side = min(columns, rows)
        left, top = (columns - side) // 2, (rows - side) // 2
        return (float(left), float(top), float(left + side), float(top + side))

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        while self._hold is not None and self._hold.exists():
            time.sleep(0.02)
        self._die(image)
        pathologies = [prompt for prompt in prompts.prompts if prompt.kind is PromptKind.PATHOLOGY]
        sentences = [
            Sentence(text=f"{prompt.phrases[0]} is seen here.", prompt=prompt.key, score=0.7, boxes=_boxes(image, i))
            for i, prompt in enumerate(pathologies)
        ]
        answers = [
            PromptReading(
                key=prompt.key, probability=_PROBABILITIES[state], state=state, boxes=_boxes(image, i), sentence=i
            )
            for i, (prompt, state) in enumerate(self._states(pathologies))
        ]
        regions = [
            PromptReading(key=prompt.key, kind=PromptKind.REGION, boxes=_boxes(image, i)[:1])
            for i, prompt in enumerate(prompts.prompts)
            if prompt.kind is PromptKind.REGION
        ]
        return Reading(sentences=tuple(sentences), prompts=(*answers, *regions))

    def _die(self, image: Radiograph) -> None:
        if self._deadly is None or not self._deadly.exists():
            return
        if image.framing.columns == int(self._deadly.read_text(encoding="utf-8")):
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1.0)

    def _states(self, pathologies: Sequence[Prompt]) -> Iterator[tuple[Prompt, FindingState]]:
        is_critical = self._critical is not None and self._critical.exists()
        for prompt, state in zip(pathologies, itertools.cycle(_STATES), strict=False):
            yield prompt, FindingState.PRESENT if is_critical and prompt.key == "pneumothorax" else state

    def see(self, image: Radiograph) -> SeenFilm:
        return SeenFilm(framing=image.framing, sides_known=image.sides_known, look=None, notes=image.notes)

    def ask(self, film: SeenFilm, questions: Sequence[Question], prompts: PromptSet) -> list[FilmAnswer]:
        return [
            FilmAnswer(
                question=question,
                sentence="It is seen here.",
                score=0.7,
                state=FindingState.PRESENT,
                boxes=_boxes(film, i),
                notes=film.notes,
            )
            for i, question in enumerate(questions)
        ]


def _boxes(image: Radiograph | SeenFilm, index: int) -> tuple[ScoredBox, ...]:
    """One box left of the middle; every third prompt has one on the right as well."""
    left = ScoredBox(box=image.framing.to_image((0.3, 0.2 + 0.04 * index, 0.2, 0.1)), score=0.8)
    right = ScoredBox(box=image.framing.to_image((0.7, 0.2 + 0.04 * index, 0.2, 0.1)), score=0.6)
    return (left, right) if index % 3 == 0 else (left,)
