"""Runnable: compares two engines of one model, stage by stage.

    python -m export.parity --model DIR ENGINE ENGINE [--films N] [--engines DIR] [--json]

Both engines get the first engine's outputs as inputs of every stage, so a difference is measured where it arises. The
inputs are not those that the graphs were traced with: other films, other numbers of films, prompts and boxes, boxes
with and without prompt.
For a float16 engine the command compares readings of films instead: each engine continues with its own outputs, so that
differences add up as they do in use.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from export import samples
from models.command import command_parser, run
from models.engines import ENGINES, GPU_ENGINES, Engine, FloatArray, Patches, open_unproven
from models.engines.proof import StageDifference
from models.errors import ModelError
from models.manifest import NetworkSizes, read_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The allowed differences. Boxes and scores lie in 0..1; features do not.

    features: a share of the largest of them, if that is above 1
    """

    boxes: float
    scores: float
    features: float


FLOAT32 = Tolerance(boxes=1e-4, scores=1e-4, features=2e-5)
FLOAT16 = Tolerance(boxes=2e-3, scores=5e-3, features=5e-3)
FILMS = 64
_HALF_ENGINES = ("onnx-float16", "rounded-float16")
_FILMS = (1, 2, 3)
_PHRASES = (1, 14, 29, 60)
_QUERIES = ((1, 29), (2, 14), (3, 1), (1, 60))
_PROMPTS_OF_A_READING = 14
_SEED = 20240701

Outputs = tuple[str, FloatArray, FloatArray]


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("export.parity", description="Compare two engines of one model.")
    names = (*ENGINES, *GPU_ENGINES, *_HALF_ENGINES)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("engines", nargs=2, choices=names, metavar="ENGINE", help=" or ".join(names))
    parser.add_argument("--films", type=int, default=FILMS, metavar="N", help="of a float16 engine: %(default)s films")
    parser.add_argument("--engines", dest="folder", type=Path, metavar="DIR", help="where TensorRT's engines are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        first, second = (_open(options.model, name, options.folder) for name in options.engines)
        sizes = read_manifest(options.model).sizes
        is_half = bool({"tensorrt", *_HALF_ENGINES} & set(options.engines))
        stages = (
            compare_readings(first, second, sizes, films=options.films) if is_half else compare(first, second, sizes)
        )
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document(stages)))
    else:
        for line in lines(stages):
            print(line)
    return 0 if agree(stages) else 1


def agree(stages: dict[str, StageDifference]) -> bool:
    """Say whether every stage passed."""
    return all(stage.passed for stage in stages.values())


def document(stages: dict[str, StageDifference]) -> dict[str, object]:
    """Return each stage's result for JSON, which has no NaN: such a difference becomes null."""
    results = {
        name: asdict(stage) if math.isfinite(stage.max_abs) else asdict(stage) | {"max_abs": None}
        for name, stage in stages.items()
    }
    return {"stages": results, "passed": agree(stages)}


def lines(stages: dict[str, StageDifference]) -> list[str]:
    """Return each stage's result as a line of text."""
    return [
        f"{name}: largest difference {stage.max_abs:.1e}, allowed {stage.tolerance:.1e}"
        + ("" if stage.passed else "  DIFFERS")
        for name, stage in stages.items()
    ]


def compare(first: Engine, second: Engine, sizes: NetworkSizes) -> dict[str, StageDifference]:
    """Run both engines on the same inputs, stage by stage; the first is the reference."""
    return _worst(_runs(first, second, sizes), FLOAT32)


def compare_readings(
    first: Engine, second: Engine, sizes: NetworkSizes, *, films: int = FILMS
) -> dict[str, StageDifference]:
    """Read the same films with both engines, each with its own outputs throughout; the first is the reference."""
    return _worst(_readings(first, second, sizes, films), FLOAT16)


def _open(directory: Path, name: str, engines: Path | None) -> Engine:
    if name == "onnx-float16":
        from models.engines.onnx_engine import open_onnx

        return open_onnx(directory, precision="float16")
    if name == "rounded-float16":
        from export.rounded import open_rounded

        return open_rounded(directory)
    return open_unproven(directory, engine=name, engines=engines)


