"""One probe for each destination that is down, however many wait for its return."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from node.deliver.delivery import Pauses
from node.errors import DestinationDown


class Away:
    """A destination that answers from now on, or not yet; it notes when it was asked, and by how many at a time."""

    def __init__(self) -> None:
        self.is_back = threading.Event()
        self.asked = threading.Semaphore(0)
        self.times: list[float] = []
        self.most_at_once = self._at_once = 0
        self._counting = threading.Lock()

    def probe(self) -> None:
        with self._counting:
            self.times.append(time.monotonic())
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self.asked.release()
        try:
            if not self.is_back.wait(0.05):
                raise DestinationDown("nobody is there")
        finally:
            with self._counting:
                self._at_once -= 1


def test_waiting_deliveries_share_one_probe_and_go_on_together() -> None:
    pauses, away = Pauses(), Away()
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(pauses.wait, "archive", away.probe, limit_seconds=60.0) for _ in range(8)]
        for _ in range(2):
            assert away.asked.acquire(timeout=60.0)
        away.is_back.set()

        assert all(wait.result(timeout=60.0) for wait in waits)
    assert away.most_at_once == 1
    first, second, *_ = away.times
    assert second - first >= 1.0  # however many there are that could ask meanwhile


def test_a_destination_that_answered_is_probed_anew_later() -> None:
    pauses, away = Pauses(), Away()
    away.is_back.set()

    for _ in range(3):
        assert pauses.wait("archive", away.probe, limit_seconds=60.0)

    assert len(away.times) == 3


def test_one_destination_waits_for_no_other() -> None:
    pauses, away, other = Pauses(), Away(), Away()
    other.is_back.set()

    assert not pauses.wait("archive", away.probe, limit_seconds=0.0)
    assert pauses.wait("other", other.probe, limit_seconds=0.0)


def test_after_the_node_stops_nobody_is_asked() -> None:
    pauses, away = Pauses(), Away()
    pauses.close()

    assert not pauses.wait("archive", away.probe, limit_seconds=60.0)
    assert away.times == []
