"""The questions and answers of a reader, in the network's own frame.

Every box is center x, center y, width, height in 0..1 of the square that the network saw; only the node maps it to a
film.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from models.engines import Patches
from models.reading.decision import State

FloatArray = NDArray[np.float32]
Kind = Literal["pathology", "no_finding", "region"]
By = Literal["network", "network_uncalibrated", "rule"]
Contradiction = Literal["film_normal", "box_denied", "other_side", "sentence_denies"]
"""What speaks against a finding that is reported; `contradictions` has the rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPrompt:
    """A question about a film; hashable, because its embedding is cached.

    phrases: synonyms whose embeddings are averaged (spec §3)
    negatives: phrases of the opposite, for everything but regions (spec §8)
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
    """A film encoded once, for any number of questions."""

    patches: Patches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sentence:
    """A generated sentence, never blank, and the boxes it is about.

    key: the prompt it was generated for
    by: "rule" for a sentence made by rule, because what was generated did not say what was decided;
    "network_uncalibrated" for one that asserts a finding whose threshold was not measured on such films
    score: aggregated score of that prompt (spec §4.5)
    boxes, box_scores: [box, 4] and [box]; those above the manifest's box threshold, merged as it says, otherwise
    the best one
    """

    text: str
    key: str
    score: float
    boxes: FloatArray
    box_scores: FloatArray
    by: By = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """A generated sentence that does not leave. key: of its prompt; reason: the same in report and metric."""

    text: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptReading:
    """The result for one prompt.

    probability, state: spec §8 of the prompt's own pair; None for a region, which is neither present nor absent
    sentence: index into the film's sentences; a removed duplicate has the index of the sentence that replaces it; None
    if there is none
    generated: what the network said for it at first, before any check; empty if nothing
    contradiction: what speaks against a finding that is reported; None if nothing does
    left_out: whether the model leaves this finding out on such films, whatever its probability
    near: whether it is reported, or stayed less than `decision.NEAR` below that
    """

    key: str
    kind: Kind
    probability: float | None
    state: State | None
    boxes: FloatArray
    box_scores: FloatArray
    sentence: int | None
    generated: str = ""
    contradiction: Contradiction | None = None
    left_out: bool = False
    near: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmReading:
    """The reading of a film: sentences in prompt order, one result per prompt, and sentences that do not leave."""

    sentences: tuple[Sentence, ...]
    prompts: tuple[PromptReading, ...]
    withheld: tuple[Withheld, ...] = ()

    @property
    def regions(self) -> dict[str, FloatArray]:
        """The best box [4] of each region, by prompt key."""
        regions = (prompt for prompt in self.prompts if prompt.kind == "region")
        return {prompt.key: prompt.boxes[prompt.box_scores.argmax()] for prompt in regions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An interactive question: a prompt, a box, or both.

    box: center x, center y, width, height; it must overlap the square, because the network has no patches elsewhere
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

    sentence: empty if the generator produces nothing
    score: spec §8 of the prompt's own pair; for a box alone, how different its content is from the negative prompts
    state: None for a region, which is neither present nor absent
    boxes, box_scores: where the network locates the prompt; the given box itself, with the score, if there was one
    by: as of a `Sentence`; contradiction, left_out: as of a `PromptReading`
    never_learned: words of the prompt that the model never learned; then nothing was asked, and there is no answer
    """

    sentence: str
    score: float | None
    state: State | None
    boxes: FloatArray
    box_scores: FloatArray
    by: By = "network"
    contradiction: Contradiction | None = None
    left_out: bool = False
    never_learned: tuple[str, ...] = ()

    @classmethod
    def unanswered(cls, words: tuple[str, ...]) -> Answer:
        """Return the answer to a prompt with words that the model never learned."""
        boxes, scores = np.zeros((0, 4), dtype=np.float32), np.zeros(0, dtype=np.float32)
        return cls(sentence="", score=None, state=None, boxes=boxes, box_scores=scores, never_learned=words)

    @property
    def positive(self) -> bool:
        """Whether what was asked for is present."""
        return self.state == "present"
