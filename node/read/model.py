"""The node's interface to the network: reading films, answering questions, and opening a model.

But for the contract and the errors, this file and its neighbor `manifest` import `models` inside functions only: the
node runs without torch. Here `Framing` maps boxes from the network's unit square to pixels of the stored film.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from language.check import words_severity
from models import contract, errors
from models.contract import (
    Answer,
    Box,
    FilmReading,
    FindingState,
    Question,
    ScoredBox,
    SentenceRule,
    Side,
    SideOf,
    StageDifference,
    Trusted,
    ViewReading,
    ZoneOf,
)
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredError
from node.config import CHEX, Settings
from node.domain import ModelIdentity, Note
from node.errors import AskerGone, InputError, ModelLost, ReaderFailed
from node.prompt_set import PromptSet
from node.read import findings
from node.read.decoding import Radiograph, side_of, side_of_square
from node.read.framing import Framing, leaving
from node.read.prompt_names import NamedPrompt, named, refusal, unasked_place

if TYPE_CHECKING:
    from models.engines.proof import Precision
    from models.reading.named_reader import NamedReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(FilmReading):
    """The network's reading of one film, with boxes on the stored film.

    ratio: not yet compared with the film's header; its objection is the model's
    view: None if the model has no view head
    middle: see `Framing.about`
    """

    ratio: CardiothoracicRatio | None = None
    view: ViewReading | None = None
    middle: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenFilm:
    """A film that the network has encoded, for any number of questions.

    framing, sides_known, notes: see `Radiograph`; look: the encoded picture, for the reader that made it
    view: see `Reading`
    """

    framing: Framing
    sides_known: bool
    look: object
    notes: tuple[Note, ...] = ()
    view: ViewReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmAnswer(Answer):
    """The answer to one question, with boxes on the stored film; notes: about the film's pixels, and its sentence."""

    question: Question
    notes: tuple[Note, ...] = ()


def check_questions(questions: Iterable[Question], framing: Framing, prompts: PromptSet) -> None:
    """Raise InputError, with the remedy, for a box that exceeds the image and for words that are not asked."""
    for question in questions:
        if question.is_blank:
            raise InputError("the prompt of a question must not be blank; write what to look for")
        reason = None
        if question.box is not None:
            reason = leaving(question.box, columns=framing.columns, rows=framing.rows)
        if reason is None and question.prompt is not None:
            reason = refusal(question.prompt, prompts)
            if reason is None and question.box is None:
                reason = unasked_place(question.prompt, prompts)
        if reason is not None:
            raise InputError(reason)


def check_files(directory: Path, *, engine: str, reader: str = CHEX) -> None:
    """Check that the files for `open_reader` exist, without opening them. Raises InputError that says what to do.

    Of another network than ChEX only the network itself knows its files: it is opened.
    """
    if reader != CHEX:
        open_named(reader, directory)
        return
    from models.engines import proof

    with as_input_error():
        proof.check_files(directory, engine=engine)


def open_reader(
    directory: Path,
    *,
    prompts: PromptSet,
    engine: str,
    reader: str = CHEX,
    threads: int = 0,
    engines: Path | None = None,
    precision: str = "float32",
    trusted: Trusted = "real",
    sentences: SentenceRule = "checked",
    unmeasured_ratio: bool = False,
    on_written: Callable[[int, float], None] = lambda _tokens, _seconds: None,
) -> RadiographReader:
    """Open a model directory for one prompt set; the first start on a GPU builds TensorRT engines, which takes minutes.

    engine, reader, precision: the settings `model.engine`, `model.reader` and `model.precision`
    engines: folder for the TensorRT engines built for a GPU
    trusted: which thresholds may call a finding present
    unmeasured_ratio: whether films have a cardiothoracic ratio whose error was not measured on such films
    on_written: called with the number of generated tokens and the seconds they took
    Raises InputError when the directory is incomplete, its hashes do not match, its graphs have no parity proof, or
    prompts and thresholds do not match.
    """
    from models.manifest import MANIFEST
    from models.reading import named_reader
    from models.reading.reader import open_reader as open_model

    network: contract.Reader[Any]
    if reader != CHEX:
        network = open_named(reader, directory, trusted=trusted, sentences=sentences)
        with as_input_error():
            weights_sha256 = named_reader.hash_of(directory)
        settings = "\0".join((reader, network.name, network.version)).encode()
    else:
        with as_input_error():
            network = open_model(
                directory,
                engine=engine,
                threads=threads,
                engines=engines,
                precision=cast("Precision", precision),
                trusted=trusted,
                sentences=sentences,
                on_written=on_written,
            )
        weights_sha256, settings = network.weights_sha256, (directory / MANIFEST).read_bytes()
    opened = RadiographReader(
        network,
        hashes=(weights_sha256, hashlib.sha256(settings).hexdigest()),
        trusted=trusted,
        sentences=sentences,
        unmeasured_ratio=unmeasured_ratio,
    )
    opened.prepare(prompts)
    return opened


