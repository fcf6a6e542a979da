"""Who may use a GPU next: one call at a time, and a person's question before the films that wait.

A film is read by a chain of calls, and a question goes between two of them. It never changes what a film's answer is: a
film continues with what it had computed. A question is a chain of calls as well, and films wait until it is answered.
On the CPU `scheduler` does this, and more.

On the processor a large network is called in short parts, so that a question waits behind none for long. At the
published size 29 sentences take a quarter of a second or more; they are encoded in parts of MOST_TOKENS
(`Phrasebook.embed`), between which people go first. The parts depend on the call alone, so what else is computed
changes no result. Films of several callers are not joined: a batch saves little time there, and a detector of two films
does not compute the bits that it computes for one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Condition
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

import numpy as np

FILM_PATIENCE_SECONDS: Final = 2.0
"""When no film had a turn for so long, a film's call goes before questions: questions without end stop no film."""

T = TypeVar("T")

_question: ContextVar[ExitStack | None] = ContextVar("question", default=None)
Arrays = Sequence[np.ndarray]
Most = Mapping[str, int]

UNLIMITED: Final[Most] = MappingProxyType({})
SHORT: Final[Most] = MappingProxyType({"encode_image": 1, "find": 1, "describe": 2, "view": 8})
"""Films of one part at the published size: 0.12 s at most, with one thread."""

MOST_TOKENS: Final = 154
"""Tokens of the phrases that are encoded at once, for every network: as long as the parts above at the published size.
More at once are no faster."""


class Calls(Protocol):
    """Says when a call of an engine runs: `Turns` on a GPU, `Scheduler` on the processor."""

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in its turn. Raises its errors."""


@contextmanager
def for_person() -> Iterator[None]:
    """Let the calls that this thread makes in the block go before those of films, which wait until the block ends."""
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Call:
    """A call that waits; question: the one that it belongs to, None for a film's call."""

    question: ExitStack | None
    since: float = field(default_factory=time.monotonic)


class Turns:
    """Lets one call at a time use a device: those of the oldest question, then those of films in their order."""

    def __init__(self, *, patience_seconds: float = FILM_PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._changed = Condition()
        self._is_taken = False
        self._questions: list[ExitStack] = []  # that have begun and not ended
        self._people, self._films = list[_Call](), list[_Call]()
        self._film_ended = time.monotonic()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in its turn."""
        with self.turn():
            return function()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn, and have it while the block runs."""
        self._take()
        try:
            yield
        finally:
            self._end_turn()

    def _take(self) -> None:
        call = _Call(question=_question.get())
        queue = self._films if call.question is None else self._people
        with self._changed:
            if call.question is not None and call.question not in self._questions:
                self._questions.append(call.question)
                call.question.callback(self._end_question, call.question)
            queue.append(call)
            while self._is_taken or self._next() is not call:
                self._changed.wait(timeout=self._patience_seconds)
            queue.remove(call)
            self._is_taken = True

    def _end_turn(self) -> None:
        with self._changed:
            self._is_taken = False
            if _question.get() is None:
                self._film_ended = time.monotonic()
            self._changed.notify_all()

    def _end_question(self, question: ExitStack) -> None:
        with self._changed:
            self._questions.remove(question)
            self._changed.notify_all()

    def _next(self) -> _Call | None:
        """Return the call that is next; None while the oldest question is between two of its calls."""
        if self._films and (not self._questions or self._has_waited_long(self._films[0])):
            return self._films[0]
        return next((call for call in self._people if call.question is self._questions[0]), None)

    def _has_waited_long(self, call: _Call) -> bool:
        """Whether a film's call waits, and no film had a turn, for longer than a film should."""
        return time.monotonic() - max(call.since, self._film_ended) >= self._patience_seconds


def run_in_parts(
    calls: Calls, run: Callable[[Arrays], Sequence[np.ndarray]], stage: str, inputs: Arrays, *, most: Most
) -> Sequence[np.ndarray]:
    """Run a stage on inputs [film, ...], each part of them in a turn of its own.

    most: films of a part, by stage; a stage that is not named has one part
    """
    limit = most.get(stage, 0)
    if not limit or len(inputs[0]) <= limit:
        return calls.call(lambda: run(inputs))
    outputs = []
    for start in range(0, len(inputs[0]), limit):
        part = [array[start : start + limit] for array in inputs]
        outputs.append(calls.call(lambda part=part: run(part)))  # type: ignore[misc]  # mypy cannot infer the default
    return [np.concatenate(arrays) for arrays in zip(*outputs, strict=True)]
