"""All the node knows about the network: the `Reader` protocol, and the one reader that opens a model directory.

The only file of the node that imports `models`, and only when a reader is opened: the node itself runs without torch.
Boxes cross from the network's unit square to pixels of the stored film here, through `Framing` and nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from node.domain import Box, FindingState, GroundedSentence, ModelIdentity, PromptKind, PromptSet, ScoredBox
from node.errors import InputError
from node.framing import Framing
from node.imaging import Radiograph

if TYPE_CHECKING:
    from models.answers import ReaderPrompt
    from models.reader import ChexReader


@dataclass(frozen=True, slots=True, kw_only=True)
class PathologyAnswer:
    """What the network says about one pathology prompt; sentence: index into the reading's sentences."""

    prompt: str
    probability: float
    state: FindingState
    boxes: tuple[ScoredBox, ...]
    sentence: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the network says about one film."""

    sentences: tuple[GroundedSentence, ...]
    pathologies: tuple[PathologyAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An interactive question: a prompt, a box in pixels of the stored film, or both together."""

    prompt: str | None = None
    box: Box | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one question; positive when score is above 0.5."""

    question: Question
    sentence: str
    score: float
    positive: bool
    boxes: tuple[ScoredBox, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """An engine that was wanted and does not run here.

    reason: not_installed, no_gpu, no_graphs, not_built or not_loaded; message: what to do
    """

    engine: str
    reason: str
    message: str


class Reader(Protocol):
    """Reads films. `gray` names the gray values it wants, `square` the part of an upright film it looks at."""

    @property
    def identity(self) -> ModelIdentity:
        """Which network answers."""

    @property
    def fallbacks(self) -> Sequence[Fallback]:
        """The engines that were wanted before the one that answers, in the order they were tried."""

    @property
    def gray(self) -> str:
        """`voi` or `mimic_jpg` (DESIGN.md 4)."""

    def square(self, columns: int, rows: int) -> tuple[float, float, float, float]:
        """Left, top, right, bottom of the analyzed square, in pixels of the upright film."""

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        """Read one film."""

    def ask(self, image: Radiograph, questions: Sequence[Question], prompts: PromptSet) -> list[Answer]:
        """Answer questions about one film, each on its own."""


def open_reader(
    directory: Path,
    *,
    prompts: PromptSet,
    engine: str,
    threads: int = 0,
    engines: Path | None = None,
    on_written: Callable[[int, float], None] = lambda _tokens, _seconds: None,
) -> Reader:
    """Open a model directory for one prompt set; the first start on a GPU builds its engines, which takes minutes.

    engines: where engines built for a GPU are kept
    on_written: hears how many tokens were generated, and in how many seconds
    Raises InputError when the directory is not whole, its hashes do not fit, its graphs lack their proof, or prompts
    and thresholds do not go together.
    """
    from models.errors import ModelError
    from models.manifest import MANIFEST
    from models.reader import open_reader as open_model

    try:
        network = open_model(directory, engine=engine, threads=threads, engines=engines, on_written=on_written)
        network.check(_to_network(prompts))
        manifest_sha256 = hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
        return _NetworkReader(network, manifest_sha256)
    except ModelError as error:
        raise InputError(str(error)) from error


def read_parity(directory: Path) -> Mapping[str, Mapping[str, float]]:
    """What a model directory's graphs differ from its network: `max_abs` and `tolerance` by stage (DESIGN.md 4).

    Nothing where no proof lies, as without exported graphs; what `open_reader` has opened has a good one.
    """
    path = directory / "parity.json"
    if not path.exists():
        return {}
    stages: Mapping[str, Mapping[str, float]] = json.loads(path.read_bytes())["stages"]
    return stages


class _NetworkReader:
    """A `Reader` on top of `models.reader`."""

    def __init__(self, network: ChexReader, manifest_sha256: str) -> None:
        self._network = network
        manifest = network.manifest
        self.gray = str(manifest.gray)
        self.fallbacks = tuple(
            Fallback(engine=one.engine, reason=one.reason, message=one.message) for one in network.fallbacks
        )
        self.identity = ModelIdentity(
            name=manifest.name,
            version=manifest.version,
            weights_sha256=network.weights_sha256,
            engine=network.engine_name,
            manifest_sha256=manifest_sha256,
        )

    def square(self, columns: int, rows: int) -> tuple[float, float, float, float]:
        return self._network.square(columns, rows)

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        said = self._network.report(self._network.look(image.gray), _to_network(prompts))
        return Reading(
            sentences=tuple(
                GroundedSentence(
                    text=sentence.text,
                    prompt=sentence.key,
                    score=float(sentence.score),
                    boxes=_to_image(sentence.boxes, sentence.box_scores, image.framing),
                )
                for sentence in said.sentences
            ),
            pathologies=tuple(
                PathologyAnswer(
                    prompt=prompt.key,
                    probability=float(prompt.probability),
                    state=FindingState(prompt.state),
                    boxes=_to_image(prompt.boxes, prompt.box_scores, image.framing),
                    sentence=prompt.sentence,
                )
                for prompt in said.prompts
                if prompt.kind == PromptKind.PATHOLOGY.value
                and prompt.probability is not None
                and prompt.state is not None
            ),
        )

    def ask(self, image: Radiograph, questions: Sequence[Question], prompts: PromptSet) -> list[Answer]:
        from models.answers import Question as NetworkQuestion

        asked = [
            NetworkQuestion(prompt=one.prompt, box=image.framing.to_unit(one.box) if one.box is not None else None)
            for one in questions
        ]
        answers = self._network.ask(self._network.look(image.gray), asked, reference=_to_network(prompts))
        return [
            Answer(
                question=question,
                sentence=answer.sentence,
                score=float(answer.score),
                positive=bool(answer.positive),
                boxes=_to_image(answer.boxes, answer.box_scores, image.framing),
            )
            for question, answer in zip(questions, answers, strict=True)
        ]


def _to_network(prompts: PromptSet) -> tuple[ReaderPrompt, ...]:
    from models.answers import ReaderPrompt

    return tuple(
        ReaderPrompt(key=prompt.key, kind=prompt.kind.value, phrases=prompt.phrases, negatives=prompt.negatives)
        for prompt in prompts.prompts
    )


def _to_image(boxes: Iterable[Sequence[float]], scores: Iterable[float], framing: Framing) -> tuple[ScoredBox, ...]:
    return tuple(
        ScoredBox(box=framing.to_image((float(x), float(y), float(width), float(height))), score=float(score))
        for (x, y, width, height), score in zip(boxes, scores, strict=True)
    )
