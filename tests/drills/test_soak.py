"""The short form of `make soak`, and proof that it sees what grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.progress import quiet
from tests.drills import soak
from tests.drills.soak import Shift, growth, is_flat
from tests.support.processes import Vitals

pytestmark = pytest.mark.drill(part="soak")


def test_good_and_bad_callers_are_answered_and_leave_nothing_behind_in_a_node(tmp_path: Path) -> None:
    plan = Shift(warm_up_seconds=2.0, seconds=8.0, idle_clients=300, descriptors=256, most_growth=0.2, room=8, seed=6)

    figures = soak.run(plan, tmp_path, say=quiet)

    assert figures["passed"], str(figures)


def test_growth_is_of_the_last_third_over_the_second() -> None:
    samples = [vitals(resident_kib=kib) for kib in (1, 1, 1, 100, 90, 110, 105, 500, 90)]

    assert growth(samples) == pytest.approx(0.05)


def test_a_thread_or_a_descriptor_too_many_is_seen() -> None:
    assert is_flat(vitals(), vitals(threads=26, descriptors=36), room=6)
    assert not is_flat(vitals(), vitals(threads=27), room=6)
    assert not is_flat(vitals(), vitals(descriptors=37), room=6)


def vitals(*, resident_kib: int = 100, threads: int = 20, descriptors: int = 30) -> Vitals:
    return Vitals(resident_kib=resident_kib, threads=threads, descriptors=descriptors)
