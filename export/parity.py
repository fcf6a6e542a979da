"""Runnable: do two engines of one model agree, stage by stage?

    python -m export.parity --model DIR ENGINE ENGINE [--json]

Both get the first engine's numbers at every stage, so a difference is counted where it arises. Inputs are not those
that the graphs were traced with: other films, other numbers of films, prompts and boxes, boxes with and without prompt.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from models.engines import ENGINES, Engine, FloatArray, IntArray, Patches, open_unproven
from models.engines.proof import Stage
from models.errors import ModelError
from models.manifest import NetworkSizes, read_manifest

# Boxes and scores lie in 0..1. Features do not: their tolerance is a share of the largest of them, where above 1.
TOLERANCE = 1e-4
FEATURE_TOLERANCE = 2e-5
_FILMS = (1, 2, 3)
_PHRASES = (1, 14, 29, 60)
_QUERIES = ((1, 29), (2, 14), (3, 1), (1, 60))
_SEED = 20240701


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m export.parity", description="Compare two engines of one model.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("engines", nargs=2, choices=ENGINES, metavar="ENGINE", help=" or ".join(ENGINES))
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        first, second = (open_unproven(options.model, engine=name) for name in options.engines)
        stages = compare(first, second, read_manifest(options.model).sizes)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document(stages)))
    else:
        for line in lines(stages):
            print(line)
    return 0 if agree(stages) else 1


def agree(stages: dict[str, Stage]) -> bool:
    """Say whether every stage passed."""
    return all(stage.passed for stage in stages.values())


def document(stages: dict[str, Stage]) -> dict[str, object]:
    """Say each stage's result as JSON has it, which knows no NaN: such a difference is null."""
    results = {
        name: asdict(stage) if math.isfinite(stage.max_abs) else asdict(stage) | {"max_abs": None}
        for name, stage in stages.items()
    }
    return {"stages": results, "passed": agree(stages)}


def lines(stages: dict[str, Stage]) -> list[str]:
    """Say each stage's result in a line."""
    return [
        f"{name}: largest difference {stage.max_abs:.1e}, allowed {stage.tolerance:.1e}"
        + ("" if stage.passed else "  DIFFERS")
        for name, stage in stages.items()
    ]


def compare(first: Engine, second: Engine, sizes: NetworkSizes) -> dict[str, Stage]:
    """Run both engines on the same inputs; the first is the reference."""
    stages: dict[str, Stage] = {}
    for name, reference, other in _runs(first, second, sizes):
        is_unit = name in ("find.boxes", "find.scores")
        tolerance = TOLERANCE if is_unit else FEATURE_TOLERANCE * max(1.0, float(np.abs(reference).max()))
        stage = Stage(max_abs=float(np.abs(reference - other).max()), tolerance=tolerance)
        stages[name] = max(stage, stages.get(name, stage), key=_share_used)
    return stages


def _share_used(stage: Stage) -> float:
    """Say how much of what is allowed was used; NaN is more than all."""
    return float("inf") if np.isnan(stage.max_abs) else stage.max_abs / stage.tolerance


def _runs(first: Engine, second: Engine, sizes: NetworkSizes) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Give for every output of every run its name, and what both engines made of it."""
    random = np.random.default_rng(_SEED)
    for count in _FILMS:
        pixels = _films(random, count, side=sizes.image_encoder.image_size)
        patches, other = first.encode_image(pixels), second.encode_image(pixels)
        for part in ("features", "positions", "cls"):
            yield "encode_image", getattr(patches, part), getattr(other, part)
    for count in _PHRASES:
        tokens = _phrases(random, count, sizes)
        yield "encode_prompts", first.encode_prompts(tokens), second.encode_prompts(tokens)
    for films, count in _QUERIES:
        patches = first.encode_image(_films(random, films, side=sizes.image_encoder.image_size))
        prompts = first.encode_prompts(_phrases(random, films * count, sizes)).reshape(films, count, -1)
        yield from _find(first, second, patches, prompts)
        yield from _describe(random, first, second, patches, prompts)


def _find(
    first: Engine, second: Engine, patches: Patches, prompts: FloatArray
) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    found, other = first.find(patches, prompts), second.find(patches, prompts)
    yield "find.boxes", found.boxes, other.boxes
    yield "find.scores", found.scores, other.scores
    yield "find.scores", found.aggregated_scores, other.aggregated_scores
    yield "find.features", found.features, other.features


def _describe(
    random: np.random.Generator, first: Engine, second: Engine, patches: Patches, prompts: FloatArray
) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    films, count, _ = prompts.shape
    sides = random.uniform(0.05, 0.6, (films, count, 2))
    boxes = np.concatenate([random.uniform(0, 1, (films, count, 2)), sides], axis=-1).astype(np.float32)
    for prompted in (np.zeros((films, count)), np.ones((films, count)), random.integers(0, 2, (films, count))):
        described, other = (
            engine.describe(patches, boxes=boxes, prompts=prompts, prompted=prompted.astype(np.float32))
            for engine in (first, second)
        )
        yield "describe", described, other


def _films(random: np.random.Generator, count: int, *, side: int) -> FloatArray:
    """Draw normalized pictures [film, side, side]: soft shapes under noise, as films are."""
    ramp = np.linspace(-1, 1, side)
    slopes = random.normal(size=(3, count, 1, 1))
    soft = slopes[0] * ramp[:, np.newaxis] + slopes[1] * ramp + np.cos(3 * slopes[2] * ramp * ramp[:, np.newaxis])
    films: FloatArray = (soft + 0.3 * random.normal(size=(count, side, side))).astype(np.float32)
    return films


def _phrases(random: np.random.Generator, count: int, sizes: NetworkSizes) -> IntArray:
    """Draw token ids [phrase, context]: start, words, end, zeros; of every length there may be."""
    context, end = sizes.prompt_encoder.context, sizes.prompt_encoder.vocabulary - 1
    tokens = np.zeros((count, context), dtype=np.int64)
    for row, words in zip(tokens, random.integers(0, context - 1, count), strict=True):
        row[0], row[1 + words] = end - 1, end
        row[1 : 1 + words] = random.integers(1, end - 1, words)
    return tokens


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
