"""What the tests of receiving share: a listener, and what a modality says to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import films, pdus
from tests.support.listening import Node, listening
from tests.support.pdus import Recording


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A listener as the settings have it by default, without the rest of a node."""
    with listening(tmp_path) as running:
        yield running


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A film's way to another listener, as the bytes that were sent."""
    with listening(tmp_path_factory.mktemp("recording")) as node:
        return pdus.record(films.thumbnail(), port=node.listener.port)
