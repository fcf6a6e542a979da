"""Whose call uses the device next: a person's before those of films, and no film's call waits without end."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, nullcontext

import pytest

from models.engines.call_order import Turns, for_person


class Users:
    """Calls that wait for one device, in threads of their own; `order` tells who had it."""

    def __init__(self, turns: Turns) -> None:
        self.turns, self.order = turns, list[str]()
        self._threads: list[threading.Thread] = []

    def begin(self, name: str, *, is_person: bool, seconds: float = 0.0) -> None:
        """Let a call wait; returns when it does."""

        def use() -> None:
            with for_person() if is_person else nullcontext(), self.turns.turn():
                self.order.append(name)
                time.sleep(seconds)

        thread = threading.Thread(target=use)
        thread.start()
        self._threads.append(thread)
        time.sleep(0.05)

    def finish(self) -> list[str]:
        for thread in self._threads:
            thread.join(timeout=30)
        return self.order


def test_a_person_goes_before_films_that_waited_longer() -> None:
    users = Users(Turns())
    with users.turns.turn():
        users.begin("film 1", is_person=False)
        users.begin("film 2", is_person=False)
        users.begin("person 1", is_person=True)
        users.begin("person 2", is_person=True)

    assert users.finish() == ["person 1", "person 2", "film 1", "film 2"]


def test_a_film_that_has_waited_long_goes_before_a_person() -> None:
    users = Users(Turns(patience_seconds=0.2))
    with for_person(), users.turns.turn():
        users.begin("film", is_person=False)
        time.sleep(0.3)
        users.begin("person", is_person=True)

    assert users.finish() == ["film", "person"]


def test_a_person_goes_before_films_that_take_turns() -> None:
    users = Users(Turns(patience_seconds=1.0))
    with users.turns.turn():
        users.begin("film", is_person=False)
        time.sleep(1.1)
        users.begin("person", is_person=True)

    assert users.finish() == ["person", "film"]


def test_a_person_goes_before_a_film_that_came_just_now() -> None:
    users = Users(Turns())
    users.turns._film_ended -= 60
    with for_person(), users.turns.turn():
        users.begin("film", is_person=False)
        users.begin("person", is_person=True)

    assert users.finish() == ["person", "film"]


def test_one_call_at_a_time_uses_the_device() -> None:
    turns, inside, most = Turns(), [0], [0]

    def use() -> None:
        for _ in range(200):
            with turns.turn():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert most == [1]
    assert not any(thread.is_alive() for thread in threads)


def test_films_wait_while_a_person_is_between_two_calls() -> None:
    users = Users(Turns())
    with for_person():
        with users.turns.turn():
            users.begin("film", is_person=False)
        time.sleep(0.1)
        with users.turns.turn():
            users.order.append("the person again")

    assert users.finish() == ["the person again", "film"]


def test_a_film_goes_on_while_a_person_makes_no_calls() -> None:
    users = Users(Turns(patience_seconds=0.2))
    with for_person():
        with users.turns.turn():
            users.begin("film", is_person=False)
        order = users.finish()

    assert order == ["film"]


def test_a_person_within_a_person_is_the_same_person() -> None:
    users = Users(Turns())
    with for_person():
        with users.turns.turn():
            pass
        with for_person(), users.turns.turn():
            users.begin("film", is_person=False)
        users.order.append("the person")

    assert users.finish() == ["the person", "film"]


def test_a_call_that_fails_gives_its_turn_back() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="no"), turns.turn():
        raise ValueError("no")

    with ExitStack() as stack:
        stack.enter_context(turns.turn())
