"""Films made ready for training: in little memory, by several processes, and gone on with after a kill."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.errors import ModelError
from models.lab import phantoms
from models.lab.training.catalog import catalog_of
from models.lab.training.runfile import Data, FilmSource
from models.lab.training.store import open_film_store, stock
from models.lab.training.workers import Job, do_all
from models.progress import quiet
from tests.support import peers

CATALOG = catalog_of(["chexpert"])
LIMIT_SECONDS = 120
SHELVES = 20


@pytest.fixture(autouse=True)
def cv2_threads() -> Iterator[None]:
    threads = cv2.getNumThreads()
    yield
    cv2.setNumThreads(threads)


def films_file(folder: Path, *, count: int) -> Path:
    """A file of films that share one picture; each is known by its sentence."""
    picture = np.random.default_rng(0).integers(0, 255, (64, 80), dtype=np.uint8)
    cv2.imwrite(str(folder / "film.png"), picture)
    said = {"positive": False, "findings": [], "regions": [], "boxes": []}
    lines = [
        {"file": "film.png", "patient": f"p{number}", "truth": {"said": [said | {"text": f"Film {number}."}]}}
        for number in range(count)
    ]
    path = folder / "films.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def data_of(path: Path, *, side: int = 64) -> Data:
    return Data(films=(FilmSource(file=str(path)),), side=side)


def make(data: Data, folder: Path) -> list[int]:
    """Make films in this process; returns how many shards were to be made, each time one was done."""
    totals: list[int] = []

    def report(stage: str, done: int = 0, total: int = 0) -> None:
        if total:
            totals.append(total)

    assert stock(data, folder, renderers=1, report=report)
    return totals


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def wait_for(event: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_SECONDS
    while not event():
        assert time.monotonic() < limit
        time.sleep(0.005)


MAKE = """
    from models.progress import quiet
    from models.lab.training.runfile import Data, FilmSource
    from models.lab.training.store import stock

    if __name__ == "__main__":
        data = Data(films=(FilmSource(file=sys.argv[1]),), side=64)
        stock(data, Path(sys.argv[2]), renderers=2, report=quiet)
