"""One queue for all work of an engine: calls for films and for users; on a CPU also sentences, generated together.

One thread does the work in small units: a call, a layer of a token of the films' sentences, or a token of users'
sentences. Before each unit it chooses what is next. People go first; after `PERSON_UNITS` of their units films get
`FILM_UNITS` of theirs, so questions without end stop no film. Sentences join and leave between two tokens. Calls go
before sentences of their own class, so that those who call join them soon. The callers wait for their results; a
caller that gives up takes its work out.

A film is read by a chain of calls, and a question, which is a chain of calls as well, goes between two of them. It
never changes what a film's answer is: a film continues with what it had computed.

On the processor a large network is called in short parts, so that a question waits behind none for long. At the
published size 29 sentences take a quarter of a second or more; they are encoded in parts of MOST_TOKENS
(`Phrasebook.embed`), between which people go first. The parts depend on the call alone, so what else is computed
changes no result. Films of several callers are not joined: a batch saves little time there, and a detector of two films
does not compute the bits that it computes for one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Condition, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from models.errors import Abandoned

if TYPE_CHECKING:
    from models.network.packed_decoding import Writing

Most = Mapping[str, int]
UNLIMITED: Final[Most] = MappingProxyType({})
SHORT: Final[Most] = MappingProxyType({"encode_image": 1, "find": 1, "describe": 2, "view": 8})
"""Films of one part at the published size: 0.12 s at most, with one thread."""
MOST_TOKENS: Final = 154
"""Tokens of the phrases that are encoded at once, for every network: as long as the parts above at the published size.
More at once are no faster."""
PERSON_UNITS: Final = 32
"""Calls and tokens for users in a row while films wait: more than most answers have."""
FILM_UNITS: Final = 16
"""Layers of a token of films after that; a call counts as all of them."""
MOST_BYTES: Final = 3 << 30
"""Keys and values of films' sentences, at their greatest length; people have a quarter of it on top."""
_PEOPLE_PART: Final = 4
_BETWEEN_CALLS_SECONDS: Final = 0.05
"""For so long films wait for the next call of a question that has begun: a film's call would delay it more."""
_LINGER_SECONDS: Final = 0.2
"""The thread ends when there was no work for so long. So an engine needs no closing, and a process ends at once."""
_LOOK_SECONDS: Final = 0.1
"""A caller that may give up looks so often whether it has."""

T = TypeVar("T")

_is_abandoned: ContextVar[Callable[[], bool] | None] = ContextVar("is_abandoned", default=None)
_question: ContextVar[ExitStack | None] = ContextVar("question", default=None)

Advance = Callable[[Sequence["Writing"]], Iterator[None]]
"""Advances the sentences of several callers together, and yields between two layers. May be repeated if it failed."""


def _no_sentences(_batch: Sequence[Writing]) -> Iterator[None]:
    return iter(())


@contextmanager
def for_person() -> Iterator[None]:
    """Let the calls that this thread makes in the block go before those of films; between two, films wait a moment."""
    if _question.get() is not None:
        yield
        return
    with ExitStack() as question:
        token = _question.set(question)
        try:
            yield
        finally:
            _question.reset(token)


def current_question() -> ExitStack | None:
    """Return the question that this thread works for; None if it works for a film. It ends when the block ends."""
    return _question.get()


@contextmanager
def while_wanted(is_abandoned: Callable[[], bool]) -> Iterator[None]:
    """Cancel this thread's calls in the block, with `Abandoned`, once their client has gone.

    is_abandoned: is asked in this thread, ten times a second
    """
    token = _is_abandoned.set(is_abandoned)
    try:
        yield
    finally:
        _is_abandoned.reset(token)


