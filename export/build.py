"""Runnable: the exported graphs of a model directory, and the proof that they compute what its weights compute.

    python -m export.build --model DIR [--target onnx,tensorrt] [--engines DIR] [--json]

Graphs whose proof still holds are left alone, so a second run only reads hashes. Target tensorrt adds the float16
graphs that its engines are built from, and where `--engines` names a folder the engines, ahead of the first start.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TextIO

import onnx
import onnxruntime
import onnxscript
import torch

from export import float16, operators, to_onnx, to_tensorrt
from export.parity import agree, compare, compare_readings, document, lines
from models.checkpoint import load_network, verify
from models.engines import open_engine, open_unproven
from models.engines.onnx_engine import open_onnx
from models.engines.proof import PROOF, Proof, check_proof, hash_graphs, read_proof, write_proof
from models.errors import ModelError
from models.manifest import WEIGHTS, Manifest, read_manifest

TARGETS = ("onnx", "tensorrt")
REMARK = (
    "These graphs have never run on a GPU or in TensorRT. They were compared on a CPU in ONNX Runtime, which computes "
    "float16 in float32 and rounds at the end of a float16 part; a GPU rounds after every operator."
)


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m export.build", description="Export and prove the graphs.")
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
    progress = sys.stderr if options.json else sys.stdout
    try:
        proof = _build(options.model, progress=progress)
        half = _build_float16(options.model, proof, progress=progress) if "tensorrt" in targets else None
        if options.engines is not None:
            open_engine(options.model, engine="tensorrt", engines=options.engines)
            print(f"{options.engines}: the engines are there for this machine's GPU", file=progress)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename or options.model} cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(_document(proof, half)))
    return 0 if proof.passed and (half is None or half.passed) else 1


def _build(directory: Path, *, progress: TextIO) -> Proof:
    """Give the proof of a directory's graphs; export and compare them where it does not hold."""
    manifest = read_manifest(directory)
    verify(directory, manifest)
    versions = _versions()
    proof = _standing_proof(directory, manifest, versions)
    if proof is not None:
        print(f"{directory}: the graphs are proven and up to date", file=progress)
        return proof
    (directory / PROOF).unlink(missing_ok=True)
    started = time.monotonic()
    for stage in to_onnx.export_graphs(load_network(directory), directory):
        print(f"{stage}: exported, {time.monotonic() - started:.1f} s", file=progress, flush=True)
    reference, graphs = (open_unproven(directory, engine=name) for name in ("torch", "onnx"))
    stages = compare(reference, graphs, manifest.sizes)
    proof = Proof(
        graphs=hash_graphs(directory),
        weights_sha256=manifest.files[WEIGHTS],
        versions=versions,
        stages=stages,
        passed=agree(stages),
    )
    write_proof(directory, proof)
    _tell(directory, proof, progress, differing="the graphs DIFFER from the weights")
    return proof


def _build_float16(directory: Path, whole: Proof, *, progress: TextIO) -> Proof:
    """Give the proof of the float16 graphs; write and compare them where it does not hold."""
    versions = _float16_versions(whole)
    standing = whole.float16
    if standing is not None and standing.versions == versions and standing.graphs == hash_graphs(directory, "float16"):
        print(f"{directory}: the float16 graphs are proven and up to date", file=progress)
        return standing
    for stage in to_tensorrt.write_float16(directory):
        print(f"{stage}: float16, of operators that TensorRT takes", file=progress, flush=True)
    reference, halves = open_onnx(directory), open_onnx(directory, precision="float16")
    stages = compare_readings(reference, halves, read_manifest(directory).sizes)
    proof = Proof(
        graphs=hash_graphs(directory, "float16"),
        weights_sha256=whole.weights_sha256,
        versions=versions,
        stages=stages,
        passed=agree(stages),
        remark=REMARK,
    )
    write_proof(directory, replace(whole, float16=proof))
    _tell(directory, proof, progress, differing="the float16 graphs DIFFER from the float32 ones")
    print(REMARK, file=progress)
    return proof


def _tell(directory: Path, proof: Proof, progress: TextIO, *, differing: str) -> None:
    for line in lines(proof.stages):
        print(line, file=progress)
    print(f"{directory}: {'proven' if proof.passed else differing}, see {PROOF}", file=progress)


def _document(proof: Proof, half: Proof | None) -> dict[str, object]:
    found = document(proof.stages) | {"files": proof.graphs}
    if half is not None:
        found["float16"] = document(half.stages) | {"files": half.graphs, "remark": half.remark}
    return found


def _standing_proof(directory: Path, manifest: Manifest, versions: dict[str, str]) -> Proof | None:
    """Give the proof of the graphs on disk, if it holds and was made with the same weights and versions."""
    try:
        check_proof(directory, manifest)
    except ModelError:
        return None
    proof = read_proof(directory)
    return proof if proof is not None and proof.versions == versions else None


def _versions() -> dict[str, str]:
    """Name what makes a graph what it is: the libraries, and the source of the network and of the exporter."""
    source = hashlib.sha256()
    for name in sorted(_imported("models.chex", frozenset()) | {to_onnx.__name__}):
        source.update(Path(sys.modules[name].__file__ or "").read_bytes())
    libraries = {"torch": torch, "onnx": onnx, "onnxscript": onnxscript, "onnxruntime": onnxruntime}
    return {name: str(library.__version__) for name, library in libraries.items()} | {"source": source.hexdigest()}


def _float16_versions(whole: Proof) -> dict[str, str]:
    """Name what makes a float16 graph what it is: the float32 graphs, and the source that turns and checks them."""
    source = hashlib.sha256()
    for module in (float16, operators, to_tensorrt):
        source.update(Path(module.__file__ or "").read_bytes())
    source.update(operators.LIST.read_bytes())
    made_of = hashlib.sha256(json.dumps(whole.graphs, sort_keys=True).encode())
    return {"onnx": str(onnx.__version__), "source": source.hexdigest(), "graphs": made_of.hexdigest()}


def _imported(name: str, known: frozenset[str]) -> frozenset[str]:
    """Add to the known modules of `models` one more, and all of `models` that it takes a name from."""
    known |= {name}
    for value in vars(sys.modules[name]).values():
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(home, str) and home.startswith("models.") and home not in known:
            known = _imported(home, known)
    return known


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
