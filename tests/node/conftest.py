"""What the tests of the node share: nodes that run beside an archive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.archived import StartNode, archived_node


@pytest.fixture(scope="module")
def start_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartNode]:
    """Starts nodes beside an archive each, for all tests of a module."""
    with ExitStack() as stack:
        yield lambda **how: stack.enter_context(archived_node(tmp_path_factory.mktemp("node"), **how))
