"""A proven engine goes on proving itself with every 100th film."""

from __future__ import annotations

import numpy as np
import pytest

from models.engines.comparison import FLOAT16
from models.engines.proving import EVERY, WatchedEngine
from tests.support.scripted_engine import DIM, EDEMA, ScriptedEngine, reader_of

pytestmark = pytest.mark.drill(part="runtimes")


def watched() -> WatchedEngine:
    """An engine whose scores are off by 0.5."""
    engines = [ScriptedEngine([0.8], ["Edema"], scores=np.full((1, 3), score, np.float32)) for score in (0.7, 0.2)]
    return WatchedEngine(*engines, allowed=FLOAT16, stages={})


def test_every_hundredth_film_is_compared_again() -> None:
    engine, film, prompts = watched(), np.zeros((1, 3, 3), np.float32), np.zeros((1, 1, DIM), np.float32)

    for _ in range(EVERY - 1):
        patches = engine.encode_image(film)
    engine.find(patches, prompts)
    assert engine.parity == {}, "not yet"
    asked = engine.encode_image(film)
    engine.find(asked.copies(2), prompts)
    assert engine.parity == {}, "a question about a film is no reading of it"
    patches = engine.encode_image(film)
    engine.find(patches, prompts)

    assert not engine.parity["find.scores"].passed
    now = dict(engine.parity)
    engine.find(patches, prompts)
    assert engine.parity == now


def test_a_film_that_is_reported_is_one_that_can_be_compared() -> None:
    engine = watched()
    reader = reader_of(engine)
    film = np.zeros((300, 300), np.float32)

    for _ in range(EVERY):
        look = reader.look(film)
    assert engine.parity == {}
    reader.report(look, [EDEMA])

    assert engine.parity["find.scores"].max_abs == pytest.approx(0.5)
