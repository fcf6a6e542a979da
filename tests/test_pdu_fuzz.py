"""Bent PDUs and bent files against the listener; `python -m tests.pdu_fuzz` does it for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.pdu_fuzz import bent_association, fuzz
from tests.pdus import Recording

# The commands silence pydicom, which warns of what it finds in objects (`log.mute`).
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_bent_associations_never_stop_the_listener_and_never_get_a_success_that_is_not_true(tmp_path: Path) -> None:
    figures = fuzz(tmp_path, seed=6, seconds=15.0)

    assert figures.passed, figures.to_json()


def test_an_association_of_which_nothing_is_left_is_one_that_says_nothing() -> None:
    empty = Recording(request=b"", store=(b"",), release=b"")

    for seed in range(50):
        assert bent_association(random.Random(seed), [empty], [b""]), seed