def open_named(
    name: str, directory: Path, *, trusted: Trusted = "real", sentences: SentenceRule = "checked"
) -> NamedReader:
    """Open another network than ChEX by its name (`models.reading.named_reader`). Raises InputError."""
    from models.reading import named_reader

    with as_input_error():
        return named_reader.open_named(name, directory, trusted=trusted, sentences=sentences)


def open_configured(
    settings: Settings,
    prompts: PromptSet,
    *,
    engines: Path | None = None,
    on_written: Callable[[int, float], None] = lambda _tokens, _seconds: None,
) -> RadiographReader:
    """Open the model of the settings, on the runtime and with the rules that they name; otherwise as `open_reader`.

    engines: another folder for TensorRT engines than that of the node
    """
    model = settings.model
    return open_reader(
        model.directory,
        prompts=prompts,
        engine=model.engine,
        reader=model.reader,
        threads=model.threads,
        engines=engines or settings.storage.directory / "engines",
        precision=model.precision,
        trusted=model.trusted,
        sentences=settings.report.rule,
        unmeasured_ratio=settings.report.unmeasured_ratio,
        on_written=on_written,
    )


class RadiographReader:
    """Reads films by a network, with boxes on the stored film; several threads may call it at once.

    identity: the network that answers; fallbacks: the runtimes that were tried before the runtime in use, in order
    gray: the gray values that it needs, `voi` or `mimic_jpg` (design §4)
    ages: in completed years, that the model is for; None for any
    """

    def __init__(
        self,
        network: contract.Reader[Any],
        *,
        hashes: tuple[str, str],
        trusted: Trusted,
        sentences: SentenceRule,
        unmeasured_ratio: bool,
    ) -> None:
        """Read by an open network; hashes: those of its weights and of their settings."""
        self._network = network
        self._trusted: Trusted = trusted
        self.gray = str(network.gray)
        self.ages = network.ages
        self.fallbacks = network.fallbacks
        self.identity = ModelIdentity(
            name=network.name,
            version=network.version,
            weights_sha256=hashes[0],
            engine=network.engine,
            manifest_sha256=hashes[1],
            trusted=trusted,
            sentences=sentences,
            unmeasured_ratio=unmeasured_ratio,
        )

    @property
    def parity(self) -> Mapping[str, StageDifference]:
        """How far the runtime in use is from the network, by stage; empty if it is the network itself."""
        return self._network.parity

    def prepare(self, prompts: PromptSet) -> None:
        """Check prompts, and encode their phrases, so that no film waits for them; between films that are being read.

        Raises InputError if prompts and model do not fit together.
        """
        with as_input_error(), _raising_node_errors():
            self._network.check(prompts.prompts)
            self._network.prepare(prompts.prompts)

    def square(self, columns: int, rows: int) -> tuple[float, float, float, float]:
        """Return left, top, right, bottom of the analyzed square, in pixels of the upright film."""
        with _raising_node_errors():
            return self._network.square(columns, rows)

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        """Read one film.

        Raises ModelLost if the GPU computes nothing any more, and ReaderFailed if another network than ChEX fails.
        """
        with _raising_node_errors():
            look = self._network.look(image.gray)
            middle = self._network.middle(look)
            image = replace(image, framing=image.framing.about(middle))
            view = self._network.view(look)
            said = self._network.report(
                look, prompts.prompts, side_of=_side_of(image, view), zone_of=_zone_of(image, prompts)
            )
        framing = image.framing
        return Reading(
            sentences=tuple(replace(each, boxes=_place(each.boxes, framing)) for each in said.sentences),
            prompts=tuple(replace(each, boxes=_place(each.boxes, framing)) for each in said.prompts),
            withheld=said.withheld,
            ratio=self._ratio(said, framing),
            view=view,
            middle=middle,
        )

    def _ratio(self, said: FilmReading, framing: Framing) -> CardiothoracicRatio | None:
        from models.reading.cardiothoracic import measure_chest
        from models.reading.decision import is_ratio_measured, is_ratio_trusted

        chest, error = measure_chest(said.regions), self._network.ratio_error
        is_wanted = self.identity.unmeasured_ratio or is_ratio_measured(error, self._trusted)
        if chest is None or not is_wanted:
            return None
        heart, thorax = (
            framing.line_to_image(left=extent.left, right=extent.right, height=extent.height)
            for extent in (chest.heart, chest.thorax)
        )
        return CardiothoracicRatio(
            heart=heart,
            thorax=thorax,
            objection=Incomparable.VIEW_UNKNOWN if is_ratio_trusted(error, self._trusted) else Incomparable.UNMEASURED,
            error=None
            if error is None
            else MeasuredError(
                measured_on=error.measured_on,
                films=error.films,
                mean_absolute=error.mean_absolute_error,
                lower=error.lower,
                upper=error.upper,
            ),
        )

    def see(self, image: Radiograph) -> SeenFilm:
        """Encode a film for questions, before the films that wait to be read."""
        from models.engines import scheduler

        with scheduler.for_person(), _raising_node_errors():
            look = self._network.look(image.gray)
            framing = image.framing.about(self._network.middle(look))
            view = self._network.view(look)
        return SeenFilm(framing=framing, sides_known=image.sides_known, look=look, notes=image.notes, view=view)

    def ask(self, film: SeenFilm, questions: Sequence[Question], prompts: PromptSet) -> list[FilmAnswer]:
        """Answer questions about one film, each on its own, before the films that wait to be read.

        A prompt with a name is answered like the report (`prompt_names`). A finding on a side is that of
        the report, if the report has it on this side or not at all. Else, and without known sides, it is asked by
        itself, in its own words.
        Raises ValueError for an invalid question; call `check_questions` first. Otherwise as `read`.
        """
        names = [_name_of(question, prompts) for question in questions]
        asked = [
            question if name is None else replace(question, prompt=name.prompt.phrases[0])
            for question, name in zip(questions, names, strict=True)
        ]
        answers: list[FilmAnswer | None] = [
            _on_side(replace(answer, question=question), None if name is None else name.side, film)
            for question, name, answer in zip(questions, names, self._ask(film, asked, prompts), strict=True)
        ]
        apart = [question for question, answer in zip(questions, answers, strict=True) if answer is None]
        again = iter(self._ask(film, apart, prompts) if apart else ())
        return [next(again) if answer is None else answer for answer in answers]

    def _ask(self, film: SeenFilm, questions: Sequence[Question], prompts: PromptSet) -> list[FilmAnswer]:
        from models.engines import scheduler

        asked = [
            question if question.box is None else replace(question, box=film.framing.to_square(question.box))
            for question in questions
        ]
        with scheduler.for_person(), _raising_node_errors():
            answers = self._network.ask(
                film.look,
                asked,
                reference=prompts.prompts,
                side_of=_side_of(film, film.view),
                zone_of=_zone_of(film, prompts),
            )
        return [_to_film(question, answer, film) for question, answer in zip(questions, answers, strict=True)]


