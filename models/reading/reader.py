"""Answers questions about one film with an engine, tokenizers and a manifest's decisions. Numpy only.

The report follows spec §9.1 without its index shift (BUG-8): everything about a sentence belongs to the prompt it was
generated for. Removing a sentence as a duplicate never removes its prompt's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from models import boxes as unit_boxes
from models.contract import (
    Answer,
    By,
    Fallback,
    FilmReading,
    FindingState,
    PromptKind,
    PromptReading,
    Question,
    Reader,
    ReaderPrompt,
    Sentence,
    SentenceRule,
    SideOf,
    StageDifference,
    Trusted,
    ViewReading,
    ZoneOf,
)
from models.engines import Engine, FloatArray
from models.engines.opening import open_first
from models.engines.proof import Precision
from models.engines.staged_engine import RANGES
from models.errors import ModelError
from models.manifest import MANIFEST, WEIGHTS, Manifest, read_manifest
from models.reading.contradictions import ContradictionCheck
from models.reading.decided_film import DecidedFilm, Look
from models.reading.decision import decide, is_near, is_ratio_measured, is_trusted, may_be_denied
from models.reading.generated_sentences import OnWritten, Speech
from models.reading.phrasebook import Phrasebook, PromptVectors, contrast, differences
from models.reading.places import lungs, place_findings, shown_boxes, within
from models.reading.preprocess import Square, prepare, square
from models.reading.sentence_check import Settled, answer_in_words, class_in, left_out_in
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer, words_of
from models.views import read_view


def open_reader(
    directory: Path,
    *,
    engine: str,
    threads: int = 0,
    engines: Path | None = None,
    precision: Precision = "float32",
    trusted: Trusted = "real",
    sentences: SentenceRule = "raw",
    on_written: OnWritten = lambda _tokens, _seconds: None,
) -> ChexReader:
    """Open a model directory; engine, threads, engines, precision and ModelError: see `opening.open_first`."""
    vocabularies = directory / "vocab"
    opened = open_first(directory, engine=engine, threads=threads, engines=engines, precision=precision)
    return ChexReader(
        read_manifest(directory),
        opened.engine,
        PromptTokenizer(vocabularies),
        SentenceTokenizer(vocabularies),
        fallbacks=opened.fallbacks,
        trusted=trusted,
        rule=sentences,
        on_written=on_written,
    )


_SPINE: Final = ReaderPrompt(key="spine", kind=PromptKind.REGION, phrases=("Spine",))
"""A region of Chest ImaGenome: the network locates it whether a prompt set asks for it or not."""


class ChexReader(Reader[Look]):
    """ChEX, opened. May be called from several threads if its engine may.

    trusted: which thresholds may call a finding present
    rule: which sentences leave; `raw`: every one, as published
    """

    def __init__(
        self,
        manifest: Manifest,
        engine: Engine,
        phrases: PromptTokenizer,
        sentences: SentenceTokenizer,
        *,
        fallbacks: tuple[Fallback, ...] = (),
        trusted: Trusted = "real",
        rule: SentenceRule = "raw",
        on_written: OnWritten = lambda _tokens, _seconds: None,
    ) -> None:
        manifest = manifest.on_phantoms() if trusted == "phantoms" else manifest
        self.manifest = manifest
        self.name, self.version, self.engine = manifest.name, manifest.version, engine.name
        self.gray, self.ages, self.ratio_error = manifest.gray, manifest.ages, manifest.cardiothoracic
        self.measured, self.left_out = manifest.decisions.measured_keys, manifest.decisions.left_out
        self.fallbacks = fallbacks
        self.trusted = trusted
        self.rule = rule
        self._vocabulary = frozenset(manifest.vocabulary)
        self._engine = engine
        self._phrasebook = Phrasebook(engine, phrases)
        self._contradictions = ContradictionCheck(
            engine, self._phrasebook, manifest.decisions, knows_sides=not self.never_learned("left right")
        )
        self._speech = Speech(engine, sentences, self._phrasebook, manifest.report, on_written=on_written)

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        """How far the engine is from the network, see `Engine.parity`."""
        return self._engine.parity

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

    def view(self, look: Look) -> ViewReading | None:
        """Tell the view that a film shows, and how its pixels lie; None if the model has no view head."""
        rule = self.manifest.views
        return None if rule is None else read_view(self._engine.view(look.patches)[0], rule)

    def middle(self, look: Look) -> float | None:
        """Return the center of the spine's best box; None if its score is no higher than the box threshold."""
        if self.never_learned(_SPINE.phrases[0]):
            return None
        regions = self._engine.find(look.patches, self._phrasebook.vectors((_SPINE,)).queries[np.newaxis])
        boxes, scores = regions.boxes[0, 0], regions.scores[0, 0]
        best = scores.argmax()
        return float(boxes[best, 0]) if scores[best] > self.manifest.decisions.box_threshold else None

    def check(self, prompts: Iterable[ReaderPrompt]) -> None:
        """Raise ModelError if the manifest or the network does not fit the prompts: a report would not reveal it.

        prompts: those of every set that films are read with, because a threshold may belong to any of them
        """
        prompts = tuple(prompts)
        if self._engine.name == "tensorrt" and len(prompts) > (most := RANGES["prompt"].most):
            raise ModelError(
                f"{len(prompts)} prompts are asked, but engine tensorrt takes {most}; use fewer prompts, or engine onnx"
            )
        judged = {prompt.key for prompt in prompts if prompt.kind is not PromptKind.REGION}
        for key in sorted(self.manifest.decisions.thresholds.keys() - judged):
            raise ModelError(
                f"{MANIFEST}: decisions.thresholds.{key} belongs to no prompt with a decision; correct or remove it"
            )
        for prompt in prompts:
            if words := self.never_learned(" ".join((*prompt.phrases, *prompt.negatives))):
                raise ModelError(f"prompt {prompt.key}: this model never learned: {', '.join(words)}; use other words")
        self._phrasebook.check(prompts)

    def prepare(self, prompts: Sequence[ReaderPrompt]) -> None:
        """Encode the phrases that films are asked with, so that the first film does not wait for them."""
        self._contradictions.prepare(tuple(prompts))
        self._phrasebook.vectors((_SPINE,))

    def never_learned(self, text: str) -> tuple[str, ...]:
        """Return the words of a prompt that the model never learned, each once; none if its vocabulary is open."""
        if not self._vocabulary:
            return ()
        return tuple(word for word in dict.fromkeys(words_of(text)) if word not in self._vocabulary)

    def report(
        self,
        look: Look,
        prompts: Sequence[ReaderPrompt],
        *,
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> FilmReading:
        """Read a film: locate every prompt, decide, generate sentences, check them, remove duplicates (spec §9.1).

        side_of: None if the film does not name its sides; zone_of: None if no template sentence names a zone
        """
        prompts = tuple(prompts)
        if not prompts:
            return FilmReading(sentences=(), prompts=())
        film = self.find(look, prompts, side_of=side_of, zone_of=zone_of)
        film, said = self._speech.sentences(film, self._told(prompts, film.vectors, film.features), rule=self.rule)
        kept, standing = self._speech.without_duplicates(
            said.texts, film.regions.aggregated_scores[0], film.states, is_checked=self.rule != "raw"
        )
        return FilmReading(
            sentences=tuple(self._sentence(film, text, i, by=said.by(i)) for i, text in kept),
            prompts=tuple(self._reading(film, i, said, standing.get(i)) for i in range(len(prompts))),
            withheld=said.withheld,
        )

    def locate_all(self, look: Look, prompts: Sequence[ReaderPrompt]) -> FilmReading:
        """Read a film as `report` does, without sentences."""
        film, unsaid = self.find(look, tuple(prompts)), Settled(texts={}, generated={})
        return FilmReading(
            sentences=(), prompts=tuple(self._reading(film, i, unsaid, None) for i in range(len(prompts)))
        )

    def ask(
        self,
        look: Look,
        questions: Sequence[Question],
        *,
        reference: Sequence[ReaderPrompt] = (),
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> list[Answer]:
        """Answer each question independently of the others.

        A question in the words of a judged prompt of the reference is answered as the report answers that prompt. One
        with words that the model never learned is not asked at all.
        reference: a prompt set; a box alone is compared with the mean of its judged prompts, and a question with the
        same words as one of its prompts uses that prompt's negatives.
        Raises ValueError for a blank prompt, for one of more tokens than are read, for a box alone without any judged
        prompt, and for a box outside the square, because the network has no patches there.
        """
        reference = tuple(reference)
        answers: dict[int, Answer] = {}
        boxed, located, of_set = list[int](), list[int](), dict[int, int]()
        for index, question in enumerate(questions):
            if question.is_blank:
                raise ValueError("the prompt of a question must not be blank")
            place = prompt_of(question, reference)
            if words := self.never_learned(question.prompt or ""):
                answers[index] = Answer(sentence="", score=None, state=None, boxes=(), never_learned=words)
            elif question.box is not None:
                boxed.append(index)
            elif place is not None and reference[place].kind is not PromptKind.REGION:
                of_set[index] = place
            else:
                located.append(index)
        for indices, answer in (
            (boxed, self._describe(look, [questions[index] for index in boxed], reference)),
            (located, self._locate(look, [questions[index] for index in located], reference)),
            (
                list(of_set),
                self._answer_of_set(look, list(of_set.values()), reference, side_of=side_of, zone_of=zone_of),
            ),
        ):
            answers.update(zip(indices, answer, strict=True))
        return [answers[index] for index in range(len(questions))]

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
        return [
            i for i, prompt in enumerate(prompts) if prompt.kind is not PromptKind.REGION or positiveness[i] > threshold
        ]

    def _probabilities(
        self, prompts: Sequence[ReaderPrompt], vectors: PromptVectors, features: FloatArray
    ) -> dict[int, float]:
        """Return the probability of every prompt that has negatives, by index of the prompt."""
        found = differences(features[list(vectors.judged)], positive=vectors.positive, negative=vectors.negative)
        decisions = self.manifest.decisions
        return {
            index: float(decisions.probability(prompts[index].key, value))
            for index, value in zip(vectors.judged, found, strict=True)
        }

    def _judge(self, features: FloatArray, positive: FloatArray, negative: FloatArray) -> FloatArray:
        """Return the probabilities of other words than those of a prompt set."""
        found = differences(features, positive=positive, negative=negative)
        return self.manifest.decisions.probability(None, found)

    def _reading(self, film: DecidedFilm, index: int, said: Settled, sentence: int | None) -> PromptReading:
        prompt, decisions, is_judged = film.prompts[index], self.manifest.decisions, index in film.states
        return PromptReading(
            key=prompt.key,
            kind=prompt.kind,
            probability=film.probabilities.get(index),
            state=film.states.get(index),
            boxes=unit_boxes.to_scored(*film.visible[index]),
            sentence=sentence,
            generated=said.generated.get(index, ""),
            contradiction=film.contradictions.get(index),
            near=is_judged and is_near(decisions, prompt.key, float(film.probabilities[index])),
            thresholds=(decisions.lower(prompt.key), decisions.threshold(prompt.key)) if is_judged else None,
            laterality=film.lateralities.get(index, "boxes"),
        )

    def _sentence(self, film: DecidedFilm, text: str, index: int, *, by: By) -> Sentence:
        score = float(film.regions.aggregated_scores[0, index])
        boxes = unit_boxes.to_scored(*film.visible[index])
        return Sentence(text=text, prompt=film.prompts[index].key, score=score, boxes=boxes, by=by)

    def _state(self, key: str | None, probability: float) -> FindingState:
        return decide(self.manifest.decisions, key, probability, trusted=self.trusted)

    def _answer_of_set(
        self,
        look: Look,
        places: Sequence[int],
        prompts: tuple[ReaderPrompt, ...],
        *,
        side_of: SideOf | None,
        zone_of: ZoneOf | None,
    ) -> list[Answer]:
        """Answer judged prompts of a set, by their places in it, as `report` does: among all prompts of the set.

        No answer denies anything, even where the report may.
        """
        if not places:
            return []
        film = self.find(look, prompts, side_of=side_of, zone_of=zone_of)
        film, said = self._speech.sentences(film, places, rule="raw" if self.rule == "raw" else "checked")
        return [
            Answer(
                sentence=said.texts.get(place, ""),
                score=film.probabilities[place],
                state=film.states[place],
                boxes=unit_boxes.to_scored(*film.visible[place]),
                by=said.by(place),
                contradiction=film.contradictions.get(place),
                laterality=film.lateralities.get(place, "boxes"),
            )
            for place in places
        ]

    def find(
        self,
        look: Look,
        prompts: tuple[ReaderPrompt, ...],
        *,
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> DecidedFilm:
        """Locate all prompts of a set, decide about each that can be judged, and look for contradictions."""
        decisions = self.manifest.decisions
        vectors = self._phrasebook.vectors(prompts)
        regions = self._engine.find(look.patches, vectors.queries[np.newaxis])
        probabilities = self._probabilities(prompts, vectors, regions.features[0])
        states = {index: self._state(prompts[index].key, value) for index, value in probabilities.items()}
        visible = [shown_boxes(*found, decisions) for found in zip(regions.boxes[0], regions.scores[0], strict=True)]
        film = DecidedFilm(
            prompts=prompts,
            vectors=vectors,
            regions=regions,
            visible=visible,
            probabilities=probabilities,
            states=states,
            measured={index: is_trusted(decisions, prompts[index].key, self.trusted) for index in states},
            side_of=side_of,
            zone_of=zone_of,
            has_ratio=is_ratio_measured(self.ratio_error, self.trusted),
            deniable=frozenset(
                index
                for index, value in probabilities.items()
                if may_be_denied(decisions, prompts[index].key, value, trusted=self.trusted)
            ),
        )
        return place_findings(self._contradictions.check(look, film), decisions)

    def _locate(self, look: Look, questions: Sequence[Question], reference: tuple[ReaderPrompt, ...]) -> list[Answer]:
        """Answer prompts without boxes: each is the only prompt of its own copy of the film (spec §6, BUG-5)."""
        if not questions:
            return []
        positive, negative = self._phrasebook.pairs(questions, reference)
        regions = self._engine.find(look.patches.copies(len(questions)), positive[:, np.newaxis])
        features = regions.features[:, 0]
        scores = self._judge(features, positive, negative)
        boxes = [
            shown_boxes(*found, self.manifest.decisions)
            for found in zip(regions.boxes[:, 0], regions.scores[:, 0], strict=True)
        ]
        for index in (index for index, question in enumerate(questions) if _is_of_lungs(question, reference)):
            is_within = within(boxes[index][0], self._lungs(look, reference))
            boxes[index] = boxes[index][0][is_within], boxes[index][1][is_within]
        return [
            self._answer(question, text, score, found, is_region=prompt_of(question, reference) is not None)
            for question, text, score, found in zip(
                questions, self._speech.generate(features), scores, boxes, strict=True
            )
        ]

    def _lungs(self, look: Look, reference: tuple[ReaderPrompt, ...]) -> FloatArray:
        """Return the best box of each part of the lungs that a prompt set asks for [part, 4]."""
        prompts = tuple(prompt for prompt in reference if prompt.kind is PromptKind.REGION and prompt.is_of_lungs)
        if not prompts:
            return np.zeros((0, 4), dtype=np.float32)
        regions = self._engine.find(look.patches, self._phrasebook.vectors(prompts).queries[np.newaxis])
        return lungs(prompts, list(zip(regions.boxes[0], regions.scores[0], strict=True)))

    def _describe(self, look: Look, questions: Sequence[Question], reference: tuple[ReaderPrompt, ...]) -> list[Answer]:
        """Answer boxes, with or without a prompt: each is the only box of its own copy of the film (spec §5)."""
        if not questions:
            return []
        positive, negative = self._phrasebook.pairs(questions, reference)
        prompted = np.array([question.prompt is not None for question in questions], dtype=np.float32)
        drawn = [question.box for question in questions if question.box is not None]
        if not all(box.left < 1 and box.right > 0 and box.top < 1 and box.bottom > 0 for box in drawn):
            raise ValueError("the box lies outside the square that the network sees")
        boxes = unit_boxes.to_array(drawn)
        features = self._engine.describe(
            look.patches.copies(len(questions)),
            boxes=boxes[:, np.newaxis],
            prompts=positive[:, np.newaxis],
            prompted=prompted[:, np.newaxis],
        )[:, 0]
        scores = self._judge(features, positive, negative)
        asked = [(box[np.newaxis], score[np.newaxis]) for box, score in zip(boxes, scores, strict=True)]
        texts = self._speech.generate(features)
        return [self._answer(*parts) for parts in zip(questions, texts, scores, asked, strict=True)]

    def _answer(
        self,
        question: Question,
        text: str,
        score: np.float32,
        boxes: tuple[FloatArray, FloatArray],
        *,
        is_region: bool = False,
    ) -> Answer:
        """Answer a question that is no judged prompt of a set: no threshold was measured for it."""
        left_out = left_out_in(question.prompt, self.manifest.decisions)
        state = None if is_region else self._state(left_out, float(score))
        by: By = "network"
        if self.rule != "raw":
            text, by = answer_in_words(text, prompt=question.prompt, state=state)
        return Answer(
            sentence=text,
            score=float(score),
            state=state,
            boxes=unit_boxes.to_scored(*boxes),
            by=by,
            laterality="boxes" if len(boxes[0]) else "unknown",
        )


def _is_of_lungs(question: Question, reference: Sequence[ReaderPrompt]) -> bool:
    """Return whether a question in other words than those of a prompt set asks for a finding of lung or pleura."""
    key = None if prompt_of(question, reference) is not None else class_in(question.prompt or "")
    return any(prompt.key == key and prompt.is_of_lungs for prompt in reference)


def prompt_of(question: Question, prompts: Sequence[ReaderPrompt]) -> int | None:
    """Return the place of the prompt that a question asks in the same words, also in other capitals; None if none."""
    if question.prompt is None:
        return None
    words = words_of(question.prompt)
    return next(
        (i for i, prompt in enumerate(prompts) if words in [words_of(phrase) for phrase in prompt.phrases]), None
    )
