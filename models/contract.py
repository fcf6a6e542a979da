"""The interface between a network and the node: the questions about a film, and the answers.

`node`, `models` and `language` take them from here, so a state, a side, a question and an answer have one definition.
This file imports no library.

Boxes that a network gives and gets are edges in 0..1 of the square of the upright film that it sees. `node.read.model`
maps them, by `Framing`, to pixels of the stored film; from there on all boxes of the node are in those pixels.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar, get_args

from models.bounds import require_positive, require_unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from models.decisions import RatioError


class FindingState(StrEnum):
    """The answer to one prompted finding; indeterminate and uncalibrated mean that a person should look.

    Uncalibrated: not below a band that ends at a threshold which nobody measured on such films. Absent: below the band;
    "not reported" in outputs. Left out: the model never reports it on such films, whatever its probability; "not
    assessed" in outputs.
    """

    PRESENT = "present"
    INDETERMINATE = "indeterminate"
    UNCALIBRATED = "uncalibrated"
    ABSENT = "absent"
    LEFT_OUT = "left_out"

    @property
    def is_reported(self) -> bool:
        """Whether outputs report a finding in this state: it is neither absent nor left out."""
        return self not in (FindingState.ABSENT, FindingState.LEFT_OUT)


class Side(StrEnum):
    """A side of the patient, never of the image."""

    RIGHT = "right"
    LEFT = "left"
    BILATERAL = "bilateral"


class PromptKind(StrEnum):
    """The purpose of a prompt: only a pathology can become a finding."""

    PATHOLOGY = "pathology"
    NO_FINDING = "no_finding"
    REGION = "region"


By: TypeAlias = Literal["network", "network_uncalibrated", "rule", "reader"]
"""Who made a sentence: the network, with or without a measured threshold for what it asserts; a rule in place of a
faulty one; or a person."""

Doubt: TypeAlias = Literal["other_view", "mirrored", "rotated", "image_type", "two_views", "maybe_child"]
"""Doubts about all findings of a film: by its picture or its header it may be another view than assumed."""

Contradiction: TypeAlias = Literal["other_side", "sentence_denies", "companion_silent", Doubt]
"""What speaks against a finding that is reported; `models.reading.contradictions` has the rules of the network, and
whoever knows the film's header those of a `Doubt`."""

Laterality: TypeAlias = Literal["boxes", "unknown"]
"""How the side of a finding follows: from its boxes, or not at all."""

SentenceRule: TypeAlias = Literal["raw", "checked", "marked"]
"""Which sentences of a network leave: all as generated; those that say what was decided; or with these, marked, those
that deny what is below a measured threshold."""

Trusted: TypeAlias = Literal["real", "phantoms", "any"]
"""Which thresholds are trusted: those measured on real films, those measured on phantoms, or any, measured or not."""

Gray: TypeAlias = Literal["voi", "mimic_jpg"]
"""The gray values of a film: as displayed, or as in the pictures of MIMIC-CXR-JPG (design §4)."""

View: TypeAlias = Literal["AP", "PA", "lateral", "not_chest"]
VIEWS: Final[tuple[View, ...]] = get_args(View)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle, by its edges: finite, not empty."""

    left: float
    top: float
    right: float
    bottom: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(edge) for edge in self.edges):
            raise ValueError(f"a box needs finite edges, got {self.edges}")
        if not (self.left < self.right and self.top < self.bottom):
            raise ValueError(f"a box must not be empty, got {self.edges}")

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, top, right, bottom."""
        return (self.left, self.top, self.right, self.bottom)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBox:
    """A box and the network's score for it, 0..1."""

    box: Box
    score: float


SideOf: TypeAlias = Callable[[float, float], Side | None]
"""Says on which side of the patient a box lies, by its center and width in the square; None across the middle."""

