"""Run files: every mistake at once, the published runs as published, and the schedule."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.errors import ModelError
from models.lab.training.catalog import catalog_of
from models.lab.training.labels import Line
from models.lab.training.loop import learning_rate, open_trainer, take_step
from models.lab.training.noise import disturbed
from models.lab.training.runfile import FilmSource, Machine, read_run, read_view_run
from models.lab.training.stages import Noise, Stage
from models.lab.training.store import open_film_store, stock
from models.lab.training.trained_model import begins_with, build_model, trained_weights
from models.manifest import PUBLISHED_SIZES, NetworkSizes, PostDecoderSizes, read_manifest
from models.network.post_decoder import PostDecoder
from models.progress import quiet
from tests.paths import REPOSITORY
from tests.support.material import material
from tests.support.training import PUBLISHED as CATALOG
from tests.support.training import cig_film, vindr_film, write_run

RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"

# spec §10: batch, accumulation, epochs, learning rate, warm-up, weight decay; what learns; losses; classes; box drop.
REGIONS = {"anat-mse": 0.04, "sent-mse": 0.02}
DETECTOR = {"patho-detect": 10, "patho-cls": 1, "anat-detect": 0.1, "anat-cls": 0.005, "sent-contr": 0.005}
PUBLISHED: dict[str, tuple[tuple[float, ...], tuple[str, ...], dict[str, float], tuple[str, ...], float]] = {
    "published_1": (
        (256, 1, 50, 1e-4, 1000, 1e-5),
        ("detector", "image_encoder"),
        DETECTOR | {"global-contr": 1},
        ("vindr", "cig"),
        0.0,
    ),
    "published_2": (
        (256, 1, 200, 1e-3, 1000, 1e-5),
        ("post_decoder",),
        REGIONS | {"anat-cls": 0.01, "sent-contr": 0.005},
        ("cig",),
        0.3,
    ),
    "published_text": ((32, 8, 50, 3e-4, 10000, 1e-5), ("generator",), {"text-gen": 1}, ("cig",), 0.0),
    "published_3": (
        (8, 32, 20, 3e-4, 10000, 1e-3),
        ("post_decoder", "generator"),
        REGIONS | {"anat-gen": 1, "sent-gen": 0.5},
        ("cig",),
        0.1,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_run_is_as_published(name: str) -> None:
    run = read_run(RUNS / f"{name}.toml")

    [stage] = run.stages
    numbers = (stage.batch, stage.accumulation, stage.epochs, stage.learning_rate, stage.warm_up, stage.weight_decay)
    assert (numbers, stage.train, stage.losses, run.data.classes, stage.noise.box_drop) == PUBLISHED[name]
    shared = {"dropout": 0.3, "attention": 0.1, "drop_path": 0.2, "prefix": 0.3, "skip": 0.25, "skip_dropout": 0.3}
    assert replace(stage.noise, box_drop=0.0) == Noise(**shared)
    assert (stage.schedule, stage.clip, run.seed) == ("cosine", 1.0, 42)
    assert (run.machine.mixed_precision, run.data.words, run.network) == (True, "full", PUBLISHED_SIZES)
    drawing = stage.drawing
    assert (drawing.answerer, drawing.together, drawing.padded) == ("first", 1.0, True)
    assert (drawing.classes, drawing.regions, drawing.sentences, drawing.told) == (10, 20, 64, 32)
    assert (run.data.side, run.model.gray, run.model.resize) == (256, "mimic_jpg", "via_256")


def test_a_run_asks_for_what_the_published_training_asked_for() -> None:
    published = json.loads(material("chex/prompts.json").read_text(encoding="utf-8"))
    catalog = catalog_of(("vindr", "cig"))

    names = [*published["class_names/vindrcxr_loc"], *published["class_names/cig_all"]]
    positive, negative = (
        published[f"prompts/vindrcxr_{side}"] | published[f"prompts/cigcls_{side}"] for side in ("pos", "neg")
    )
    ours = [(phrases.name, list(phrases.positive), list(phrases.negative)) for phrases in catalog.classes]
    assert ours == [(name, positive[name], negative[name]) for name in names]
    synonyms = published["prompts/cig_anat_synonym"]
    regions = [*published["anatomy_names/cig_default"], *published["anatomy_names/cig_multi"]]
    assert [list(phrases) for phrases in catalog.region_phrases] == [synonyms[name] for name in regions]


# What each run of the shipped model starts from, and the list of patients that each of its files holds out.
LISTS = {"lungs_640.jsonl": "lungs_640.txt", "nih_512.jsonl": "nih_512.txt", "normals_224.jsonl": ""}
OF_READINGS = {"lungs_640.jsonl": "lungs_640.txt", "films.jsonl": "nih_512.txt", "normals_224.jsonl": "normals_224.txt"}
SHIPPED = {
    "phantom": ("", LISTS),
    "phantom_gpu": ("train-out/phantom/model", LISTS),
    "phantom_further": ("train-out/phantom_gpu/model", LISTS),
    "phantom_people": ("train-out/phantom_further/model", LISTS),
    "phantom_places": ("models/weights/phantom", OF_READINGS),
    "views": ("train-out/phantom_people/model", LISTS),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_run_of_the_shipped_model_sees_nothing_that_it_is_measured_on(name: str) -> None:
    card = (REPOSITORY / "models" / "weights" / "phantom" / "MODEL_CARD.md").read_text(encoding="utf-8")
    views = read_view_run(RUNS / "views.toml")
    run = None if name == "views" else read_run(RUNS / f"{name}.toml")
    data, start = (views.data, views.model) if run is None else (run.data, run.start)

    lists = {Path(source.file).name: source.held_out for source in data.films}
    folder = "models/lab/training/validation/"
    assert (start, {file: held_out.removeprefix(folder) for file, held_out in lists.items()}) == SHIPPED[name]
    assert all((REPOSITORY / held_out).is_file() for held_out in lists.values() if held_out)
    seeds = range(data.first_seed, data.first_seed + data.phantoms)
    assert seeds.stop <= min(int(seed) for seed in re.findall(r"phantoms:(\d+):", card))
    if run is not None:  # the phantoms of the view head are others
        assert seeds.stop <= views.data.first_seed or seeds.start >= views.data.first_seed + views.data.phantoms


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("align = 6", "alike = 6", "losses.alike: 'alike' is unknown"),
        ("steps = 2", "steps = 2\nepochs = 1", "epochs or steps must be above 0, and not both"),
        ("steps = 2", "steps = 0", "epochs or steps must be above 0, and not both"),
        ("processes = 1", "processes = 3", "batch of contrast must be a multiple of machine.processes"),
        ("phantoms = 12", "phantoms = 1000001", "later seeds are reserved for tests"),
        ('name = "contrast"', 'name = "contrast"\nclip = -1', "clip: must be above 0"),
        ("area = [0.6, 1.0]", "area = [0.6]", "area[2]: is missing; add it"),
        ("[model]", "model = 3\n[other]", "model: must be a table"),
        ("seed = 5", "seed = 5\nstart_share = 0.5", "start_share needs start"),
        ("", "seed = ", "is not TOML"),
        ("", "extends = 3", "extends is 3; it must be the name of a run file beside this one"),
        ("", 'extends = "none.toml"', "none.toml cannot be read"),
        ("", 'extends = "run.toml"', "run.toml extends another run file itself; extend that one"),
        ("", 'extends = "base.toml"\n[[stages]]\nname = "none"', "has no stage named 'none'"),
        ("", 'extends = "base.toml"\n[machine]\nlog = "often"', "run.toml: machine.log: must be a whole number, got"),
        ("", 'extends = "base.toml"\nstages = 3', "stages: must be a list, got 3"),
    ],
)
def test_a_mistake_is_told_by_its_key(tmp_path: Path, good: str, bad: str, complaint: str) -> None:
    text = write_run(tmp_path / "base.toml", store=tmp_path, stages=("contrast",)).read_text()
    assert good in text

    (tmp_path / "run.toml").write_text(text.replace(good, bad, 1) if good else bad)

    with pytest.raises(ModelError) as refused:
        read_run(tmp_path / "run.toml")
    assert complaint in str(refused.value)


def test_a_run_file_extends_another_key_by_key(tmp_path: Path) -> None:
    base = read_run(write_run(tmp_path / "base.toml", store=tmp_path, stages=("contrast",)))
    own = 'extends = "base.toml"\noutput = "other"\n[model]\nversion = "9"\n[[stages]]\nname = "contrast"\nclip = 2\n'
    (tmp_path / "own.toml").write_text(own + "[stages.losses]\nalign = 3\n")

    run = read_run(tmp_path / "own.toml")

    assert run.stages[0].losses == {"align": 3.0} != base.stages[0].losses
    assert run.output == "other"
    stages = (replace(run.stages[0], clip=base.stages[0].clip, losses=base.stages[0].losses), *base.stages[1:])
    assert base == replace(run, output=base.output, model=replace(run.model, version=base.model.version), stages=stages)


def test_runs_are_told_apart_by_what_they_compute(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "one.toml", store=tmp_path))
    moved = replace(run, output="elsewhere", machine=replace(run.machine, log=7, threads=2))
    hotter = replace(run, stages=(replace(run.stages[0], learning_rate=0.5), *run.stages[1:]))
    begun = replace(run, start="a model", data=replace(run.data, words="full"))

    assert moved.fingerprint == run.fingerprint != hotter.fingerprint
    assert replace(begun, start_share=0.5).fingerprint == begun.fingerprint, "it changes what is written, no loss"


def stage(**settings: object) -> Stage:
    values = {"name": "a", "train": ("detector",), "steps": 1, "batch": 1, "weight_decay": 0.0, "losses": {"box": 1.0}}
    return Stage(**{**values, "learning_rate": 1e-3, **settings})  # type: ignore[arg-type] # each has its own type


def test_the_published_schedule_falls_from_batch_to_batch() -> None:
    published = stage(warm_up=100)

    rates = [learning_rate(published, batch=batch, batches=1000) for batch in (0, 50, 100, 500, 1000)]

    # timm's cosine: the warm-up is a part of the cycle, so the rate jumps to what the cycle has by then.
    after = 1e-7 + (1e-3 - 1e-7) * (1 + math.cos(math.pi * 0.1)) / 2
    assert rates == pytest.approx([0, 0.5e-3, after, 0.5e-3 + 0.5e-7, 1e-7])


@given(st.integers(0, 999))
def test_the_late_schedule_is_constant_and_then_falls(batch: int) -> None:
    late = stage(schedule="late_decay")

    rate = learning_rate(late, batch=batch, batches=1000)

    assert rate == pytest.approx(1e-3 if batch <= 700 else 1e-3 * (1000 - batch) / 300)


# ---- the runs of the paper and of its ablations take a step with a small network of their own shape

# Its sentence is about every region: a step draws only some of them.
CIG_FILM: Line = {**cig_film(), "said": [{**cig_film()["said"][0], "regions": list(CATALOG.regions)}]}
FILMS = {
    "prepared/imagenome/train.jsonl": (CIG_FILM, 6),
    "prepared/mimic/train.jsonl": (CIG_FILM, 6),
    "prepared/vindr/train.jsonl": (vindr_film(), 2),
}
ABLATIONS = sorted(path.stem for path in RUNS.glob("ablation_*.toml"))
OTHER_NETWORK = [name for name in ABLATIONS if read_run(RUNS / f"{name}.toml").network != PUBLISHED_SIZES]
TRIED = (
    *PUBLISHED,
    *OTHER_NETWORK,
    *(f"ablation_{name}" for name in ("one_by_one_2", "one_by_one_3", "no_pretraining_3")),
    *(f"ablation_no_contrast_{stage}" for stage in (1, 2, 3)),
    *(f"ablation_{name}_{stage}" for name in ("p_only", "s_only", "no_box") for stage in (1, 2)),
)


def small_sizes(sizes: NetworkSizes) -> NetworkSizes:
    """The same layers, boxes and vocabularies, with widths of 16."""
    return replace(
        sizes,
        image_encoder=replace(sizes.image_encoder, width=16, heads=2, output=16),
        prompt_encoder=replace(sizes.prompt_encoder, width=16, heads=2, output=16),
        detector=replace(sizes.detector, dim=16, heads=2, feedforward=32),
        generator=replace(sizes.generator, width=16, heads=2, layers=2, prefix_hidden=16),
    )


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the run files name, with a few films in each."""
    folder = tmp_path_factory.mktemp("films")
    cv2.imwrite(str(folder / "film.png"), np.random.default_rng(0).integers(0, 255, (256, 300), dtype=np.uint8))
    for name, (truth, count) in FILMS.items():
        (folder / name).parent.mkdir(parents=True)
        line = json.dumps({"file": "../../film.png", "patient": "p", "truth": truth}) + "\n"
        (folder / name).write_text(line * count)
    return folder


