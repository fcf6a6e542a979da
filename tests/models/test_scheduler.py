"""The scheduler: who is next, what a person waits for, who leaves, and what an error does to others.

Waits are counted in units (calls, layers, tokens), not in seconds: the scripted decoder notes each.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import cast

import pytest
import torch

from models.engines.scheduler import FILM_UNITS, PERSON_UNITS, Scheduler, for_person, while_wanted
from models.errors import Abandoned
from models.network.packed_decoding import Writing
from tests.support.fakes import Panic

LAYERS = 24
LIMIT_SECONDS = 30.0
_TOKEN = torch.ones(1, dtype=torch.int64)
"""One that ends no sentence."""


class Said(Writing):
    """Sentences that end after so many tokens; fails_at: the token that cannot be generated; error: what it raises."""

    def __init__(
        self, name: str, tokens: int, *, fails_at: int | None = None, error: type[BaseException] = ValueError
    ) -> None:
        super().__init__(torch.zeros(1, 1), max_length=tokens + 1)
        self.name, self.fails_at, self.error = name, fails_at, error


@dataclass
class Scripted:
    """Notes each unit; tells when a unit was reached, and holds the thread there until it may go on."""

    notes: list[str] = field(default_factory=list)
    hold_at: Callable[[list[str]], bool] = lambda _: False
    reached: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def note(self, text: str) -> None:
        self.notes.append(text)
        if not self.reached.is_set() and self.hold_at(self.notes):
            self.reached.set()
            assert self.may_go_on.wait(LIMIT_SECONDS)

    def join(self, batch: Sequence[Writing]) -> Iterator[None]:
        self.note("join " + " ".join(said.name for said in cast(Sequence[Said], batch)))
        yield

    def step(self, batch: Sequence[Writing]) -> Iterator[None]:
        rows = cast(Sequence[Said], batch)
        for layer in range(LAYERS):
            self.note(f"layer {layer} " + " ".join(said.name for said in rows))
            yield
        if (failed := next((said for said in rows if said.fails_at == said.place), None)) is not None:
            raise failed.error("this token cannot be generated")
        for said in rows:
            said.add(_TOKEN)
        self.note("token " + " ".join(said.name for said in rows))

    def tokens(self) -> list[str]:
        return [note[len("token ") :] for note in self.notes if note.startswith("token")]


class Callers:
    """Threads that ask a scheduler, and what became of each."""

    def __init__(self, script: Scripted, *, most_bytes: int = 1000, between_calls_seconds: float = 0.0) -> None:
        self.script = script
        self.scheduler = Scheduler(
            join=script.join, step=script.step, most_bytes=most_bytes, between_calls_seconds=between_calls_seconds
        )
        self.asked: dict[str, Future[None]] = {}
        self._pool = ThreadPoolExecutor(8)

    def write(self, said: Said, *within: AbstractContextManager[None], size: int = 1) -> None:
        self._begin(said.name, lambda: self.scheduler.write(said, size=size), within)

    def call(self, name: str, *within: AbstractContextManager[None]) -> None:
        self._begin(name, lambda: self.scheduler.call(lambda: self.script.note(f"call {name}")), within)

    def finish(self) -> dict[str, BaseException | None]:
        self.script.may_go_on.set()
        return {name: future.exception(LIMIT_SECONDS) for name, future in self.asked.items()}

    def wait_for(self, claim: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT_SECONDS
        while not claim():
            assert time.monotonic() < limit
            time.sleep(0.001)

    def queued(self) -> int:
        return sum(len(lane.calls) + len(lane.waiting) for lane in (self.scheduler._films, self.scheduler._people))

    def used_bytes(self) -> int:
        return self.scheduler._films.used_bytes + self.scheduler._people.used_bytes

    def ended(self) -> int:
        return sum(future.done() for future in self.asked.values())

    def _begin(self, name: str, act: Callable[[], object], within: Sequence[AbstractContextManager[None]]) -> None:
        is_held = self.script.reached.is_set() and not self.script.may_go_on.is_set()
        before = self.queued() + self.ended()

        def ask() -> None:
            with ExitStack() as entered:
                for each in within:
                    entered.enter_context(each)
                act()

        self.asked[name] = self._pool.submit(ask)
        if is_held:
            self.wait_for(lambda: self.queued() + self.ended() > before)


def held(text: str, *, most_bytes: int) -> Callers:
    """Return callers of a scheduler that will stop at the first note of this text."""
    return Callers(Scripted(hold_at=lambda notes: notes[-1] == text), most_bytes=most_bytes)


def held_in_a_film(layer: int, *, tokens: int, size: int = 1, most_bytes: int = 1000) -> Callers:
    """Return callers of a scheduler that is held in this layer of the first token of a film."""
    callers = held(f"layer {layer} film", most_bytes=most_bytes)
    callers.write(Said("film", tokens), size=size)
    assert callers.script.reached.wait(LIMIT_SECONDS)
    return callers


def held_by_a_call(*, most_bytes: int = 1000) -> Callers:
    """Return callers of a scheduler that is held in the middle of a call."""
    callers = held("call first", most_bytes=most_bytes)
    callers.call("first")
    assert callers.script.reached.wait(LIMIT_SECONDS)
    return callers


def test_a_person_waits_for_one_layer_of_a_film() -> None:
    callers, of_calls = held_in_a_film(3, tokens=3), held_in_a_film(3, tokens=2)

    callers.write(Said("person", 2), for_person())
    of_calls.call("another film")
    of_calls.call("person", for_person())

    assert callers.finish() == {"film": None, "person": None}
    notes = callers.script.notes
    place = notes.index("layer 3 film")
    assert notes[place + 1] == "join person", "a person must wait for no second layer"
    assert callers.script.tokens() == ["person", "person", "film", "film", "film"]
    assert notes.count("layer 3 film") == 3, "the film's token must go on, not begin anew"
    of_calls.finish()
    place = of_calls.script.notes.index("layer 3 film")
    assert of_calls.script.notes[place + 1 : place + 3] == ["call person", "call another film"]


def test_films_get_their_share_while_people_ask_without_end() -> None:
    callers = held_in_a_film(0, tokens=1)

    callers.write(Said("person", 3 * PERSON_UNITS), for_person())

    callers.finish()
    a_token_of_films = PERSON_UNITS * -(-LAYERS // FILM_UNITS)
    place = callers.script.tokens().index("film")
    assert place <= a_token_of_films, "people must not stop a film"
    assert place >= a_token_of_films - PERSON_UNITS, "films must not take more than their share"


def test_sentences_join_and_leave_at_every_token() -> None:
    callers = held_in_a_film(5, tokens=5)
    callers.write(Said("short", 2))
    callers.write(Said("middle", 3))

    callers.finish()

    assert callers.script.tokens() == ["film", *["film short middle"] * 2, "film middle", "film"]


@pytest.mark.parametrize(
    ("asked", "tokens", "most"),
    [
        ([("a", 2, 4), ("b", 2, 4), ("c", 2, 4)], ["a b", "a b", "c", "c"], 8),
        ([("huge", 2, 40), ("small", 1, 1)], ["huge", "huge", "small"], 40),
    ],
)
def test_sentences_that_do_not_fit_wait_and_larger_ones_are_generated_alone(
    asked: list[tuple[str, int, int]], tokens: list[str], most: int
) -> None:
    callers = held_by_a_call(most_bytes=10)
    used: list[int] = []

    def count(_: list[str]) -> bool:
        used.append(callers.used_bytes())
        return False

    for name, length, size in asked:
        callers.write(Said(name, length), size=size)
    callers.script.reached.clear()
    callers.script.hold_at = count

    callers.finish()

    assert callers.script.tokens() == tokens
    assert max(used) == most


def test_a_person_needs_no_memory_of_films() -> None:
    callers = held_in_a_film(1, tokens=2, size=8, most_bytes=8)
    callers.write(Said("person", 1), for_person(), size=2)

    callers.finish()

    assert callers.script.tokens() == ["person", "film", "film"]


def test_who_gives_up_leaves_at_the_next_token() -> None:
    has_gone = threading.Event()
    callers = held_by_a_call()

    def leave(notes: list[str]) -> bool:
        if notes[-1] == "layer 5 stays gone":
            has_gone.set()
            callers.wait_for(callers.asked["gone"].done)
        return False

    callers.write(Said("stays", 4))
    callers.write(Said("gone", 10**6), while_wanted(has_gone.is_set))
    callers.script.reached.clear()
    callers.script.hold_at = leave

    outcomes = callers.finish()

    assert isinstance(outcomes["gone"], Abandoned)
    assert outcomes["stays"] is None
    assert callers.script.tokens() == ["stays gone", "stays", "stays", "stays"]
    callers.wait_for(lambda: callers.used_bytes() == 0)


def test_who_gives_up_while_waiting_is_never_computed() -> None:
    has_gone = threading.Event()
    callers = held_in_a_film(5, tokens=1)
    callers.write(Said("a person's", 3), for_person(), while_wanted(has_gone.is_set))
    callers.call("by a person", for_person(), while_wanted(has_gone.is_set))

    has_gone.set()
    callers.wait_for(lambda: callers.ended() == 2)
    callers.finish()

    assert not [note for note in callers.script.notes if "person" in note]


@pytest.mark.parametrize("error", [ValueError, Panic])
def test_an_error_of_one_caller_does_not_hurt_the_others(error: type[BaseException]) -> None:
    callers = held_by_a_call()
    for said in (Said("a", 3), Said("bad", 3, fails_at=1, error=error), Said("c", 4)):
        callers.write(said)

    outcomes = callers.finish()

    assert isinstance(outcomes.pop("bad"), error)
    assert set(outcomes.values()) == {None}
    assert callers.script.tokens() == ["a bad c", "a", "c", "a c", "c"]


def test_an_error_of_a_call_or_of_the_thread_reaches_its_caller_only() -> None:
    script, errors = Scripted(), [MemoryError("no room for a thread")]

    def begin() -> None:
        if errors:
            raise errors.pop()

    scheduler = Scheduler(join=script.join, step=script.step, begin=begin)

    with pytest.raises(MemoryError, match="no room"), ThreadPoolExecutor(1) as pool:
        pool.submit(scheduler.call, lambda: 1).result(LIMIT_SECONDS)
    assert scheduler.call(lambda: 2) == 2
    with pytest.raises(ZeroDivisionError):
        scheduler.call(lambda: 1 // 0)
    assert scheduler.call(lambda: 7) == 7


@pytest.mark.parametrize("within", [nullcontext, for_person])
def test_films_wait_for_the_next_call_of_a_question(within: Callable[[], AbstractContextManager[None]]) -> None:
    callers = Callers(Scripted(), between_calls_seconds=LIMIT_SECONDS)
    with for_person():
        callers.scheduler.call(lambda: None)
        with within():  # a question within a question is the same
            callers.call("film")
            callers.wait_for(lambda: callers.queued() == 1)
        callers.scheduler.call(lambda: callers.script.note("person"))

    callers.finish()

    assert callers.script.notes == ["person", "call film"]


def test_films_do_not_wait_long_for_a_question_without_calls() -> None:
    callers = Callers(Scripted(), between_calls_seconds=0.01)
    with for_person():
        callers.scheduler.call(lambda: None)
        callers.call("film")

        assert callers.finish() == {"film": None}


def test_an_idle_scheduler_has_no_thread_and_may_be_forgotten() -> None:
    forgotten = weakref.ref(_used_and_idle())

    gc.collect()

    assert forgotten() is None


def _used_and_idle() -> Scheduler:
    """Return a scheduler whose thread has ended twice."""
    callers = Callers(Scripted())
    for _ in range(2):
        assert callers.scheduler.call(lambda: threading.current_thread().name) == "scheduler"
        callers.wait_for(lambda: callers.scheduler._thread is None)
    return callers.scheduler
