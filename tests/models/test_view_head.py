"""The view head: what it reads, how it is trained, and that a model may lack it."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from models.checkpoint.files import CARD, verify
from models.checkpoint.importer import open_rest
from models.checkpoint.weights import load_stored
from models.contract import VIEWS
from models.engines.opening import open_engine
from models.engines.proof import VIEW, hash_graphs
from models.errors import ModelError
from models.lab.phantoms import other_film, phantom
from models.lab.training.runfile import ViewData, ViewRun, ViewTraining
from models.lab.training.views import HEADING, EncodedFilms, learn, train_views, view_films, view_loss
from models.manifest import MANIFEST, WEIGHTS, ViewSizes, read_manifest
from models.network.view_head import ViewHead
from models.progress import quiet
from models.reading.preprocess import prepare
from models.train import main as train
from models.views import ViewRule, read_view
from tests.conftest import Once

RULE = ViewRule(temperature=2.0, certain=0.9, mirrored=0.5, rotated=0.5)


def run_of(model: Path, *, phantoms: int = 40, steps: int = 400) -> ViewRun:
    return ViewRun(
        model=str(model),
        seed=3,
        head=ViewSizes(cells=7, width=32),
        data=ViewData(phantoms=phantoms),
        training=ViewTraining(steps=steps, batch=32, learning_rate=3e-3),
    )


@pytest.fixture(scope="module")
def seeing_model(untrained_weights: Path, once: Once) -> Path:
    """A model with random weights and a trained view head, without graphs."""

    def make(folder: Path) -> None:
        shutil.copytree(untrained_weights, folder)
        assert train_views(run_of(folder), quiet, Event()) == folder

    return once("seeing", make)


def test_a_reading_has_probabilities_and_marks_with_a_limit_each() -> None:
    reading = read_view(np.array([0, 2, 0, 0, -3, 3]), RULE)

    assert sum(reading.probabilities.values()) == pytest.approx(1)
    assert (reading.view, reading.mirrored, reading.rotated) == ("PA", False, True)
    assert reading.probability("PA") == pytest.approx(math.e / (math.e + 3))
    assert reading.is_certain("AP", "PA", "lateral", "not_chest") and not reading.is_certain("PA")
    for marks, called in (((-3, 3), (False, True)), ((5, -5), (True, False))):
        other = read_view(np.array([0, 0, 0, 0, *marks]), replace(RULE, mirrored=0.9, rotated=0.1))
        assert (other.mirrored, other.rotated) == called


def test_the_pooled_cells_keep_where_a_patch_lies() -> None:
    head = ViewHead(ViewSizes(cells=2, width=4), dim=8, grid=4)
    patches = torch.zeros(1, 16, 8)
    patches[0, 3] = torch.arange(8.0)  # first row, last column: the upper right cell

    pooled = head.pool(patches)

    assert pooled.abs().sum(dim=2)[0].nonzero().flatten().tolist() == [1]


def test_what_is_unknown_of_a_film_costs_nothing() -> None:
    outputs = torch.tensor([[1.0, 2.0, -9.0, -9.0, 5.0, -5.0]])
    unknown = torch.tensor([[math.nan, math.nan]])

    either = view_loss(outputs, torch.tensor([[1.0, 1.0, 0.0, 0.0]]), unknown)
    lateral = view_loss(outputs, torch.tensor([[0.0, 0.0, 1.0, 0.0]]), unknown)
    wrong = view_loss(outputs, torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[0.0, math.nan]]))

    assert either.item() == pytest.approx(0, abs=1e-4)
    assert lateral.item() > 10
    assert wrong.item() == pytest.approx(5, abs=0.01)


def test_a_head_learns_from_no_film_that_calibrates_it() -> None:
    head = ViewHead(ViewSizes(cells=2, width=4), dim=8, grid=4)
    calibrates = np.array([False, True])
    encoded = EncodedFilms(
        pooled=torch.stack([torch.ones(4, 8), torch.full((4, 8), torch.nan)]).half(),
        views=torch.tensor([[1.0, 0, 0, 0]] * 2),
        marks=torch.zeros(2, 2),
        is_real=calibrates,
        calibrates=calibrates,
    )

    assert learn(run_of(Path("nowhere"), steps=9), head, encoded, quiet, Event())

    assert all(bool(weight.isfinite().all()) for weight in head.parameters())


@pytest.mark.drill(part="laboratory")
def test_a_head_learns_views_on_phantoms(seeing_model: Path) -> None:
    seeds = range(500, 512)
    others = [other_film(seed, kind).pixels for kind in ("lateral", "knee") for seed in seeds]
    films = [*others, *(phantom(seed).pixels for seed in seeds)]
    manifest, engine = read_manifest(seeing_model), open_engine(seeing_model, engine="torch", threads=1)
    assert manifest.views is not None
    pixels = np.stack([prepare(film.astype(np.float32) / np.float32(255), manifest.input) for film in films])

    seen = [read_view(outputs, manifest.views).view for outputs in engine.view(engine.encode_image(pixels))]

    kinds = ["frontal" if view in ("AP", "PA") else view for view in seen]
    wanted = ["lateral"] * 12 + ["not_chest"] * 12 + ["frontal"] * 12
    assert sum(kind == right for kind, right in zip(kinds, wanted, strict=True)) >= 24  # of 36; a guess hits 12


def test_training_changes_no_other_weight_and_who_takes_weights_leaves_the_head(
    seeing_model: Path, untrained_weights: Path
) -> None:
    before, after = (load_stored(model / WEIGHTS) for model in (untrained_weights, seeing_model))

    verify(seeing_model, read_manifest(seeing_model))
    assert {name.partition(".")[0] for name in after.keys() - before.keys()} == {"view_head"}
    assert all(
        torch.equal(weight, after[name]) and weight.dtype == after[name].dtype for name, weight in before.items()
    )
    assert (seeing_model / CARD).read_text(encoding="utf-8").count(HEADING) == 1
    assert VIEW not in str(hash_graphs(untrained_weights))
    taken, without = open_rest(seeing_model), open_rest(untrained_weights)
    assert taken.state.keys() == without.state.keys()
    assert (taken.manifest.sizes, taken.manifest.views) == (without.manifest.sizes, None)


def test_a_head_is_replaced_and_a_run_gives_the_same_again(
    untrained_weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (Path(shutil.copytree(untrained_weights, tmp_path / name)) for name in ("first", "second"))
    train_views(replace(run_of(first, phantoms=4, steps=3), seed=9), quiet, Event())
    with pytest.raises(ModelError, match="must be a multiple"):  # it would not fit the grid
        train_views(replace(run_of(first), head=ViewSizes(cells=5, width=8)), quiet, Event())

    for model in (first, second):
        run = tmp_path / "views.toml"
        run.write_text(
            f'model = "{model}"\nseed = 1\nhead = {{ cells = 7, width = 8 }}\ndata = {{ phantoms = 3 }}\n'
            "training = { steps = 2, batch = 4, learning_rate = 1e-3 }\n"
        )
        assert train([str(run)]) == 0
        assert "has a view head" in capsys.readouterr().out

    assert read_manifest(first).sizes.views == ViewSizes(cells=7, width=8)
    assert [(first / name).read_bytes() for name in (WEIGHTS, MANIFEST, CARD)] == [
        (second / name).read_bytes() for name in (WEIGHTS, MANIFEST, CARD)
    ]


def test_every_film_of_a_run_says_what_is_true_of_it() -> None:
    films = list(view_films(run_of(Path("nowhere"), phantoms=30), size=64))

    assert len(films) == 120
    assert {film.views for film in films} == {(view,) for view in VIEWS}
    for film in films:
        is_frontal = film.views[0] in ("AP", "PA")
        assert (film.mirrored is not None) == (is_frontal and not film.rotated)
        assert (film.rotated is not None) == (is_frontal or film.views == ("lateral",))
        assert film.gray.shape == (64, 64)
    assert 0 < sum(film.calibrates for film in films) < 60
