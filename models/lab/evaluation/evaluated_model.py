"""The model under evaluation, run on one film at a time.

Reports, regions and hints come from the engine that the node would run, through the same reader. Detection and region
classification, which the node does not do, come from `models.lab.tasks` in PyTorch, on the film as that engine encoded
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from models import boxes as unit_boxes
from models.checkpoint.weights import load_network
from models.contract import FilmReading, SentenceRule, Side, Trusted
from models.engines import Engine, FloatArray
from models.engines.opening import open_first
from models.errors import ModelError
from models.lab.evaluation.anatomy import REGIONS
from models.lab.evaluation.cases import EvaluationCase
from models.lab.evaluation.detection import Detections
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.request import Task
from models.lab.evaluation.views import Kind, SeenView
from models.lab.phantoms import FINDINGS
from models.lab.tasks import detection, regions
from models.lab.tasks.batch import Picture
from models.lab.tasks.detection import DetectionSettings
from models.lab.tasks.prompts import ClassVectors, embed, region_prompts
from models.lab.training.split import part_of
from models.manifest import DetectionRule, Manifest, read_manifest
from models.network.chex import Chex
from models.network.detector import Detection
from models.reading.cardiothoracic import ChestWidths, measure_chest
from models.reading.decided_film import DecidedFilm, Look
from models.reading.phrasebook import Phrasebook, contrast, differences
from models.reading.reader import ChexReader
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer
from node.errors import ConfigError
from node.prompt_set import PromptSet
from node.read import prompts as prompt_sets

_ACROSS: Final = 0.05
"""How far a box may reach across the middle, as a share of the square."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """The model's answers for one film, for the tasks that were asked for.

    located: unscored detections; found: detections as published (spec §9.2); regions: the best box [4] of each
    chest: the widths of heart and thorax, as the node measures them
    region_scores: [region that the film shows, finding], for the true boxes of regions
    reading: the report before any sentence is withheld; checked: as the node makes it if every threshold is accepted;
    by_default: as the node makes it if it is not told to accept any
    differences: as in `Weighed`; hints: [hint, 4], the best box of each question
    views: what the view head says of the film, as it is and otherwise
    """

    located: Detection | None = None
    found: Detections | None = None
    regions: dict[str, FloatArray]
    chest: ChestWidths | None = None
    region_scores: FloatArray
    reading: FilmReading | None = None
    checked: FilmReading | None = None
    by_default: FilmReading | None = None
    differences: dict[str, float] = field(default_factory=dict)
    hints: FloatArray
    views: tuple[SeenView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """The numbers that the decisions for one film are made from.

    differences: cosine to a prompt minus cosine to its opposite, by prompt key
    positiveness: the positiveness of regions, by prompt key (spec §9.1.3)
    located: unscored detections of findings; None if they were not located
    chest: as of an `Observation`; None too if it was not measured
    """

    differences: dict[str, float]
    positiveness: dict[str, float]
    located: Detection | None = None
    chest: ChestWidths | None = None


class EvaluatedModel:
    """An opened model."""

    def __init__(
        self, directory: Path, manifest: Manifest, engine: Engine, questions: PromptSet, trusted: Trusted
    ) -> None:
        """Use an engine of this directory; see `open_model`."""
        vocabularies = directory / "vocab"
        self._trusted = trusted
        self.manifest = self._own(manifest)
        self.questions = questions
        self._directory = directory
        self._engine = engine
        self._phrases = PromptTokenizer(vocabularies)
        self._sentences = SentenceTokenizer(vocabularies)
        self.reader = self.reader_by(manifest)
        self._checking = self.reader_by(manifest, rule="checked")
        self._by_default = self.reader_by(manifest, rule="checked", trusted=trusted)
        self._phrasebook = Phrasebook(engine, self._phrases)

    def _own(self, manifest: Manifest) -> Manifest:
        """Return a manifest with the decisions for the films that are measured."""
        return manifest.on_phantoms() if self._trusted == "phantoms" else manifest

    def reader_by(self, manifest: Manifest, *, rule: SentenceRule = "raw", trusted: Trusted = "any") -> ChexReader:
        """Return a reader with the same engine and another manifest's decisions.

        It trusts every threshold by default, because the thresholds themselves are measured.
        """
        own = self._own(manifest)
        return ChexReader(own, self._engine, self._phrases, self._sentences, trusted=trusted, rule=rule)

    def deciding_by(self, manifest: Manifest) -> EvaluatedModel:
        """Return the same model, with the same engine, by the decisions of another manifest."""
        return EvaluatedModel(self._directory, manifest, self._engine, self.questions, self._trusted)

    @property
    def published(self) -> PublishedModel:
        """The network for the tasks of the paper, on films as this engine encodes them."""
        return PublishedModel(
            network=self._network,
            phrases=self._phrases,
            sentences=self._sentences,
            picture=lambda gray: _picture(self.reader.look(gray)),
        )

    def observe(self, case: EvaluationCase, tasks: Collection[Task]) -> Observation:
        """Return the answers for one film that these tasks need."""
        look = self.reader.look(case.gray)
        picture = _picture(look)
        asked = [hint.text for hint in case.truth.hints] if "hints" in tasks else []
        best = zip(REGIONS, self._best_boxes(look, self._region_queries), strict=True) if "anatomy" in tasks else ()

        def read(reader: ChexReader, *, needed: bool) -> FilmReading | None:
            if not needed:
                return None
            by_spine = partial(side_of, middle=reader.middle(look))
            return reader.report(look, self.questions.prompts, side_of=by_spine)

        reading = read(self.reader, needed="report" in tasks)
        located = self._locate(picture) if "detection" in tasks else None
        return Observation(
            located=located,
            found=None if located is None else self.detections(located),
            regions=dict(best),
            chest=self._chest(look, reading) if "anatomy" in tasks else None,
            region_scores=self._region_scores(picture, case)
            if "region_classification" in tasks
            else np.zeros((0, len(FINDINGS)), dtype=np.float32),
            reading=reading,
            checked=read(self._checking, needed="sentences" in tasks),
            by_default=read(self._by_default, needed="sentences" in tasks),
            differences=self._features(look)[1] if "films" in tasks else {},
            hints=self._best_boxes(look, self._phrasebook.embed(asked))
            if asked
            else np.zeros((0, 4), dtype=np.float32),
            views=tuple(self._views(case)) if "views" in tasks and case.truth.view else (),
        )

    def _views(self, case: EvaluationCase) -> Iterator[SeenView]:
        """Yield the view head's readings of the film, of the film mirrored and rotated, and of non-frontal films."""
        turned: dict[Kind, FloatArray] = {
            "frontal": case.gray,
            "mirrored": case.gray[:, ::-1],
            "rotated": np.rot90(case.gray, 1 + part_of(case.name, parts=3)),
            **case.others(),
        }
        for kind, gray in turned.items():
            reading = self.reader.view(self.reader.look(np.ascontiguousarray(gray)))
            if reading is not None:
                yield SeenView(kind=kind, view=case.truth.view, reading=reading)

    def weigh(self, case: EvaluationCase, *, located: bool = False, chest: bool = False) -> Weighed:
        """Compute the numbers that decisions are made from; no sentence is generated.

        located, chest: whether to locate findings, which needs the network in PyTorch, and to measure heart and thorax
        """
        look = self.reader.look(case.gray)
        features, own = self._features(look)
        vectors, prompts = self._phrasebook.vectors(self.questions.prompts), self.questions.prompts
        common = contrast(features, positive=vectors.positive.mean(axis=0), negative=vectors.negative.mean(axis=0))
        return Weighed(
            differences=own,
            positiveness={
                prompt.key: float(value)
                for prompt, value in zip(prompts, common, strict=True)
                if prompt.kind == "region"
            },
            located=self._locate(_picture(look)) if located else None,
            chest=self._chest(look, None) if chest else None,
        )

    def _features(self, look: Look) -> tuple[FloatArray, dict[str, float]]:
        """Return the feature of each prompt, and the differences of `Weighed`."""
        vectors, prompts = self._phrasebook.vectors(self.questions.prompts), self.questions.prompts
        features = self._engine.find(look.patches, vectors.queries[np.newaxis]).features[0]
        own = differences(features[list(vectors.judged)], positive=vectors.positive, negative=vectors.negative)
        return features, {prompts[i].key: float(value) for i, value in zip(vectors.judged, own, strict=True)}

    def decided(self, case: EvaluationCase) -> tuple[DecidedFilm, float | None]:
        """Find and decide as a node does by default; returns the center of the spine, too, as `reader.middle` does."""
        look = self.reader.look(case.gray)
        middle = self.reader.middle(look)
        by_spine = partial(side_of, middle=middle)
        return self._by_default.find(look, self.questions.prompts, side_of=by_spine), middle

    def detections(self, located: Detection, settings: DetectionSettings | None = None) -> Detections:
        """Score and merge the detections of one film; Q of `Detection` are the ten findings.

        settings: those of the manifest's rule by default
        """
        own = settings_of(self.manifest.detection) if settings is None else settings
        rows = detection.detections(located, self._classes, own)[0]
        return Detections(rows[:, :4], rows[:, 4].astype(np.intp), rows[:, 5])

    def _best_boxes(self, look: Look, queries: FloatArray) -> FloatArray:
        """Locate each query [query, dim] by itself, as an interactive question is: returns its best box, [query, 4]."""
        found = self._engine.find(look.patches, queries[np.newaxis])
        best: FloatArray = found.boxes[0, np.arange(len(queries)), found.scores[0].argmax(axis=-1)]
        return best

    def _chest(self, look: Look, reading: FilmReading | None) -> ChestWidths | None:
        said = self.reader.locate_all(look, self.questions.prompts) if reading is None else reading
        return measure_chest(said.regions)

    @cached_property
    def _region_queries(self) -> FloatArray:
        phrases = [region.phrases for region in region_prompts() if not region.members]
        return np.stack([self._phrasebook.embed(some).mean(axis=0) for some in phrases])

    @cached_property
    def _network(self) -> Chex:
        return load_network(self._directory)

    @cached_property
    def _classes(self) -> ClassVectors:
        """The ten findings, by the phrases of the node's prompts."""
        prompts = {prompt.key: prompt for prompt in self.questions.prompts}
        groups = [prompts[key].phrases for key in FINDINGS]
        with torch.inference_mode():
            found = embed(self._network, self._phrases, groups + [prompts[key].negatives for key in FINDINGS])
        positive, negative = found.chunk(2)
        return ClassVectors(positive, positive, negative)

    def _locate(self, picture: Picture) -> Detection:
        with torch.inference_mode():
            return detection.locate(self._network, picture, self._classes.located_by)

    def _region_scores(self, picture: Picture, case: EvaluationCase) -> FloatArray:
        """Classify the true boxes of regions, each by itself."""
        names = list(case.truth.region_findings)
        if not names:
            return np.zeros((0, len(FINDINGS)), dtype=np.float32)
        boxes = torch.from_numpy(np.stack([case.truth.regions[name] for name in names])[np.newaxis])
        padding = torch.zeros(boxes.shape[:2], dtype=torch.bool)
        with torch.inference_mode():
            features = regions.features_apart(self._network, picture, boxes, padding)
        scores, _ = regions.classify_each(features, self._classes.positive, self._classes.negative)
        own: FloatArray = scores[0]
        return own