"""


def kill_in_the_middle(path: Path, store: Path, repository: Path) -> list[Path]:
    """Kill the parent of two workers once some shards are made; returns these, none where it was over before.

    The workers must leave with it.
    """
    script = store.with_suffix(".py")
    script.write_text("from pathlib import Path\nimport sys\n" + textwrap.dedent(MAKE))
    command = [sys.executable, str(script), str(path), str(store)]
    program = subprocess.Popen(
        command, cwd=repository, env={"PYTHONPATH": str(repository)}, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: len(list(store.glob("*.jsonl"))) >= 3 or program.poll() is not None)
        children = children_of(program.pid)
    finally:
        program.kill()
        _, told = program.communicate()
    assert program.returncode in (0, -signal.SIGKILL), told
    wait_for(lambda: not any(peers.is_running(pid) for pid in children))
    made = sorted(store.glob("*.jsonl"))
    return made if children and len(made) < SHELVES else []


def children_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


@pytest.mark.drill(part="laboratory")
def test_a_killed_run_makes_only_the_shelves_that_are_missing(tmp_path: Path, repository: Path) -> None:
    path = films_file(tmp_path, count=SHELVES * 200)
    # A test that is kept waiting may come too late for its kill, and then tries again.
    store, made = next(
        (store, made)
        for store in (tmp_path / name for name in "abc")
        if (made := kill_in_the_middle(path, store, repository))
    )
    times = {shard: shard.stat().st_mtime_ns for shard in made}

    totals = make(data_of(path), store)

    # What had lines is kept; no worker had more than one shard in hand.
    assert totals == [SHELVES - len(made)] * (SHELVES - len(made))
    assert {shard: shard.stat().st_mtime_ns for shard in made} == times
    # Two workers and a kill leave the same bytes as one worker.
    make(data_of(path), tmp_path / "whole")
    assert contents(store) == contents(tmp_path / "whole")
    assert not list(store.glob("*.part"))


@pytest.mark.drill(part="laboratory")
def test_films_are_read_back_in_their_order(tmp_path: Path) -> None:
    path = films_file(tmp_path, count=450)
    make(data_of(path, side=32), tmp_path / "store")

    film_store = open_film_store(data_of(path, side=32), tmp_path / "store", CATALOG)

    assert len(film_store) == 450
    for number in (0, 199, 200, 449):
        pixels, truth = film_store.film(number)
        assert pixels.shape == (32, 32) and pixels.std() > 10
        assert truth.said[0].text == f"Film {number}."
    assert film_store.texts() == {f"Film {number}." for number in range(450)}


@pytest.mark.drill(part="laboratory")
def test_a_stop_ends_after_the_shelf_in_hand(tmp_path: Path) -> None:
    path = films_file(tmp_path, count=500)
    store = tmp_path / "store"
    finished: list[int] = []

    def report(stage: str, done: int = 0, total: int = 0) -> None:
        finished.extend([done] if total else [])

    assert not stock(data_of(path), store, renderers=1, report=report, stopped=lambda: bool(finished))
    assert finished == [1]
    assert make(data_of(path), store) == [2, 2]
    assert stock(data_of(path), store, renderers=1, report=quiet)


def test_smaller_sources_repeat_to_the_size_of_the_largest(tmp_path: Path) -> None:
    sizes = {"many": 25, "few": 10}
    for name, count in sizes.items():
        (tmp_path / name).mkdir()
        films_file(tmp_path / name, count=count)
    films = {
        name: FilmSource(file=str(tmp_path / name / "films.jsonl"), repeat=3 if name == "few" else 1, balanced=True)
        for name in sizes
    }
    data = Data(films=tuple(films.values()), side=16)
    make(data, tmp_path / "store")

    film_store = open_film_store(data, tmp_path / "store", CATALOG)

    # As the published sampler rounds it: 3 x 25 / 10 is 7.5, and halves go to the even number.
    assert len(film_store) == 25 + 8 * 10


def test_phantoms_are_made_anew_by_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data(phantoms=1, side=32)
    assert (make(data, tmp_path), make(data, tmp_path)) == ([1], [])

    monkeypatch.setattr(phantoms, "__path__", [str(tmp_path)])

    assert make(data, tmp_path) == [1]


def test_a_damaged_shelf_is_told(tmp_path: Path) -> None:
    path = films_file(tmp_path, count=3)
    store = tmp_path / "store"
    make(data_of(path), store)
    [lines], [pixels] = store.glob("*.jsonl"), store.glob("*.npy")

    text = lines.read_text()
    lines.write_text(text.partition("\n")[0] + "\n")
    with pytest.raises(ModelError, match="do not belong together; delete both"):
        open_film_store(data_of(path), store, CATALOG)
    lines.write_text(text)
    pixels.write_bytes(pixels.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"cannot be read .*; delete"):
        open_film_store(data_of(path), store, CATALOG)


def test_two_runs_do_not_make_the_same_films_at_once(tmp_path: Path) -> None:
    path = films_file(tmp_path, count=3)
    make(data_of(path), tmp_path / "store")

    with (tmp_path / "store" / "lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another run makes films in"):
            make(data_of(path, side=32), tmp_path / "store")

    assert make(data_of(path, side=32), tmp_path / "store") == [1]


@pytest.mark.drill(part="laboratory")
@pytest.mark.parametrize(
    ("job", "kind", "complaint"),
    [
        (partial(json.loads, "{"), ValueError, "Expecting property name"),
        (partial(signal.raise_signal, signal.SIGKILL), ChildProcessError, "usually for lack of memory"),
    ],
)
def test_a_job_that_fails_in_another_process_ends_the_others(job: Job, kind: type[Exception], complaint: str) -> None:
    with pytest.raises(kind, match=complaint):
        do_all([job] * 50, workers=2, stopped=lambda: False, finished=lambda done: None)