ZoneOf: TypeAlias = Callable[[str, Sequence[Box], Mapping[str, Box]], str | None]
"""Says in which zone a finding lies, as in "lower zone", by its key, its boxes, and the best box of each region by its
key; None if it lies in no one zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPrompt:
    """A prompt for every film; hashable, because its embedding is cached.

    phrases: synonyms whose embeddings are averaged (spec §3)
    negatives: phrases of the opposite, for everything but regions (spec §8)
    """

    key: str
    kind: PromptKind
    phrases: tuple[str, ...]
    negatives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.phrases or not all(phrase.strip() for phrase in self.phrases):
            raise ValueError(f"prompt {self.key}: a prompt needs at least one phrase")
        if self.kind is not PromptKind.REGION and not self.negatives:
            raise ValueError(f"prompt {self.key}: a {self.kind} prompt needs a negative phrase")

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.phrases[0]

    @property
    def is_of_lungs(self) -> bool:
        """Whether it asks for something in the lungs or at the pleura, or for a part of the lungs."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence, never blank, and the boxes it describes.

    prompt: the key of the prompt that it was made for
    score: of that prompt, aggregated over its boxes (spec §4.5)
    """

    text: str
    prompt: str
    score: float
    boxes: tuple[ScoredBox, ...]
    by: By = "network"

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("a sentence must not be blank")


@dataclass(frozen=True, slots=True, kw_only=True)
class WithheldSentence:
    """A generated sentence that no output says, and a short name of its fault: the same in report and metric."""

    text: str
    prompt: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReading:
    """The answer to one prompt of a set.

    key: of the prompt
    probability, state: None for a region, which is neither present nor absent
    sentence: index into the film's sentences; a removed duplicate has the index of the sentence that replaces it; None
    if there is none
    generated: the network's first sentence for it, before any check; empty if none
    contradiction: the objection to a reported finding; None if there is none
    near: whether its probability reached the reporting threshold, or stayed less than 0.05 below
    thresholds: the probabilities from which it is possible, and from which it is present; None if unknown
    laterality: how its side follows, if its prompt names none
    """

    key: str
    kind: PromptKind = PromptKind.PATHOLOGY
    probability: float | None = None
    state: FindingState | None = None
    boxes: tuple[ScoredBox, ...] = ()
    sentence: int | None = None
    generated: str = ""
    contradiction: Contradiction | None = None
    near: bool = False
    thresholds: tuple[float, float] | None = None
    laterality: Laterality = "boxes"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmReading:
    """The reading of a film: one answer per prompt, sentences in prompt order, and those that do not leave."""

    prompts: tuple[PromptReading, ...]
    sentences: tuple[Sentence, ...] = ()
    withheld: tuple[WithheldSentence, ...] = ()

    @property
    def pathologies(self) -> tuple[PromptReading, ...]:
        """The answers that can become findings."""
        return tuple(prompt for prompt in self.prompts if prompt.kind is PromptKind.PATHOLOGY)

    @property
    def regions(self) -> dict[str, Box]:
        """The best box of each region that has one, by prompt key."""
        located = (prompt for prompt in self.prompts if prompt.kind is PromptKind.REGION and prompt.boxes)
        return {prompt.key: max(prompt.boxes, key=lambda scored: scored.score).box for prompt in located}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A person's question about one film: a prompt, a box, or both."""

    prompt: str | None = None
    box: Box | None = None

    def __post_init__(self) -> None:
        if self.prompt is None and self.box is None:
            raise ValueError("a question needs a prompt, a box, or both")

    @property
    def is_blank(self) -> bool:
        """Whether its prompt has no words, so that it is invalid."""
        return self.prompt is not None and not self.prompt.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one question.

    sentence: empty if there is none
    score: of the prompt; for a box alone, how different its content is from the negative prompts
    state: None for a region, which is neither present nor absent, and for words that the model never learned
    boxes: where the network locates the prompt; the box that was asked about, if there was one
    contradiction, laterality: as in a `PromptReading`
    never_learned: words of the prompt that the model never learned; then there is no score, no sentence and no box
    """

    sentence: str
    score: float | None
    state: FindingState | None
    boxes: tuple[ScoredBox, ...]
    by: By = "network"
    contradiction: Contradiction | None = None
    never_learned: tuple[str, ...] = ()
    laterality: Laterality = "boxes"

    @property
    def positive(self) -> bool:
        """Whether the question's finding is present."""
        return self.state is FindingState.PRESENT


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewReading:
    """The view of one film, as seen by a network.

    probabilities: of each view; they sum up to 1
    certain: probability from which a view is certain
    """

    probabilities: Mapping[View, float]
    certain: float
    mirrored: bool
    rotated: bool

    @property
    def view(self) -> View:
        """The most probable view."""
        return max(VIEWS, key=lambda view: self.probabilities[view])

    @property
    def is_frontal(self) -> bool:
        """Whether a frontal chest is more probable than all else."""
        return self.probability("AP", "PA") > 0.5

    def probability(self, *views: View) -> float:
        """Return the probability that one of these views is shown."""
        return sum(self.probabilities[view] for view in views)

    def is_certain(self, *views: View) -> bool:
        """Return whether it is certain that one of these views is shown."""
        return self.probability(*views) >= self.certain


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A runtime that was wanted and does not run here.

    engine: name of the runtime, a value of the setting `model.engine`
    reason: not_installed, no_gpu, no_graphs, not_built, not_loaded or not_proven
    message: what to do
    """

    engine: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageDifference:
    """How far one stage of the runtime in use is from the network at most, and the tolerance."""

    max_abs: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; NaN never is."""
        return self.max_abs <= self.tolerance

    @property
    def largest(self) -> float:
        """The difference; infinite in place of NaN, which no alert would find too large."""
        return math.inf if math.isnan(self.max_abs) else self.max_abs

    @property
    def share(self) -> float:
        """The difference as a share of the tolerance; NaN counts as more than all."""
        return self.largest / self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeError:
    """How far answers differ between two films between which nothing changed: the 95th percentile of the differences.

    measured_on: the population of the films; films: how many were read twice
    extent: of the share of a zone that the boxes of a finding cover
    probability: of a finding that is reported on one of the films
    """

    measured_on: str
    films: int
    extent: float
    probability: float

    def __post_init__(self) -> None:
        if not self.measured_on.strip():
            raise ValueError("measured_on must name the population of the films")
        require_positive(self, "films")
        require_unit(self, "extent", "probability")


