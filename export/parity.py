"""Runnable: compares two engines of one model, stage by stage.

    python -m export.parity --model DIR ENGINE ENGINE [--films N] [--engines DIR] [--json]

Both engines get the first engine's outputs as inputs of every stage, so a difference is measured where it arises. The
inputs are not those that the graphs were traced with: other films, other numbers of films, prompts and boxes, boxes
with and without prompt. What comes of them is compared, too: the probabilities of findings, by the manifest's readouts.
For a float16 engine the command compares readings of films instead: each engine continues with its own outputs, so that
differences add up as they do in use.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from models.command import command_parser, run
from models.contract import PromptKind, ReaderPrompt, StageDifference
from models.engines import ENGINES, GPU_ENGINES, Engine
from models.engines.comparison import FILMS, FLOAT16, FLOAT32, agree, compare, compare_readings
from models.engines.opening import open_to_prove
from models.engines.proof import proven_precision
from models.errors import ModelError
from models.manifest import read_manifest
from models.reading.reader import ChexReader
from models.reading.tokenizers import PromptTokenizer, SentenceTokenizer

_FILMS, _SIDE, _SEED = 3, 256, 20240702
_ALWAYS = "lung_opacity"
"""A finding that is asked for whatever the manifest has."""
_HALF = "onnx-float16"


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("export.parity", description="Compare two engines of one model.")
    names = (*ENGINES, *GPU_ENGINES, _HALF)
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("engines", nargs=2, choices=names, metavar="ENGINE", help=" or ".join(names))
    parser.add_argument("--films", type=int, default=FILMS, metavar="N", help="of a float16 engine: %(default)s films")
    parser.add_argument("--engines", dest="folder", type=Path, metavar="DIR", help="where TensorRT's engines are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    try:
        first, second = (_open(options.model, name, options.folder) for name in options.engines)
        manifest = read_manifest(options.model)
        is_half = bool({"tensorrt", _HALF} & set(options.engines)) or (
            "onnx-cuda" in options.engines and proven_precision(options.model, manifest) == "float16"
        )
        stages = (
            compare_readings(first, second, manifest.sizes, films=options.films)
            if is_half
            else compare(first, second, manifest.sizes)
        )
        stages["probability"] = compare_probabilities(
            options.model, (first, second), tolerance=(FLOAT16 if is_half else FLOAT32).scores
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


def compare_probabilities(directory: Path, engines: Sequence[Engine], *, tolerance: float) -> StageDifference:
    """Compare two engines on films: the probability of each finding that the manifest decides about."""
    manifest, vocabularies = read_manifest(directory), directory / "vocab"
    names = {key: key.replace("_", " ") for key in (*manifest.decisions.thresholds, _ALWAYS)}
    asked = [
        ReaderPrompt(key=key, kind=PromptKind.PATHOLOGY, phrases=(name,), negatives=(f"no {name}",))
        for key, name in names.items()
    ]
    random = np.random.default_rng(_SEED)
    films = [random.random((_SIDE, _SIDE), dtype=np.float32) for _ in range(_FILMS)]
    said = []
    for engine in engines:
        reader = ChexReader(manifest, engine, PromptTokenizer(vocabularies), SentenceTokenizer(vocabularies))
        known = [each for each in asked if not reader.never_learned(" ".join((*each.phrases, *each.negatives)))]
        read = [reader.locate_all(reader.look(film), known).prompts for film in films]
        said.append([each.probability for film in read for each in film if each.probability is not None])
    first, second = map(np.array, said)
    return StageDifference(max_abs=float(np.abs(first - second).max()), tolerance=tolerance)


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


def _open(directory: Path, name: str, engines: Path | None) -> Engine:
    if name == _HALF:
        from models.engines.onnx_engine import open_onnx

        return open_onnx(directory, precision="float16")
    return open_to_prove(directory, engine=name, engines=engines)


if __name__ == "__main__":
    run(main)
