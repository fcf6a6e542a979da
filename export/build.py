"""Runnable: the exported graphs of a model directory, and the proof that they compute what its weights compute.

    python -m export.build --model DIR [--target onnx] [--json]

Graphs whose proof still holds are left alone, so a second run only reads hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import TextIO

import onnx
import onnxruntime
import onnxscript
import torch

from export import to_onnx
from export.parity import agree, compare, document, lines
from models.checkpoint import load_network, verify
from models.engines import open_unproven
from models.engines.proof import PROOF, Proof, check_proof, hash_graphs, read_proof, write_proof
from models.errors import ModelError
from models.manifest import WEIGHTS, Manifest, read_manifest


def main(arguments: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m export.build", description="Export and prove the graphs.")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model directory")
    parser.add_argument("--target", default="onnx", metavar="NAME", help="onnx (default); this version has no other")
    parser.add_argument("--json", action="store_true", help="print one JSON document; progress goes to standard error")
    options = parser.parse_args(arguments)
    if options.target != "onnx":
        print(f"target {options.target!r} is not in this version; leave --target out for onnx", file=sys.stderr)
        return 2
    try:
        proof = _build(options.model, progress=sys.stderr if options.json else sys.stdout)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{options.model} cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(document(proof.stages) | {"files": proof.graphs}))
    return 0 if proof.passed else 1


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
    proof = _prove(directory, manifest, versions)
    write_proof(directory, proof)
    for line in lines(proof.stages):
        print(line, file=progress)
    verdict = "proven" if proof.passed else "the graphs DIFFER from the weights"
    print(f"{directory}: {verdict}, see {PROOF}", file=progress)
    return proof


def _prove(directory: Path, manifest: Manifest, versions: dict[str, str]) -> Proof:
    """Compare the graphs on disk with the network in PyTorch."""
    reference, graphs = (open_unproven(directory, engine=name) for name in ("torch", "onnx"))
    stages = compare(reference, graphs, manifest.sizes)
    return Proof(
        graphs=hash_graphs(directory),
        weights_sha256=manifest.files[WEIGHTS],
        versions=versions,
        stages=stages,
        passed=agree(stages),
    )


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
