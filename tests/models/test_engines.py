"""Every engine answers alike, from any thread, and opens nothing that was changed or not proven."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from models.checkpoint.weights import load_network
from models.contract import StageDifference
from models.engines import ENGINES, Engine
from models.engines.opening import open_engine
from models.engines.proof import PROOF, STAGES, graph_path, weights_path
from models.engines.torch_engine import open_cpu_writer, use_threads
from models.errors import ModelError
from models.manifest import MANIFEST, NetworkSizes, read_manifest
from tests.support.directories import linked_copy


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, phantom_model: Path) -> Engine:
    return open_engine(phantom_model, engine=request.param)


@pytest.fixture(scope="module")
def sizes(phantom_model: Path) -> NetworkSizes:
    return read_manifest(phantom_model).sizes


def _copy(model: Path, folder: Path) -> Path:
    return linked_copy(model, folder / "model")


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def test_an_engine_takes_any_number_of_films_prompts_and_boxes(engine: Engine, sizes: NetworkSizes) -> None:
    random, dim, count = np.random.default_rng(1), sizes.dim, sizes.image_encoder.grid**2
    for films, prompts in ((1, 1), (2, 14), (3, 29)):
        patches = engine.encode_image(random.normal(size=(films, 224, 224)).astype(np.float32))
        queries = random.normal(size=(films, prompts, dim)).astype(np.float32)
        boxes = random.uniform(0.2, 0.8, (films, prompts, 4)).astype(np.float32)

        found = engine.find(patches, queries)
        described = engine.describe(
            patches, boxes=boxes, prompts=queries, prompted=np.ones((films, prompts), np.float32)
        )

        assert patches.features.shape == patches.positions.shape == (films, count, dim)
        assert patches.cls.shape == (films, dim)
        assert found.boxes.shape == (films, prompts, 3, 4)
        assert found.scores.shape == (films, prompts, 3)
        assert found.aggregated_scores.shape == (films, prompts)
        assert found.features.shape == described.shape == (films, prompts, dim)


def test_films_are_encoded_independently(engine: Engine) -> None:
    pixels = np.random.default_rng(2).normal(size=(3, 224, 224)).astype(np.float32)

    together, alone = engine.encode_image(pixels), engine.encode_image(pixels[1:2])

    assert together.features[1:2] == pytest.approx(alone.features, abs=1e-4)


def test_a_sentence_begins_with_its_mark_and_keeps_its_length(engine: Engine, sizes: NetworkSizes) -> None:
    ids = engine.write(np.random.default_rng(3).normal(size=(4, sizes.dim)).astype(np.float32))

    assert ids.dtype == np.int64
    assert set(ids[:, 0]) == {50256}
    assert ids.shape[0] == 4 and 2 <= ids.shape[1] <= sizes.generator.max_length


def test_an_engine_may_be_called_from_several_threads(engine: Engine) -> None:
    pixels = np.random.default_rng(4).normal(size=(6, 1, 224, 224)).astype(np.float32)
    expected = [engine.encode_image(film).cls for film in pixels]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda film: engine.encode_image(film).cls, pixels))

    assert all(np.array_equal(wanted, other) for wanted, other in zip(expected, found, strict=True))


def test_both_engines_write_the_same_sentences(phantom_model: Path) -> None:
    dim = read_manifest(phantom_model).sizes.dim
    features = np.random.default_rng(5).normal(size=(5, dim)).astype(np.float32)

    torch_ids, onnx_ids = (open_engine(phantom_model, engine=name).write(features) for name in ENGINES)

    assert np.array_equal(torch_ids, onnx_ids)


@pytest.mark.parametrize("name", ENGINES)
def test_a_directory_with_one_changed_byte_is_refused(phantom_model: Path, tmp_path: Path, name: str) -> None:
    model = _copy(phantom_model, tmp_path)
    weights = bytearray((phantom_model / "weights.safetensors").read_bytes())
    weights[-1] ^= 1
    _replace(model / "weights.safetensors", bytes(weights))

    with pytest.raises(ModelError, match=r"weights\.safetensors"):
        open_engine(model, engine=name)


@pytest.mark.parametrize("name", ENGINES)
def test_a_directory_whose_vocabularies_have_no_hash_is_refused(phantom_model: Path, tmp_path: Path, name: str) -> None:
    model = _copy(phantom_model, tmp_path)
    lines = (phantom_model / MANIFEST).read_text().splitlines()
    _replace(model / MANIFEST, "\n".join(line for line in lines if not line.startswith('"vocab/')).encode())

    with pytest.raises(ModelError, match="no hash of vocab/"):
        open_engine(model, engine=name)


def _without_graph(model: Path) -> None:
    (model / "onnx" / "find.onnx").unlink()


def _without_proof(model: Path) -> None:
    (model / PROOF).unlink()


def _with_another_graph(model: Path) -> None:
    _replace(model / "onnx" / "find.onnx", (model / "onnx" / "describe.onnx").read_bytes())


def _without_the_weights_of_a_graph(model: Path) -> None:
    weights_path(graph_path(model, "find")).unlink()


def _with_another_number_in_the_weights_of_a_graph(model: Path) -> None:
    path = weights_path(graph_path(model, "find"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    _replace(path, bytes(content))


def _with_a_proof_that(**changes: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        _replace(model / PROOF, json.dumps(json.loads((model / PROOF).read_text()) | changes).encode())

    return change


@pytest.mark.parametrize(
    "change",
    [
        _without_graph,
        _without_proof,
        _with_another_graph,
        _without_the_weights_of_a_graph,
        _with_another_number_in_the_weights_of_a_graph,
        _with_a_proof_that(weights_sha256="0" * 64),
        _with_a_proof_that(passed=False),
        _with_a_proof_that(stages={"find": {"max_abs": 0.0, "tolerance": 1e-4}}),
        _with_a_proof_that(stages={stage: {"max_abs": 1e-2, "tolerance": 1e-4} for stage in STAGES}),
        _with_a_proof_that(stages=None),
    ],
)
def test_graphs_without_proof_are_refused_and_the_remedy_named(
    phantom_model: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    model = _copy(phantom_model, tmp_path)
    change(model)

    with pytest.raises(ModelError, match=r"python -m export\.build --model"):
        open_engine(model, engine="onnx")


def test_a_difference_that_is_not_a_number_never_passes() -> None:
    assert not StageDifference(max_abs=float("nan"), tolerance=1.0).passed


@pytest.mark.parametrize("asked, used", [(2, 2), (0, 1)])
def test_a_small_network_takes_one_thread_unless_told_otherwise(phantom_model: Path, asked: int, used: int) -> None:
    open_engine(phantom_model, engine="onnx", threads=asked)

    with ThreadPoolExecutor(max_workers=1) as computing:
        assert computing.submit(torch.get_num_threads).result() == used


def test_a_new_thread_of_the_scheduler_keeps_its_thread_count(phantom_model: Path) -> None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    openmp = ctypes.CDLL(next(path for path in maps if "torch/lib/libgomp" in path))
    with ThreadPoolExecutor(1) as untold:
        default = untold.submit(openmp.omp_get_max_threads).result()
    before = torch.get_num_threads()
    network = load_network(phantom_model)
    try:
        use_threads(default + 1, network)
        scheduler = open_cpu_writer(network).scheduler
        used = scheduler.call(openmp.omp_get_max_threads)
    finally:
        torch.set_num_threads(before)

    assert used == default + 1
