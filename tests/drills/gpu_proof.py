"""Runnable: opens every runtime that this machine's GPU and libraries allow, and writes what they do, as JSON.

    python -m tests.drills.gpu_proof [--model DIR] [--engines DIR] [--out FILE] [--films 64]

TensorRT builds its engines into `--engines` first. Each runtime proves itself as at the start of a node; then it reads
`--films` drawn films beside the network in PyTorch on the CPU, and is timed beside the others and ONNX Runtime on the
CPU. The file has card, driver, versions, the largest difference of each stage with what is allowed, median milliseconds
of each call, and why a runtime did not open; the last line is the same. Ends with 0 if every runtime that is installed
agrees with the CPU, with 1 if one does not open or differs, and with 2 without a GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import torch

from export import build
from models.contract import StageDifference
from models.engines import Engine, EngineUnavailable, Unavailable
from models.engines.comparison import FLOAT16, GPU_FLOAT32, agree, compare_readings, drawn_films
from models.engines.devices import CudaGpu, Gpu
from models.engines.opening import open_engine
from models.errors import ModelError
from models.manifest import Manifest, NetworkSizes, read_manifest
from tests.paths import REPOSITORY
from tests.support.engine_checks import features

PHANTOM: Final = REPOSITORY / "models/weights/phantom"
PACKAGES: Final = ("torch", "onnxruntime-gpu", "onnxruntime", "tensorrt", "nvidia-cudnn-cu13", "numpy")
ROUNDS: Final = 20
PROMPTS: Final = 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a runtime did: how far it is from the CPU by stage, and milliseconds by call; or why it did not open."""

    name: str
    opened_seconds: float = 0.0
    stages: dict[str, StageDifference] = field(default_factory=dict)
    milliseconds: dict[str, float] = field(default_factory=dict)
    reason: Unavailable | None = None
    message: str = ""

    @property
    def passed(self) -> bool:
        """Whether it agrees with the CPU, or only is not installed."""
        return agree(self.stages) if self.reason is None else self.reason == "not_installed"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.drills.gpu_proof", description=__doc__)
    parser.add_argument("--model", type=Path, default=PHANTOM, metavar="DIR", help="model directory")
    parser.add_argument("--engines", type=Path, default=Path("gpu-proof/engines"), metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("gpu-proof/gpu-proof.json"), metavar="FILE")
    parser.add_argument("--films", type=int, default=64)
    options = parser.parse_args(arguments)
    try:
        gpu = CudaGpu()
    except EngineUnavailable as error:
        print(f"nothing was proven: {error}", file=sys.stderr)
        return 2
    if status := build.main(["--model", str(options.model), "--target", "onnx,tensorrt"]):
        return status
    found = []
    for measured in measure(options.model, gpu, engines=options.engines, films=options.films):
        print(f"{measured.name}: {'passed' if measured.passed else 'FAILED'} {measured.message}", flush=True)
        found.append(measured)
    content = json.dumps(document(found, read_manifest(options.model), gpu, films=options.films))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(f"{content}\n", encoding="utf-8")
    print(f"{options.out} is written; send it to us with what the machine is called")
    print(content)
    return 0 if all(measured.passed for measured in found) else 1


def measure(model: Path, gpu: Gpu, *, engines: Path, films: int) -> Iterator[Measured]:
    """Open, prove and time each runtime in turn; the CPU comes last, for its times."""
    sizes, reference = read_manifest(model).sizes, open_engine(model, engine="torch")
    for name, engine, graphs in (
        ("tensorrt", "tensorrt", None),
        ("onnx-cuda, float16 graphs", "onnx-cuda", "float16"),
        ("onnx-cuda, float32 graphs", "onnx-cuda", "float32"),
        ("torch-cuda", "torch-cuda", None),
    ):
        began = time.monotonic()
        try:
            opened = _open(model, gpu, engine=engine, graphs=graphs, engines=engines)
        except EngineUnavailable as error:
            yield Measured(name=name, reason=error.reason, message=str(error))
            continue
        seconds = time.monotonic() - began
        allowed = FLOAT16 if "float16" in name or engine == "tensorrt" else GPU_FLOAT32
        try:
            stages = compare_readings(reference, opened, sizes, films=films, allowed=allowed)
            timed = dict(_timed(opened, sizes))
        except ModelError as error:  # of the device: the others may still do
            yield Measured(name=name, opened_seconds=seconds, reason="not_proven", message=str(error))
            continue
        yield Measured(name=name, opened_seconds=seconds, stages=stages, milliseconds=timed)
    yield Measured(name="onnx on the CPU", milliseconds=dict(_timed(open_engine(model, engine="onnx"), sizes)))


def _open(model: Path, gpu: Gpu, *, engine: str, graphs: str | None, engines: Path) -> Engine:
    if graphs is None:
        return open_engine(model, engine=engine, engines=engines, gpu=gpu)
    try:
        from models.engines.onnx_cuda_engine import open_onnx_cuda
    except ImportError as error:
        raise EngineUnavailable("not_installed", f"ONNX Runtime cannot be imported ({error})") from error
    return open_onnx_cuda(model, gpu=gpu, graphs="float16" if graphs == "float16" else "float32")


def _timed(engine: Engine, sizes: NetworkSizes) -> Iterator[tuple[str, float]]:
    """Yield the median milliseconds of each call, over numpy arrays as a node calls it."""
    random = np.random.default_rng(0)
    for count in (1, 8):
        pixels = drawn_films(random, count, side=sizes.image_encoder.image_size)
        yield f"encode_image, {count}", _median(lambda pixels=pixels: engine.encode_image(pixels))  # type: ignore[misc]
    patches = engine.encode_image(pixels[:1])
    prompts = features(sizes, 1, PROMPTS)
    yield f"find, {PROMPTS} prompts", _median(lambda: engine.find(patches, prompts))
    yield f"write, {PROMPTS} sentences", _median(lambda: engine.write(features(sizes, PROMPTS)))


def _median(call: Callable[[], object]) -> float:
    call()
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - began))
    return median(taken)


def document(found: list[Measured], manifest: Manifest, gpu: Gpu, *, films: int) -> dict[str, object]:
    """Say as JSON has it what each runtime did, on which card, and with which versions."""
    return {
        "passed": all(measured.passed for measured in found),
        "model": f"{manifest.name} {manifest.version}",
        "gpu": gpu.name,
        "driver": gpu.driver,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES if _version(name)},
        "films": films,
        "runtimes": {measured.name: {"passed": measured.passed, **asdict(measured)} for measured in found},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
