"""Where the wanted engine cannot run, the next one does, and everybody is told. This machine has no TensorRT."""

from __future__ import annotations

import json
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from models.engines import EngineUnavailable
from models.engines.opening import ORDER, open_engine
from node.config import ModelSettings
from tests.support.service import Service, settings_for

without_gpu = pytest.mark.skipif(
    find_spec("tensorrt") is not None or torch.cuda.is_available(),
    reason="this machine has what these tests must do without",
)


def test_the_order_is_tensorrt_then_the_gpu_then_the_cpu() -> None:
    assert dict(ORDER) == {
        "tensorrt": ("tensorrt", "onnx-cuda", "torch-cuda", "onnx"),
        "onnx-cuda": ("onnx-cuda", "torch-cuda", "onnx"),
        "torch-cuda": ("torch-cuda", "onnx"),
    }


@pytest.mark.drill(part="runtimes")
@without_gpu
def test_an_engine_asked_for_by_its_own_name_is_not_replaced(half_model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="pip install") as refused:
        open_engine(half_model, engine="tensorrt", engines=tmp_path / "engines")
    assert refused.value.reason == "not_installed"
    assert not (tmp_path / "engines").exists()


@pytest.mark.drill(part="runtimes")
@without_gpu
def test_a_service_logs_publishes_and_counts_a_fallback(half_model: Path, tmp_path: Path) -> None:
    model = ModelSettings(directory=half_model, engine="tensorrt", threads=1)
    (tmp_path / "storage").mkdir(mode=0o700)

    with Service(settings_for(tmp_path / "storage", archive_port=9, model=model), scripted=False) as service:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.http_port}/ready", timeout=30) as answer:
            ready = json.loads(answer.read())
        metrics = service.metrics()
        fell_back = service.logged("runtime.fell_back")
        opened = service.logged("model.opened")

    assert [(line["engine"], line["reason"]) for line in fell_back] == [
        ("tensorrt", "not_installed"),
        ("onnx-cuda", "no_gpu"),
        ("torch-cuda", "no_gpu"),
    ]
    assert all("install" in str(line["message"]) for line in fell_back)
    assert [line["engine"] for line in opened] == ["onnx"]
    assert ready["ready"] is True
    assert ready["engine"] == "onnx"
    assert ready["fallbacks"] == {"tensorrt": "not_installed", "onnx-cuda": "no_gpu", "torch-cuda": "no_gpu"}
    assert 'cxr_engine_info{engine="onnx",fallback="not_installed"} 1.0' in metrics