@pytest.mark.drill(part="laboratory")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TRIED)
def test_a_published_run_takes_a_step_in_which_every_loss_counts(name: str, films: Path) -> None:
    """One step of eight films."""
    run = read_run(RUNS / f"{name}.toml")
    [stage] = run.stages
    sources = tuple(FilmSource(file=str(films / source.file), balanced=source.balanced) for source in run.data.films)
    run = replace(
        run,
        start="",
        machine=Machine(),
        network=small_sizes(run.network),
        data=replace(run.data, store=str(films / "store"), films=sources),
        stages=(replace(stage, batch=4, accumulation=2, epochs=0, steps=1, warm_up=0),),
    )
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


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_differs_from_the_paper_in_one_thing(name: str) -> None:
    """In losses that it lacks, in the form of the network, in how it draws, or in where it starts."""
    run, published = (read_run(RUNS / f"{stem}.toml") for stem in (name, f"published_{name.rpartition('_')[2]}"))
    [own], [theirs] = run.stages, published.stages

    assert run.output == f"train-out/{name}"
    assert run.model.name == name.replace("ablation", "chex").replace("_", "-")
    assert {source.file for source in run.data.films} <= {source.file for source in published.data.films}
    assert own.losses.items() <= theirs.losses.items()
    assert replace(own, losses=theirs.losses, drawing=theirs.drawing) == theirs
    differs = (own.losses != theirs.losses, own.drawing != theirs.drawing, run.network != published.network)
    assert sum(differs) <= 1 and (any(differs) or run.start != published.start)
    if differs[1]:
        assert own.drawing == replace(theirs.drawing, together=0.0, padded=False)


def test_a_post_decoder_without_layers_starts_from_one_with_and_only_norms(phantom_model: Path) -> None:
    none = PostDecoderSizes(layers=0)
    weights = trained_weights(phantom_model, replace(read_manifest(phantom_model).sizes, views=None, post_decoder=none))
    kept = {name.removeprefix("post_decoder.") for name in weights if name.startswith("post_decoder.")}
    assert kept == {"gate", "norm_gate.weight", "norm_gate.bias"}

    post, tokens = PostDecoder(none, detector=small_sizes(PUBLISHED_SIZES).detector), torch.randn(1, 6, 16)
    expected = torch.nn.functional.layer_norm(tokens, (16,))
    for first_of, wanted in ((None, expected), (2, expected[:, ::2])):
        normed = post(tokens, torch.randn(1, 5, 16), group=None, first_of=first_of)
        assert torch.allclose(normed, wanted, atol=1e-5)
