"""Exported graphs in ONNX Runtime, on the CPU or on a GPU; the sentence generator runs in PyTorch on the CPU.

The GPU runs the float32 graphs too, because the proof covers these.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import onnxruntime

from models.checkpoint.weights import load_generator
from models.engines import EngineUnavailable, FloatArray
from models.engines.graph_engine import GraphEngine, Inputs, RunGraph
from models.engines.proof import Precision, graphs_of, require_graphs, stages_of
from models.engines.torch_engine import use_threads, write_sentences
from models.errors import ModelError

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"


def open_onnx(directory: Path, *, threads: int = 0, precision: Precision = "float32") -> GraphEngine:
    """Open a model directory on the CPU without any checks; `engines.open_engine` checks hashes and proof first."""
    return _open(directory, threads=threads, precision=precision, cuda=False)


def open_onnx_cuda(directory: Path, *, threads: int = 0) -> GraphEngine:
    """Open a model directory on a GPU.

    Raises EngineUnavailable if this ONNX Runtime has no CUDA, or finds no usable GPU.
    """
    if _CUDA not in onnxruntime.get_available_providers():
        raise EngineUnavailable("not_installed", "this ONNX Runtime has no CUDA; install onnxruntime-gpu instead of it")
    return _open(directory, threads=threads, precision="float32", cuda=True)


def _open(directory: Path, *, threads: int, precision: Precision, cuda: bool) -> GraphEngine:
    network = load_generator(directory)
    stages = stages_of(network.sizes)
    require_graphs(directory, precision, stages=stages)
    threads = use_threads(threads, network)
    generator = network.generator
    return GraphEngine(
        "onnx-cuda" if cuda else "onnx",
        run=_run_graphs(graphs_of(directory, precision, stages=stages), threads=threads, cuda=cuda),
        write=partial(write_sentences, partial(generator.write, max_length=generator.sizes.max_length)),
    )


def _run_graphs(graphs: Mapping[str, Path], *, threads: int, cuda: bool) -> RunGraph:
    sessions = {stage: _session(path, threads=threads, cuda=cuda) for stage, path in graphs.items()}

    def run(stage: str, inputs: Inputs) -> list[FloatArray]:
        outputs: list[FloatArray] = sessions[stage].run(None, inputs)
        return outputs

    return run


def _session(path: Path, *, threads: int, cuda: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Threads that spin between two calls would take the cores from PyTorch's generator, which runs in between.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # TF32 has only ten bits of precision; the proof needs float32.
    providers = [(_CUDA, {"use_tf32": "0"}), _CPU] if cuda else [_CPU]
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the library's errors have no public base
        raise ModelError(f"{path} cannot be opened ({type(error).__name__}); export it again") from error
    # If there is no GPU the library silently continues on the CPU; only the list of providers shows it.
    if cuda and _CUDA not in session.get_providers():
        raise EngineUnavailable("no_gpu", "ONNX Runtime found no GPU that its CUDA can use; see its installation page")
    return session
