"""Opens the network that a setting names, beside ChEX, and holds its answers to the contract.

Its answers follow the same rules: no finding without a measured threshold is present, and no sentence leaves that
contradicts the decisions.
"""

from __future__ import annotations

import hashlib
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from itertools import compress
from pathlib import Path
from typing import Final, cast, get_args

import numpy as np

from models import boxes as unit_boxes
from models.checkpoint.files import file_sha256
from models.contract import (
    COMPARISON,
    VIEWS,
    Answer,
    FilmReading,
    FindingState,
    Gray,
    PromptKind,
    PromptReading,
    Question,
    Reader,
    ReaderPrompt,
    ScoredBox,
    Sentence,
    SentenceRule,
    SideOf,
    Trusted,
    ViewReading,
    ZoneOf,
)
from models.engines import FloatArray
from models.errors import DeviceLost, ModelError, ReaderFault
from models.reading.decision import is_ratio_measured
from models.reading.places import lungs, where_possible
from models.reading.sentence_check import Decided, Settled, answer_in_words, is_reported, settle

GROUP: Final = "chex_node.readers"
"""The group of entry points by which an installed package gives its reader a name."""

_BEYOND: Final = 0.01
"""How far a box may leave the square, as a share of it: rounding, and no more."""
_NEED_MEASURED_THRESHOLD: Final = (FindingState.PRESENT, FindingState.INDETERMINATE)


def open_named(
    name: str, directory: Path, *, trusted: Trusted = "real", sentences: SentenceRule = "checked"
) -> NamedReader:
    """Open a network. Raises ModelError for a fault of the name, the function or its result.

    name: "package.module:function", or that of an entry point in GROUP; the function gets the directory as it is
    trusted: "any" if an unmeasured threshold may call a finding present
    """
    function = _function(name)
    try:
        reader = function(directory)
    except Exception as error:  # a boundary: the code of another package; no film is open, so its text names no patient
        raise ModelError(
            f"model.reader {name} could not open {directory}: {type(error).__name__}: {error}; correct the directory"
        ) from error
    if not isinstance(reader, Reader):
        raise ModelError(f"model.reader {name} returned {type(reader).__name__}; return a models.contract.Reader")
    for key in ("name", "version", "engine"):
        value = getattr(reader, key, None)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ModelError(f"model.reader {name}: its {key} must be a text of one line that is not blank; set it")
    if reader.gray not in get_args(Gray):
        raise ModelError(f"model.reader {name}: its gray must be one of {', '.join(get_args(Gray))}")
    return NamedReader(reader, trusted=trusted, rule=sentences)


def hash_of(directory: Path) -> str:
    """Return the SHA-256 of all files of a directory with their names, or of a file. Raises ModelError without any.

    The comparison by which a node takes the model is no part of it.
    """
    whole = hashlib.sha256()
    try:
        found = [directory] if directory.is_file() else sorted(path for path in directory.rglob("*") if path.is_file())
        files = [path for path in found if path != directory / COMPARISON]
        for path in files:
            whole.update(f"{path.relative_to(directory)}\0{file_sha256(path)}\n".encode())
    except OSError as error:
        raise ModelError(f"{directory}: cannot be read ({error})") from error
    if not files:
        raise ModelError(f"{directory}: has no file; name the directory of the model in model.directory")
    return whole.hexdigest()


def _function(name: str) -> Callable[[Path], object]:
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            found = getattr(import_module(module), attribute)
        else:
            installed = {point.name: point for point in entry_points(group=GROUP)}
            if name not in installed:
                known = ", ".join(["chex", *sorted(installed)])
                raise ModelError(
                    f"model.reader {name} is not installed; known are {known}, or write package.module:name"
                )
            found = installed[name].load()
    except (ImportError, AttributeError, ValueError) as error:
        raise ModelError(
            f"model.reader {name} cannot be imported ({error}); install its package, or correct it"
        ) from error
    if not callable(found):
        raise ModelError(f"model.reader {name} is no function; name one that takes a directory and returns a reader")
    return cast("Callable[[Path], object]", found)


