"""Runnable: times the sentence generator on a GPU, with and without captured steps. Prints a JSON document a line.

    python -m tests.drills.gpu_generator DIR

DIR is a model directory. Each line has a precision and a number of sentences: the milliseconds of decoding step by
step and with the step captured as a CUDA graph, whether the ids of both are the same, whether they are those of the
plain loop on the CPU in float32, and the greatest GPU memory until then. With `transformers` (extras `test` and
`bench`) lines follow that have the milliseconds of its GPT-2 with the same weights.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from models.checkpoint.weights import load_generator
from models.engines import EngineUnavailable
from models.engines.devices import CudaGpu, Device
from models.network.sentence_generator import SentenceGenerator
from models.network.static_decoding import ROWS, StaticWriter

Line = dict[str, object]
PRECISIONS = (torch.float32, torch.float16)
_ROUNDS = 3


def main(directory: Path) -> int:
    """Print the lines. Returns the exit status."""
    try:
        device = CudaGpu()
    except EngineUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    generator = load_generator(directory).generator
    for line in lines(generator, device):
        print(json.dumps(line), flush=True)
    if find_spec("transformers"):
        from tests.drills.bench.plain_generator import PlainGenerator

        for line in peer_lines(generator, device, PlainGenerator):
            print(json.dumps(line), flush=True)
    return 0


def lines(plain: SentenceGenerator, device: Device) -> Iterator[Line]:
    """Time a generator that is on the CPU in float32, on a device."""
    torch.manual_seed(0)
    given = {rows: torch.randn(rows, plain.dim) for rows in ROWS}
    length = plain.sizes.max_length
    expected = {rows: plain.write(features, max_length=length) for rows, features in given.items()}
    for precision in PRECISIONS:
        with device.working():
            generator = copy.deepcopy(plain).to(device.device, precision)
            stepwise = StaticWriter(generator, max_length=length)
            captured = StaticWriter(generator, max_length=length, repeatable=device.repeatable)
            for rows, features in given.items():
                ids, stepwise_ms = _timed(stepwise.write, features.to(device.device, precision))
                same, captured_ms = _timed(captured.write, features.to(device.device, precision))
                yield {
                    "precision": str(precision).removeprefix("torch."),
                    "sentences": rows,
                    "tokens": ids.shape[1],
                    "stepwise_ms": stepwise_ms,
                    "captured_ms": captured_ms,
                    "same_ids": torch.equal(ids, same),
                    "ids_of_the_cpu": torch.equal(ids, expected[rows]),
                    "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
                }


class Peer(Protocol):
    """Generates sentences from features as `SentenceGenerator` does."""

    def write(self, features: Tensor, *, max_length: int) -> Tensor:
        """Return ids [sentence, token]."""
        ...


def peer_lines(
    plain: SentenceGenerator, device: Device, peer_of: Callable[[SentenceGenerator], Peer]
) -> Iterator[Line]:
    """Time a peer with the weights of a generator on the features of `lines`."""
    torch.manual_seed(0)
    given = {rows: torch.randn(rows, plain.dim) for rows in ROWS}
    for precision in PRECISIONS:
        with device.working():
            peer = peer_of(copy.deepcopy(plain).to(device.device, precision))
            for rows, features in given.items():
                ids, transformers_ms = _timed(
                    peer.write, features.to(device.device, precision), max_length=plain.sizes.max_length
                )
                yield {
                    "precision": str(precision).removeprefix("torch."),
                    "sentences": rows,
                    "tokens": ids.shape[1],
                    "transformers_ms": transformers_ms,
                }


def _timed(write: Callable[..., Tensor], features: Tensor, **options: int) -> tuple[Tensor, float]:
    """Generate again and again. Returns the ids, and the median of the milliseconds without the first time."""
    ids, taken = write(features, **options).cpu(), list[float]()
    for _ in range(_ROUNDS):
        began = time.monotonic()
        ids = write(features, **options).cpu()
        taken.append(1e3 * (time.monotonic() - began))
    return ids, round(median(taken), 1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
