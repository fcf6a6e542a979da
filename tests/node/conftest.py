"""What the tests of the node share: an archive, a node's settings beside it, and a study that goes step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from node.config import Settings
from tests.support.archived import StartNode, archived_node
from tests.support.damage import Bench, benches
from tests.support.peers import ReceivingArchive
from tests.support.service import settings_for


@pytest.fixture(scope="module")
def start_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartNode]:
    """Starts nodes beside an archive each, for all tests of a module."""
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(archived_node(tmp_path_factory.mktemp("node"), **how))


@pytest.fixture
def archive() -> Iterator[ReceivingArchive]:
    """An archive that takes everything, and can misbehave."""
    with ReceivingArchive() as archive:
        yield archive


@pytest.fixture
def settings(tmp_path: Path, archive: ReceivingArchive) -> Settings:
    """The settings of a node that sends to the archive."""
    return settings_for(tmp_path / "node", archive_port=archive.port)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A study on a spool, whose rounds and deliveries go step by step."""
    with benches(tmp_path) as bench:
        yield bench
