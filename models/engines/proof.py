"""The proof that exported graphs compute what the weights compute: `parity.json` in a model directory.

It names the SHA-256 of every graph, of the file of its weights, and of `weights.safetensors`, so a replaced file has no
proof. Float16 graphs are made from the float32 ones; their proof is inside that of the float32 graphs and becomes
invalid with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from models.checkpoint.files import file_sha256
from models.contract import StageDifference
from models.documents import decode
from models.engines import check_wheels
from models.errors import ModelError
from models.files import replacing
from models.manifest import MANIFEST, WEIGHTS, Manifest, NetworkSizes, read_manifest
from models.program import command_for

STAGES = ("encode_image", "encode_prompts", "find", "describe")
"""The exported graphs that every model has."""
VIEW = "view"
"""The exported graph of the view head, where a model has one."""
FLOAT16_STAGES = ("encode_image", "find", "describe")
"""Prompts are encoded in float32 by every engine: once for a prompt set, and all films are asked with the result. So
are views: their head is small, and float16 would save nothing."""
PROOF = "parity.json"

Precision = Literal["float32", "float16", "int8"]
"""Graphs are float32 or float16; the sentence generator may be int8 on a CPU."""

_WITH_GRAPHS: Final = ("onnx", "onnx-cuda", "tensorrt")
"""The engines that run exported graphs; those of TensorRT are made from the float32 ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was compared, and the result.

    graphs: SHA-256 of each graph, and of the file of its weights, by their path in the model directory
    stages: by the graph's name, or the graph's name, a dot, and one of its outputs
    versions: versions of the libraries, and a hash of the network's source, that made the graphs
    remark: limits of the figures, in plain words
    float16: the proof of the float16 graphs made from these, if there are any
    """

    graphs: dict[str, str]
    weights_sha256: str
    versions: dict[str, str]
    stages: dict[str, StageDifference]
    passed: bool
    remark: str = ""
    float16: Proof | None = None


def graph_path(directory: Path, stage: str, precision: Precision = "float32") -> Path:
    """Return the path of a stage's exported graph."""
    return directory / "onnx" / (f"{stage}.onnx" if precision == "float32" else f"{stage}.{precision}.onnx")


def weights_path(graph: Path) -> Path:
    """Return the path of the weights of a graph. A float16 graph contains its own, for TensorRT reads one file."""
    return graph.with_name(f"{graph.name}.data")


def stages_of(sizes: NetworkSizes) -> tuple[str, ...]:
    """Return the stages that a network of these sizes is exported in."""
    return STAGES if sizes.views is None else (*STAGES, VIEW)


def graphs_of(directory: Path, precision: Precision, *, stages: Sequence[str]) -> dict[str, Path]:
    """Return the graph of every stage for a runtime of this precision."""
    return {
        stage: graph_path(directory, stage, precision if stage in FLOAT16_STAGES else "float32") for stage in stages
    }


def hash_graphs(directory: Path, precision: Precision = "float32") -> dict[str, str]:
    """Hash the exported graphs that exist, and the files of their weights, by their path in the model directory."""
    graphs = [graph_path(directory, stage, precision) for stage in _stages(precision, (*STAGES, VIEW))]
    paths = [path for graph in graphs for path in (graph, weights_path(graph))]
    return {f"onnx/{path.name}": file_sha256(path) for path in paths if path.is_file()}


def read_proof(directory: Path) -> Proof | None:
    """Read parity.json; None if it is missing or not a proof."""
    try:
        return decode(Proof, json.loads((directory / PROOF).read_bytes()))
    except (OSError, ValueError):
        return None


def write_proof(directory: Path, proof: Proof) -> None:
    """Write parity.json atomically."""
    with replacing(directory / PROOF) as file:
        file.write((json.dumps(asdict(proof), indent=2) + "\n").encode())


