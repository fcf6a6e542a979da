"""Damaged films against a running node; `python -m tests.drills.decoder_fuzz` makes 10,000 of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydicom.uid import UID

from node.read import decoding
from tests.drills.decoder_fuzz import KINDS, MOST_MIB, file_of, mutant, run, running, whole

pytestmark = pytest.mark.drill(part="fuzz")

CASES = 60

LIVE_SECONDS = 3.0
"""Other tests keep the cores busy meanwhile; a decoder that holds the interpreter does so for 13 s."""


@pytest.mark.parametrize("syntax", KINDS, ids=lambda syntax: syntax.keyword)
def test_a_film_that_was_not_damaged_is_decoded(syntax: UID, tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(file_of(syntax, whole(syntax)[1]))

    assert decoding.picture_of(path).any()


def test_a_mutant_comes_again_by_its_number() -> None:
    assert mutant(3, 17) == mutant(3, 17)
    assert mutant(3, 17) != mutant(4, 17)


def test_damaged_films_hurt_no_other(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        tally = run(service, numbers=range(CASES), seed=38, say=lambda _line: None)

    assert (tally.faults, tally.is_alive) == ({}, True)
    assert tally.more_mib <= MOST_MIB
    assert tally.live_seconds < LIVE_SECONDS
    assert sum(tally.outcomes.values()) == CASES
