"""What a reader is asked and what it answers, in the network's own frame.

Every box is center x, center y, width, height in 0..1 of the square the network saw; only the node maps it to a film.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.engines import Patches

FloatArray = NDArray[np.float32]
Kind = Literal["pathology", "no_finding", "region"]
State = Literal["present", "indeterminate", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPrompt:
    """One thing to ask about a film; hashable, because its embedding is kept.

    phrases: synonyms whose embeddings are averaged (SPEC.md 3)
    negatives: phrases of the opposite, for everything but regions (SPEC.md 8)
    """

    key: str
    kind: Kind
    phrases: tuple[str, ...]
    negatives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.phrases:
            raise ValueError(f"prompt {self.key}: a prompt needs at least one phrase")
        if self.kind != "region" and not self.negatives:
            raise ValueError(f"prompt {self.key}: a {self.kind} prompt needs a negative phrase")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """One film as the network sees it, encoded once and good for any number of questions."""

    patches: Patches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sentence:
    """A generated sentence, never blank, with the boxes it speaks of.

    key: the prompt it was generated for
    score: aggregated score of that prompt (SPEC.md 4.5)
    boxes, box_scores: [box, 4] and [box]; those above the manifest's box threshold, else the best one
    """

    text: str
    key: str
    score: float
    boxes: FloatArray
    box_scores: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptReading:
    """What the network says about one prompt.

    probability, state: SPEC.md 8 of the prompt's own pair; None for a region, which is neither present nor absent
    sentence: index into the film's sentences, also of the one that stands for a removed duplicate; None without any
    """

    key: str
    kind: Kind
    probability: float | None
    state: State | None
    boxes: FloatArray
    box_scores: FloatArray
    sentence: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmReading:
    """The reading of one film: sentences in prompt order, and one reading per prompt."""

    sentences: tuple[Sentence, ...]
    prompts: tuple[PromptReading, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An interactive question: a prompt, a box, or both together.

    box: center x, center y, width, height; it must touch the square, for the network has no patch anywhere else
    """

    prompt: str | None = None
    box: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        if self.prompt is None and self.box is None:
            raise ValueError("a question needs a prompt, a box, or both")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError("the prompt of a question must not be blank")
        if self.box is None:
            return
        x, y, width, height = self.box
        if not all(math.isfinite(value) for value in self.box) or width <= 0 or height <= 0:
            raise ValueError("the box of a question must be finite and not empty")
        if abs(x - 0.5) >= (1 + width) / 2 or abs(y - 0.5) >= (1 + height) / 2:
            raise ValueError("the box lies outside the square that the network sees")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The answer to one question.

    sentence: may be empty, when the generator says nothing
    score: SPEC.md 8 of the prompt's own pair; for a box alone, how far its content is from the negative prompts
    boxes, box_scores: where the network sees what was asked; the asked box itself, with the score, when one was given
    """

    sentence: str
    score: float
    positive: bool
    boxes: FloatArray
    box_scores: FloatArray
