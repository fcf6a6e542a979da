"""Run files: every mistake at once, the published runs as published, and the schedule."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import ModelError
from models.lab.training.catalog import catalog_of
from models.lab.training.finish import MODEL
from models.lab.training.loop import learning_rate
from models.lab.training.runfile import read_run, read_view_run
from models.lab.training.stages import Noise, Stage
from models.manifest import PUBLISHED_SIZES
from tests.paths import REPOSITORY
from tests.support.material import material
from tests.support.training import write_run

RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"

# spec §10: batch, accumulation, epochs, learning rate, warm-up, weight decay.
PUBLISHED = {
    "published_1": (256, 1, 50, 1e-4, 1000, 1e-5),
    "published_2": (256, 1, 200, 1e-3, 1000, 1e-5),
    "published_text": (32, 8, 50, 3e-4, 10000, 1e-5),
    "published_3": (8, 32, 20, 3e-4, 10000, 1e-3),
}
LOSSES = {
    "published_1": {
        "patho-detect": 10,
        "patho-cls": 1,
        "anat-detect": 0.1,
        "anat-cls": 0.005,
        "sent-contr": 0.005,
        "global-contr": 1,
    },
    "published_2": {"anat-cls": 0.01, "anat-mse": 0.04, "sent-mse": 0.02, "sent-contr": 0.005},
    "published_text": {"text-gen": 1},
    "published_3": {"anat-mse": 0.04, "sent-mse": 0.02, "anat-gen": 1, "sent-gen": 0.5},
}
TRAINED = {
    "published_1": ("detector", "image_encoder"),
    "published_2": ("post_decoder",),
    "published_text": ("generator",),
    "published_3": ("post_decoder", "generator"),
}
CLASSES = {
    "published_1": ("vindr", "cig"),
    "published_2": ("cig",),
    "published_text": ("cig",),
    "published_3": ("cig",),
}
BOX_DROP = {"published_1": 0.0, "published_2": 0.3, "published_text": 0.0, "published_3": 0.1}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_run_is_as_published(name: str) -> None:
    run = read_run(RUNS / f"{name}.toml")

    [stage] = run.stages
    told = (stage.batch, stage.accumulation, stage.epochs, stage.learning_rate, stage.warm_up, stage.weight_decay)
    assert told == PUBLISHED[name]
    assert stage.losses == LOSSES[name]
    assert stage.train == TRAINED[name]
    assert (stage.schedule, stage.clip, run.seed) == ("cosine", 1.0, 42)
    assert (run.machine.mixed_precision, run.data.words, run.network) == (True, "full", PUBLISHED_SIZES)
    assert stage.noise == Noise(
        dropout=0.3,
        attention=0.1,
        drop_path=0.2,
        prefix=0.3,
        box_drop=BOX_DROP[name],
        skip=0.25,
        skip_dropout=0.3,
    )
    drawing = stage.drawing
    assert (drawing.answerer, drawing.together, drawing.padded) == ("first", 1.0, True)
    assert (drawing.classes, drawing.regions, drawing.sentences, drawing.told) == (10, 20, 64, 32)
    assert (run.data.classes, run.data.side, run.model.gray, run.model.resize) == (
        CLASSES[name],
        256,
        "mimic_jpg",
        "via_256",
    )
    assert (run.model.mean, run.model.std) == (0.505, 0.248)
    temperatures = stage.temperatures
    assert (temperatures.findings, temperatures.anatomy, temperatures.sentences, temperatures.films) == (
        0.2,
        0.25,
        0.25,
        0.2,
    )


def test_the_first_published_stage_keeps_the_lower_image_encoder() -> None:
    [stage] = read_run(RUNS / "published_1.toml").stages

    kept = {name.removeprefix("image_encoder.") for name in stage.frozen}
    assert kept == {
        "stem",
        "class_token",
        "positions",
        "norm_after",
        "projection",
        *(f"layers.{number}" for number in range(8)),
    }


def test_vindr_has_as_large_a_part_of_an_epoch_as_mimic() -> None:
    mimic, vindr = read_run(RUNS / "published_1.toml").data.films

    assert (mimic.balanced, mimic.repeat, vindr.balanced, vindr.repeat) == (False, 1, True, 1)
    assert vindr.times(own=15_000, most=237_962) == 16
    assert all(len(read_run(RUNS / f"{name}.toml").data.films) == 1 for name in CLASSES if name != "published_1")


@pytest.mark.parametrize("name", ["published_1", "published_2", "published_3"])
def test_films_are_changed_as_published(name: str) -> None:
    [stage] = read_run(RUNS / f"{name}.toml").stages

    rule = stage.augmentation
    assert (rule.flip, rule.area, rule.scale, rule.shift, rule.rotate) == (0.5, (0.5, 1.0), (0.95, 1.0), 0.02, 10.0)
    assert (rule.brightness, rule.contrast, rule.blur, rule.blur_sigma, rule.visibility) == (0.4, 0.4, 0.5, 5.0, 0.1)
    assert rule.aspect == 4 / 3


def test_a_run_asks_for_what_the_published_training_asked_for() -> None:
    published = json.loads(material("chex/prompts.json").read_text(encoding="utf-8"))
    catalog = catalog_of(("vindr", "cig"))

    names = [*published["class_names/vindrcxr_loc"], *published["class_names/cig_all"]]
    prompts = {
        side: published[f"prompts/vindrcxr_{side}"] | published[f"prompts/cigcls_{side}"] for side in ("pos", "neg")
    }
    assert [phrases.name for phrases in catalog.classes] == names
    assert [list(phrases.positive) for phrases in catalog.classes] == [prompts["pos"][name] for name in names]
    assert [list(phrases.negative) for phrases in catalog.classes] == [prompts["neg"][name] for name in names]
    synonyms = published["prompts/cig_anat_synonym"]
    regions = [*published["anatomy_names/cig_default"], *published["anatomy_names/cig_multi"]]
    assert [list(phrases) for phrases in catalog.region_phrases] == [synonyms[name] for name in regions]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("phantom.toml", "phantom_gpu.toml"),
        ("phantom_gpu.toml", "phantom_further.toml"),
        ("phantom_further.toml", "phantom_people.toml"),
    ],
)
def test_a_run_on_a_gpu_goes_on_from_the_run_before(earlier: str, later: str) -> None:
    demonstration = read_run(RUNS / "phantom.toml")
    first, then = read_run(RUNS / earlier), read_run(RUNS / later)

    assert then.start == f"{first.output}/{MODEL}"
    assert (then.network, then.model, then.data.words) == (first.network, first.model, "start")
    assert [source.held_out for source in then.data.films] == [source.held_out for source in first.data.films]
    assert all(stage.train == demonstration.stages[1].train for stage in then.stages)
    # The phantoms of the view head are others.
    assert then.data.first_seed + then.data.phantoms <= read_view_run(RUNS / "views.toml").data.first_seed


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("align = 6", "alike = 6", "losses.alike is unknown"),
        ("steps = 2", "steps = 2\nepochs = 1", "epochs or steps must be above 0, and not both"),
        ("processes = 1", "processes = 3", "batch of contrast must be a multiple of machine.processes"),
        ("phantoms = 12", "phantoms = 1000001", "later seeds are reserved for tests"),
        ('name = "contrast"', 'name = "contrast"\nclip = -1', "clip must be above 0"),
        ("area = [0.6, 1.0]", "area = [0.6]", "area[2]: is missing; add it"),
        ("[model]", "model = 3\n[other]", "model: must be a table"),
    ],
)
def test_a_mistake_is_told_by_its_key(tmp_path: Path, good: str, bad: str, complaint: str) -> None:
    path = write_run(tmp_path / "run.toml", store=tmp_path, stages=("contrast",))
    text = path.read_text()
    assert good in text

    path.write_text(text.replace(good, bad, 1))

    with pytest.raises(ModelError) as refused:
        read_run(path)
    assert complaint in str(refused.value)


def test_a_run_file_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("seed = ")

    with pytest.raises(ModelError, match="is not TOML"):
        read_run(tmp_path / "run.toml")
    with pytest.raises(ModelError, match="name a run file"):
        read_run(tmp_path / "none.toml")


def test_a_run_file_extends_another_key_by_key(tmp_path: Path) -> None:
    base = read_run(write_run(tmp_path / "base.toml", store=tmp_path, stages=("contrast",)))
    own = 'extends = "base.toml"\noutput = "other"\n[model]\nversion = "9"\n[[stages]]\nname = "contrast"\nclip = 2\n'
    (tmp_path / "own.toml").write_text(own + "[stages.losses]\nalign = 3\n")

    run = read_run(tmp_path / "own.toml")

    assert run.stages[0].losses == {"align": 3.0} != base.stages[0].losses
    assert run.output == "other"
    stages = (replace(run.stages[0], clip=base.stages[0].clip, losses=base.stages[0].losses), *base.stages[1:])
    assert base == replace(run, output=base.output, model=replace(run.model, version=base.model.version), stages=stages)


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ("extends = 3", "extends is 3; it must be the name of a run file beside this one"),
        ('extends = "none.toml"', "none.toml cannot be read"),
        ('extends = "own.toml"', "own.toml extends another run file itself; extend that one"),
        ('extends = "base.toml"\n[[stages]]\nname = "none"', "has no stage named 'none'"),
        (
            'extends = "base.toml"\n[machine]\nlog = "often"',
            "own.toml: machine.log: must be a whole number, got 'often'",
        ),
        ('extends = "base.toml"\nstages = 3', "stages: must be a list, got 3"),
    ],
)
def test_what_extends_no_run_file_is_refused(tmp_path: Path, own: str, complaint: str) -> None:
    write_run(tmp_path / "base.toml", store=tmp_path, stages=("contrast",))
    (tmp_path / "own.toml").write_text(own)

    with pytest.raises(ModelError) as refused:
        read_run(tmp_path / "own.toml")

    assert complaint in str(refused.value)


def test_runs_are_told_apart_by_what_they_compute(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "one.toml", store=tmp_path))

    moved = replace(run, output="elsewhere", machine=replace(run.machine, log=7, threads=2))
    hotter = replace(run, stages=(replace(run.stages[0], learning_rate=0.5), *run.stages[1:]))

    begun = replace(run, start="a model", data=replace(run.data, words="full"))

    assert moved.fingerprint == run.fingerprint
    assert replace(begun, start_share=0.5).fingerprint == begun.fingerprint, "it changes what is written, no loss"
    assert hotter.fingerprint != run.fingerprint


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


def test_places_are_taught_to_the_detector_alone_on_patients_that_are_not_held_out() -> None:
    run = read_run(RUNS / "phantom_places.toml")

    assert [stage.train for stage in run.stages] == [("detector",)]
    held_out = {Path(source.file).name: Path(source.held_out).name for source in run.data.films}
    assert held_out == {
        "lungs_640.jsonl": "lungs_640.txt",
        "films.jsonl": "nih_512.txt",
        "normals_224.jsonl": "normals_224.txt",
    }
