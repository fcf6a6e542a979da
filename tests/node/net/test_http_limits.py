"""Which connection is closed for a new one, without a socket and by a clock that the test sets."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.net.http_limits import CloseReason, ConnectionTable, Limits

LIMITS = Limits(connections=6, by_host=4)


class FakeConnection:
    """A connection that was accepted at a moment."""

    def __init__(self, host: str, idle_since: float, *, is_answering: bool = False) -> None:
        self.host, self.idle_since, self.is_answering = host, idle_since, is_answering
        self.is_closed = False

    def overdue(self, now: float, limits: Limits) -> CloseReason | None:
        return "silent" if now - self.idle_since > limits.header_seconds else None

    def close(self) -> None:
        self.is_closed = True


class Port:
    """A table, every connection that was ever accepted, and what the limits closed."""

    def __init__(self) -> None:
        self.closed: list[tuple[CloseReason, str]] = []
        self.table = ConnectionTable(LIMITS, lambda reason, host: self.closed.append((reason, host)))
        self.accepted: list[FakeConnection] = []

    def accept(self, host: str, *, is_answering: bool = False) -> FakeConnection:
        connection = FakeConnection(host, idle_since=float(len(self.accepted)), is_answering=is_answering)
        self.accepted.append(connection)
        self.table.add(connection)
        return connection

    @property
    def open(self) -> list[FakeConnection]:
        return [connection for connection in self.accepted if not connection.is_closed]


@pytest.fixture
def port() -> Port:
    return Port()


def test_an_address_at_its_limit_closes_its_longest_idle_one(port: Port) -> None:
    other = port.accept("b")
    first, *rest = [port.accept("a") for _ in range(4)]

    port.accept("a")

    assert first.is_closed
    assert not other.is_closed
    assert not any(connection.is_closed for connection in rest)
    assert port.closed == [("host", "a")]


def test_at_the_total_limit_the_busiest_address_loses_one(port: Port) -> None:
    port.accept("b")
    many = [port.accept("a") for _ in range(4)]
    port.accept("c")

    port.accept("d")

    assert many[0].is_closed
    assert port.closed == [("limit", "a")]


def test_among_equal_addresses_the_longest_idle_one_is_closed(port: Port) -> None:
    oldest = port.accept("f")
    for host in "abcde":
        port.accept(host)

    port.accept("g")

    assert oldest.is_closed
    assert port.closed == [("limit", "f")]


def test_a_connection_that_is_being_answered_is_closed_last(port: Port) -> None:
    answering = [port.accept("a", is_answering=True) for _ in range(3)]
    idle = port.accept("a")

    port.accept("a", is_answering=True)

    assert idle.is_closed
    assert not any(connection.is_closed for connection in answering)

    port.accept("a", is_answering=True)

    assert answering[0].is_closed


def test_an_answer_makes_a_connection_the_least_idle(port: Port) -> None:
    first, second, *_ = [port.accept("a") for _ in range(4)]
    port.table.touch(first)

    port.accept("a")

    assert second.is_closed
    assert not first.is_closed


def test_a_connection_that_was_removed_does_not_come_back(port: Port) -> None:
    connection = port.accept("a")
    port.table.remove(connection)

    port.table.touch(connection)

    assert port.table.count == 0


def test_connections_of_clients_that_take_too_long_are_closed(port: Port) -> None:
    slow, quick = port.accept("a"), port.accept("a")

    port.table.close_overdue(LIMITS.header_seconds + 0.5)

    assert (slow.is_closed, quick.is_closed) == (True, False)
    assert port.closed == [("silent", "a")]
    assert port.table.count == 1


def test_a_descriptor_is_freed_if_a_connection_has_one(port: Port) -> None:
    port.table.close_longest_idle("descriptors")

    assert port.closed == []

    port.accept("a")
    port.table.close_longest_idle("descriptors")

    assert port.closed == [("descriptors", "a")]


def test_a_server_that_stops_closes_all_and_counts_none(port: Port) -> None:
    answering, idle = port.accept("a", is_answering=True), port.accept("b")
    port.table.is_stopping = True
    port.table.note_malformed(idle)

    port.table.close_all()

    assert (answering.is_closed, idle.is_closed) == (True, True)
    assert port.closed == []
    assert port.table.count == 0


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60))
def test_the_newest_connection_is_open_and_no_limit_is_exceeded(arrivals: list[tuple[str, bool]]) -> None:
    port = Port()
    for host, is_answering in arrivals:
        newest = port.accept(host, is_answering=is_answering)

        assert not newest.is_closed
        assert port.table.count == len(port.open) <= LIMITS.connections
        assert max(Counter(connection.host for connection in port.open).values()) <= LIMITS.by_host
    assert len(port.closed) == len(arrivals) - len(port.open)


@given(st.integers(min_value=1, max_value=40))
def test_one_address_never_closes_the_connections_of_another(count: int) -> None:
    port = Port()
    others = [port.accept("b"), port.accept("c")]

    for _ in range(count):
        port.accept("a")

    assert not any(connection.is_closed for connection in others)