COMPARISON: Final = "comparison.json"
"""The file in a model's directory by which a node takes it: a `ModelComparison`, from `models.evaluate --against`."""
LEAST_COMPARED: Final = 50
"""The films of the site that such a comparison must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedModel:
    """The identity of a reading's model: names and versions of model and prompt set, and the hashes of their files."""

    model: str
    weights_sha256: str
    manifest_sha256: str
    prompts: str
    prompts_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFinding:
    """One finding on the films that both models read; pairs are of the model in use and of the new one.

    changed: films on which its state differs; present: films on which it is present
    labelled: films whose label says whether it is there; right: on how many of them the model agrees
    """

    finding: str
    films: int
    changed: int
    present: tuple[int, int]
    labelled: int
    right: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelComparison:
    """The differences of another model on films of a site.

    data: the name of the list of films; films: their number
    changed: films on which a finding's state, or the reason why the film is not read, differs
    measured: how many findings have a measured threshold in the new model
    unmeasured: findings that have one in the model in use alone
    at, by: when and by whom it was made
    """

    old: ComparedModel
    new: ComparedModel
    data: str
    films: int
    changed: int
    measured: int
    unmeasured: tuple[str, ...]
    findings: tuple[ComparedFinding, ...]
    at: str
    by: str


Seen = TypeVar("Seen")
"""A reader's state of a film between two calls."""


class Reader(ABC, Generic[Seen]):
    """A network that reads films; several threads may call it at once. See docs/develop/add-a-network.md.

    name, version: of the network. Whatever changes its answers and is no file of its directory needs a new version
    engine: its runtime, a label of a metric
    gray: the gray values it needs; ages: in completed years, that it is for, None for any
    measured: keys of the findings whose threshold was measured on films of people: no other is ever called present
    left_out: keys of the findings that it never reports
    ratio_error: of the cardiothoracic ratio from its boxes of regions; None if not measured
    """

    name: str
    version: str
    engine: str = "python"
    gray: Gray = "voi"
    ages: Container[int] | None = None
    measured: Collection[str] = ()
    left_out: Collection[str] = ()
    ratio_error: RatioError | None = None
    fallbacks: Sequence[Fallback] = ()

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        """How far the runtime in use is from the network, by stage; empty if it is the network itself."""
        return {}

    def square(self, columns: int, rows: int) -> tuple[float, float, float, float]:
        """Return left, top, right, bottom of the part that is analyzed, in pixels of the upright film."""
        side = min(columns, rows)
        left, top = (columns - side) // 2, (rows - side) // 2
        return (left, top, left + side, top + side)

    def check(self, prompts: Sequence[ReaderPrompt]) -> None:
        """Raise ModelError if these prompts cannot be asked."""

    def prepare(self, prompts: Sequence[ReaderPrompt]) -> None:
        """Warm up, so that the first film does not wait."""

    @abstractmethod
    def look(self, gray: NDArray[np.float32]) -> Seen:
        """Take in an upright film: [row, column], 0 (black) to 1 (white)."""

    @abstractmethod
    def report(
        self,
        look: Seen,
        prompts: Sequence[ReaderPrompt],
        *,
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> FilmReading:
        """Answer the prompts. A prompt without an answer is not assessed.

        side_of: None if the film does not name its sides; both are used for sentences alone
        """

    def view(self, look: Seen) -> ViewReading | None:
        """Tell the view that a film shows, and how its pixels lie; None if the network cannot."""
        return None

    def middle(self, look: Seen) -> float | None:
        """Return where the spine lies, by which boxes have sides: 0..1 of the square's width; None if not located."""
        return None

    def ask(
        self,
        look: Seen,
        questions: Sequence[Question],
        *,
        reference: Sequence[ReaderPrompt] = (),
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> list[Answer]:
        """Answer each question independently of the others; reference: the prompts of a report.

        Without a method of its own, a network answers a question in the words of a prompt as its report does, and has
        never learned any others. Raises ValueError for an invalid question.
        """
        said = self.report(look, reference, side_of=side_of, zone_of=zone_of)
        readings = {prompt.key: prompt for prompt in said.prompts}
        keys = {phrase.casefold(): prompt.key for prompt in reference for phrase in prompt.phrases}
        return [_answer(question, readings.get(keys.get(_words_of(question), "")), said) for question in questions]


def _words_of(question: Question) -> str:
    if question.box is not None:
        raise ValueError("this network answers no question about a box; ask in words")
    return (question.prompt or "").strip().casefold()


def _answer(question: Question, reading: PromptReading | None, said: FilmReading) -> Answer:
    """Return the report's answer to the prompt of a question."""
    if reading is None:
        words = tuple(dict.fromkeys(_words_of(question).split()))
        return Answer(sentence="", score=None, state=None, boxes=(), never_learned=words)
    sentence = None if reading.sentence is None else said.sentences[reading.sentence]
    return Answer(
        sentence="" if sentence is None else sentence.text,
        score=reading.probability,
        state=reading.state,
        boxes=reading.boxes,
        by="network" if sentence is None else sentence.by,
        contradiction=reading.contradiction,
        laterality=reading.laterality,
    )
