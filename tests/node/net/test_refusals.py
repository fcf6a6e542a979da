"""What the log says of those who call in vain."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from node.net.callers import RefusalKey, Refusals
from tests.support.listening import connect, listening


class Watch:
    """Refusals under a clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.refusals = Refusals(clock=lambda: self.now)

    def refuse(self, host: str = "192.0.2.1", reason: str = "caller") -> None:
        self.refusals.note(RefusalKey("association.refused", reason, host))

    def tell_after(self, seconds: float) -> None:
        self.now += seconds
        self.refusals.tell()


@pytest.fixture
def watch() -> Watch:
    return Watch()


def facts(said: list[EventDict]) -> list[tuple[object, object, object]]:
    return [(event["host"], event["reason"], event.get("times")) for event in said]


def test_the_first_of_each_host_and_reason_is_told_at_once(watch: Watch) -> None:
    with capture_logs() as said:
        for host, reason in (("192.0.2.1", "caller"), ("192.0.2.2", "caller"), ("192.0.2.1", "silent")):
            watch.refuse(host, reason)
            watch.refuse(host, reason)

    assert facts(said) == [
        ("192.0.2.1", "caller", None), ("192.0.2.2", "caller", None), ("192.0.2.1", "silent", None)
    ]  # fmt: skip


def test_what_comes_again_is_counted_and_told_once_a_minute(watch: Watch) -> None:
    with capture_logs() as said:
        for _ in range(3):
            for _ in range(1000):
                watch.refuse()
            watch.tell_after(59.0)
            watch.tell_after(1.0)

    assert facts(said) == [
        ("192.0.2.1", "caller", None), ("192.0.2.1", "caller", 999),
        ("192.0.2.1", "caller", 1000), ("192.0.2.1", "caller", 1000),
    ]  # fmt: skip


def test_who_was_quiet_for_a_minute_is_told_at_once_again(watch: Watch) -> None:
    with capture_logs() as said:
        watch.refuse()
        watch.tell_after(60.0)
        watch.refuse()

    assert facts(said) == [("192.0.2.1", "caller", None)] * 2


def test_many_addresses_are_told_of_together(watch: Watch) -> None:
    with capture_logs() as said:
        for number in range(10_000):
            watch.refuse(f"2001:db8::{number:x}")
        watch.tell_after(60.0)

    assert len(said) == 102
    assert facts(said)[100:] == [("others", "caller", None), ("others", "caller", 9899)]


def test_what_was_counted_is_told_in_the_end(watch: Watch) -> None:
    with capture_logs() as said:
        watch.refuse()
        watch.refuse()
        watch.refusals.close()

    assert facts(said) == [("192.0.2.1", "caller", None), ("192.0.2.1", "caller", 1)]


def test_a_repeated_stranger_is_always_counted_and_seldom_logged(tmp_path: Path) -> None:
    with capture_logs() as said:
        with listening(tmp_path) as node:
            for _ in range(20):
                with connect(node.listener.port) as stranger:
                    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
            node.wait_for_refusal("protocol", count=20)
        refused = [event for event in said if event["event"] == "association.refused"]

    assert facts(refused)[0] == ("127.0.0.1", "protocol", None)
    assert sum(event.get("times", 1) for event in refused) == 20
    assert len(refused) < 5  # two, if it took less than a minute
