"""Several senders that behave as a PACS does: what was not answered with Success is sent again, until it is."""

from __future__ import annotations

import copy
import itertools
import random
import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from pydicom.dataset import Dataset

from tests.drills.chaos.hostile import HOSTILE
from tests.support import films, peers

Acknowledged: TypeAlias = Mapping[str, AbstractSet[str]]
"""The SOP Instance UIDs of the films that were answered with Success, by study."""

_PAUSE_SECONDS = 0.2
_HOSTILE_EVERY = 10


class Senders:
    """Threads that send studies of 1 to 3 films to one port, as many as they are allowed to so far, until closed.

    hostile: names of `tests.drills.chaos.hostile.HOSTILE`; every tenth film is one of them
    """

    def __init__(self, *, port: int, count: int, films: int, draw: random.Random, hostile: Sequence[str] = ()) -> None:
        self.acknowledged: dict[str, set[str]] = {}
        self._port, self._goal = port, films
        studies = _studies(films, draw)
        self.hostile = _made_hostile(studies, hostile)
        self._studies = iter(studies)
        self._allowed = self._begun = self._done = 0
        self._changed = threading.Condition()
        self._closing = False
        names = caller_names(count)
        self._threads = [threading.Thread(target=self._run, args=(name,), daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> int:
        """How many films were acknowledged."""
        return self._done

    def allow(self, films: int) -> None:
        """Let so many films be sent from the beginning on, whole studies."""
        with self._changed:
            self._allowed = films
            self._changed.notify_all()

    def wait_for(self, films: int, *, limit_seconds: float) -> bool:
        """Wait until so many films were acknowledged, or all; say whether they were."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= min(films, self._goal), limit_seconds)

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
                    self._done += len(taken)
                    self._changed.notify_all()
                    if left:
                        self._changed.wait_for(lambda: self._closing, _PAUSE_SECONDS)

    def _next(self) -> Sequence[Dataset] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._begun < self._allowed or self._closing)
            study = None if self._closing else next(self._studies, None)
            self._begun += len(study or ())
            return study


def _made_hostile(studies: list[list[Dataset]], names: Sequence[str]) -> frozenset[str]:
    """Put a film that hurts a decoder into the place of every tenth film; returns their SOP Instance UIDs."""
    places = [(study, place) for study in studies for place in range(len(study))]
    made = []
    for number, (study, place) in enumerate(places[_HOSTILE_EVERY - 1 :: _HOSTILE_EVERY] if names else []):
        film, plain = HOSTILE[names[number % len(names)]](), study[place]
        for keyword in ("StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID"):
            setattr(film, keyword, plain[keyword].value)
        film.file_meta.MediaStorageSOPInstanceUID = film.SOPInstanceUID
        study[place] = film
        made.append(str(film.SOPInstanceUID))
    return frozenset(made)


def caller_names(count: int) -> tuple[str, ...]:
    """The AE titles that so many senders call themselves."""
    return tuple(f"SENDER{number}" for number in range(1, count + 1))


def _studies(count: int, draw: random.Random) -> list[list[Dataset]]:
    """Films in studies of 1 to 3, so many together."""
    plain, numbers = films.thumbnail(), itertools.count(1)
    studies: list[list[Dataset]] = []
    while count > 0:
        size = min(count, draw.randint(1, 3))
        name = f"chaos {next(numbers)}"
        studies.append([films.as_another(copy.deepcopy(plain), f"{name} {n}", study=name) for n in range(size)])
        count -= size
    return studies
