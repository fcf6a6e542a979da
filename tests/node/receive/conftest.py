"""What the tests of receiving share: a listener."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.listening import Node, listening


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A listener as the settings have it by default, without the rest of a node."""
    with listening(tmp_path) as running:
        yield running
