"""A disk that has lost a part of some file: that file is damaged, and holds up no other."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.damage import (
    FILM,
    OTHER,
    STUDY,
    Bench,
    benches,
    interrupted,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with benches(tmp_path) as bench:
        yield bench


class FailingDisk:
    """Answers the reading of some files as a disk does that has lost a part of them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def lose(self, method: str, ending: str, *, number: int = errno.EIO) -> None:
        real = getattr(Path, method)

        def lost(path: Path, *arguments: object, **named: object) -> object:
            if path.name.endswith(ending):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *arguments, **named)

        self._patch.setattr(Path, method, lost)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


def test_a_film_that_the_disk_has_lost_a_part_of_is_damaged(bench: Bench, disk: FailingDisk) -> None:
    path = bench.keep(FILM)
    bench.keep(OTHER)
    disk.lose("open", path.name)

    assert set(bench.round()[0]) == {"damaged", "read"}


def test_a_film_on_a_bad_disk_sector_delays_no_other_film(bench: Bench, disk: FailingDisk) -> None:
    path = bench.keep(FILM)
    bench.keep(OTHER)
    disk.lose("stat", path.name, number=errno.EUCLEAN)

    assert bench.steps.place(STUDY) is not None
    assert "read" in bench.round()[0]


def test_a_read_error_after_hashing_is_no_fault_of_the_film(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bench.keep(FILM)
    with monkeypatch.context() as patch:

        def lost(*_arguments: object, **_named: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(io, "FileIO", lost)
        assert bench.steps.read(STUDY, path.name) == "damaged"

    assert bench.steps.read(STUDY, path.name) == "read"


@pytest.mark.parametrize("ending", [".begun", "000001.json"])
def test_a_small_file_that_the_disk_has_lost_ends_no_round(bench: Bench, disk: FailingDisk, ending: str) -> None:
    path = bench.keep(FILM)
    bench.round()
    interrupted(bench, path)
    bench.keep(OTHER)
    disk.lose("read_bytes", ending)

    assert "read" in bench.round()[0]
