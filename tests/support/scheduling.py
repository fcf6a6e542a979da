"""Callers of a scheduler in threads, and a scripted decoder that notes each unit of work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch

from models.engines.scheduler import Scheduler, while_wanted
from models.engines.turns import for_person
from models.network.packed_decoding import Writing

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
        self.outcomes: dict[str, BaseException | None] = {}
        self._threads: list[threading.Thread] = []

    def write(
        self, said: Said, *, is_person: bool = False, size: int = 1, wanted: threading.Event | None = None
    ) -> None:
        self._begin(said.name, lambda: self.scheduler.write(said, size=size), is_person=is_person, wanted=wanted)

    def call(self, name: str, *, is_person: bool = False) -> None:
        self._begin(name, lambda: self.scheduler.call(lambda: self.script.note(f"call {name}")), is_person=is_person)

    def finish(self) -> dict[str, BaseException | None]:
        self.script.may_go_on.set()
        for thread in self._threads:
            thread.join(LIMIT_SECONDS)
            assert not thread.is_alive()
        return self.outcomes

    def wait_for(self, claim: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT_SECONDS
        while not claim():
            assert time.monotonic() < limit
            time.sleep(0.001)

    def queued(self) -> int:
        lanes = (self.scheduler._films, self.scheduler._people)
        return sum(len(lane.calls) + len(lane.waiting) for lane in lanes)

    def _begin(
        self, name: str, act: Callable[[], object], *, is_person: bool, wanted: threading.Event | None = None
    ) -> None:
        is_held = self.script.reached.is_set() and not self.script.may_go_on.is_set()
        before = self.queued() + len(self.outcomes)

        def ask() -> None:
            try:
                needed = while_wanted(lambda: not wanted.is_set()) if wanted else nullcontext()
                with for_person() if is_person else nullcontext(), needed:
                    act()
                self.outcomes[name] = None
            except BaseException as error:
                self.outcomes[name] = error

        thread = threading.Thread(target=ask)
        thread.start()
        self._threads.append(thread)
        if is_held:
            self.wait_for(lambda: self.queued() + len(self.outcomes) > before)


def at(text: str) -> Callable[[list[str]], bool]:
    return lambda notes: notes[-1] == text


def held(text: str, *, most_bytes: int = 1000) -> Callers:
    """Return callers of a scheduler that will stop at the first note of this text."""
    return Callers(Scripted(hold_at=at(text)), most_bytes=most_bytes)


def held_by_a_call(*, most_bytes: int = 1000) -> Callers:
    """Return callers of a scheduler that is held in the middle of a call."""
    callers = held("call first", most_bytes=most_bytes)
    callers.call("first")
    assert callers.script.reached.wait(LIMIT_SECONDS)
    return callers