def check_proof(directory: Path, manifest: Manifest, precision: Precision = "float32") -> None:
    """Refuse a directory whose graphs are missing or not proven against its weights.

    The manifest's own hashes are trusted: verify the files first.
    """
    stages = stages_of(manifest.sizes)
    require_graphs(directory, precision, stages=stages)
    remedy = _remedy(directory, precision)
    whole = read_proof(directory)
    proof = whole.float16 if whole is not None and precision == "float16" else whole
    if proof is None:
        raise ModelError(_no_proof(directory, remedy))
    if proof.weights_sha256 != manifest.files.get(WEIGHTS):
        raise ModelError(f"{directory}: {PROOF} was made with other weights; {remedy}")
    # A file of weights that the proof does not name is left from another export, and no graph reads it.
    left = set(_weights(directory, precision, stages)) - proof.graphs.keys()
    if proof.graphs != {name: sha for name, sha in hash_graphs(directory, precision).items() if name not in left}:
        raise ModelError(f"{directory}: {PROOF} was made with other graphs; {remedy}")
    compared = {name.partition(".")[0] for name in proof.stages}
    if not (proof.passed and compared == set(stages) and all(stage.passed for stage in proof.stages.values())):
        raise ModelError(f"{directory}: {PROOF} says that the graphs differ from the weights; {remedy}")


def proven_precision(directory: Path, manifest: Manifest) -> Precision:
    """Return float16 if a directory's float16 graphs are proven, else float32. Raises ModelError if neither is."""
    check_proof(directory, manifest)
    try:
        check_proof(directory, manifest, "float16")
    except ModelError:
        return "float32"
    return "float16"


def require_graphs(directory: Path, precision: Precision = "float32", *, stages: Sequence[str] = STAGES) -> None:
    """Raise ModelError if an exported graph, or the file of its weights, is missing; stages: as in `stages_of`."""
    remedy = _remedy(directory, precision)
    graphs = {stage: graph_path(directory, stage, precision) for stage in _stages(precision, stages)}
    if missing := [stage for stage, path in graphs.items() if not path.is_file()]:
        raise ModelError(f"{directory}: no exported {precision} graph of {', '.join(missing)}; {remedy}")
    proof = read_proof(directory)
    # A small graph may have no file of weights.
    named = set(_weights(directory, precision, stages)) & (proof.graphs.keys() if proof is not None else set())
    if missing := sorted(name for name in named if not (directory / name).is_file()):
        raise ModelError(f"{directory}: no {', '.join(missing)}, the weights of exported graphs; {remedy}")


def check_files(directory: Path, *, engine: str) -> None:
    """Check that every file needed to open a model directory with an engine exists, and one ONNX Runtime to do it.

    It takes milliseconds: no graph is read, see `check_proof`.
    Raises ModelError that names what is missing, or installed twice, and what to do.
    """
    check_wheels()
    missing = [name for name in read_manifest(directory).files if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory}: {', '.join(missing)} of {MANIFEST} are missing; restore the model directory")
    if engine not in _WITH_GRAPHS:
        return
    require_graphs(directory)
    if not (directory / PROOF).is_file():
        raise ModelError(_no_proof(directory, _remedy(directory, "float32")))


def _weights(directory: Path, precision: Precision, stages: Sequence[str]) -> list[str]:
    """Return where the weights of graphs would lie in the model directory."""
    graphs = [graph_path(directory, stage, precision) for stage in _stages(precision, stages)]
    return [f"onnx/{weights_path(graph).name}" for graph in graphs]


def _stages(precision: Precision, stages: Sequence[str]) -> Sequence[str]:
    return FLOAT16_STAGES if precision == "float16" else stages


def _no_proof(directory: Path, remedy: str) -> str:
    return f"{directory}: the exported graphs have no {PROOF}; {remedy}"


def _remedy(directory: Path, precision: Precision) -> str:
    target = " --target tensorrt" if precision == "float16" else ""
    return f"run {command_for('export.build')} --model {directory}{target}"