class NamedReader(Reader[object]):
    """A network that a setting names, with its answers checked: each method raises ReaderFault for an invalid one."""

    def __init__(self, reader: Reader[object], *, trusted: Trusted, rule: SentenceRule) -> None:
        self._reader = reader
        self._trusted = trusted
        self._rule = rule
        self.name, self.version, self.engine = reader.name, reader.version, reader.engine
        self.gray, self.ages, self.fallbacks = reader.gray, reader.ages, tuple(reader.fallbacks)
        self.measured, self.left_out = frozenset(reader.measured), frozenset(reader.left_out)
        self.ratio_error = reader.ratio_error

    def square(self, columns: int, rows: int) -> tuple[float, float, float, float]:
        """Return the part of a film that is analyzed; it must lie on the film."""
        with _held("square"):
            left, top, right, bottom = map(float, self._reader.square(columns, rows))
            _require(0 <= left < right <= columns and 0 <= top < bottom <= rows, "the square must lie on the film")
        return left, top, right, bottom

    def check(self, prompts: Sequence[ReaderPrompt]) -> None:
        """Raise ModelError if these prompts cannot be asked."""
        with _held("check", passing=ModelError):
            self._reader.check(prompts)

    def prepare(self, prompts: Sequence[ReaderPrompt]) -> None:
        """Warm up, so that the first film does not wait. Raises ModelError."""
        with _held("prepare", passing=ModelError):
            self._reader.prepare(prompts)

    def look(self, gray: FloatArray) -> object:
        """Take in a film."""
        with _held("look"):
            return self._reader.look(gray)

    def view(self, look: object) -> ViewReading | None:
        """Tell the view that a film shows."""
        with _held("view"):
            view = self._reader.view(look)
            if view is not None:
                _require(set(view.probabilities) == set(VIEWS), f"a view needs the probability of {', '.join(VIEWS)}")
                _require(all(map(_is_share, view.probabilities.values())), "probabilities must lie in 0..1")
        return view

    def middle(self, look: object) -> float | None:
        """Return the position of the spine, see `Reader.middle`."""
        with _held("middle"):
            middle = self._reader.middle(look)
            _require(middle is None or _is_share(middle), "the middle must lie in 0..1")
        return middle

    def report(
        self,
        look: object,
        prompts: Sequence[ReaderPrompt],
        *,
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> FilmReading:
        """Answer the prompts; one without an answer is left out."""
        with _held("report"):
            said = self._reader.report(look, prompts, side_of=side_of, zone_of=zone_of)
            _require(isinstance(said, FilmReading), "it must be a FilmReading")
            answers = _answers(said, prompts)
            texts = _texts(said, prompts)
        answers = {prompt.key: self._decided(answers.get(prompt.key), prompt) for prompt in prompts}
        answers = _within_lungs(answers, prompts)
        return _with_sentences(answers, self._settled(answers, prompts, texts, side_of, zone_of), said, prompts)

    def ask(
        self,
        look: object,
        questions: Sequence[Question],
        *,
        reference: Sequence[ReaderPrompt] = (),
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> list[Answer]:
        """Answer questions. Raises ValueError for an invalid question."""
        if type(self._reader).ask is Reader.ask:  # then the answers are those of the checked report
            return super().ask(look, questions, reference=reference, side_of=side_of, zone_of=zone_of)
        with _held("ask", passing=ValueError):
            answers = self._reader.ask(look, questions, reference=reference, side_of=side_of, zone_of=zone_of)
            _require(len(answers) == len(questions), "each question needs one answer")
            for answer in answers:
                _require(isinstance(answer, Answer), "each must be an Answer")
                _require(answer.score is None or _is_share(answer.score), "scores must lie in 0..1")
                _check_boxes(answer.boxes)
        keys = {phrase.casefold(): prompt.key for prompt in reference for phrase in prompt.phrases}
        return [
            self._worded(answer, question, keys.get((question.prompt or "").strip().casefold()))
            for answer, question in zip(answers, questions, strict=True)
        ]

    def _state(self, state: FindingState | None, key: str | None) -> FindingState | None:
        """Return a permitted state: a finding without a measured threshold is for review only."""
        is_trusted = self._trusted == "any" or (self._trusted == "real" and key in self.measured)
        return FindingState.UNCALIBRATED if state in _NEED_MEASURED_THRESHOLD and not is_trusted else state

    def _decided(self, answer: PromptReading | None, prompt: ReaderPrompt) -> PromptReading:
        if prompt.kind is PromptKind.REGION:
            return answer or PromptReading(key=prompt.key, kind=prompt.kind)
        if answer is None or prompt.key in self.left_out:
            return PromptReading(key=prompt.key, kind=prompt.kind, probability=0.0, state=FindingState.LEFT_OUT)
        state = self._state(answer.state, prompt.key)
        return replace(answer, state=state, near=answer.near or is_reported(prompt, state))

    def _settled(
        self,
        answers: Mapping[str, PromptReading],
        prompts: Sequence[ReaderPrompt],
        texts: Mapping[int, str],
        side_of: SideOf | None,
        zone_of: ZoneOf | None,
    ) -> Settled:
        """Return the sentences that agree with the decisions."""
        if self._rule == "raw":
            return Settled(texts=dict(texts), generated=texts)
        states = {
            index: state for index, prompt in enumerate(prompts) if (state := answers[prompt.key].state) is not None
        }
        boxes = {key: unit_boxes.to_array(scored.box for scored in answer.boxes) for key, answer in answers.items()}
        decided = Decided(
            prompts=prompts,
            states=states,
            measured={index: self._trusted == "any" or prompts[index].key in self.measured for index in states},
            boxes=[boxes[prompt.key] for prompt in prompts],
            side_of=side_of,
            regions={
                prompt.key: boxes[prompt.key][0]
                for prompt in prompts
                if prompt.kind is PromptKind.REGION and len(boxes[prompt.key])
            },
            zone_of=zone_of,
            lateralities={index: answers[prompts[index].key].laterality for index in states},
            has_ratio=is_ratio_measured(self.ratio_error, "real"),
            deniable={index for index in states if self._may_be_denied(answers[prompts[index].key])},
        )
        return settle(decided, texts, lambda indices: [""] * len(indices))

    def _may_be_denied(self, answer: PromptReading) -> bool:
        is_measured = answer.key in self.measured and self._trusted != "phantoms"
        return self._rule == "marked" and is_measured and not answer.near

    def _worded(self, answer: Answer, question: Question, key: str | None) -> Answer:
        state = self._state(answer.state, key)
        if self._rule == "raw" or answer.never_learned:
            return replace(answer, state=state)
        text, by = answer_in_words(answer.sentence, prompt=question.prompt, state=state)
        return replace(answer, state=state, sentence=text, by=by)


@contextmanager
def _held(step: str, *, passing: type[Exception] = ReaderFault) -> Iterator[None]:
    """Raise ReaderFault for errors in another package's code, without their text, which may name a patient."""
    try:
        yield
    except (passing, ReaderFault, DeviceLost):
        raise
    except _Broken as error:
        raise ReaderFault(f"{step} breaks the contract: {error}") from error
    except Exception as error:  # a boundary: any failure there costs this film alone
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}:{frame.lineno}"
        raise ReaderFault(f"{step} failed: {type(error).__name__} at {place}") from error


class _Broken(Exception):
    """The result of a reader breaks the contract."""


def _require(holds: object, rule: str) -> None:
    if not holds:
        raise _Broken(rule)


def _is_share(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value) and 0 <= value <= 1


def _check_boxes(boxes: Sequence[ScoredBox]) -> None:
    for scored in boxes:
        _require(isinstance(scored, ScoredBox), "boxes must be of type ScoredBox")
        _require(_is_share(scored.score), "scores of boxes must lie in 0..1")
        is_inside = all(-_BEYOND <= edge <= 1 + _BEYOND for edge in scored.box.edges)
        _require(is_inside, f"a box must lie in the square, 0..1, not at {scored.box.edges}")


def _answers(said: FilmReading, prompts: Sequence[ReaderPrompt]) -> dict[str, PromptReading]:
    """Return the answers by key."""
    kinds = {prompt.key: prompt.kind for prompt in prompts}
    for answer in said.prompts:
        _require(isinstance(answer, PromptReading), "each answer must be a PromptReading")
        _require(answer.key in kinds, f"{answer.key} was not asked; answer the keys of the prompts")
        _require(answer.kind is kinds[answer.key], f"{answer.key} is a {kinds[answer.key]}; answer with this kind")
        if answer.kind is not PromptKind.REGION:
            _require(_is_share(answer.probability), f"the probability of {answer.key} must be a number in 0..1")
            _require(isinstance(answer.state, FindingState), f"the state of {answer.key} must be a FindingState")
        _check_boxes(answer.boxes)
    answers = {answer.key: answer for answer in said.prompts}
    _require(len(answers) == len(said.prompts), "each prompt may have one answer only")
    return answers


def _within_lungs(answers: Mapping[str, PromptReading], prompts: Sequence[ReaderPrompt]) -> dict[str, PromptReading]:
    """Return answers whose reported findings of lung or pleura have no box outside the lungs, as those of ChEX."""
    found = [
        (unit_boxes.to_array(scored.box for scored in boxes), np.array([scored.score for scored in boxes]))
        for boxes in (answers[prompt.key].boxes for prompt in prompts)
    ]
    parts, placed = lungs(prompts, found), dict(answers)
    for prompt, (boxes, _) in zip(prompts, found, strict=True):
        answer = answers[prompt.key]
        if is_reported(prompt, answer.state) and len(boxes):
            kept = tuple(compress(answer.boxes, where_possible(prompt, boxes, parts)))
            placed[prompt.key] = replace(answer, boxes=kept, laterality=answer.laterality if kept else "unknown")
    return placed


def _texts(said: FilmReading, prompts: Sequence[ReaderPrompt]) -> dict[int, str]:
    """Return the sentences by the place of their prompt."""
    places = {prompt.key: place for place, prompt in enumerate(prompts)}
    for sentence in said.sentences:
        _require(isinstance(sentence, Sentence), "each sentence must be a Sentence")
        _require(sentence.prompt in places, f"a sentence is for {sentence.prompt}, which was not asked")
        _require(_is_share(sentence.score), "scores of sentences must lie in 0..1")
        _check_boxes(sentence.boxes)
    texts = {places[sentence.prompt]: sentence.text for sentence in said.sentences}
    _require(len(texts) == len(said.sentences), "each prompt may have one sentence only")
    return dict(sorted(texts.items()))


def _with_sentences(
    answers: Mapping[str, PromptReading], settled: Settled, said: FilmReading, prompts: Sequence[ReaderPrompt]
) -> FilmReading:
    """Put answers and the sentences that leave together, in the order of the prompts."""
    scores = {sentence.prompt: sentence.score for sentence in said.sentences}
    order = {prompts[index].key: place for place, index in enumerate(settled.texts)}
    return FilmReading(
        prompts=tuple(
            replace(answer, sentence=order.get(key), generated=settled.generated.get(index, ""))
            for index, (key, answer) in enumerate(answers.items())
        ),
        sentences=tuple(
            Sentence(
                text=text,
                prompt=prompts[index].key,
                score=scores[prompts[index].key],
                boxes=answers[prompts[index].key].boxes,
                by=settled.by(index),
            )
            for index, text in settled.texts.items()
        ),
        withheld=settled.withheld,
    )
