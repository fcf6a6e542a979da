"""The run files of the paper's training take a step, with a network of their own shape and small widths."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from models.lab.training.catalog import catalog_of
from models.lab.training.labels import Line
from models.lab.training.noise import disturbed
from models.lab.training.parts import begins_with
from models.lab.training.process_group import ProcessGroup
from models.lab.training.runfile import read_run
from models.lab.training.stage_trainer import open_trainer, take_step
from models.lab.training.store import open_film_store, stock
from models.lab.training.trained_model import build_model
from models.progress import quiet
from tests.lab.published import shortened
from tests.paths import REPOSITORY
from tests.support.training import PUBLISHED, cig_film, vindr_film

pytestmark = pytest.mark.usefixtures("one_thread")

RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"
# Its sentence is about every region: a step draws only some of them.
CIG_FILM: Line = {**cig_film(), "said": [{**cig_film()["said"][0], "regions": list(PUBLISHED.regions)}]}
FILMS = {"prepared/imagenome/train.jsonl": (CIG_FILM, 6), "prepared/vindr/train.jsonl": (vindr_film(), 2)}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two files that the run files name, with a few films in each."""
    folder = tmp_path_factory.mktemp("films")
    cv2.imwrite(str(folder / "film.png"), np.random.default_rng(0).integers(0, 255, (256, 300), dtype=np.uint8))
    for name, (truth, count) in FILMS.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(
            (json.dumps({"file": "../../film.png", "patient": "p", "truth": truth}) + "\n") * count
        )
    return folder


@pytest.mark.parametrize("name", ["published_1", "published_2", "published_text", "published_3"])
def test_a_published_run_takes_a_step_in_which_every_loss_counts(name: str, films: Path) -> None:
    run = shortened(read_run(RUNS / f"{name}.toml"), films)
    assert stock(run.data, run.store, renderers=1, report=quiet)
    catalog = catalog_of(run.data.classes)
    film_store = open_film_store(run.data, run.store, catalog)
    model = build_model(run, catalog, ())
    trainer = open_trainer(
        run, ProcessGroup(rank=0, size=1), number=0, catalog=catalog, film_store=film_store, model=model
    )
    before = {key: weight.clone() for key, weight in model.network.state_dict().items()}

    with disturbed(model.network.train(), trainer.stage.noise):
        outcome = take_step(trainer, 0, stop=False)

    assert len(film_store) == (12 if name == "published_1" else 6)
    assert outcome.losses.isfinite().all() and (outcome.losses > 0).all()
    changed = {key for key, weight in model.network.state_dict().items() if not torch.equal(weight, before[key])}
    assert {key.split(".")[0] for key in changed} == set(trainer.stage.train)
    assert not any(begins_with(key, trainer.stage.frozen) for key in changed)
