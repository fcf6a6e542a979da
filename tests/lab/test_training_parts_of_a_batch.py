"""A batch in parts, one after another or in two processes, gives the gradients of the whole batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import cast
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from models.lab.training import loop
from models.lab.training.loop import load_checkpoint, train_by
from models.lab.training.runfile import FilmSource, Run, read_run
from models.lab.training.stages import Augmentation, Drawing, Noise
from models.lab.training.store import stock
from tests.support.training import PUBLISHED_NAMES, write_run

pytestmark = [pytest.mark.drill(part="laboratory"), pytest.mark.usefixtures("one_thread")]

FILMS = 4
# Each is a mean over films, and compares a film with no other; neither draws anything once all classes are asked for.
LOSSES = {"patho-cls": 1.0, "presence": 2.0}


def run_of(folder: Path, *, batch: int, accumulation: int, processes: int) -> Run:
    """A run without noise, whose films all differ."""
    truths = [
        {"present": {name: (n + k) % 3 == 0 for k, name in enumerate(PUBLISHED_NAMES[:22])}} for n in range(FILMS)
    ]
    for number in range(FILMS):
        pixels = np.random.default_rng(number).integers(0, 255, (64, 64), dtype=np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), pixels)
    lines = [{"file": f"{n}.png", "patient": str(n), "truth": truth} for n, truth in enumerate(truths)]
    (folder / "films.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = read_run(write_run(folder / "run.toml", store=folder / "store", stages=("joint",), processes=processes))
    stage = replace(
        run.stages[0],
        steps=1,
        batch=batch,
        accumulation=accumulation,
        losses=LOSSES,
        clip=1e6,
        noise=Noise(),
        augmentation=Augmentation(),
        drawing=Drawing(classes=1e6, together=0.0),
        start_box_tokens=None,
    )
    films = (FilmSource(file=str(folder / "films.jsonl")),)
    data = replace(run.data, classes=("vindr",), phantoms=0, films=films, words="full", jpeg=False)
    return replace(run, data=data, stages=(stage,), output=str(folder / f"{batch}-{accumulation}-{processes}"))


def train(run: Run) -> None:
    """Train in a process that torchrun started; a file says whether it made the films."""

    def make(*given: object, **more: object) -> bool:
        is_made = stock(*given, **more)  # type: ignore[arg-type] # as they were given
        (run.store / f"made by {loop.rank()}").touch()
        return is_made

    with patch.object(loop, "stock", make):
        assert train_by(run, Event()) is not None


def gradients(run: Run) -> torch.Tensor:
    """All gradients of the only update: AdamW keeps a tenth of them."""
    processes = run.machine.processes
    if processes == 1:
        train(run)
    else:
        launched = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
        )
        elastic_launch(launched, train)(run)
    kept = load_checkpoint(Path(run.output), fingerprint=run.fingerprint)
    assert kept is not None
    states = cast("dict[int, dict[str, torch.Tensor]]", kept["optimizer"]["state"])
    return torch.cat([state["exp_avg"].flatten() * 10 for state in states.values()])


@pytest.mark.parametrize(
    ("batch", "accumulation", "processes"), [(2, 2, 1), (4, 1, 2)], ids=["one after another", "in two processes"]
)
def test_parts_of_a_batch_give_the_gradients_of_the_whole(
    tmp_path: Path, batch: int, accumulation: int, processes: int
) -> None:
    whole = run_of(tmp_path, batch=4, accumulation=1, processes=1)
    expected = gradients(whole)

    parts = run_of(tmp_path, batch=batch, accumulation=accumulation, processes=processes)
    parts = replace(parts, data=replace(parts.data, store=str(tmp_path / "store-of-parts")))
    found = gradients(parts)

    assert [path.name for path in parts.store.glob("made by *")] == ["made by 0"], "the first process alone"
    assert expected.abs().max() > 0.01
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)


def test_half_of_a_batch_gives_other_gradients(tmp_path: Path) -> None:
    whole = run_of(tmp_path, batch=4, accumulation=1, processes=1)
    half = run_of(tmp_path, batch=2, accumulation=1, processes=1)

    expected, found = (gradients(run) for run in (whole, half))

    assert (found - expected).abs().max() > 0.01
