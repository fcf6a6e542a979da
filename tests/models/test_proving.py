"""An engine proves itself on its device: once for each file and driver, and then with every 100th film."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.engines import Engine
from models.engines.comparison import FLOAT16
from models.engines.engine_files import read_heads
from models.engines.fallback import open_first
from models.engines.proof import FLOAT16_STAGES
from models.engines.proving import EVERY, WatchedEngine
from models.manifest import NetworkSizes
from tests.support.engine_checks import features, films
from tests.support.fake_gpu import FakeGpu
from tests.support.fake_tensorrt import Machine, installed
from tests.support.scripted_engine import EDEMA, ScriptedEngine, reader_of
from tests.support.tensorrt_engines import built as built
from tests.support.tensorrt_engines import engine as engine
from tests.support.tensorrt_engines import folder as folder
from tests.support.tensorrt_engines import machine as machine
from tests.support.tensorrt_engines import opened, unavailable, without_proofs
from tests.support.tensorrt_engines import reference as reference
from tests.support.tensorrt_engines import sizes as sizes

pytestmark = pytest.mark.drill(part="runtimes")


def test_differences_from_the_network_stand_in_each_file(half_model: Path, built: Path, engine: Engine) -> None:
    with installed(Machine(gpu=FakeGpu(driver="another"))) as machine:
        proven_now = opened(half_model, built.parent / "other", machine)
    heads = read_heads(built)
    kept = {name: stage for head in heads for proof in head.proofs for name, stage in proof.stages.items()}

    assert {head.name for head in heads} == {f"{stage}.float16.onnx" for stage in FLOAT16_STAGES}
    assert [proof.driver for head in heads for proof in head.proofs] == [FakeGpu().driver] * len(FLOAT16_STAGES)
    assert set(kept) == {"encode_image", "find.boxes", "find.scores", "find.features", "describe"}
    assert kept == engine.parity
    assert kept == proven_now.parity, "what was measured is what the file keeps"
    assert all(0 < stage.max_abs < stage.tolerance for stage in kept.values())


@pytest.mark.parametrize("again", [FakeGpu(driver="590.44.01"), None])
def test_an_engine_is_proven_once_for_each_driver(half_model: Path, folder: Path, again: FakeGpu | None) -> None:
    if again is None:
        without_proofs(folder)
    gpu = again or FakeGpu()
    with installed(Machine(gpu=gpu)) as machine:
        opened(half_model, folder, machine)
        first = machine.runs
        opened(half_model, folder, machine)

    assert machine.builds == 0
    assert first >= 8 * len(FLOAT16_STAGES)
    assert machine.runs == first, "the second start asks for no proof"
    assert all(head.proofs[-1].driver == gpu.driver for head in read_heads(folder))


@pytest.mark.parametrize("error", [0.02, float("nan")])
def test_an_engine_out_of_tolerance_is_refused(half_model: Path, folder: Path, error: float) -> None:
    without_proofs(folder)
    with installed(Machine(error=error)) as machine:
        refused = [unavailable(half_model, folder, machine) for _ in range(2)]

    assert [error.reason for error in refused] == ["not_proven", "not_proven"]
    assert "find.boxes" in str(refused[0]) and "driver 580.95.05 differs from the network" in str(refused[0])
    with installed(Machine()) as machine:
        assert opened(half_model, folder, machine).name == "tensorrt", "the machine was repaired: proven anew"


def test_the_next_engine_answers_for_one_that_is_not_proven(half_model: Path, folder: Path) -> None:
    without_proofs(folder)
    with installed(Machine(error=0.02)) as machine:
        found = open_first(half_model, engine="tensorrt", threads=1, engines=folder, gpu=machine.gpu)

    assert found.engine.name == "onnx-cuda"
    assert [(fallback.engine, fallback.reason) for fallback in found.fallbacks] == [("tensorrt", "not_proven")]


def test_every_hundredth_film_is_compared_again(
    half_model: Path, built: Path, machine: Machine, sizes: NetworkSizes
) -> None:
    engine = opened(half_model, built, machine)
    proven = dict(engine.parity)
    prompts = features(sizes, 1, 5)
    film = films(sizes, 1)
    machine.error = 0.5

    for _ in range(EVERY - 1):
        patches = engine.encode_image(film)
    engine.find(patches, prompts)
    assert engine.parity == proven, "not yet"
    asked = engine.encode_image(film)
    engine.find(asked.copies(2), features(sizes, 2, 5))
    assert engine.parity == proven, "a question about a film is no reading of it"
    patches = engine.encode_image(film)
    engine.find(patches, prompts)

    assert not engine.parity["find.boxes"].passed
    assert engine.parity["describe"] == proven["describe"]
    now = dict(engine.parity)
    engine.find(patches, prompts)
    assert engine.parity == now


def test_a_film_that_is_reported_is_one_that_can_be_compared() -> None:
    engines = [ScriptedEngine([0.8], ["Edema"], scores=np.full((1, 3), score, np.float32)) for score in (0.7, 0.2)]
    engine = WatchedEngine(*engines, allowed=FLOAT16, stages={})
    reader = reader_of(engine)
    film = np.zeros((300, 300), np.float32)

    for _ in range(EVERY):
        look = reader.look(film)
    assert engine.parity == {}
    reader.report(look, [EDEMA])

    assert engine.parity["find.scores"].max_abs == pytest.approx(0.5)
