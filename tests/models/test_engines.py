"""Engines answer alike, in parts and from any thread, prove themselves, and open nothing that was changed."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from export.to_onnx import load_graph
from models.checkpoint.weights import load_network
from models.contract import PromptKind, ReaderPrompt, StageDifference
from models.engines import ENGINES, GPU_ENGINES, Engine, EngineUnavailable, FloatArray, IntArray
from models.engines.comparison import EVERY, FLOAT16, WatchedEngine, worst
from models.engines.devices import CPU, CudaGpu, device_errors, driver_version
from models.engines.opening import open_engine, open_first
from models.engines.proof import FLOAT16_STAGES, PROOF, STAGES, VIEW, graph_path, hash_graphs, read_proof, write_proof
from models.engines.scheduler import SHORT, UNLIMITED, Most, Scheduler
from models.engines.staged_engine import RANGES, Inputs, StagedEngine
from models.engines.torch_engine import most_at_once, open_cpu_writer, run_by, use_threads
from models.errors import DeviceError, DeviceLost, ModelError
from models.manifest import MANIFEST, WEIGHTS, NetworkSizes, read_manifest
from node.read import prompts
from tests.support.engine_checks import write_well_formed_sentences
from tests.support.scripted_engine import DIM, ScriptedEngine, reader_of

REMEDY = r"python -m export\.build --model"


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, phantom_model: Path) -> Engine:
    return open_engine(phantom_model, engine=request.param)


@pytest.fixture(scope="module")
def sizes(phantom_model: Path) -> NetworkSizes:
    return read_manifest(phantom_model).sizes


@pytest.fixture
def model(phantom_model: Path, tmp_path: Path) -> Path:
    """A copy of the shipped model that a test may damage."""
    return Path(shutil.copytree(phantom_model, tmp_path / "model", copy_function=shutil.copyfile))


def test_an_engine_takes_any_number_of_films_prompts_and_boxes(engine: Engine, sizes: NetworkSizes) -> None:
    random, dim, count = np.random.default_rng(1), sizes.dim, sizes.image_encoder.grid**2
    for films, asked in ((1, 1), (2, 14), (3, 29)):
        patches = engine.encode_image(random.normal(size=(films, 224, 224)).astype(np.float32))
        twice = patches.copies(2)
        queries = random.normal(size=(films, asked, dim)).astype(np.float32)
        boxes = random.uniform(0.2, 0.8, (films, asked, 4)).astype(np.float32)

        found = engine.find(patches, queries)
        described = engine.describe(patches, boxes=boxes, prompts=queries, prompted=np.ones((films, asked), np.float32))

        assert patches.features.shape == patches.positions.shape == (films, count, dim)
        assert patches.cls.shape == (films, dim)
        assert twice.features.shape == twice.positions.shape == (2 * films, count, dim)
        assert twice.cls.shape == (2 * films, dim)
        assert found.boxes.shape == (films, asked, 3, 4)
        assert found.scores.shape == (films, asked, 3)
        assert found.aggregated_scores.shape == (films, asked)
        assert found.features.shape == described.shape == (films, asked, dim)


def test_films_are_encoded_alone_together_and_from_several_threads(engine: Engine) -> None:
    pixels = np.random.default_rng(4).normal(size=(6, 1, 224, 224)).astype(np.float32)
    alone = [engine.encode_image(film).cls for film in pixels]

    together = engine.encode_image(pixels[:, 0]).cls
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda film: engine.encode_image(film).cls, pixels))

    assert all(np.array_equal(wanted, other) for wanted, other in zip(alone, found, strict=True))
    assert together == pytest.approx(np.concatenate(alone), abs=1e-4)


def test_both_engines_write_the_same_well_formed_sentences(phantom_model: Path, sizes: NetworkSizes) -> None:
    engines = [open_engine(phantom_model, engine=name) for name in ENGINES]

    torch_ids, onnx_ids = (write_well_formed_sentences(engine, sizes, count=5) for engine in engines)

    assert np.array_equal(torch_ids, onnx_ids)


def without(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).unlink()


def with_another_byte(name: str) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        content = bytearray((model / name).read_bytes())
        content[-1] ^= 1
        (model / name).write_bytes(content)

    return change


def with_a_proof_that(**changes: object) -> Callable[[Path], None]:
    def change(model: Path) -> None:
        (model / PROOF).write_text(json.dumps(json.loads((model / PROOF).read_text()) | changes))

    return change


def without_hashes_of_vocabularies(model: Path) -> None:
    lines = (model / MANIFEST).read_text().splitlines()
    (model / MANIFEST).write_text("\n".join(line for line in lines if not line.startswith('"vocab/')))


def for_phrases_of_one_length(model: Path) -> None:
    graph = load_graph(graph_path(model, "encode_prompts"))
    graph.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 77
    onnx.save(graph, graph_path(model, "encode_prompts"))
    proof = read_proof(model)
    assert proof is not None
    write_proof(model, replace(proof, graphs=hash_graphs(model)))


@pytest.mark.parametrize(
    ("change", "engines", "complaint"),
    [
        (with_another_byte(WEIGHTS), (*ENGINES, *GPU_ENGINES), r"weights\.safetensors"),
        (without_hashes_of_vocabularies, ENGINES, "no hash of vocab/"),
        (for_phrases_of_one_length, ["onnx"], r"one length only; run .*export\.build again"),
        (without("onnx/find.onnx"), ["onnx"], f"graph of find; .*{REMEDY}"),
        (without("onnx/view.onnx"), ["onnx"], f"graph of view; .*{REMEDY}"),
        (without("onnx/find.onnx.data"), ["onnx"], REMEDY),
        (without(PROOF), ["onnx"], REMEDY),
        (with_another_byte("onnx/find.onnx"), ["onnx"], REMEDY),
        (with_another_byte("onnx/find.onnx.data"), ["onnx"], REMEDY),
        (with_a_proof_that(weights_sha256="0" * 64), ["onnx"], REMEDY),
        (with_a_proof_that(passed=False), ["onnx"], REMEDY),
        (with_a_proof_that(stages={"find": {"max_abs": 0.0, "tolerance": 1e-4}}), ["onnx"], REMEDY),
        (
            with_a_proof_that(stages={stage: {"max_abs": 1e-2, "tolerance": 1e-4} for stage in (*STAGES, VIEW)}),
            ["onnx"],
            REMEDY,
        ),
        (with_a_proof_that(stages=None), ["onnx"], REMEDY),
    ],
)
def test_a_changed_directory_is_refused_and_the_remedy_named(
    model: Path, change: Callable[[Path], None], engines: Sequence[str], complaint: str
) -> None:
    change(model)

    for name in engines:
        with pytest.raises(ModelError, match=complaint):
            open_engine(model, engine=name)


@pytest.mark.parametrize("asked, used", [(2, 2), (0, 1)])
def test_a_small_network_takes_one_thread_unless_told_otherwise(
    phantom_model: Path, monkeypatch: pytest.MonkeyPatch, asked: int, used: int
) -> None:
    threads = list[int]()
    session = onnxruntime.InferenceSession

    def opening(path: Path, options: onnxruntime.SessionOptions, **others: object) -> onnxruntime.InferenceSession:
        threads.append(options.intra_op_num_threads)
        return session(path, options, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", opening)

    opened = open_first(phantom_model, engine="onnx", threads=asked)

    assert threads == [used] * len((*STAGES, VIEW))
    assert (opened.engine.name, opened.fallbacks) == ("onnx", ())
    with ThreadPoolExecutor(max_workers=1) as computing:
        assert computing.submit(torch.get_num_threads).result() == used


@pytest.mark.parametrize(
    ("engine", "threads", "said"),
    [
        ("torch-cuda", 0, "precision int8 is for a CPU; choose engine torch or onnx"),
        ("onnx", -1, "threads is -1; give 0 to let the program choose"),
        ("cuda", 0, 'there is no engine "cuda"; choose one of torch, onnx, tensorrt'),
    ],
)
def test_what_no_engine_can_be_is_refused(phantom_model: Path, engine: str, threads: int, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        open_engine(phantom_model, engine=engine, threads=threads, precision="int8")


def test_int8_is_refused_where_this_machine_cannot_compute_it(
    phantom_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("could not create a primitive\nmore")

    monkeypatch.setattr(torch.ops.onednn, "qlinear_prepack", broken)

    with pytest.raises(ModelError, match="int8 does not work on this machine: could not create a primitive; set it to"):
        open_first(phantom_model, engine="torch", precision="int8")


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


T = TypeVar("T")


class Counted(Scheduler):
    """Counts the turns."""

    turns = 0

    def call(self, function: Callable[[], T]) -> T:
        self.turns += 1
        return function()


@pytest.mark.parametrize(
    ("count", "most", "turns"), [(5, {"find": 2}, 3), (5, UNLIMITED, 1), (2, {"find": 2}, 1), (0, {"find": 2}, 1)]
)
def test_a_long_call_is_made_in_parts_that_keep_their_order(count: int, most: Most, turns: int) -> None:
    def run_stage(_stage: str, inputs: Inputs) -> list[FloatArray]:
        return [(inputs["a"].sum(axis=1) + inputs["b"]).astype(np.float32)]

    calls, inputs = Counted(), {"a": np.arange(2.0 * count).reshape(count, 2), "b": np.arange(1.0 * count)}
    engine = StagedEngine("counted", run=run_stage, write=unwritten, scheduler=calls, most=most)

    (outputs,) = engine.run_stage("find", inputs)

    assert calls.turns == turns
    assert outputs.tolist() == [1, 6, 11, 16, 21][:count]


def unwritten(features: FloatArray) -> IntArray:
    return np.zeros((len(features), 0), np.int64)


def test_an_engine_in_parts_computes_what_it_computes_at_once(phantom_model: Path) -> None:
    network = load_network(phantom_model)
    assert most_at_once(network) is UNLIMITED, "only a large network is computed in parts"
    whole, parted = (
        StagedEngine("torch", run=run_by(network, CPU), write=unwritten, most=most) for most in (UNLIMITED, SHORT)
    )
    drawn = np.random.default_rng(5)
    pixels = drawn.normal(size=(3, 224, 224)).astype(np.float32)
    tokens = drawn.integers(1, 400, size=(5, 77))

    patches, prompts = whole.encode_image(pixels), whole.encode_prompts(tokens)
    queries = np.repeat(prompts[np.newaxis], 3, axis=0)

    np.testing.assert_allclose(parted.encode_image(pixels).features, patches.features, atol=2e-5)
    np.testing.assert_allclose(parted.encode_prompts(tokens), prompts, atol=2e-5)
    found, expected = parted.find(patches, queries), whole.find(patches, queries)
    np.testing.assert_allclose(found.boxes, expected.boxes, atol=2e-5)
    np.testing.assert_allclose(found.features, expected.features, atol=2e-4)


def test_every_free_axis_of_the_graphs_has_a_range_that_holds_what_the_reader_asks(phantom_model: Path) -> None:
    axes = {
        size.dim_param
        for stage in FLOAT16_STAGES
        for value in load_graph(graph_path(phantom_model, stage)).graph.input
        for size in value.type.tensor_type.shape.dim
        if size.dim_param
    }

    assert axes == set(RANGES)
    assert all(1 == span.least <= span.usual <= span.most for span in RANGES.values())
    assert (RANGES["film"].usual, RANGES["prompt"].usual) == (1, len(prompts.load("chexpert14").prompts))


def test_a_prompt_set_too_large_for_the_engine_is_refused_early() -> None:
    reader = reader_of(ScriptedEngine([], [], name="tensorrt"))
    asked = prompts.load("chexpert14").prompts
    more = [ReaderPrompt(key=f"zone_{n}", kind=PromptKind.REGION, phrases=("zone",), negatives=()) for n in range(36)]

    reader.check([*asked, *more[:-1]])
    with pytest.raises(ModelError, match="65 prompts are asked, but engine tensorrt takes 64; use fewer prompts"):
        reader.check([*asked, *more])


def watched(**stages: StageDifference) -> WatchedEngine:
    """An engine whose scores are off by 0.5; stages: the differences of its proof."""
    engines = [ScriptedEngine([0.8], ["Edema"], scores=np.full((1, 3), score, np.float32)) for score in (0.7, 0.2)]
    return WatchedEngine(*engines, allowed=FLOAT16, stages=stages)


def test_every_hundredth_film_is_compared_again() -> None:
    engine, film, queries = watched(), np.zeros((1, 3, 3), np.float32), np.zeros((1, 1, DIM), np.float32)

    for _ in range(EVERY - 1):
        patches = engine.encode_image(film)
    engine.find(patches, queries)
    assert engine.parity == {}, "not yet"
    asked = engine.encode_image(film)
    engine.find(asked.copies(2), queries)
    assert engine.parity == {}, "a question about a film is no reading of it"
    patches = engine.encode_image(film)
    engine.find(patches, queries)

    assert not engine.parity["find.scores"].passed
    now = dict(engine.parity)
    engine.find(patches, queries)
    assert engine.parity == now


def test_one_number_that_is_far_off_fails_a_stage() -> None:
    same, other = np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32)
    other[3, 5] = 0.5

    found = worst([("find.boxes", same, other)], FLOAT16)

    assert (found["find.boxes"].max_abs, found["find.boxes"].passed) == (0.5, False)


@pytest.mark.parametrize("proven", [0.1, 0.9])
def test_the_largest_difference_since_the_proof_is_kept(proven: float) -> None:
    engine = watched(**{"find.scores": StageDifference(max_abs=proven, tolerance=FLOAT16.scores)})

    patches = engine.encode_image(np.zeros((EVERY, 3, 3), np.float32))
    engine.find(patches, np.zeros((1, 1, DIM), np.float32))

    assert engine.parity["find.scores"].max_abs == pytest.approx(max(proven, 0.5))
    assert engine.parity["find.boxes"].max_abs == 0.0


@pytest.mark.parametrize(
    "error", [torch.AcceleratorError("illegal memory access"), ModelError("no"), RuntimeError("no")]
)
def test_an_error_means_a_lost_gpu_only_if_all_work_is_refused(error: Exception) -> None:
    with pytest.raises(type(error)) as own, device_errors("GPU", is_lost=lambda: False):
        raise error
    with pytest.raises(DeviceLost, match=r"^GPU stopped computing") as lost, device_errors("GPU", is_lost=lambda: True):
        raise error

    assert own.value is lost.value.__cause__ is error


def test_neither_full_memory_nor_an_error_of_the_program_is_a_lost_gpu() -> None:
    def never() -> bool:
        raise AssertionError("waiting for the GPU tells nothing about its memory")

    with pytest.raises(DeviceError, match="the memory of GPU is full") as full, device_errors("GPU", is_lost=never):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")
    assert not isinstance(full.value, DeviceLost)
    with pytest.raises(KeyError), device_errors("GPU", is_lost=never):
        raise KeyError("find")


def test_a_gpu_multiplies_float32_as_float32_and_one_that_is_not_found_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("is_available", True), ("get_device_name", "L4"), ("Stream", SimpleNamespace(cuda_stream=7))):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = True
        gpu = CudaGpu()
        assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, False)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before

    assert (gpu.name, gpu.stream, gpu.device) == ("L4", 7, torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(EngineUnavailable, match="finds no GPU") as refused:
        CudaGpu()
    assert refused.value.reason == "no_gpu"


def test_the_driver_is_told_by_the_system(tmp_path: Path) -> None:
    path = tmp_path / "version"
    assert driver_version(path) == "unknown"

    path.write_text("580.95.05\n")

    assert driver_version(path) == "580.95.05"
