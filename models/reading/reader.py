"""Answers questions about one film with an engine, tokenizers and a manifest's decisions. Numpy only.

The report follows spec §9.1 without its index shift (BUG-8): everything about a sentence belongs to the prompt it was
generated for. Removing a sentence as a duplicate never removes its prompt's result.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from models.engines import Engine, IntArray, Regions
from models.engines.fallback import EngineFallback, open_first
from models.engines.profiles import RANGES
from models.errors import ModelError
from models.manifest import MANIFEST, WEIGHTS, Manifest, read_manifest
from models.reading.answers import (
    Answer,
    FilmReading,
    FloatArray,
    Look,
    PromptReading,
    Question,
    ReaderPrompt,
    Sentence,
    State,
)
from models.reading.deduplicate import deduplicate, similarity_of
from models.reading.phrasebook import Phrasebook, PromptVectors, contrast, emphasize
from models.reading.preprocess import Square, prepare, square
from models.reading.tokenizers import SENTENCE_END, PromptTokenizer, SentenceTokenizer

# Where the sentence of a finding is moved to; see `ReportRule.emphasis`.
_DIRECTIONS: Mapping[State, int] = {"present": 1, "indeterminate": 0, "absent": -1}

# Sentences generated at once, as published (spec §7.3): 25 MB of keys and values each at full size.
_BATCH = 32


# Called with the number of generated tokens and the seconds that took.
OnWritten = Callable[[int, float], None]


def open_reader(
    directory: Path,
    *,
    engine: str,
    threads: int = 0,
    engines: Path | None = None,
    on_written: OnWritten = lambda _tokens, _seconds: None,
) -> ChexReader:
    """Open a model directory; engine, threads, engines and ModelError as in `fallback.open_first`."""
    vocabularies = directory / "vocab"
    opened = open_first(directory, engine=engine, threads=threads, engines=engines)
    return ChexReader(
        read_manifest(directory),
        opened.engine,
        PromptTokenizer(vocabularies),
        SentenceTokenizer(vocabularies),
        fallbacks=opened.fallbacks,
        on_written=on_written,
    )


class ChexReader:
    """An opened model. May be called from several threads if its engine may."""

    def __init__(
        self,
        manifest: Manifest,
        engine: Engine,
        phrases: PromptTokenizer,
        sentences: SentenceTokenizer,
        *,
        fallbacks: tuple[EngineFallback, ...] = (),
        on_written: OnWritten = lambda _tokens, _seconds: None,
    ) -> None:
        self.manifest = manifest
        self.fallbacks = fallbacks
        self._engine = engine
        self._phrasebook = Phrasebook(engine, phrases)
        self._sentences = sentences
        self._on_written = on_written

    @property
    def engine_name(self) -> str:
        """The name of the engine."""
        return self._engine.name

    @property
    def weights_sha256(self) -> str:
        """The hash of the weights."""
        return self.manifest.files[WEIGHTS]

    def square(self, columns: int, rows: int) -> Square:
        """Return the square of an upright film that the network sees."""
        return square(columns, rows, self.manifest.input)

    def look(self, gray: FloatArray) -> Look:
        """Encode an upright film for any number of questions; gray: [row, column], 0..1."""
        pixels = prepare(gray, self.manifest.input)
        return Look(patches=self._engine.encode_image(pixels[np.newaxis]))

    def check(self, prompts: Iterable[ReaderPrompt]) -> None:
        """Raise ModelError if the manifest or the network does not fit the prompts: a report would not reveal it.

        prompts: those of every set that films are read with, because a threshold may belong to any of them
        """
        prompts = tuple(prompts)
        if self._engine.name == "tensorrt" and len(prompts) > (most := RANGES["prompt"].most):
            raise ModelError(
                f"{len(prompts)} prompts are asked, but engine tensorrt takes {most}; use fewer prompts, or engine onnx"
            )
        judged = {prompt.key for prompt in prompts if prompt.kind != "region"}
        for key in self.manifest.decisions.thresholds:
            if key not in judged:
                raise ModelError(
                    f"{MANIFEST}: decisions.thresholds.{key} belongs to no prompt with a decision; correct or remove it"
                )
        self._phrasebook.check(prompts)

    def report(self, look: Look, prompts: Sequence[ReaderPrompt]) -> FilmReading:
        """Read a film: locate every prompt, decide, generate sentences, and remove duplicates (spec §9.1)."""
        prompts = tuple(prompts)
        if not prompts:
            return FilmReading(sentences=(), prompts=())
        vectors = self._phrasebook.vectors(prompts)
        regions = self._engine.find(look.patches, vectors.queries[np.newaxis])
        told = self._told(prompts, vectors, regions.features[0])
        probabilities = self._probabilities(vectors, regions.features[0])
        states = {index: self._state(prompts[index].key, value) for index, value in probabilities.items()}
        texts = self._generate(self._emphasized(regions.features[0], vectors, states)[told])
        spoken = [(index, text) for index, text in zip(told, texts, strict=True) if text]
        kept, standing = self._without_duplicates(spoken, regions.aggregated_scores[0], states)
        return FilmReading(
            sentences=tuple(self._sentence(prompts[index], text, regions, index) for index, text in kept),
            prompts=tuple(
                self._reading(prompt, regions, index, probabilities.get(index), states.get(index), standing.get(index))
                for index, prompt in enumerate(prompts)
            ),
        )

    def ask(self, look: Look, questions: Sequence[Question], *, reference: Sequence[ReaderPrompt] = ()) -> list[Answer]:
        """Answer each question independently of the others.

        reference: a prompt set; a box alone is compared with the mean of its judged prompts, and a question with the
        same words as one of its prompts uses that prompt's negatives.
        Raises ValueError for a box alone without any judged prompt, and for a prompt with more tokens than the network
        reads.
        """
        if not questions:
            return []
        reference = tuple(reference)
        boxed = [index for index, question in enumerate(questions) if question.box is not None]
        located = [index for index, question in enumerate(questions) if question.box is None]
        answers = [
            *self._describe(look, [questions[index] for index in boxed], reference),
            *self._locate(look, [questions[index] for index in located], reference),
        ]
        return [answer for _, answer in sorted(zip(boxed + located, answers, strict=True), key=lambda pair: pair[0])]

    def _told(self, prompts: Sequence[ReaderPrompt], vectors: PromptVectors, features: FloatArray) -> list[int]:
        """Choose the prompts that get a sentence: all except regions with nothing abnormal (spec §9.1.3, 9.1.4).

        Without any judged prompt there is no measure of abnormality, and every region keeps its sentence.
        """
        if not vectors.judged:
            return list(range(len(prompts)))
        positiveness = contrast(
            features, positive=vectors.positive.mean(axis=0), negative=vectors.negative.mean(axis=0)
        )
        threshold = self.manifest.decisions.region_threshold
        return [i for i, prompt in enumerate(prompts) if prompt.kind != "region" or positiveness[i] > threshold]

    def _emphasized(self, features: FloatArray, vectors: PromptVectors, states: Mapping[int, State]) -> FloatArray:
        """Move features [prompt, dim] toward the decision; an indeterminate one is unchanged."""
        share = self.manifest.report.emphasis
        if not share:
            return features
        steps = np.array([share * _DIRECTIONS[states[index]] for index in vectors.judged], dtype=np.float32)
        judged = list(vectors.judged)
        moved = features.copy()
        moved[judged] = emphasize(features[judged], positive=vectors.positive, negative=vectors.negative, steps=steps)
        return moved

    def _generate(self, features: FloatArray) -> list[str]:
        """Generate the sentences of features [sentence, dim]."""
        batches = [features[start : start + _BATCH] for start in range(0, len(features), _BATCH)]
        return [printable(self._sentences.decode(ids)) for batch in batches for ids in self._write(batch)]

    def _write(self, features: FloatArray) -> IntArray:
        """Generate the token ids of one batch, and report their number, without end tokens, and the time."""
        began = time.monotonic()
        ids = self._engine.write(features)
        self._on_written(int(np.count_nonzero(ids != SENTENCE_END)), time.monotonic() - began)
        return ids

    def _without_duplicates(
        self, spoken: Sequence[tuple[int, str]], preference: FloatArray, states: Mapping[int, State]
    ) -> tuple[list[tuple[int, str]], dict[int, int]]:
        """Remove duplicate sentences (spec §9.1.6); spoken: (prompt, text), preference: [prompt].

        With emphasis, a sentence never replaces a sentence with another decision, however similar they are.
        Returns the sentences that stay, and for each prompt with a sentence the index of the one that stands for it.
        """
        if not spoken:
            return [], {}
        similarity = similarity_of(self._phrasebook.embed([text for _, text in spoken]))
        if self.manifest.report.emphasis:
            decided = np.array([_DIRECTIONS[states[index]] if index in states else np.nan for index, _ in spoken])
            similarity[np.subtract.outer(decided, decided) ** 2 > 0] = 0.0
        kept, survivors = deduplicate(similarity, [preference[index] for index, _ in spoken], self.manifest.report)
        place = {sentence: number for number, sentence in enumerate(kept)}
        standing = {index: place[survivors[sentence]] for sentence, (index, _) in enumerate(spoken)}
        return [spoken[sentence] for sentence in kept], standing

    def _probabilities(self, vectors: PromptVectors, features: FloatArray) -> dict[int, float]:
        """Return the probability of every prompt that has negatives (spec §8), by index of the prompt."""
        values = self._judge(features[list(vectors.judged)], vectors.positive, vectors.negative)
        return {index: float(value) for index, value in zip(vectors.judged, values, strict=True)}

    def _judge(self, features: FloatArray, positive: FloatArray, negative: FloatArray) -> FloatArray:
        temperature = self.manifest.decisions.temperature
        return contrast(features, positive=positive, negative=negative, temperature=temperature)

    def _reading(
        self,
        prompt: ReaderPrompt,
        regions: Regions,
        index: int,
        probability: float | None,
        state: State | None,
        sentence: int | None,
    ) -> PromptReading:
        boxes, scores = self._visible(regions.boxes[0, index], regions.scores[0, index])
        return PromptReading(
            key=prompt.key,
            kind=prompt.kind,
            probability=probability,
            state=state,
            boxes=boxes,
            box_scores=scores,
            sentence=sentence,
        )

    def _sentence(self, prompt: ReaderPrompt, text: str, regions: Regions, index: int) -> Sentence:
        boxes, scores = self._visible(regions.boxes[0, index], regions.scores[0, index])
        score = float(regions.aggregated_scores[0, index])
        return Sentence(text=text, key=prompt.key, score=score, boxes=boxes, box_scores=scores)

    def _state(self, key: str, probability: float) -> State:
        """Present at or above the key's threshold, indeterminate in the band below it."""
        threshold = self.manifest.decisions.threshold(key)
        if probability >= threshold:
            return "present"
        return "indeterminate" if probability >= threshold - self.manifest.decisions.review_band else "absent"

    def _visible(self, boxes: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the boxes above the box threshold, otherwise the best one; boxes: [box, 4], scores: [box]."""
        chosen = np.flatnonzero(scores > self.manifest.decisions.box_threshold)
        if not len(chosen):
            chosen = np.argmax(scores, keepdims=True)
        return boxes[chosen], scores[chosen]

    def _locate(self, look: Look, questions: Sequence[Question], reference: tuple[ReaderPrompt, ...]) -> list[Answer]:
        """Answer prompts without boxes: each is the only prompt of its own copy of the film (spec §6, BUG-5)."""
        if not questions:
            return []
        positive, negative = self._phrasebook.pairs(questions, reference)
        regions = self._engine.find(look.patches.copies(len(questions)), positive[:, np.newaxis])
        features = regions.features[:, 0]
        scores = self._judge(features, positive, negative)
        boxes = [self._visible(*found) for found in zip(regions.boxes[:, 0], regions.scores[:, 0], strict=True)]
        texts = self._generate(features)
        return [_answer(*parts) for parts in zip(texts, scores, boxes, strict=True)]

    def _describe(self, look: Look, questions: Sequence[Question], reference: tuple[ReaderPrompt, ...]) -> list[Answer]:
        """Answer boxes, with or without a prompt: each is the only box of its own copy of the film (spec §5)."""
        if not questions:
            return []
        positive, negative = self._phrasebook.pairs(questions, reference)
        prompted = np.array([question.prompt is not None for question in questions], dtype=np.float32)
        boxes = np.array([question.box for question in questions], dtype=np.float32)
        features = self._engine.describe(
            look.patches.copies(len(questions)),
            boxes=boxes[:, np.newaxis],
            prompts=positive[:, np.newaxis],
            prompted=prompted[:, np.newaxis],
        )[:, 0]
        scores = self._judge(features, positive, negative)
        asked = [(box[np.newaxis], score[np.newaxis]) for box, score in zip(boxes, scores, strict=True)]
        return [_answer(*parts) for parts in zip(self._generate(features), scores, asked, strict=True)]


def printable(text: str) -> str:
    """Remove surrounding blanks and all control characters, which neither DICOM nor HL7 text may contain.

    A line break or tab separates words, so it becomes a blank.
    """
    spaced = "".join(" " if character.isspace() else character for character in text)
    return "".join(character for character in spaced if not unicodedata.category(character).startswith("C")).strip()


def _answer(sentence: str, score: np.float32, boxes: tuple[FloatArray, FloatArray]) -> Answer:
    """Make an answer; `positive` uses a strict comparison (spec §8)."""
    return Answer(
        sentence=sentence, score=float(score), positive=bool(score > 0.5), boxes=boxes[0], box_scores=boxes[1]
    )
