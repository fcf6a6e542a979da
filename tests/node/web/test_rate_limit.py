"""Token buckets: a burst, then a steady rate, for each key alone, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.web.rate_limit import MOST_KEYS, RateLimit, network_of
from tests.support.finished import parts_of
from tests.support.service import settings_for


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_passes_for_each_key_and_the_rest_waits() -> None:
    clock = Clock()
    limit = RateLimit(burst=3, seconds=10.0, clock=clock)

    assert [limit.take("ada") for _ in range(4)] == [0, 0, 0, 10.0]
    clock.now = 4.0
    assert [limit.take("ada"), limit.seconds_left("ada"), limit.take("eve")] == pytest.approx([6.0, 6.0, 0])
    clock.now = 10.0
    assert limit.seconds_left("ada") == limit.seconds_left("ada") == 0, "to ask how long to wait takes nothing"
    assert [limit.take("ada") for _ in range(2)] == [0, 10.0]


def test_a_user_asks_thirty_questions_at_once_and_two_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = parts_of(settings_for(tmp_path, archive_port=104)).rate
    monkeypatch.setattr(rate, "_clock", lambda: 1000.0)

    assert [rate.take("ada", 29), rate.take("ada"), rate.take("ada")] == [0, 0, 0.5]
    assert rate.take("eve") == 0


def test_several_are_taken_together_or_not_at_all() -> None:
    clock = Clock()
    limit = RateLimit(burst=3, seconds=10.0, clock=clock)

    assert [limit.take("ada", 2), limit.take("ada", 2), limit.take("ada")] == [0, 10.0, 0]
    assert limit.take("eve", 5) == 0
    clock.now = 30.0
    assert limit.take("eve", 5) == 0


def test_the_key_used_longest_ago_is_forgotten_first() -> None:
    limit = RateLimit(burst=1, seconds=10.0, clock=Clock())
    for key in ("a", "b", "a", *range(MOST_KEYS - 1)):
        limit.take(key)

    assert limit.take("a") > 0
    assert limit.take("b") == 0


@given(st.lists(st.floats(0.0, 30.0), max_size=60))
def test_no_more_pass_than_burst_and_rate_allow(pauses: list[float]) -> None:
    clock = Clock()
    limit = RateLimit(burst=5, seconds=10.0, clock=clock)
    passed = 0
    for pause in pauses:
        clock.now += pause
        passed += limit.take("ada") == 0

    assert passed <= 5 + clock.now / 10.0 + 1e-6


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1:2:3", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("testclient", "testclient"),
    ],
)
def test_one_ipv6_machine_counts_once(host: str, network: str) -> None:
    assert network_of(host) == network