class Scheduler:
    """Does all work of one engine. May be called from several threads."""

    def __init__(
        self,
        *,
        join: Advance = _no_sentences,
        step: Advance = _no_sentences,
        begin: Callable[[], object] = lambda: None,
        most_bytes: int = MOST_BYTES,
        between_calls_seconds: float = _BETWEEN_CALLS_SECONDS,
    ) -> None:
        """Start no thread before there is work.

        join: computes the start of sentences; step: generates the next token of each; begin: called first in each
        thread that does the work; most_bytes: see `MOST_BYTES`
        """
        self._join, self._step, self._begin = join, step, begin
        self._between_calls_seconds = between_calls_seconds
        self._changed = Condition()
        self._films = _Lane(most_bytes=most_bytes)
        self._people = _Lane(most_bytes=most_bytes // _PEOPLE_PART)
        self._questions: list[ExitStack] = []  # that have begun and not ended
        self._person_ended = time.monotonic()
        self._person_units = self._film_units = 0
        self._thread: Thread | None = None

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in its turn. Raises its errors, and Abandoned."""
        results = list[T]()
        call = _Function(run=lambda: results.append(function()))
        self._wait(call, lambda lane: lane.calls.append(call))
        return results.pop()

    def write(self, writing: Writing, *, size: int) -> None:
        """Generate sentences to their end, together with others. Raises as `call`.

        size: the bytes of their keys and values at their greatest length
        """
        sentences = _Sentences(writing=writing, size=size)
        self._wait(sentences, lambda lane: lane.waiting.append(sentences))

    def _wait(self, work: _Work, enqueue: Callable[[_Lane], None]) -> None:
        """Queue work of this thread, and wait until it is done."""
        question, is_abandoned = current_question(), _is_abandoned.get()
        with self._changed:
            if question is not None and question not in self._questions:
                self._questions.append(question)
                question.callback(self._end_question, question)
            enqueue(self._films if question is None else self._people)
            if self._thread is None:
                thread = Thread(target=self._work, name="scheduler")
                thread.start()  # first: behind one that cannot start, nobody would be served
                self._thread = thread
            self._changed.notify_all()
        try:
            work.wait(is_abandoned)
        except BaseException:
            work.done.cancel()
            work.done = Future()  # the error holds this frame: in a circle with it, a GPU's memory would stay taken
            work.done.cancel()
            raise

    def _end_question(self, question: ExitStack) -> None:
        with self._changed:
            self._questions.remove(question)
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            self._begin()
            while (lane := self._next()) is not None:
                self._compute(lane)
        except BaseException as error:  # without this nobody would wake the waiting threads; each raises it
            self._give_up(error)

    def _compute(self, lane: _Lane) -> None:
        """Compute the next unit of a lane: a call, a layer of the films' token, or a token for users."""
        if lane.calls:
            lane.calls.popleft().start()
        elif lane is self._films:
            self._advance(lane)
        else:
            while self._advance(lane):
                pass
        if lane is self._people:
            self._person_ended = time.monotonic()

    def _give_up(self, error: BaseException) -> None:
        """Let all callers go with an error; the next work starts a new thread."""
        with self._changed:
            for lane in (self._films, self._people):
                lane.fail(error)
                lane.token = None
            self._thread = None

    def _next(self) -> _Lane | None:
        """Wait for work, and return the lane whose unit is next; None if the thread is to end."""
        with self._changed:
            while True:
                self._films.drop_done()
                self._people.drop_done()
                if self._people.has_work or (self._films.has_work and not self._seconds_for_question()):
                    return self._chosen()
                seconds = self._seconds_for_question() if self._films.has_work else _LINGER_SECONDS
                was_told = self._changed.wait(seconds)
                if not was_told and not self._films.has_work and not self._people.has_work:
                    self._thread = None
                    return None

    def _seconds_for_question(self) -> float:
        """Return for how long films are to wait for the next call of a question; 0 if they need not."""
        if not self._questions:
            return 0.0
        return max(0.0, self._person_ended + self._between_calls_seconds - time.monotonic())

    def _chosen(self) -> _Lane:
        """Return the lane that is next, people or films, and count its units while both have work."""
        films, people = self._films, self._people
        if not (films.has_work and people.has_work):
            self._person_units = self._film_units = 0
            return people if people.has_work else films
        if self._person_units < PERSON_UNITS:
            self._person_units += 1
            return people
        self._film_units += FILM_UNITS if films.calls else 1
        if self._film_units >= FILM_UNITS:
            self._person_units = self._film_units = 0
        return films

    def _advance(self, lane: _Lane) -> bool:
        """Compute a layer of the current token of a lane, or begin the next one. Returns whether layers remain."""
        if lane.token is None:
            with self._changed:
                lane.admit()
                lane.token = self._token(list(lane.active))
        try:
            next(lane.token)
        except StopIteration:
            lane.token = None
        return lane.token is not None

    def _token(self, batch: list[_Sentences]) -> Iterator[None]:
        """Generate a token of each of these sentences; those that are new join first."""
        new = [sentences for sentences in batch if not sentences.has_joined]
        if new:
            yield from _each(self._join, new)
            for sentences in new:
                sentences.has_joined = True
        yield from _each(self._step, [s for s in batch if not s.done.done() and not s.writing.is_over])
        for sentences in batch:
            if sentences.writing.is_over:
                sentences.succeed()


class _Work:
    """A waiting call."""

    def __init__(self) -> None:
        self.done: Future[None] = Future()

    def wait(self, is_abandoned: Callable[[], bool] | None) -> None:
        while is_abandoned is not None and not wait([self.done], timeout=_LOOK_SECONDS).done:
            if is_abandoned():
                raise Abandoned("nobody waits for this answer any more")
        self.done.result()

    def succeed(self) -> None:
        with suppress(InvalidStateError):  # the caller has given up
            self.done.set_result(None)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):  # as above
            self.done.set_exception(error)


