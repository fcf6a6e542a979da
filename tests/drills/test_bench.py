"""`make bench` with a small network: every figure and limit is there, and a limit that is missed fails the run."""

from __future__ import annotations

import json
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.checkpoint.weights import load_network
from models.engines import FloatArray, IntArray
from models.network.products import int8_fault
from models.progress import quiet
from tests.drills.bench import receiving, runtimes
from tests.drills.bench.__main__ import OF_NETWORK, PARTS, main, run
from tests.drills.bench.alone import opened
from tests.drills.bench.networks import precisions
from tests.drills.bench.plain import Batches
from tests.drills.bench.results import LIMITS, Found, Limit, Results
from tests.drills.bench.turns import beside, in_turns
from tests.drills.bench.watched import STAGES, Call, operations_of

pytestmark = pytest.mark.drill(part="bench")

KEPT = {limit.name: limit.bound for limit in LIMITS}


def results(
    held: dict[str, float], *, errors: dict[str, str] | None = None, films: tuple[int, ...] = (1, 4)
) -> Results:
    found = {part: Found(figures={}, held={}) for part in PARTS}
    found["opening"] = Found(figures={}, held=held)
    return Results(conditions={}, chosen=PARTS, found=found, errors=errors or {}, films=films)


def beyond(limit: Limit) -> float:
    return limit.bound + (0.01 if limit.is_most else -0.01) * (limit.bound or 1.0)


def test_a_short_run_has_every_figure_and_every_limit(
    phantom_model: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--only {','.join(OF_NETWORK)} --films 1,4 --rounds 1 --threads 1 --plain eager --model {phantom_model}"

    code = main(words.split())

    *table, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
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
    assert all(any(line.startswith(name) for line in table) for name in limits)


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
    words = f"--only runtimes --model {phantom_model} --runtimes torch-cuda:float32 --sent 4 --questions 1"

    assert main(words.split()) == 1

    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["passed"], document["errors"]) == (False, {})
    found = document["runtimes"]["torch-cuda:float32"]
    assert (found["engine"], found["reason"], found["as_asked"]) == ("onnx", "no_gpu", False)
    assert found["films_a_second"] > 0
    assert found["step_seconds"]["read"] > 0
    assert found["differences"].keys() == found["allowed"].keys() >= {"find.boxes", "describe"}
    assert all(value < found["allowed"][stage] for stage, value in found["differences"].items())


@pytest.mark.parametrize("words", ["--runtimes cuda", "--runtimes onnx:half", "--only noise"])
def test_a_choice_that_does_not_exist_is_refused(words: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())


def test_figures_at_their_limits_pass() -> None:
    assert results(KEPT).passed


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_a_missed_limit_fails_the_run(limit: Limit) -> None:
    missed = results(KEPT | {limit.name: beyond(limit)})

    assert not missed.passed
    assert [held.name for held in missed.limits if not held.is_kept] == [limit.name]
    assert missed.document()["passed"] is False


def test_a_figure_that_was_not_measured_keeps_no_limit() -> None:
    name = LIMITS[0].name

    unmeasured = results({key: bound for key, bound in KEPT.items() if key != name})

    assert not unmeasured.passed
    assert not results(KEPT | {name: math.nan}).passed


def test_a_limit_counts_only_for_films_that_were_chosen() -> None:
    of_four = {limit.name for limit in LIMITS if limit.films == 4}

    chosen = results({name: bound for name, bound in KEPT.items() if name not in of_four}, films=(1,))

    assert of_four
    assert chosen.passed
    assert not of_four & {held.name for held in chosen.limits}


def test_every_limit_belongs_to_a_part_and_has_its_own_name() -> None:
    assert {limit.part for limit in LIMITS} <= {*PARTS}
    assert len(KEPT) == len(LIMITS)


def test_a_part_that_fails_hides_no_other() -> None:
    def ends() -> Found:
        sys.exit("failed: the node did not take every film")

    def raises() -> Found:
        raise ValueError("no such file")

    parts = {"node": ends, "machine": raises, "report": lambda: Found(figures={"films": 1})}

    found, errors = run(parts, [*parts], say=quiet)

    assert found.keys() == {"report"}
    assert errors == {
        "node": "SystemExit: failed: the node did not take every film",
        "machine": "ValueError: no such file",
    }
    assert not results(KEPT, errors=errors).passed


def test_a_part_slows_no_later_one_by_its_threads() -> None:
    """Each runs in a thread that ends: PyTorch keeps helpers for a thread that computed, and they slow what follows."""
    threads = list[threading.Thread]()

    def part() -> Found:
        threads.append(threading.current_thread())
        return Found(figures={}, held={})

    run({"machine": part, "report": part}, ["machine", "report"], say=quiet)

    assert len(threads) == 2
    assert not any(thread.is_alive() for thread in threads)


def test_no_round_begins_after_the_time_limit() -> None:
    assert len(in_turns({"plain": lambda: None}, rounds=3, limit_seconds=0.0)) == 1
    assert len(in_turns({"plain": lambda: None}, rounds=3, limit_seconds=60.0)) == 3


def test_ratios_are_taken_in_each_round() -> None:
    found = beside([(1.0, 2.0), (10.0, 40.0), (2.0, 6.0)])

    assert (found["ratio"], found["least_ratio"], found["greatest_ratio"]) == (3.0, 2.0, 4.0)
    assert (found["seconds"], found["plain_seconds"]) == (2.0, 6.0)


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


def test_a_batch_that_fails_fails_every_film_of_it() -> None:
    entered = threading.Barrier(2)

    def fail(_features: FloatArray) -> IntArray:
        raise MemoryError

    batches = Batches(fail)

    def read(_number: int) -> str:
        film: AbstractContextManager[None] = batches.film()
        with film, pytest.raises(RuntimeError, match="the batch failed"):
            entered.wait(timeout=30)
            batches.write(np.zeros((1, 2), dtype=np.float32))
        return "failed"

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read, range(2))) == ["failed", "failed"]


def test_operations_of_sentences_are_those_that_pytorch_counts(untrained_weights: Path) -> None:
    network = load_network(untrained_weights)
    features = torch.randn(3, network.sizes.dim, generator=torch.Generator().manual_seed(1))
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network.write(features, 6)
    products = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    expected = sum(count for name, count in products.items() if name in ("aten.addmm", "aten.mm"))

    found = operations_of([Call(stage="write", seconds=0.0, shapes=((3, 64),), tokens=15)], network.sizes)

    assert found == pytest.approx(expected)


def test_a_text_that_is_cut_needs_fewer_operations(untrained_weights: Path) -> None:
    sizes = load_network(untrained_weights).sizes
    phrases = [Call(stage="encode_prompts", seconds=0.0, shapes=((4, length),)) for length in (77, 11)]

    whole, cut = (operations_of([call], sizes) for call in phrases)

    assert 0 < cut < whole / 6
    assert operations_of([replace(phrases[0], shapes=((8, 77),))], sizes) == pytest.approx(2 * whole)


def test_a_model_opened_alone_shows_its_time_and_memory(phantom_model: Path) -> None:
    figures = opened(phantom_model, ("--precision", precisions()[-1], "--threads", "1"))

    assert figures["open_seconds"] > 0
    assert 0 < figures["own_gib"] <= figures["peak_gib"]
    assert figures["compiler_imported"] == 0
