"""Runnable: exports the graphs of a model directory, and proves that they compute what its weights compute.

    python -m export.build --model DIR [--target onnx,tensorrt] [--engines DIR] [--json]

Graphs with a valid proof are kept, so a second run only reads hashes. Target tensorrt adds the float16 graphs that
TensorRT's engines are built from and, if `--engines` names a folder, the engines themselves, so that the first start
need not build them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from export.parity import document
from models.command import command_parser, run
from models.engines.opening import open_engine
from models.errors import ModelError

if TYPE_CHECKING:
    from models.engines.proof import Proof

TARGETS = ("onnx", "tensorrt")


def main(arguments: list[str]) -> int:
    """Run the command. Returns its exit status."""
    parser = command_parser("export.build", description="Export and prove the graphs.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--target", default="onnx", metavar="NAMES", help="onnx (default), or onnx,tensorrt")
    parser.add_argument("--engines", type=Path, metavar="DIR", help="build TensorRT's engines too, into this folder")
    parser.add_argument("--json", action="store_true", help="print one JSON document; progress goes to standard error")
    options = parser.parse_args(arguments)
    targets = set(options.target.split(","))
    if not targets <= set(TARGETS) or (options.engines and "tensorrt" not in targets):
        print(
            f"target {options.target!r} does not do; name onnx or onnx,tensorrt (--engines needs it)", file=sys.stderr
        )
        return 2
    try:
        from export.graphs import build_float16, build_float32
    except ModuleNotFoundError as error:
        print(f"{error.name} is missing; run pip install -c constraints.txt '.[cpu]'", file=sys.stderr)
        return 2

    def say(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        proof = build_float32(options.model, say=say)
        half = build_float16(options.model, proof, say=say) if "tensorrt" in targets else None
        if options.engines is not None:
            open_engine(options.model, engine="tensorrt", engines=options.engines)
            say(f"{options.engines}: the engines are there for this machine's GPU")
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename or options.model} cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(_document(proof, half)))
    return 0 if proof.passed and (half is None or half.passed) else 1


def _document(proof: Proof, half: Proof | None) -> dict[str, object]:
    found = document(proof.stages) | {"files": proof.graphs}
    if half is not None:
        found["float16"] = document(half.stages) | {"files": half.graphs, "remark": half.remark}
    return found


if __name__ == "__main__":
    run(main)
