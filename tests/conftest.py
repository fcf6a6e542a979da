"""What all tests share: where things lie, the demonstration model with its graphs, the hypothesis profile."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
import structlog
from hypothesis import settings

from node import log
from node.commands import demo
from node.store import files
from tests import durations
from tests.paths import REPOSITORY
from tests.support import films
from tests.support.certificates import Authority
from tests.support.material import summary_of
from tests.support.postgres import Postgres
from tests.support.reports import make_sendable

if TYPE_CHECKING:  # not every environment of the tests has a browser
    from playwright.sync_api import Browser

    from tests.support.browsed import Browsed
    from tests.support.service import Service


# No deadline: the first example often pays for an import. No database: a run depends on nothing an earlier one left.
# In CI the examples are always the same: there a failure must speak of the change, not of luck. At home they are drawn.
settings.register_profile("node", deadline=None, database=None, print_blob=True, derandomize="CI" in os.environ)
settings.register_profile("long", settings.get_profile("node"), max_examples=5_000, derandomize=False)
settings.register_profile("quick", settings.get_profile("node"), max_examples=20)
settings.load_profile("node")


Once = Callable[[str, Callable[[Path], object]], Path]
"""Makes a folder of this name once for all processes of a test run; returns it."""


class Served(Protocol):
    """What a module's fixture `node` has, if its tests look at pages."""

    @property
    def service(self) -> Service:
        """The node that serves the pages."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make quick` and `make durations`."""
    parser.addoption("--quick", action="store_true", help="leave out the files that took long (tests/durations.json)")
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json anew")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import what a run leaves out: slow files of a quick run, the files of drills in `make test`."""
    is_left_out = (config.getoption("quick") and not durations.is_quick(collection_path)) or (
        config.option.markexpr.startswith("not drill") and is_drill(collection_path)
    )
    return True if is_left_out else None


def is_drill(path: Path) -> bool:
    """Say whether all tests of a file are drills."""
    if path.suffix != ".py":
        return False
    return re.search(r"^pytestmark = .*mark\.drill\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest files, so that no process of a whole run is busy long after the others."""
    items.sort(key=lambda item: durations.seconds_of(item.path), reverse=True)


def pytest_collection_finish() -> None:
    """Let no collection of garbage look through seven thousand tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Draw fewer examples in a quick run."""
    if config.getoption("quick"):
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no failure of a test end the run."""
    report = yield
    if report.failed:
        make_sendable(report, item.config)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line which tests a clone cannot run; record how long each file took, if that is wanted."""
    skipped = terminalreporter.stats.get("skipped", [])
    if line := summary_of(report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)):
        terminalreporter.write_line(line)
    if terminalreporter.config.getoption("record_durations"):
        reports = [report for reports in terminalreporter.stats.values() for report in reports]
        durations.record((report.nodeid, report.duration) for report in reports if hasattr(report, "duration"))


@pytest.fixture(scope="module", autouse=True)
def _log_of_a_module() -> Iterator[None]:
    with _log_left_as_found():
        yield


@pytest.fixture(autouse=True)
def _log_of_a_test() -> Iterator[None]:
    with _log_left_as_found():
        yield


@contextmanager
def _log_left_as_found() -> Iterator[None]:
    """Undo `log.configure`: it names the standard output of its caller, where no later test would look."""
    root = logging.getLogger()
    handlers, level, levels = list(root.handlers), root.level, [logging.getLogger(name).level for name in log.MUTED]
    hook, config = threading.excepthook, structlog.get_config() if structlog.is_configured() else None
    yield
    root.handlers[:], threading.excepthook = handlers, hook
    root.setLevel(level)
    for name, before in zip(log.MUTED, levels, strict=True):
        logging.getLogger(name).setLevel(before)
    structlog.reset_defaults()
    if config is not None:
        structlog.configure(**config)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that everything is run from."""
    return REPOSITORY


@pytest.fixture(scope="session")
def chest_film() -> Path:
    """A real film: Philips CR, PA chest, MONOCHROME1, uncompressed (NEMA WG-04, out of pydicom-data)."""
    return films.rg1_path()


@pytest.fixture(scope="session")
def chest_film_jpeg2000() -> Path:
    """The same film in lossless JPEG 2000, another object of the same study."""
    return films.rg1_path("J2KR")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    from tests.drills.conformance.browser import chromium  # needs Playwright

    with chromium() as started:
        yield started


@pytest.fixture
def seen(node: Served, browser: Browser) -> Iterator[Browsed]:
    """A window on the pages of a module's node."""
    from tests.support.browsed import browsed

    with browsed(browser, node.service.http_port) as page:
        yield page


@pytest.fixture(scope="session")
def opacity_film() -> Path:
    """A real film with an opacity in the right lower lung, which the shipped model reports (the demonstration's)."""
    return demo.FILMS[0]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes a folder once for all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    return partial(_once, base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(scope="session")
def phantom_model(once: Once) -> Path:
    """The model directory that the repository ships, its graphs exported and proven."""
    folder = REPOSITORY / "models" / "weights" / "phantom"
    once("phantom", lambda _place: _build(folder))
    return folder


@pytest.fixture(scope="session")
def half_model(phantom_model: Path, once: Once) -> Path:
    """A copy of it with float16 graphs, written and compared anew."""
    return once("half", lambda folder: _add_half(shutil.copytree(phantom_model, folder)))


@pytest.fixture(scope="session")
def untrained_weights(once: Once) -> Path:
    """A small model directory that has learned nothing: none of its numbers counts more than another."""
    from tests.support.random_model import DEFAULT_SEED, write_directory  # needs PyTorch

    return once("untrained-weights", lambda folder: write_directory(folder, size="small", seed=DEFAULT_SEED))


@pytest.fixture(scope="session")
def imported_model(once: Once) -> Path:
    """The recorded weights, imported and exported by the command for that; beside them what the command said.

    They have learned nothing either, and they are what the published network's numbers were recorded with.
    """
    from tests.support.official import import_recorded  # needs PyTorch

    return once("imported", import_recorded) / "model"


@pytest.fixture(scope="session")
def imported_half_model(imported_model: Path, once: Once) -> Path:
    """A copy of it with float16 graphs, which are not compared: tests change them."""
    from export.float16 import write_float16

    return once("imported-half", lambda folder: list(write_float16(shutil.copytree(imported_model, folder))))


def _once(base: Path, name: str, make: Callable[[Path], object]) -> Path:
    """Make a folder, unless another process of this run has made it; whoever comes meanwhile waits."""
    folder, done = base / name, base / f"{name}.done"
    with files.lock(base / f"{name}.lock"):
        if not done.exists():
            make(folder)
            done.touch()
    return folder


def _add_half(folder: Path) -> None:
    for graph in folder.glob("onnx/*.float16.onnx"):
        graph.unlink()
    _build(folder, "--target", "onnx,tensorrt")


def _build(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "export.build", "--model", str(folder), *words]
    subprocess.run(command, cwd=REPOSITORY, check=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Who issues the certificates of all sides that are to trust each other."""
    return Authority.found(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A PostgreSQL for all tests that do not stop it."""
    with Postgres() as server:
        yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Postgres:
    """The same with nothing in it."""
    postgres_server.empty()
    return postgres_server


@pytest.fixture
def one_thread() -> Iterator[None]:
    """PyTorch with one thread: those of so small a network wait for each other longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
