"""`make gpu-proof` without a GPU: it says so; and what it writes, with a stand-in whose memory is that of the CPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from models.manifest import read_manifest
from tests.drills import gpu_proof
from tests.paths import REPOSITORY
from tests.support.fake_gpu import FakeGpu, WrongGpu

pytestmark = pytest.mark.drill(part="runtimes")

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what this test does without")


@without_gpu
def test_make_installs_nothing_without_a_gpu() -> None:
    done = subprocess.run(["make", "gpu-proof"], cwd=REPOSITORY, capture_output=True, text=True)

    assert done.returncode == 2
    assert "no NVIDIA GPU" in done.stderr
    assert not (REPOSITORY / ".venv-gpu").exists()


def test_each_runtime_has_its_figures_or_its_reason(
    half_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_proof, "ROUNDS", 1)

    found = list(gpu_proof.measure(half_model, FakeGpu(), engines=tmp_path / "engines", films=1))
    written = json.loads(json.dumps(gpu_proof.document(found, read_manifest(half_model), FakeGpu(), films=1)))

    assert list(written["runtimes"]) == [
        "tensorrt",
        "onnx-cuda, float16 graphs",
        "onnx-cuda, float32 graphs",
        "torch-cuda",
        "onnx on the CPU",
    ]
    assert (written["passed"], written["gpu"], written["driver"]) == (True, FakeGpu().name, FakeGpu().driver)
    assert found[0].reason == "not_installed"
    assert [bool(measured.stages) for measured in found] == [False, True, True, True, False]
    assert all("encode_image, 8" in measured.milliseconds for measured in found[1:])
    assert found[1].stages["find.boxes"].tolerance > found[2].stages["find.boxes"].tolerance


def test_a_runtime_that_differs_fails_the_proof(half_model: Path, tmp_path: Path) -> None:
    first = next(
        measured
        for measured in gpu_proof.measure(half_model, WrongGpu(), engines=tmp_path / "engines", films=1)
        if measured.name.startswith("onnx-cuda")
    )

    assert (first.reason, first.passed) == ("not_proven", False)
    assert "differs" in first.message
