"""Exported graphs in ONNX Runtime, and the sentence generator in PyTorch, both on the CPU."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from models.checkpoint.weights import load_generator
from models.engines import FloatArray
from models.engines.proof import Precision, graphs_of, read_proof, require_graphs, stages_of
from models.engines.staged_engine import Inputs, StagedEngine
from models.engines.torch_engine import cpu_name, most_at_once, open_cpu_writer, return_freed_memory, use_threads
from models.errors import ModelError
from models.program import command_for

_CPU = "CPUExecutionProvider"


def open_onnx(
    directory: Path,
    *,
    threads: int = 0,
    precision: Precision = "float32",
    sentences: Precision = "float32",
) -> StagedEngine:
    """Open a model directory without any checks; `opening.open_engine` checks hashes and proof.

    precision: that of the graphs; sentences: that of the sentence generator, see `open_cpu_writer`
    """
    network = load_generator(directory)
    stages = stages_of(network.sizes)
    require_graphs(directory, precision, stages=stages)
    threads = use_threads(threads, network)
    paths = graphs_of(directory, precision, stages=stages)
    sessions = {stage: _session(path, threads=threads) for stage, path in paths.items()}
    require_any_length(sessions["encode_prompts"], paths["encode_prompts"])
    return_freed_memory()

    def run(stage: str, inputs: Inputs) -> list[FloatArray]:
        outputs: list[FloatArray] = sessions[stage].run(None, inputs)
        return outputs

    most = most_at_once(network)
    proof, writer = read_proof(directory), open_cpu_writer(network, precision=sentences)
    return StagedEngine(
        cpu_name("onnx", sentences),
        run=run,
        write=writer.write,
        scheduler=writer.scheduler,
        most=most,
        parity={} if proof is None or precision != "float32" else proof.stages,
    )


def require_any_length(prompts: onnxruntime.InferenceSession, path: Path) -> None:
    """Raise ModelError for a graph that takes phrases only with all their padding, as earlier exports did."""
    if isinstance(prompts.get_inputs()[0].shape[1], int):
        raise ModelError(f"{path} takes phrases of one length only; run {command_for('export.build')} again")


def _session(path: Path, *, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # An arena of ONNX Runtime keeps what a film needs as long as it lives, and a film takes as long with it.
    options.enable_cpu_mem_arena = False
    # Threads that wait for the next operator without sleeping save 8 to 17 % of a call of `find`, and nothing of
    # `encode_image`. After a call PyTorch's generator needs the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.prepack.enable_parallel", "1")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=[_CPU])
    except Exception as error:  # the library's errors have no public base
        raise ModelError(f"{path} cannot be opened ({type(error).__name__}); export it again") from error
