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
OTHER_NETWORK: dict[str, tuple[str, dict[str, object]]] = {
    **{f"ablation_no_post_decoder_{n}": (f"published_{n}", {"network.post_decoder.layers": 0}) for n in (2, 3)},
    **{
        f"ablation_one_by_one_{n}": (
            f"published_{n}",
            {"stages.0.drawing.together": 0.0, "stages.0.drawing.padded": False},
        )
        for n in (2, 3)
    },
    **{
        f"ablation_{name}_{n}": (f"published_{n}", {f"network.generator.{key}": value})
        for name, key, value in (
            ("linear_prefix", "prefix_hidden", 0),
            ("shared_prefix", "prefix_shared", True),
            ("prefix_1", "prefix_length", 1),
        )
        for n in ("text", 3)
    },
    "ablation_no_pretraining_3": ("published_3", {}),
}
"""The published run of each, and all in which it differs from it but the name, the output and the start."""
TARGETS = {
    "patho-detect": "pathology boxes",
    "patho-cls": "pathology classes",
    "anat-detect": "anatomy boxes",
    "anat-cls": "anatomy classes",
    **dict.fromkeys(("anat-mse", "anat-gen"), "anatomy sentences"),
    **dict.fromkeys(("sent-contr", "global-contr", "sent-mse", "sent-gen"), "sentences"),
}
LEFT_OUT = {
    "p_only": ["anatomy", "sentences"],
    "a_only": ["pathology", "sentences"],
    "s_only": ["pathology", "anatomy"],
    "no_p": ["pathology"],
    "no_a": ["anatomy"],
    "no_s": ["sentences"],
    "no_box": ["pathology boxes", "anatomy boxes"],
    "no_cls": ["pathology classes", "anatomy classes"],
    "no_sent": ["sentences", "anatomy sentences"],
}
"""What each ablation of Table 3 is trained without, by the beginnings of TARGETS."""
AFTERWARDS = {
    "p_only_2": {"anat-mse", "sent-contr", "sent-mse"},
    "no_sent_2": {"anat-cls"},
    "p_only_3": None,
    "no_sent_3": None,
}
"""Losses where the generator is trained afterwards, with sentences all the same; None: the published ones."""
SUPERVISION = [f"ablation_{name}_{stage}" for name in LEFT_OUT for stage in (1, 2, 3)]
TRIED = (
    *PUBLISHED_RUNS,
    *OTHER_NETWORK,
    *(f"ablation_no_contrast_{stage}" for stage in (1, 2, 3)),
    *(f"ablation_{name}_{stage}" for name in ("p_only", "s_only", "no_box") for stage in (1, 2)),
)
FILMS = {
    "prepared/imagenome/train.jsonl": (CIG_FILM, 6),
    "prepared/mimic/train.jsonl": (CIG_FILM, 6),
    "prepared/vindr/train.jsonl": (vindr_film(), 2),
}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the run files name, with a few films in each."""
    folder = tmp_path_factory.mktemp("films")
    cv2.imwrite(str(folder / "film.png"), np.random.default_rng(0).integers(0, 255, (256, 300), dtype=np.uint8))
    for name, (truth, count) in FILMS.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(
            (json.dumps({"file": "../../film.png", "patient": "p", "truth": truth}) + "\n") * count
        )
    return folder


@pytest.mark.parametrize("name", TRIED)
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

    stage_1 = {"ablation_p_only_1": 2, "ablation_s_only_1": 6}.get(name, 12)
    assert len(film_store) == (stage_1 if name.endswith("_1") else 6)
    assert outcome.losses.isfinite().all() and (outcome.losses > 0).all()
    changed = {key for key, weight in model.network.state_dict().items() if not torch.equal(weight, before[key])}
    assert {key.split(".")[0] for key in changed} == set(trainer.stage.train)
    assert not any(begins_with(key, trainer.stage.frozen) for key in changed)


@pytest.mark.parametrize("name", OTHER_NETWORK)
def test_an_ablation_differs_from_the_paper_in_what_it_says(name: str) -> None:
    base, changes = OTHER_NETWORK[name]
    run, published = (read_run(RUNS / f"{stem}.toml") for stem in (name, base))
    own, others = flat(asdict(run)), flat(asdict(published))

    differing = {key: own.get(key) for key in own.keys() | others.keys() if own.get(key) != others.get(key)}

    assert differing.pop("output") == f"train-out/{name}"
    assert differing.pop("model.name") == name.replace("ablation", "chex").replace("_", "-")
    differing.pop("start", None)
    assert differing == changes


@pytest.mark.parametrize("name", SUPERVISION)
def test_an_ablation_of_supervision_leaves_out_its_targets_alone(name: str) -> None:
    stem, stage = name.removeprefix("ablation_")[:-2], int(name[-1])
    run, published = read_run(RUNS / f"{name}.toml"), read_run(RUNS / f"published_{stage}.toml")
    losses = published.stages[0].losses
    kept = {loss for loss in losses if not TARGETS[loss].startswith(tuple(LEFT_OUT[stem]))}

    wanted = AFTERWARDS.get(f"{stem}_{stage}", kept) or losses.keys()
    assert run.stages[0].losses == {loss: losses[loss] for loss in losses if loss in wanted}
    assert replace(run.stages[0], losses=losses) == published.stages[0]
    assert run.network == published.network
    before = {1: "chexzero", 2: f"ablation_{stem}_1/model", 3: f"ablation_{stem}_2_and_text"}[stage]
    assert (run.start, run.output) == (f"train-out/{before}", f"train-out/{name}")
    assert {Path(source.file) for source in run.data.films} <= {Path(source.file) for source in published.data.films}


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
