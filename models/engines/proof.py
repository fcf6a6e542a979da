"""The proof that exported graphs compute what the weights compute: `parity.json` in a model directory.

It names the SHA-256 of every graph and of the weights it was made with. Anything exchanged afterwards has no proof.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from models.errors import ModelError
from models.manifest import WEIGHTS, Manifest

STAGES = ("encode_image", "encode_prompts", "find", "describe")
PROOF = "parity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The largest difference of one stage, over all its inputs, and what is allowed."""

    max_abs: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether it is allowed; NaN never is."""
        return self.max_abs <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was compared, and how it went.

    graphs: SHA-256 of each graph by its path in the model directory
    stages: by the graph's name, or the graph's name, a dot, and one of its outputs
    versions: of the libraries and of the network's source that made the graphs
    """

    graphs: dict[str, str]
    weights_sha256: str
    versions: dict[str, str]
    stages: dict[str, Stage]
    passed: bool


def graph_path(directory: Path, stage: str) -> Path:
    """Where the exported graph of a stage lies."""
    return directory / "onnx" / f"{stage}.onnx"


def hash_graphs(directory: Path) -> dict[str, str]:
    """Hash the exported graphs that are there, by their path in the model directory."""
    paths = [graph_path(directory, stage) for stage in STAGES]
    return {f"onnx/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}


def read_proof(directory: Path) -> Proof | None:
    """Read parity.json; None where it is missing or is no proof."""
    try:
        found = json.loads((directory / PROOF).read_text(encoding="utf-8"))
        stages = {name: Stage(**stage) for name, stage in found["stages"].items()}
        return Proof(**{**found, "stages": stages})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_proof(directory: Path, proof: Proof) -> None:
    """Write parity.json."""
    (directory / PROOF).write_text(json.dumps(asdict(proof), indent=2) + "\n", encoding="utf-8")


def check_proof(directory: Path, manifest: Manifest) -> None:
    """Refuse a directory whose graphs are missing or not proven against its weights.

    The manifest's own hashes are taken for true: verify them first.
    """
    require_graphs(directory)
    remedy = _remedy(directory)
    proof = read_proof(directory)
    if proof is None:
        raise ModelError(f"{directory}: the exported graphs have no {PROOF}; {remedy}")
    if proof.weights_sha256 != manifest.files.get(WEIGHTS):
        raise ModelError(f"{directory}: {PROOF} was made with other weights; {remedy}")
    if proof.graphs != hash_graphs(directory):
        raise ModelError(f"{directory}: {PROOF} was made with other graphs; {remedy}")
    compared = {name.partition(".")[0] for name in proof.stages}
    if not (proof.passed and compared == set(STAGES) and all(stage.passed for stage in proof.stages.values())):
        raise ModelError(f"{directory}: {PROOF} says that the graphs differ from the weights; {remedy}")


def require_graphs(directory: Path) -> None:
    """Raise ModelError where an exported graph is missing."""
    missing = [stage for stage in STAGES if not graph_path(directory, stage).is_file()]
    if missing:
        raise ModelError(f"{directory}: no exported graph of {', '.join(missing)}; {_remedy(directory)}")


def _remedy(directory: Path) -> str:
    return f"run python -m export.build --model {directory}"
