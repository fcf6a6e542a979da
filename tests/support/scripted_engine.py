"""An engine that answers from a script, and prompts to ask it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from models.boxes import to_array
from models.contract import Box, PromptKind, ReaderPrompt, ScoredBox, StageDifference, Trusted
from models.decisions import Decisions
from models.engines import Engine, FloatArray, IntArray, Patches, Regions
from models.manifest import PUBLISHED_SIZES, InputRule, Manifest, ReportRule
from models.reading.reader import ChexReader
from models.reading.tokenizers import SENTENCE_END, VOCABULARIES, PromptTokenizer, SentenceTokenizer

EDEMA = ReaderPrompt(key="edema", kind=PromptKind.PATHOLOGY, phrases=("Edema",), negatives=("No edema",))
FRACTURE = ReaderPrompt(key="fracture", kind=PromptKind.PATHOLOGY, phrases=("Fracture",), negatives=("No fracture",))
NORMAL = ReaderPrompt(key="no_finding", kind=PromptKind.NO_FINDING, phrases=("Normal",), negatives=("Abnormal",))
LEFT = ReaderPrompt(key="left_lung", kind=PromptKind.REGION, phrases=("Left lung",))
RIGHT = ReaderPrompt(key="right_lung", kind=PromptKind.REGION, phrases=("Right lung",))

PROMPTS = PromptTokenizer(VOCABULARIES)
SENTENCES = SentenceTokenizer(VOCABULARIES)
DIM = 6


def feature_of(probability: float) -> FloatArray:
    """A feature that is judged so at temperature 1, between positive = axis 0 and negative = axis 1."""
    angle = np.arccos(np.log(probability / (1 - probability)) / np.sqrt(2)) - np.pi / 4
    return np.array([np.cos(angle), np.sin(angle), 0, 0, 0, 0], dtype=np.float32)


@dataclass
class ScriptedEngine:
    """Keeps the `Engine` protocol; says what it was told to say.

    probabilities: of the prompts, in order; said: what is generated for them
    scores, boxes: of every prompt, [prompt, box] and [prompt, box, 4]
    likeness: the axis of a sentence's embedding; other phrases are positive, or negative when they say no
    heard: the features that were put into words
    in_boxes: probabilities of prompts in given boxes, in the order of the questions; those after the last are 0.8
    described: the boxes that were asked about
    view_outputs: of the view head, for every film
    """

    probabilities: Sequence[float]
    said: Sequence[str]
    scores: FloatArray | None = None
    likeness: dict[str, int] = field(default_factory=dict)
    heard: list[FloatArray] = field(default_factory=list)
    name: str = "scripted"
    boxes: FloatArray | None = None
    parity: Mapping[str, StageDifference] = field(default_factory=dict)
    in_boxes: Sequence[float] = ()
    described: list[FloatArray] = field(default_factory=list)
    view_outputs: Sequence[float] = (0, 0, 0, 0, 0, 0)

    def encode_image(self, pixels: FloatArray) -> Patches:
        films = np.zeros((len(pixels), 4, DIM), dtype=np.float32)
        return Patches(features=films, positions=films, cls=films[:, 0])

    def encode_prompts(self, tokens: IntArray) -> FloatArray:
        axes = {_ids(text): axis for text, axis in self.likeness.items()}
        negative = {_ids(text) for text in ("No edema", "No fracture", "Abnormal")}
        asked = [tuple(row[: row.argmax() + 1].tolist()) for row in tokens]
        return np.eye(DIM, dtype=np.float32)[[axes.get(ids, int(ids in negative)) for ids in asked]]

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        count = prompts.shape[1]
        scores = np.full((count, 3), 0.25, dtype=np.float32) if self.scores is None else self.scores
        boxes = np.linspace(0.1, 0.9, count * 12, dtype=np.float32).reshape(count, 3, 4)
        features = np.stack([feature_of(probability) for probability in self.probabilities])
        # Axis 5 carries the number of the prompt; it is far too small to be judged.
        features[:, 5] = np.arange(count) * 1e-5
        return Regions(
            boxes=(boxes if self.boxes is None else self.boxes)[np.newaxis],
            scores=scores[np.newaxis],
            aggregated_scores=scores.max(axis=1)[np.newaxis],
            features=features[np.newaxis],
        )

    def describe(self, patches: Patches, *, boxes: FloatArray, prompts: FloatArray, prompted: FloatArray) -> FloatArray:
        self.described.extend(boxes[:, 0])
        answers = [*self.in_boxes, *[0.8] * len(boxes)][: len(boxes)]
        return np.stack([feature_of(probability) for probability in answers])[:, np.newaxis]

    def view(self, patches: Patches) -> FloatArray:
        return np.array([self.view_outputs] * len(patches.cls), dtype=np.float32)

    def says(self, feature: FloatArray) -> str:
        """What it says of a feature, which it has not heard yet."""
        return self.said[round(float(feature[5]) * 1e5)]

    def write(self, features: FloatArray) -> IntArray:
        ids = []
        for feature in features:
            ids.append(SENTENCES.encode(self.says(feature)))
            self.heard.append(feature)
        rows = np.full((len(ids), 1 + max(map(len, ids))), SENTENCE_END, dtype=np.int64)
        for row, sentence in zip(rows, ids, strict=True):
            row[1 : 1 + len(sentence)] = sentence
        return rows


def _ids(text: str) -> tuple[int, ...]:
    (row,) = PROMPTS.encode([text])
    return tuple(row[: row.argmax() + 1].tolist())


def reader_of(engine: Engine, rule: ReportRule | None = None, *, trusted: Trusted = "any") -> ChexReader:
    """Make a reader of the engine, whose fracture has a threshold of its own."""
    manifest = Manifest(
        name="scripted",
        version="1",
        licence="",
        trained_on="",
        intended_use="",
        gray="voi",
        input=InputRule(size=224, mean=0.5, std=0.25, resize="direct"),
        sizes=PUBLISHED_SIZES,
        decisions=Decisions(
            temperature=1.0,
            default_threshold=0.6,
            thresholds={"fracture": 0.7},
            review_band=0.1,
            box_threshold=0.5,
            region_threshold=0.5,
        ),
        report=rule or ReportRule(),
        files={"weights.safetensors": "0" * 64},
    )
    return ChexReader(manifest, engine, PROMPTS, SENTENCES, trusted=trusted)


def box(left: float, top: float, right: float, bottom: float) -> Box:
    return Box(left=left, top=top, right=right, bottom=bottom)


def centers_of(boxes: Iterable[ScoredBox]) -> FloatArray:
    """The boxes of an answer as the network has them, [box, 4]."""
    return to_array(scored.box for scored in boxes)


def scores_of(boxes: Iterable[ScoredBox]) -> list[float]:
    return [scored.score for scored in boxes]