class _Function(_Work):
    def __init__(self, *, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run

    def start(self) -> None:
        try:
            self._run()
        except BaseException as error:  # of any library; the caller raises it
            self.fail(error)
        else:
            self.succeed()


class _Sentences(_Work):
    def __init__(self, *, writing: Writing, size: int) -> None:
        super().__init__()
        self.writing, self.size = writing, size
        self.has_joined = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Lane:
    """The work for films, or that for users; token: the one that is being generated, layer by layer."""

    most_bytes: int
    calls: deque[_Function] = field(default_factory=deque)
    waiting: deque[_Sentences] = field(default_factory=deque)
    active: deque[_Sentences] = field(default_factory=deque)
    token: Iterator[None] | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.calls or self.waiting or self.active)

    @property
    def used_bytes(self) -> int:
        return sum(sentences.size for sentences in self.active)

    def admit(self) -> None:
        """Let sentences join in their order while they fit. Those that alone are too large are generated alone."""
        while self.waiting and (not self.active or self.used_bytes + self.waiting[0].size <= self.most_bytes):
            self.active.append(self.waiting.popleft())

    def fail(self, error: BaseException) -> None:
        """Let the callers of all work go with an error."""
        for work in (*self.calls, *self.waiting, *self.active):
            work.fail(error)

    def drop_done(self) -> None:
        """Remove sentences that are finished, failed, or abandoned."""
        self.calls = deque(call for call in self.calls if not call.done.done())
        self.waiting = deque(sentences for sentences in self.waiting if not sentences.done.done())
        self.active = deque(sentences for sentences in self.active if not sentences.done.done())


def _each(advance: Advance, batch: Sequence[_Sentences]) -> Iterator[None]:
    """Advance sentences together; if that fails, each alone, and those at fault fail."""
    try:
        yield from advance([sentences.writing for sentences in batch])
    except (GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # of any library, a panic in Rust too; the caller raises it
        if len(batch) == 1:
            batch[0].fail(error)
            return
        for sentences in batch:
            yield from _each(advance, [sentences])
