"""`make bench` with a small network: every figure and limit is there, and a limit that is missed fails the run."""

from __future__ import annotations

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from models.engines import FloatArray, IntArray
from models.network.products import int8_fault
from models.progress import quiet
from tests.drills.bench import receiving, runtimes
from tests.drills.bench.__main__ import OF_NETWORK, PARTS, main, run
from tests.drills.bench.alone import opened
from tests.drills.bench.networks import STAGES, precisions
from tests.drills.bench.plain import Batches
from tests.drills.bench.results import LIMITS, Found, Results

pytestmark = pytest.mark.drill(part="bench")


def test_a_short_run_has_every_figure_and_every_limit(
    phantom_model: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--only {','.join(OF_NETWORK)} --films 1,4 --rounds 1 --threads 1 --plain eager --model {phantom_model}"

    code = main(words.split())

    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    fault = int8_fault()
    limits = {limit.name for limit in LIMITS if limit.part in OF_NETWORK and not (limit.int8 and fault)}
    assert (found["errors"], found["int8_not_measured"]) == ({}, fault)
    assert found["limits"].keys() == limits
    assert all(math.isfinite(limit["figure"]) for limit in found["limits"].values())
    assert found["passed"] is all(limit["is_kept"] for limit in found["limits"].values())
    assert code == (0 if found["passed"] else 1)
    assert found["limits"]["generator_float32_same_tokens"]["is_kept"]
    assert {*OF_NETWORK, "conditions", "chosen"} <= found.keys()
    assert {"processor", "load_before_and_after", "was_quiet", "versions"} <= found["conditions"].keys()
    assert found["report"]["stages of 1 film"]["float32"].keys() <= {*STAGES, "rest"}
    assert {"seconds", "plain_seconds", "ratio", "least_ratio", "greatest_ratio"} <= found["report"][
        f"{precisions()[-1]}, 4 films"
    ].keys()


def test_receiving_has_every_ratio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(receiving, "SIZES", {"small": ((137, 137), 2)})

    found = receiving.measure(tmp_path, count=1, rounds=1)

    assert found.held.keys() == {"receive_small_storescp_ratio", "receive_small_orthanc_ratio"}
    assert all(ratio > 0 for ratio in found.held.values())
    assert cast(dict[str, Any], found.figures)["small"]["node"]["objects"] == 2 * receiving.SENDERS


def test_a_runtime_that_did_not_answer_fails_the_run(
    phantom_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU ONNX Runtime answers instead of PyTorch on one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(runtimes, "STARTS", 1)
    words = f"--only runtimes --model {phantom_model} --runtimes torch-cuda:float32 --sent 8 --questions 1"

    assert main(words.split()) == 1

    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["passed"], document["errors"]) == (False, {})
    found = document["runtimes"]["torch-cuda:float32"]
    assert (found["engine"], found["reason"], found["as_asked"]) == ("onnx", "no_gpu", False)
    assert found["films_a_second"] > 0
    assert found["step_seconds"]["read"] > 0
    assert found["differences"].keys() == found["allowed"].keys() >= {"find.boxes", "describe"}
    assert all(value < found["allowed"][stage] for stage, value in found["differences"].items())


@pytest.mark.parametrize(
    ("held", "films", "missed"),
    [
        ({}, (1, 4), set()),
        *(({limit.name: limit.bound + (0.1 if limit.is_most else -0.1)}, (1, 4), {limit.name}) for limit in LIMITS),
        ({LIMITS[0].name: math.nan}, (1, 4), {LIMITS[0].name}),
        ({limit.name: math.nan for limit in LIMITS if limit.films == 4}, (1,), set()),
    ],
)
def test_a_missed_limit_fails_the_run(held: dict[str, float], films: tuple[int, ...], missed: set[str]) -> None:
    kept = {limit.name: limit.bound for limit in LIMITS}
    found = {"opening": Found(figures={}, held=kept | held)}

    results = Results(conditions={}, chosen=PARTS, found=found, errors={}, films=films)

    assert set(results.missed) == missed
    assert results.passed is (not missed)
    assert not replace(results, errors={"node": "it ended"}).passed


def test_a_part_that_fails_hides_no_other() -> None:
    def raises() -> Found:
        raise ValueError("no such file")

    found, errors = run({"machine": raises, "report": lambda: Found(figures={})}, ["machine", "report"], say=quiet)

    assert found.keys() == {"report"}
    assert errors == {"machine": "ValueError: no such file"}


def test_the_plain_way_writes_films_at_once_in_one_batch() -> None:
    sizes, entered = list[int](), threading.Barrier(3)

    def write(features: FloatArray) -> IntArray:
        sizes.append(len(features))
        return features.astype(np.int64)

    batches = Batches(write)

    def read(number: int) -> IntArray:
        with batches.film():
            entered.wait(timeout=30)
            return batches.write(np.full((number + 1, 2), number, dtype=np.float32))

    with ThreadPoolExecutor(3) as pool:
        written = list(pool.map(read, range(3)))

    assert sizes == [6]
    assert [(len(ids), int(ids[0, 0])) for ids in written] == [(1, 0), (2, 1), (3, 2)]


def test_a_model_opened_alone_shows_its_time_and_memory(phantom_model: Path) -> None:
    figures = opened(phantom_model, ("--precision", precisions()[-1], "--threads", "1"))

    assert figures["open_seconds"] > 0
    assert 0 < figures["own_gib"] <= figures["peak_gib"]
    assert figures["compiler_imported"] == 0
