"""`tests.drills.engine_bench` measures a node with a runtime, and says when another one answered."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.drills import engine_bench

pytestmark = pytest.mark.drill(part="bench")


def test_a_runtime_that_did_not_answer_fails_the_run(
    phantom_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU ONNX Runtime answers instead of PyTorch on one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(engine_bench, "STARTS", 1)
    words = f"engine_bench {phantom_model} --engines torch-cuda:float32 --films 4 --questions 1"
    monkeypatch.setattr(sys, "argv", words.split())

    assert engine_bench.main() == 1

    found = json.loads(capsys.readouterr().out)
    assert (found["asked"], found["engine"], found["reason"]) == ("torch-cuda:float32", "onnx", "no_gpu")
    assert len(found["ready_after_seconds"]) == 1
    assert found["films_a_second"] > 0
    assert found["step_seconds"]["read"] > 0
    assert found["differences"].keys() == found["allowed"].keys() >= {"find.boxes", "describe"}
    assert all(value < found["allowed"][stage] for stage, value in found["differences"].items())
    assert found["passed"] is False


@pytest.mark.parametrize("words", ["--engines cuda", "--engines onnx:half", "--films 0", "--questions none"])
def test_a_choice_that_does_not_exist_is_refused(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["engine_bench", "model", *words.split()])

    with pytest.raises(SystemExit, match="2"):
        engine_bench.main()
