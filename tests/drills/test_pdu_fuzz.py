"""Bent PDUs and bent files against the listener; `python -m tests.drills.pdu_fuzz` does it for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.drills.pdu_fuzz import bent_association, fuzz
from tests.support.pdus import Recording

# The commands silence pydicom, which warns of what it finds in objects (`log.mute`).
pytestmark = [pytest.mark.drill(part="fuzz"), pytest.mark.filterwarnings("ignore::UserWarning")]


def test_bent_associations_neither_stop_nor_fool_the_listener(tmp_path: Path) -> None:
    figures = fuzz(tmp_path, seed=6, seconds=4.0)

    assert figures.passed, figures.to_json()


def test_an_association_cut_to_nothing_says_nothing() -> None:
    empty = Recording(request=b"", store=(b"",), release=b"")

    for seed in range(50):
        assert bent_association(random.Random(seed), [empty], [b""]), seed