def read_questions(path: Path) -> PromptSet:
    """Read a prompt set as the node does. Raises ModelError that lists its mistakes."""
    try:
        return prompt_sets.load(str(path))
    except ConfigError as error:
        raise ModelError(str(error)) from error


def open_model(
    directory: Path,
    *,
    engine: str,
    questions: PromptSet,
    trusted: Trusted = "real",
) -> EvaluatedModel:
    """Open a model directory. Raises ModelError as `opening.open_engine`, and if the prompt set lacks a finding.

    trusted: which thresholds the node trusts on such films by default
    """
    judged = {prompt.key for prompt in questions.prompts if prompt.negatives}
    if missing := [key for key in FINDINGS if key not in judged]:
        raise ModelError(f"the prompt set {questions.name} does not ask for {', '.join(missing)}; use one that does")
    manifest = read_manifest(directory)
    opened = open_first(directory, engine=engine).engine
    model = EvaluatedModel(directory, manifest, opened, questions, trusted)
    model.reader.check(questions.prompts)
    return model


def side_of(x: float, width: float, *, middle: float | None) -> Side | None:
    """Return the side of a box as the node does: films of a set are upright, the patient's right is on their left.

    middle: where the spine lies; None if the network did not locate it
    """
    spine = 0.5 if middle is None else middle
    is_right, is_left = x + width / 2 <= spine + _ACROSS, x - width / 2 >= spine - _ACROSS
    return None if is_right == is_left else Side.RIGHT if is_right else Side.LEFT


def settings_of(rule: DetectionRule) -> DetectionSettings:
    """Convert a manifest's rule to detection settings for the ten findings."""
    return DetectionSettings(
        by_prompts=rule.scored_by != "weights",
        by_weights=rule.scored_by != "prompts",
        temperature=rule.temperature,
        scales=tuple(rule.scales.get(key, 1.0) for key in FINDINGS),
        overlap=rule.overlap,
    )


def as_read(reading: FilmReading) -> Detections:
    """Return all boxes of the ten findings in a reading, scored by the finding's probability times the box's score."""
    numbers: dict[str, int] = {key: number for number, key in enumerate(FINDINGS)}
    rows = [
        (scored.box, numbers[prompt.key], (prompt.probability or 0.0) * scored.score)
        for prompt in reading.prompts
        if prompt.key in numbers
        for scored in prompt.boxes
    ]
    return Detections(
        unit_boxes.to_array(box for box, _, _ in rows),
        np.array([number for _, number, _ in rows], dtype=np.intp),
        np.array([score for _, _, score in rows], dtype=np.float32),
    )


def _picture(look: Look) -> Picture:
    patches = look.patches
    return torch.from_numpy(patches.features), torch.from_numpy(patches.positions), torch.from_numpy(patches.cls)
