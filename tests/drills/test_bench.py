"""`make bench` with a small network: every figure and limit is there, and a limit that is missed fails the run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from models.network.products import int8_fault
from tests.drills.bench import receiving, runtimes
from tests.drills.bench.__main__ import PARTS, main
from tests.drills.bench.networks import STAGES, precisions
from tests.drills.bench.results import LIMITS, Found, Results

pytestmark = pytest.mark.drill(part="bench")


def test_a_short_run_has_every_figure_and_every_limit(
    phantom_model: Path, one_thread: None, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--only opening,report --films 1,4 --rounds 1 --threads 1 --model {phantom_model}"

    code = main(words.split())

    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    has = {"1 films", "4 films", "graphs"} | (set() if int8_fault() else {"int8"})
    limits = {limit.name for limit in LIMITS if limit.part in ("opening", "report") and limit.needs <= has}
    assert found["errors"] == {}
    assert found["limits"].keys() == limits
    assert all(math.isfinite(limit["figure"]) for limit in found["limits"].values())
    assert found["passed"] is all(limit["is_kept"] for limit in found["limits"].values())
    assert code == (0 if found["passed"] else 1)
    assert {"processor", "load_before_and_after", "was_quiet", "versions"} <= found["conditions"].keys()
    for precision in precisions():
        alone, row = found["opening"][precision], found["report"][f"{precision}, 4 films"]
        assert alone["open_seconds"] > 0
        assert alone["peak_gib"] > 0
        assert {"seconds", "plain_seconds", "ratio", "least_ratio", "greatest_ratio"} <= row.keys()
    assert found["report"]["float32, 1 films"]["same_sentences"] == 1.0
    assert found["report"]["stages of 1 film"]["float32"].keys() <= set(STAGES)


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
    ("held", "has", "missed"),
    [
        ({}, {"1 films", "4 films", "int8", "graphs"}, set()),
        *(
            ({limit.name: limit.bound + (0.1 if limit.is_most else -0.1)}, limit.needs, {limit.name})
            for limit in LIMITS
        ),
        ({LIMITS[0].name: math.nan}, set(), {LIMITS[0].name}),
        ({limit.name: math.nan for limit in LIMITS if limit.needs}, set(), set()),
    ],
)
def test_a_missed_limit_fails_the_run(held: dict[str, float], has: set[str], missed: set[str]) -> None:
    kept = {limit.name: limit.bound for limit in LIMITS}
    found = {"opening": Found(figures={}, held=kept | held)}

    results = Results(conditions={}, chosen=tuple(PARTS), found=found, errors={}, has=has)

    assert set(results.missed) == missed
    assert results.passed is (not missed)
    assert not replace(results, errors={"node": "it ended"}).passed