def _side_of(film: Radiograph | SeenFilm, view: ViewReading | None) -> SideOf | None:
    """Return the function that gives the side of the patient for a box of the square.

    None without known sides, and on a film that looks mirrored, of which no sentence names a side.
    """
    is_sure = film.sides_known and not (view is not None and view.mirrored)
    return partial(side_of_square, middle=film.framing.middle) if is_sure else None


def _zone_of(film: Radiograph | SeenFilm, prompts: PromptSet) -> ZoneOf:
    """Return the function that gives the zone of boxes of the square, the same for all outputs of the film."""
    framing = film.framing

    def zone_of(key: str, boxes: Sequence[Box], regions: Mapping[str, Box]) -> str | None:
        return findings.zone_of_boxes(
            prompts[key],
            [framing.place(box) for box in boxes],
            {name: framing.place(box) for name, box in regions.items()},
            prompts,
            framing=framing if film.sides_known else None,
        )

    return zone_of


def _name_of(question: Question, prompts: PromptSet) -> NamedPrompt | None:
    """Return the prompt that a question names; a side in words beside a box belongs to the words of the question."""
    name = None if question.prompt is None else named(question.prompt, prompts)
    return None if name is not None and name.side is not None and question.box is not None else name


def _on_side(answer: FilmAnswer, side: Side | None, film: SeenFilm) -> FilmAnswer | None:
    """Return the answer about a finding for one side, with its boxes there; None if the finding lies elsewhere."""
    if side is None or answer.state is None or not answer.state.is_reported:
        return answer
    wanted = {Side.RIGHT, Side.LEFT} if side is Side.BILATERAL else {side}
    is_told = film.sides_known and answer.laterality == "boxes"
    boxes = tuple(box for box in answer.boxes if side_of(box.box, film.framing) in wanted) if is_told else ()
    return replace(answer, boxes=boxes) if {side_of(box.box, film.framing) for box in boxes} == wanted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """An open model and the prompts for it."""

    reader: RadiographReader
    prompts: PromptSet


