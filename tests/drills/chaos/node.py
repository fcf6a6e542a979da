"""The processes of a node under a small supervisor: whatever ends is started again at once, as systemd does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.support.service import Service

_LONGEST_LIFE_SECONDS = 86400.0


class Supervised:
    """One process of the node, in a thread that starts it again until closed."""

    def __init__(self, name: str, start: Callable[[], Service]) -> None:
        self.name, self._start = name, start
        self.exit_codes: list[int] = []
        self._changed = threading.Condition()
        self._service: Service | None = None
        self._closing = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def wait_until_ready(self) -> None:
        """Wait until the process of this moment is ready; one that is ending meanwhile is not waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._service is not None, 60.0)
            service = self._service
        if service is not None:
            service.wait_for("service.ready")

    def kill(self) -> None:
        """Cut the power, wherever it is, its own start included."""
        with self._changed:
            service = self._service
        if service is not None:
            service.kill()

    def close(self) -> None:
        """Kill it and start it no more."""
        self._closing.set()
        self.kill()
        self.thread.join(timeout=60)

    def _run(self) -> None:
        while not self._closing.is_set():
            with self._changed:
                service = self._service = self._start()
                self._changed.notify_all()
            if self._closing.is_set():  # closed while it was being started
                service.kill()
            self.exit_codes.append(service.wait_until_dead(limit_seconds=_LONGEST_LIFE_SECONDS))
            service.kill()


@dataclass(frozen=True, slots=True)
class Cluster:
    """All processes of a node."""

    members: Sequence[Supervised]

    def kill_one(self, draw: random.Random) -> str:
        """Cut the power of one process drawn; its name."""
        member = draw.choice(self.members)
        member.kill()
        return member.name

    @property
    def ends(self) -> int:
        """How often a process ended, by a kill or by itself."""
        return sum(len(member.exit_codes) for member in self.members)

    @property
    def crashes(self) -> list[str]:
        """The ends that no kill brought: name and exit code."""
        return [f"{member.name}: {code}" for member in self.members for code in member.exit_codes if code != -9]


@contextmanager
def running(members: Sequence[Supervised]) -> Iterator[Cluster]:
    """Run a node while the block runs; it is ready."""
    with ExitStack() as closing:
        for member in members:
            closing.callback(member.close)
            member.thread.start()
        for member in members:
            member.wait_until_ready()
        yield Cluster(members)
