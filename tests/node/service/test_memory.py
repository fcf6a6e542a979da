"""Memory of the service's process: the next film finds the memory of the last one."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

import pytest

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
