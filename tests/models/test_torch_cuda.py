"""PyTorch on a GPU, as far as a machine without one shows it: the same code on the CPU, and no tensor elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.checkpoint.weights import load_network
from models.engines import Engine, EngineUnavailable
from models.engines.comparison import compare, drawn_boxes, drawn_films, drawn_phrases
from models.engines.opening import open_engine
from models.manifest import NetworkSizes, read_manifest
from models.network.static_decoding import Step
from tests.support.engine_checks import features, read_more_films_than_a_part
from tests.support.fake_gpu import FakeGpu

pytestmark = pytest.mark.drill(part="runtimes")


@pytest.fixture(scope="module")
def sizes(phantom_model: Path) -> NetworkSizes:
    return read_manifest(phantom_model).sizes


@pytest.fixture(scope="module")
def engine(phantom_model: Path) -> Engine:
    return open_engine(phantom_model, engine="torch-cuda", gpu=FakeGpu())


def test_answers_are_those_of_the_cpu(phantom_model: Path, engine: Engine, sizes: NetworkSizes) -> None:
    reference = open_engine(phantom_model, engine="torch", threads=1)

    assert engine.name == "torch-cuda"
    assert all(stage.max_abs < 1e-6 for stage in compare(reference, engine, sizes).values())
    assert read_more_films_than_a_part(engine, sizes) < 1e-5


@pytest.mark.parametrize("count", [1, 3, 8, 29])
def test_sentences_are_those_of_the_cpu(phantom_model: Path, engine: Engine, sizes: NetworkSizes, count: int) -> None:
    given = features(sizes, count)

    expected = open_engine(phantom_model, engine="torch", threads=1).write(given)

    assert np.array_equal(engine.write(given), expected)


def test_a_gpu_without_kernels_is_refused_when_it_is_opened(phantom_model: Path) -> None:
    class Old(FakeGpu):
        def repeatable(self, step: Step) -> Step:
            raise torch.AcceleratorError("CUDA error: no kernel image is available\nCompile with `TORCH_USE_CUDA_DSA`")

    with pytest.raises(EngineUnavailable, match=r"does not work on this GPU: .*no kernel image is available$") as error:
        open_engine(phantom_model, engine="torch-cuda", gpu=Old())
    assert error.value.reason == "not_loaded"


def test_the_network_makes_no_tensor_on_another_device(phantom_model: Path, sizes: NetworkSizes) -> None:
    """On the device `meta`, which has no numbers, an operation with a tensor of the CPU fails as it does on a GPU."""
    network = load_network(phantom_model).to("meta")
    random = np.random.default_rng(0)

    def there(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to("meta")

    with torch.inference_mode():
        film = network.encode_image(there(drawn_films(random, 2, side=sizes.image_encoder.image_size)))
        prompts = network.encode_prompts(there(drawn_phrases(random, 6, sizes))).reshape(2, 3, -1)
        found = network.find(*film, prompts)
        boxes = there(drawn_boxes(random, 2, each=3))
        described = network.describe(*film, boxes, prompts, torch.ones(2, 3, device="meta"))
        caches = network.generator.remember(described[0], room=4)
        start = torch.zeros((3, 1), dtype=torch.int64, device="meta")
        logits = network.generator(start, start, caches)

    assert {tensor.device.type for tensor in (*film, prompts, *found, described, logits)} == {"meta"}
