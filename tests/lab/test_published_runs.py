"""The run files of the paper's training, and of its ablations, take a step with a small network of their own shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeGuard

import cv2
import numpy as np
import pytest
import torch

from models.lab.training.catalog import catalog_of
from models.lab.training.labels import Line
from models.lab.training.loop import open_trainer, take_step
from models.lab.training.noise import disturbed
from models.lab.training.runfile import read_run
from models.lab.training.store import open_film_store, stock
from models.lab.training.trained_model import begins_with, build_model, trained_weights
from models.manifest import PostDecoderSizes, read_manifest
from models.network.post_decoder import PostDecoder
from models.progress import quiet
from tests.lab.published import shortened, small_sizes
from tests.paths import REPOSITORY
from tests.support.training import PUBLISHED, cig_film, vindr_film

pytestmark = [pytest.mark.drill(part="laboratory"), pytest.mark.usefixtures("one_thread")]

RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"
# Its sentence is about every region: a step draws only some of them.
CIG_FILM: Line = {**cig_film(), "said": [{**cig_film()["said"][0], "regions": list(PUBLISHED.regions)}]}
PUBLISHED_RUNS = ("published_1", "published_2", "published_text", "published_3")
ABLATIONS: dict[str, tuple[str, dict[str, object]]] = {
    "ablation_no_post_decoder_2": ("published_2", {"network.post_decoder.layers": 0}),
    "ablation_no_post_decoder_3": ("published_3", {"network.post_decoder.layers": 0, "start": "its own"}),
    "ablation_no_contrast_1": (
        "published_1",
        {"stages.0.losses.sent-contr": None, "stages.0.losses.global-contr": None},
    ),
    "ablation_no_contrast_2": ("published_2", {"stages.0.losses.sent-contr": None, "start": "its own"}),
    "ablation_no_contrast_3": ("published_3", {"start": "its own"}),
    "ablation_one_by_one_2": ("published_2", {"stages.0.drawing.together": 0.0, "stages.0.drawing.padded": False}),
    "ablation_one_by_one_3": (
        "published_3",
        {"stages.0.drawing.together": 0.0, "stages.0.drawing.padded": False, "start": "its own"},
    ),
}
"""The published run of each, and all in which it differs from it but the name and the output; None: it is gone."""
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


@pytest.mark.parametrize("name", [*PUBLISHED_RUNS, *ABLATIONS])
def test_a_published_run_takes_a_step_in_which_every_loss_counts(name: str, films: Path) -> None:
    run = shortened(read_run(RUNS / f"{name}.toml"), films)
    assert stock(run.data, run.store, renderers=1, report=quiet)
    catalog = catalog_of(run.data.classes)
    film_store = open_film_store(run.data, run.store, catalog)
    model = build_model(run, catalog, ())
    trainer = open_trainer(run, number=0, catalog=catalog, film_store=film_store, model=model)
    before = {key: weight.clone() for key, weight in model.network.state_dict().items()}

    with disturbed(model.network.train(), trainer.stage.noise):
        outcome = take_step(trainer, 0, trainer.batches(0), stop=False)

    assert len(film_store) == (12 if name.endswith("_1") else 6)
    assert outcome.losses.isfinite().all() and (outcome.losses > 0).all()
    changed = {key for key, weight in model.network.state_dict().items() if not torch.equal(weight, before[key])}
    assert {key.split(".")[0] for key in changed} == set(trainer.stage.train)
    assert not any(begins_with(key, trainer.stage.frozen) for key in changed)


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_from_the_paper_in_what_it_says(name: str) -> None:
    base, changes = ABLATIONS[name]
    run, published = (read_run(RUNS / f"{stem}.toml") for stem in (name, base))
    own, others = flat(asdict(run)), flat(asdict(published))

    differing = {key: own.get(key) for key in own.keys() | others.keys() if own.get(key) != others.get(key)}

    assert differing.pop("output") == f"train-out/{name}"
    assert differing.pop("model.name") == name.replace("ablation", "chex").replace("_", "-")
    if changes.get("start") == "its own":
        ablation, stage = name[:-2], int(name[-1])
        assert differing["start"] == f"train-out/{ablation}_{stage - 1}{'_and_text' if stage == 3 else '/model'}"
        differing["start"] = "its own"
    assert differing == changes


def test_a_post_decoder_without_layers_starts_from_one_with(phantom_model: Path) -> None:
    sizes = replace(read_manifest(phantom_model).sizes, views=None, post_decoder=PostDecoderSizes(layers=0))

    weights = trained_weights(phantom_model, sizes)

    assert {name for name in weights if name.startswith("post_decoder")} == {
        "post_decoder.gate",
        "post_decoder.norm_gate.weight",
        "post_decoder.norm_gate.bias",
    }


@pytest.mark.parametrize("first_of", [None, 2])
def test_a_post_decoder_without_layers_only_norms(first_of: int | None) -> None:
    sizes = replace(small_sizes(read_run(RUNS / "published_2.toml").network), post_decoder=PostDecoderSizes(layers=0))
    post, tokens = PostDecoder(sizes.post_decoder, detector=sizes.detector), torch.randn(1, 6, 16)

    normed = post(tokens, torch.randn(1, 5, 16), group=None, first_of=first_of)

    expected = torch.nn.functional.layer_norm(tokens, (16,))
    assert torch.allclose(normed, expected if first_of is None else expected[:, ::2], atol=1e-5)


def flat(table: object, where: str = "") -> dict[str, object]:
    """Give every value of nested tables and lists of tables by its dotted key."""
    inner = table.items() if isinstance(table, Mapping) else enumerate(table) if is_tables(table) else None
    if inner is None:
        return {where: table}
    return {key: value for name, part in inner for key, value in flat(part, f"{where}.{name}".strip(".")).items()}


def is_tables(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, tuple) and bool(value) and all(isinstance(part, Mapping) for part in value)
