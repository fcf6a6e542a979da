"""What every engine must show, with inputs made from the manifest: on a GPU, and on this machine's CPU."""

from __future__ import annotations

import numpy as np

from models.engines import Engine, FloatArray, IntArray
from models.engines.staged_engine import RANGES
from models.manifest import NetworkSizes
from models.reading.tokenizers import SENTENCE_END


def films(sizes: NetworkSizes, count: int) -> FloatArray:
    side = sizes.image_encoder.image_size
    return np.random.default_rng(0).normal(size=(count, side, side)).astype(np.float32)


def features(sizes: NetworkSizes, *shape: int) -> FloatArray:
    return np.random.default_rng(1).normal(size=(*shape, sizes.dim)).astype(np.float32)


def read_more_films_than_a_part(engine: Engine, sizes: NetworkSizes) -> float:
    """Encode more films at once than an engine takes. Returns how far the last one is from the same film alone."""
    pixels = films(sizes, RANGES["film"].most + 3)

    together = engine.encode_image(pixels)

    assert together.cls.shape == (len(pixels), sizes.dim)
    alone = engine.encode_image(pixels[-1:])
    return float(np.abs(together.cls[-1] - alone.cls[0]).max())


def write_well_formed_sentences(engine: Engine, sizes: NetworkSizes, *, count: int) -> IntArray:
    ids: IntArray = engine.write(features(sizes, count))

    assert ids.dtype == np.int64
    assert ids.shape[0] == count and 2 <= ids.shape[1] <= sizes.generator.max_length
    assert set(ids[:, 0]) == {SENTENCE_END}
    return ids
