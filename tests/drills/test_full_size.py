"""The published size on this machine: a 12 GB checkpoint is imported, read with and served, with little memory.

`make full-size` runs it: minutes, and 25 GB of disk below TMPDIR. What it measured is its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from models.checkpoint import published
from models.checkpoint.assembly import shapes_of
from models.checkpoint.files import verify
from models.checkpoint.weights import load_weights
from models.engines.proof import FLOAT16_STAGES, graph_path
from models.manifest import PUBLISHED_SIZES, WEIGHTS, read_manifest
from node.config import ModelSettings
from tests.models.test_tensorrt_rtx import attentions
from tests.support import official, processes
from tests.support.archived import archived_node
from tests.support.material import material
from tests.support.random_model import draw

IMPORT_LIMIT, READ_LIMIT, SERVE_LIMIT, BUILD_LIMIT = 7e9, 7 * 2**30, 8 * 2**30, 4e9
SOURCE_SIZE = 11.6e9
SEED, STEP = 11, 62_300
TRAINED = 928_544_262
"""Parameters with two moments each in the state of the optimizer (param_counts.json)."""

pytestmark = [pytest.mark.drill(part="runtimes"), pytest.mark.full_size, pytest.mark.timeout(3600)]

Figures = dict[str, float]


class Measured(NamedTuple):
    """What a command printed, how long it took, and its peak of resident memory in bytes."""

    output: str
    seconds: float
    peak: int


def measured(command: list[str], repository: Path) -> Measured:
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([sys.executable, *command], cwd=repository, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        output.seek(0)
        return Measured(output.read(), time.monotonic() - began, usage.ru_maxrss * 1024)


@pytest.fixture(scope="module")
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    found: Figures = {}
    yield found
    print("\n" + json.dumps({"passed": not request.session.testsfailed, **found}))


@pytest.fixture(scope="module")
def model(repository: Path, figures: Figures) -> Iterator[Path]:
    """A model directory, imported from a full-size checkpoint in the published folders."""
    # Not pytest's own folder, which would keep these gigabytes.
    with tempfile.TemporaryDirectory(prefix="chex-full-size-") as work:
        run = Path(work) / "chex_stage3" / "run_2024-01-01_00-00-00"
        source = run / "checkpoints" / f"checkpoint_{STEP:09d}.pth"
        layout = material("chex/state_dict_layout.json")
        write = (
            "from pathlib import Path; from tests.drills.test_full_size import write_checkpoint; "
            f"write_checkpoint(Path({str(layout)!r}), Path({str(source)!r}))"
        )
        measured(["-c", write], repository)
        assert source.stat().st_size > SOURCE_SIZE
        directory = Path(work) / "model"

        command = ["-m", "models.checkpoint", str(run.parent), str(directory), "--no-export"]
        done = measured(command, repository)

        assert f": chex_stage3 step-{STEP} is imported" in done.output
        figures |= {
            "source_gb": source.stat().st_size / 1e9,
            "import_seconds": round(done.seconds, 1),
            "import_peak_gb": done.peak / 1e9,
        }
        source.unlink()
        yield directory


def test_the_published_size_is_imported_bit_for_bit_in_under_7_gb(model: Path, figures: Figures) -> None:
    manifest, weights, shapes = read_manifest(model), load_weights(model / WEIGHTS), shapes_of(PUBLISHED_SIZES)
    verify(model, manifest)

    assert manifest.sizes == PUBLISHED_SIZES
    assert figures["import_peak_gb"] * 1e9 < IMPORT_LIMIT
    assert weights.keys() == shapes.keys()
    for name, shape in shapes.items():
        flat, place = weights[name].flatten(), 0
        for values in draw(name, shape, seed=SEED):
            assert torch.equal(flat[place : place + len(values)], torch.from_numpy(values)), name
            place += len(values)
        assert place == len(flat)


def test_a_film_is_read_in_under_7_gib(model: Path, repository: Path, chest_film: Path, figures: Figures) -> None:
    out = model.parent / "out"

    command = ["-m", "node", "read", str(chest_film), "--model", str(model), "--out", str(out), "--engine", "torch"]
    done = measured([*command, "--json"], repository)

    films = json.loads(done.output)["studies"][0]["films"]
    assert [film["status"] for film in films] == ["read"]
    assert films[0]["sentences"]
    assert len(films[0]["findings"]) == 13
    figures |= {"read_seconds": round(done.seconds, 1), "read_peak_gb": done.peak / 1e9}
    assert done.peak < READ_LIMIT


def test_a_node_serves_it_in_under_8_gib(model: Path, tmp_path: Path, chest_film: Path, figures: Figures) -> None:
    settings = ModelSettings(directory=model, engine="torch")
    began = time.monotonic()

    with archived_node(tmp_path, model=settings, is_fresh=True, ready_seconds=600.0) as node:
        ready = time.monotonic()
        node.service.read(chest_film, limit_seconds=600.0)
        done = time.monotonic()
        node.archive.wait_until(lambda: len(node.archive.kept) >= 2)
        peak = 1024 * processes.status_of(node.service.pid, "VmHWM")

    figures |= {"serve_open_seconds": round(ready - began, 1), "serve_film_seconds": round(done - ready, 1)}
    figures |= {"serve_peak_gb": peak / 1e9}
    assert peak < SERVE_LIMIT


def test_nvidias_builder_takes_it_in_under_4_gb(model: Path, repository: Path, figures: Figures) -> None:
    export = (
        "from pathlib import Path; from export import float16, to_onnx; "
        "from models.checkpoint.weights import load_network; "
        f"d = Path({str(model)!r}); list(to_onnx.export_graphs(load_network(d), d)); list(float16.write_float16(d))"
    )
    measured(["-c", export], repository)
    graphs = [graph_path(model, stage, "float16") for stage in FLOAT16_STAGES]

    done = measured(["-m", "tests.drills.rtx_build", *map(str, graphs)], repository)

    built = json.loads(done.output)
    figures |= {"build_seconds": round(done.seconds, 1), "build_peak_gb": done.peak / 1e9}
    figures |= {f"fused_{stage}": built[path.name]["fused"] for stage, path in zip(FLOAT16_STAGES, graphs, strict=True)}
    # Of `describe` all but the attentions of a box to itself, which are no attention (`test_tensorrt_rtx.py`).
    removed = {"describe": PUBLISHED_SIZES.post_decoder.layers}
    assert [built[path.name]["fused"] for path in graphs] == [
        attentions(path) - removed.get(stage, 0) for stage, path in zip(FLOAT16_STAGES, graphs, strict=True)
    ]
    assert done.peak < BUILD_LIMIT


def write_checkpoint(layout: Path, path: Path) -> None:
    """Write a checkpoint of the published layout and size, 12 GB, with random weights under their published names.

    The optimizer's state is zeros, which take place in the file and none in memory.
    """
    wanted = {
        key: tuple(shape)
        for key, (shape, _) in json.loads(layout.read_text(encoding="utf-8")).items()
        if key != official.LM_HEAD
    }
    shapes = shapes_of(PUBLISHED_SIZES)
    assert published.their_shapes(shapes) == wanted
    weights = {published.their_name(name): drawn(name, shape) for name, shape in shapes.items()}
    for key in wanted:
        if published.is_turned(key):
            weights[key] = weights[key].T.contiguous()
    weights[official.LM_HEAD] = weights["txt_decoder.language_model.transformer.wte.weight"]
    content = official.checkpoint(weights)
    config = content["config_dict"]
    assert isinstance(config, dict)
    sizes = PUBLISHED_SIZES
    config |= {"d_model": sizes.dim, "n_head": sizes.detector.heads, "n_post_decoder_layers": sizes.post_decoder.layers}
    config["detector"] |= {"n_decoder_layers": sizes.detector.layers}
    config["txt_decoder"]["generation_kwargs"]["max_length"] = sizes.generator.max_length
    moments = {"exp_avg": torch.zeros(TRAINED), "exp_avg_sq": torch.zeros(TRAINED)}
    official.save(path, content | {"step": STEP, "optimizer": {"state": {0: moments}, "param_groups": []}})


def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.concatenate(list(draw(name, shape, seed=SEED))).reshape(shape))
