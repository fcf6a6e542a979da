"""Memory of the service's process: the next film finds the memory of the last one."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from models.engines.opening import open_engine
from models.engines.proof import graph_path, weights_path
from tests.support.processes import mapped_kib

_FAULTS = """
import json, resource, sys, threading
from node.service.shared import keep_between_films

if sys.argv[1] == "kept":
    keep_between_films()
faults = []

def read_film():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    parts = [bytes(range(256)) * 2**14 for _ in range(4)]
    faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

for _ in range(4):
    thread = threading.Thread(target=read_film)
    thread.start()
    thread.join()
print(json.dumps(faults))
"""


def faults(mode: str) -> list[int]:
    """How many new pages each of four threads took from the system for 16 MB, one after another."""
    command = [sys.executable, "-c", _FAULTS, mode]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return list(map(int, json.loads(said)))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_film_finds_the_memory_of_the_last_one() -> None:
    kept, given_back = faults("kept"), faults("given back")

    assert kept[0] > 1000
    assert max(kept[1:]) < 100
    assert min(given_back) > 1000


def test_embeddings_of_prompts_stay_in_their_file(phantom_model: Path) -> None:
    weights = weights_path(graph_path(phantom_model, "encode_prompts"))
    (rows,) = (
        weight.dims
        for weight in onnx.load(graph_path(phantom_model, "encode_prompts"), load_external_data=False).graph.initializer
        if weight.name == "network.prompt_encoder.tokens.weight"
    )
    gc.collect()  # an engine of an earlier test may still have the file
    before = mapped_kib(weights, counted="Size")

    engine = open_engine(phantom_model, engine="onnx")

    assert engine.name == "onnx"
    assert 1024 * (mapped_kib(weights, counted="Size") - before) >= 4 * math.prod(rows)
