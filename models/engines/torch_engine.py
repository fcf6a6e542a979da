"""The network in PyTorch, float32: on the CPU, the reference that every other engine is compared with, or on a GPU.

On a GPU it answers when TensorRT cannot. Only the sentence generator may be float16 there (`model.precision`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.checkpoint.weights import load_generator, load_network, release_pages
from models.engines import INSTALL_CPU, FloatArray, IntArray
from models.engines.comparison import GPU_FLOAT32, WatchedEngine, proven
from models.engines.devices import CPU, Device, Gpu
from models.engines.proof import Precision
from models.engines.scheduler import SHORT, UNLIMITED, Most, Scheduler
from models.engines.staged_engine import Inputs, RunStage, StagedEngine
from models.errors import ModelError
from models.network.chex import Chex
from models.network.packed_decoding import PackedWriter
from models.network.products import Form, int8_fault
from models.network.sentence_generator import SentenceGenerator
from models.network.static_decoding import StaticWriter

Write = Callable[[FloatArray], IntArray]

_SMALL = 50_000_000
"""Networks with fewer parameters than this are faster with one thread."""


def open_torch(directory: Path, *, threads: int = 0, sentences: Precision = "float32") -> StagedEngine:
    """Open a model directory on the CPU without checks; `opening.open_engine` verifies the hashes.

    sentences: the precision of the sentence generator, see `open_cpu_writer`
    """
    network = load_network(directory)
    use_threads(threads, network)
    most = most_at_once(network)
    writer = open_cpu_writer(network, precision=sentences)
    name, run = cpu_name("torch", sentences), run_by(network, CPU)
    return StagedEngine(name, run=run, write=writer.write, scheduler=writer.scheduler, most=most)


def open_torch_cuda(directory: Path, *, gpu: Gpu, threads: int = 0, precision: Precision = "float32") -> WatchedEngine:
    """Open a model directory on a GPU without checks, and prove that the GPU computes what the CPU does.

    precision: that of the sentence generator
    Raises EngineUnavailable if it does not.
    """
    with gpu.working():
        network = load_network(directory).to(gpu.device)
        write = _writer(network.generator, gpu, precision)
    engine = in_turns("torch-cuda", run=run_by(network, gpu), write=write)
    reference = open_torch(directory, threads=threads)
    where = f"PyTorch on {gpu.name} with driver {gpu.driver}"
    return proven(engine, reference, network.sizes, allowed=GPU_FLOAT32, where=where)


def in_turns(name: str, *, run: RunStage, write: Write, most: Most = UNLIMITED) -> StagedEngine:
    """Return an engine on a GPU, whose stages and sentences take turns; most: films of a call, by stage."""
    scheduler = Scheduler()

    def write_in_turn(features: FloatArray) -> IntArray:
        return scheduler.call(lambda: write(features))

    return StagedEngine(name, run=run, write=write_in_turn, scheduler=scheduler, most=most)


def cpu_name(engine: str, sentences: Precision) -> str:
    """Return the name of an engine on the CPU, which says the precision of its sentences unless that is float32."""
    return f"{engine}-int8" if sentences == "int8" else engine


class CpuWriter:
    """Generates the sentences of films and people together; scheduler: does this and all other calls of the engine."""

    def __init__(self, writer: PackedWriter) -> None:
        # A new thread computes with all cores until the number is set: oneDNN does not ask for it.
        begin = partial(torch.set_num_threads, torch.get_num_threads())
        self.scheduler = Scheduler(join=writer.join, step=writer.step, begin=begin)
        self._writer = writer

    def write(self, features: FloatArray) -> IntArray:
        """See `Engine.write`."""
        writing = self._writer.start(torch.from_numpy(np.ascontiguousarray(features)))
        self.scheduler.write(writing, size=self._writer.bytes_of(writing))
        ids: IntArray = writing.ids.numpy()
        return ids


def open_cpu_writer(network: Chex, *, precision: Precision = "float32") -> CpuWriter:
    """Take the sentence generator out of a network, and return a function that generates sentences.

    The weights have a form of their own there, so the network and the pages of its file would only keep them in memory
    twice.
    precision: int8, or else float32
    Raises ModelError if this machine cannot compute in it.
    """
    generator = network.generator
    del network.generator
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # PyTorch left it without types
        raise ModelError(f"this build of PyTorch has no oneDNN, which multiplies on a CPU; run {INSTALL_CPU}")
    if precision == "int8" and (fault := int8_fault()):
        raise ModelError(f"model.precision int8 does not work on this machine: {fault}; set it to float32")
    form: Form = "int8" if precision == "int8" else "float32"
    most = generator.sizes.max_length
    writer = PackedWriter(generator, max_length=most, form=form, release=release_pages)
    return_freed_memory()
    return CpuWriter(writer)


def return_freed_memory() -> None:
    """Return freed pages of the heap to the system (malloc_trim of glibc); do nothing with another C library.

    Opening a model needs much memory for a moment, and glibc would keep 0.2 GB of it at the published size.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def open_gpu_writer(directory: Path, *, gpu: Gpu, precision: Precision) -> Write:
    """Open only the sentence generator on a GPU. Returns a function that generates sentences, see `Engine.write`."""
    with gpu.working():
        return _writer(load_generator(directory).generator.to(gpu.device), gpu, precision)


def run_by(network: Chex, device: Device) -> RunStage:
    """Return the function that runs the stages of a network on a device."""

    def run(stage: str, inputs: Inputs) -> list[FloatArray]:
        function: Callable[..., Tensor | tuple[Tensor, ...]] = getattr(network, stage)
        with device.working(), torch.inference_mode():
            outputs = function(*(device.put(array) for array in inputs.values()))
            return [output.cpu().numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]

    return run


def most_at_once(network: nn.Module) -> Most:
    """Return how many films or phrases of a network are computed without a pause; a small one is quick with all."""
    return UNLIMITED if _is_small(network) else SHORT


def use_threads(threads: int, network: nn.Module) -> int:
    """Set PyTorch's number of threads and return it; 0: all cores that the process may use.

    It counts for this thread, and for those that have not computed yet.

    A small network gets one thread: several would wait for each other longer than they compute. Measured for the 8
    million parameters of the shipped model, with other work on the same two cores: 0.15 s per film with one thread, 3 s
    with two.
    """
    if not threads:
        threads = 1 if _is_small(network) else len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads


def _is_small(network: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in network.parameters()) < _SMALL


def _writer(generator: SentenceGenerator, gpu: Gpu, precision: Precision) -> Write:
    dtype = torch.float16 if precision == "float16" else torch.float32
    writer = StaticWriter(generator.to(dtype), max_length=generator.sizes.max_length, repeatable=gpu.repeatable)

    def write(features: FloatArray) -> IntArray:
        with gpu.working():
            ids: IntArray = writer.write(gpu.put(features).to(dtype)).cpu().numpy()
        return ids

    return write
