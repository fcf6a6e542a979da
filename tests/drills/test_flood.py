"""The short form of `make flood`."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.progress import quiet
from tests.drills import flood
from tests.drills.flood import Flood

pytestmark = pytest.mark.drill(part="flood")


def test_idle_http_connections_keep_out_neither_films_nor_probes(tmp_path: Path) -> None:
    plan = Flood(connections=300, seconds=8.0, descriptors=256, pause_seconds=0.2)

    figures = flood.run(plan, tmp_path, say=quiet)

    assert figures["passed"], str(figures)
