"""Several senders that behave as a PACS does: what was not answered with Success is sent again, until it is."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Iterator, Sequence

from pydicom.dataset import Dataset

from tests.support import films, peers

_PAUSE_SECONDS = 0.2


class Senders:
    """Threads that send studies of 1 to 3 films to one port, as many as they are allowed to so far, until closed.

    acknowledged, done: the SOP Instance UIDs of the films that were answered with Success, by study; how many they are
    """

    def __init__(self, *, port: int, count: int, films: int, draw: random.Random) -> None:
        self.acknowledged: dict[str, set[str]] = {}
        self._port, self._goal = port, films
        self._studies = _studies(films, draw)
        self._allowed = self._begun = self.done = 0
        self._changed = threading.Condition()
        self._closing = False
        names = caller_names(count)
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def allow(self, films: int) -> None:
        """Let so many films be sent from the beginning on, whole studies."""
        with self._changed:
            self._allowed = films
            self._changed.notify_all()

    def wait_for(self, films: int, *, limit_seconds: float) -> bool:
        """Wait until so many films were acknowledged, or all; say whether they were."""
        with self._changed:
            return self._changed.wait_for(lambda: self.done >= min(films, self._goal), limit_seconds)

    def close(self) -> None:
        """Stop sending."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=60)

    def _run(self, name: str) -> None:
        while (study := self._next()) is not None:
            left = list(study)
            while left and not self._closing:
                statuses = peers.send_all(left, port=self._port, calling_ae=name)
                taken = [film for film, status in zip(left, statuses, strict=True) if status == 0]
                left = [film for film, status in zip(left, statuses, strict=True) if status != 0]
                with self._changed:
                    for film in taken:
                        self.acknowledged.setdefault(str(film.StudyInstanceUID), set()).add(str(film.SOPInstanceUID))
                    self.done += len(taken)
                    self._changed.notify_all()
                    if left:
                        self._changed.wait_for(lambda: self._closing, _PAUSE_SECONDS)

    def _next(self) -> Sequence[Dataset] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._begun < self._allowed or self._closing)
            study = None if self._closing else next(self._studies, None)
            self._begun += len(study or ())
            return study


def caller_names(count: int) -> tuple[str, ...]:
    """The AE titles that so many senders call themselves."""
    return tuple(f"SENDER{number}" for number in range(1, count + 1))


def _studies(count: int, draw: random.Random) -> Iterator[list[Dataset]]:
    """Films in studies of 1 to 3, so many together."""
    plain = films.thumbnail()
    for number in itertools.count(1):
        if count == 0:
            return
        size = min(count, draw.randint(1, 3))
        name = f"chaos {number}"
        yield [films.as_another(copy.deepcopy(plain), f"{name} {n}", study=name) for n in range(size)]
        count -= size