def _worst(outputs: Iterable[Outputs], allowed: Tolerance) -> dict[str, StageDifference]:
    """Keep for every stage the run that came nearest to the tolerance."""
    stages: dict[str, StageDifference] = {}
    for name, reference, other in outputs:
        kinds = {"find.boxes": allowed.boxes, "find.scores": allowed.scores}
        tolerance = kinds.get(name) or allowed.features * max(1.0, float(np.abs(reference).max()))
        stage = StageDifference(max_abs=float(np.abs(reference - other).max()), tolerance=tolerance)
        stages[name] = max(stage, stages.get(name, stage), key=_share_used)
    return stages


def _share_used(stage: StageDifference) -> float:
    """Return the difference as a share of the tolerance; NaN counts as more than all."""
    return float("inf") if np.isnan(stage.max_abs) else stage.max_abs / stage.tolerance


def _runs(first: Engine, second: Engine, sizes: NetworkSizes) -> Iterator[Outputs]:
    """Yield for every output of every run its name, and the results of both engines."""
    random = np.random.default_rng(_SEED)
    side = sizes.image_encoder.image_size
    for count in _FILMS:
        pixels = samples.films(random, count, side=side)
        patches = first.encode_image(pixels)
        yield from _encoded(patches, second.encode_image(pixels))
        if sizes.views is not None:
            yield "view", first.view(patches), second.view(patches)
    for count in _PHRASES:
        tokens = samples.phrases(random, count, sizes)
        yield "encode_prompts", first.encode_prompts(tokens), second.encode_prompts(tokens)
    for films, count in _QUERIES:
        patches = first.encode_image(samples.films(random, films, side=side))
        prompts = first.encode_prompts(samples.phrases(random, films * count, sizes)).reshape(films, count, -1)
        yield from _queried(random, (first, second), (patches, patches), (prompts, prompts))


def _readings(first: Engine, second: Engine, sizes: NetworkSizes, films: int) -> Iterator[Outputs]:
    """Yield the same film by film, for engines that continue with their own outputs."""
    random = np.random.default_rng(_SEED)
    tokens = samples.phrases(random, _PROMPTS_OF_A_READING, sizes)
    prompts = first.encode_prompts(tokens), second.encode_prompts(tokens)
    yield "encode_prompts", *prompts
    for _ in range(films):
        pixels = samples.films(random, 1, side=sizes.image_encoder.image_size)
        patches = first.encode_image(pixels), second.encode_image(pixels)
        yield from _encoded(*patches)
        if sizes.views is not None:
            yield "view", first.view(patches[0]), second.view(patches[1])
        yield from _queried(random, (first, second), patches, (prompts[0][np.newaxis], prompts[1][np.newaxis]))


def _encoded(reference: Patches, other: Patches) -> Iterator[Outputs]:
    for part in ("features", "positions", "cls"):
        yield "encode_image", getattr(reference, part), getattr(other, part)


def _queried(
    random: np.random.Generator,
    engines: tuple[Engine, Engine],
    patches: tuple[Patches, Patches],
    prompts: tuple[FloatArray, FloatArray],
) -> Iterator[Outputs]:
    """Ask both engines for prompts, and for boxes with a prompt, without one, and with one at random."""
    asked = list(zip(engines, patches, prompts, strict=True))
    found, other = (engine.find(film, phrases) for engine, film, phrases in asked)
    yield "find.boxes", found.boxes, other.boxes
    yield "find.scores", found.scores, other.scores
    yield "find.scores", found.aggregated_scores, other.aggregated_scores
    yield "find.features", found.features, other.features
    films, count, _ = prompts[0].shape
    boxes = samples.boxes(random, films, each=count)
    for prompted in (np.zeros((films, count)), np.ones((films, count)), random.integers(0, 2, (films, count))):
        flags = prompted.astype(np.float32)
        described, otherwise = (
            engine.describe(film, boxes=boxes, prompts=phrases, prompted=flags) for engine, film, phrases in asked
        )
        yield "describe", described, otherwise


if __name__ == "__main__":
    run(main)
