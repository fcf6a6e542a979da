"""What all tests share: where things lie, the demonstration model with its graphs, the hypothesis profile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pydicom.data import get_testdata_file

from models.random_weights import DEFAULT_SEED, write_directory
from tests.certificates import Authority
from tests.postgres import Postgres
from tests.reports import FirstInternalError, make_sendable

REPOSITORY = Path(__file__).parents[1]

# No deadline: the first example often pays for an import. No database: a run depends on nothing an earlier one left.
# In CI the examples are always the same: there a failure must speak of the change, not of luck. At home they are drawn.
settings.register_profile("node", deadline=None, database=None, print_blob=True, derandomize="CI" in os.environ)
settings.register_profile("long", settings.get_profile("node"), max_examples=20_000, derandomize=False)
settings.load_profile("node")


def pytest_configure(config: pytest.Config) -> None:
    """Let no failure of pytest itself hide its cause."""
    config.pluginmanager.register(FirstInternalError())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let no failure of a test end the run."""
    report = yield
    if report.failed:
        make_sendable(report, item.config)
    return report


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder that everything is run from."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared() -> Path:
    """The project's material beside the repository: films, code lists, recorded arrays of the published network."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs ../shared beside the repository")
    return folder


@pytest.fixture(scope="session")
def chest_film() -> Path:
    """A real film: Philips CR, PA chest, MONOCHROME1, uncompressed (NEMA WG-04, out of pydicom-data)."""
    return _film("RG1_UNCR.dcm")


@pytest.fixture(scope="session")
def chest_film_jpeg2000() -> Path:
    """The same film in lossless JPEG 2000, another object of the same study."""
    return _film("RG1_J2KR.dcm")


@pytest.fixture(scope="session")
def phantom_model() -> Path:
    """The model directory that the repository ships, its graphs exported and proven."""
    folder = REPOSITORY / "models" / "weights" / "phantom"
    _build(folder)
    return folder


@pytest.fixture(scope="session")
def half_model(phantom_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it with float16 graphs, written and compared anew."""
    return _with_half(phantom_model, tmp_path_factory.mktemp("half") / "model")


@pytest.fixture(scope="session")
def untrained_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model directory that has learned nothing: none of its numbers counts more than another."""
    folder = tmp_path_factory.mktemp("untrained") / "model"
    write_directory(folder, size="small", seed=DEFAULT_SEED)
    return folder


@pytest.fixture(scope="session")
def untrained_model(untrained_weights: Path) -> Path:
    """The same with its graphs exported and proven."""
    _build(untrained_weights)
    return untrained_weights


@pytest.fixture(scope="session")
def untrained_half_model(untrained_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of it with float16 graphs."""
    return _with_half(untrained_model, tmp_path_factory.mktemp("untrained-half") / "model")


def _with_half(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    for graph in folder.glob("onnx/*.float16.onnx"):
        graph.unlink()
    _build(folder, "--target", "onnx,tensorrt")
    return folder


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


def _film(name: str) -> Path:
    found = get_testdata_file(name, download=False)
    if found is None:
        pytest.fail(f"{name} is not here: install pydicom-data")
    return Path(str(found))
