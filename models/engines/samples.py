"""Inputs to compare engines with: smooth pictures and token ids, always drawn from the same seed."""

from __future__ import annotations

import numpy as np

from models.engines import FloatArray, IntArray
from models.manifest import NetworkSizes


def films(random: np.random.Generator, count: int, *, side: int) -> FloatArray:
    """Draw normalized pictures [film, side, side]: smooth shapes with noise."""
    ramp = np.linspace(-1, 1, side)
    slopes = random.normal(size=(3, count, 1, 1))
    soft = slopes[0] * ramp[:, np.newaxis] + slopes[1] * ramp + np.cos(3 * slopes[2] * ramp * ramp[:, np.newaxis])
    drawn: FloatArray = (soft + 0.3 * random.normal(size=(count, side, side))).astype(np.float32)
    return drawn


def phrases(random: np.random.Generator, count: int, sizes: NetworkSizes, *, length: int | None = None) -> IntArray:
    """Draw token ids [phrase, length]: start, words, end, zeros; of all lengths; length: the context if None."""
    length, end = length or sizes.prompt_encoder.context, sizes.prompt_encoder.vocabulary - 1
    tokens = np.zeros((count, length), dtype=np.int64)
    for row, words in zip(tokens, random.integers(0, length - 1, count), strict=True):
        row[0], row[1 + words] = end - 1, end
        row[1 : 1 + words] = random.integers(1, end - 1, words)
    return tokens


def boxes(random: np.random.Generator, count: int, *, each: int) -> FloatArray:
    """Draw boxes [film, each, 4] in center form, some of which leave the picture."""
    sides = random.uniform(0.05, 0.6, (count, each, 2))
    drawn: FloatArray = np.concatenate([random.uniform(0, 1, (count, each, 2)), sides], axis=-1).astype(np.float32)
    return drawn