def read_gpu() -> tuple[str, str] | None:
    """Return the name of the first GPU and the version of its driver; None without a GPU that PyTorch can use."""
    from models.engines import EngineUnavailable
    from models.engines.devices import CudaGpu

    try:
        gpu = CudaGpu()
    except EngineUnavailable:
        return None
    return gpu.name, gpu.driver


@contextmanager
def while_wanted(is_gone: Callable[[], bool]) -> Iterator[None]:
    """Cancel this thread's queued requests to the network when the client has disconnected. Raises AskerGone.

    is_gone: is asked in this thread, ten times a second
    """
    from models.engines import scheduler

    try:
        with scheduler.while_wanted(is_gone):
            yield
    except errors.Abandoned as error:
        raise AskerGone("nobody waits for this answer any more") from error


@contextmanager
def as_input_error() -> Iterator[None]:
    """Raise what is wrong with a model as InputError."""
    try:
        yield
    except errors.ModelError as error:
        raise InputError(str(error)) from error


@contextmanager
def _raising_node_errors() -> Iterator[None]:
    """Raise the loss of the GPU and a fault of another network as the node's own."""
    try:
        yield
    except errors.DeviceLost as error:
        raise ModelLost(str(error)) from error
    except errors.ReaderFault as error:
        raise ReaderFailed(str(error)) from error


def _to_film(question: Question, answer: Answer, film: SeenFilm) -> FilmAnswer:
    """Convert an answer to pixels of the film. An absent finding has no box, except the question's own box."""
    is_located = answer.state is None or answer.state.is_reported or question.box is not None
    is_worded = answer.by.startswith("network") and words_severity(answer.sentence)
    return FilmAnswer(
        question=question,
        sentence=answer.sentence,
        score=None if answer.state is FindingState.LEFT_OUT else answer.score,
        state=answer.state,
        boxes=_place(answer.boxes, film.framing) if is_located else (),
        by=answer.by,
        contradiction=answer.contradiction,
        never_learned=answer.never_learned,
        laterality=answer.laterality,
        notes=(*film.notes, *([Note.SEVERITY_WORDED] if is_worded else [])),
    )


def _place(boxes: Sequence[ScoredBox], framing: Framing) -> tuple[ScoredBox, ...]:
    return tuple(ScoredBox(box=framing.place(scored.box), score=scored.score) for scored in boxes)
