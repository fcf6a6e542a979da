"""Writes the exported graphs of a model directory, compares them with its weights, and writes the proof.

Importing this takes seconds, because it needs torch, onnx and onnxruntime; `export.build` is the command.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import onnx
import onnxruntime
import onnxscript
import torch

from export import float16, to_onnx
from export.parity import lines
from models.checkpoint.files import verify
from models.checkpoint.weights import load_network
from models.engines.comparison import agree, compare, compare_readings
from models.engines.onnx_engine import open_onnx
from models.engines.opening import open_to_prove
from models.engines.proof import PROOF, Proof, check_proof, hash_graphs, read_proof, write_proof
from models.errors import ModelError
from models.manifest import WEIGHTS, Manifest, read_manifest

Say = Callable[[str], None]

REMARK = (
    "These graphs were compared on a CPU in ONNX Runtime, which computes float16 in float32 and rounds at the end of "
    "a float16 part; a GPU rounds after every operator. ONNX Runtime ran those of the shipped model on an H200 within "
    "what is allowed; TensorRT-RTX 1.7 builds engines of them, and TensorRT has never run them."
)

_DIFFERING = "the float16 graphs DIFFER from the float32 ones"


def build_float32(directory: Path, *, say: Say) -> Proof:
    """Return the proof of a directory's graphs; export and compare them first if there is no valid proof.

    say: called with a line after each step
    """
    manifest = read_manifest(directory)
    verify(directory, manifest)
    versions = _versions()
    proof = _standing_proof(directory, manifest, versions)
    if proof is not None:
        say(f"{directory}: the graphs are proven and up to date")
        return proof
    (directory / PROOF).unlink(missing_ok=True)
    started = time.monotonic()
    for stage in to_onnx.export_graphs(load_network(directory), directory):
        say(f"{stage}: exported, {time.monotonic() - started:.1f} s")
    reference, graphs = (open_to_prove(directory, engine=name) for name in ("torch", "onnx"))
    stages = compare(reference, graphs, manifest.sizes)
    proof = Proof(
        graphs=hash_graphs(directory),
        weights_sha256=manifest.files[WEIGHTS],
        versions=versions,
        stages=stages,
        passed=agree(stages),
    )
    write_proof(directory, proof)
    _tell(directory, proof, say, differing="the graphs DIFFER from the weights")
    return proof


def build_float16(directory: Path, whole: Proof, *, say: Say) -> Proof:
    """Return the proof of the float16 graphs; write and compare them first if there is no valid proof."""
    versions = _float16_versions(whole)
    standing = whole.float16
    if standing is not None and standing.versions == versions and standing.graphs == hash_graphs(directory, "float16"):
        say(f"{directory}: {'the float16 graphs are proven and up to date' if standing.passed else _DIFFERING}")
        return standing
    for stage in float16.write_float16(directory):
        say(f"{stage}: float16")
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
    _tell(directory, proof, say, differing=_DIFFERING)
    say(REMARK)
    return proof


def _tell(directory: Path, proof: Proof, say: Say, *, differing: str) -> None:
    for line in lines(proof.stages):
        say(line)
    say(f"{directory}: {'proven' if proof.passed else differing}, see {PROOF}")


def _standing_proof(directory: Path, manifest: Manifest, versions: dict[str, str]) -> Proof | None:
    """Return the proof of the graphs on disk if it is valid and was made with the same weights and versions."""
    try:
        check_proof(directory, manifest)
    except ModelError:
        return None
    proof = read_proof(directory)
    return proof if proof is not None and proof.versions == versions else None


def _versions() -> dict[str, str]:
    """Return what determines a graph: library versions, and hashes of the sources of network and exporter."""
    source = hashlib.sha256()
    for name in sorted(_imported("models.network.chex", frozenset()) | {to_onnx.__name__}):
        source.update(Path(sys.modules[name].__file__ or "").read_bytes())
    libraries = {"torch": torch, "onnx": onnx, "onnxscript": onnxscript, "onnxruntime": onnxruntime}
    return {name: str(library.__version__) for name, library in libraries.items()} | {"source": source.hexdigest()}


def _float16_versions(whole: Proof) -> dict[str, str]:
    """Return everything that determines a float16 graph: the float32 graphs, and hashes of the conversion's source."""
    source = hashlib.sha256(Path(float16.__file__ or "").read_bytes())
    made_of = hashlib.sha256(json.dumps(whole.graphs, sort_keys=True).encode())
    return {"onnx": str(onnx.__version__), "source": source.hexdigest(), "graphs": made_of.hexdigest()}


def _imported(name: str, known: frozenset[str]) -> frozenset[str]:
    """Add a module of `models` to the known ones, with all modules of `models` that it imports from."""
    known |= {name}
    for value in vars(sys.modules[name]).values():
        home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(home, str) and home.startswith("models.") and home not in known:
            known = _imported(home, known)
    return known
