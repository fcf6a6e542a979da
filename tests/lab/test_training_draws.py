"""What a step asks about: classes of the data sets that the batch has labels of, regions, and no prompt beside them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import numpy as np
import pytest
import torch

from models.errors import ModelError
from models.lab.losses.contrast import finding_contrast
from models.lab.training.batch import Batch, collate
from models.lab.training.forward import Forward
from models.lab.training.labels import Line, labels_of
from models.lab.training.objectives import LOSSES, draw_absent, losses_of
from models.lab.training.random_streams import stream
from models.lab.training.runfile import Run, read_run
from models.lab.training.stages import Drawing, MinedLabels, Objective, Stage
from models.lab.training.text_encoding import TextEncoder
from models.lab.training.trained_model import TrainedModel, build_model
from models.manifest import read_manifest, write_manifest
from tests.paths import REPOSITORY
from tests.support.random_model import SMALL_SIZES
from tests.support.training import PUBLISHED, PUBLISHED_NAMES, cig_film, vindr_film, write_run

RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"
CATALOG, NAMES = PUBLISHED, PUBLISHED_NAMES
VINDR, CIG = CATALOG.sets
DRAWS = 150


def batch_of(lines: list[Line], stage: Stage) -> Batch:
    films = [(np.zeros((64, 64), dtype=np.float32), labels_of(line, CATALOG)) for line in lines]
    return collate(films, catalog=CATALOG, drawing=stage.drawing, rng=stream(0, "test"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    run = read_run(write_run(folder / "run.toml", store=folder))
    return replace(run, data=replace(run.data, classes=("vindr", "cig")))


@pytest.fixture(scope="module")
def model(run: Run) -> TrainedModel:
    return build_model(run, CATALOG, ["Edema."])


def published(name: str) -> Stage:
    [stage] = read_run(RUNS / f"published_{name}.toml").stages
    return stage


def forwards(model: TrainedModel, stage: Stage, *lines: Line, times: int = DRAWS) -> list[Forward]:
    text_encoder = TextEncoder(model.network.prompt_encoder, model.vocabulary, learns=False, forgets=0.0)
    batch = batch_of([*lines], stage)
    return [
        Forward(
            model.network,
            model.heads,
            text_encoder,
            model.vocabulary,
            batch,
            catalog=CATALOG,
            stage=stage,
            rng=stream(number, "draws"),
        )
        for number in range(times)
    ]


def test_classes_are_drawn_from_those_labelled_in_the_batch(model: TrainedModel) -> None:
    drawn = [forward.classes for forward in forwards(model, published("1"), vindr_film(), cig_film())]

    counts = Counter(number for classes in drawn for number in classes)
    assert set(counts) == set(VINDR)
    # An expected 10 of 22; over so many draws the deviation is 0.19.
    assert np.mean([len(classes) for classes in drawn]) == pytest.approx(10, abs=0.8)


def test_each_data_set_has_its_own_ten(model: TrainedModel) -> None:
    both = vindr_film()
    both["present"] = both.get("present", {}) | dict.fromkeys(NAMES[CIG.start :], False)

    drawn = [forward.classes for forward in forwards(model, published("1"), both)]

    for numbers in (VINDR, CIG):
        own = [sum(number in numbers for number in classes) for classes in drawn]
        assert np.mean(own) == pytest.approx(10, abs=0.8)


@pytest.mark.parametrize("name", ["2", "3"])
def test_regions_see_no_other_prompts_after_the_first_stage(model: TrainedModel, name: str) -> None:
    drawn = forwards(model, published(name), cig_film(), vindr_film())

    assert {len(forward.classes) for forward in drawn} == {0}
    assert all(forward.found.aggregated.shape[1] == len(forward.regions) for forward in drawn[:3])
    counted = [len(forward.drawn_regions) for forward in drawn]
    assert np.mean(counted) == pytest.approx(20, abs=0.8)
    # Stage 2 judges all 29 regions; the draw decides which of them learn from sentences.
    expected = [29] * DRAWS if name == "2" else counted
    assert [len(forward.regions) for forward in drawn] == expected


@pytest.mark.parametrize(
    ("stage", "name", "film"),
    [
        ("2", "anat-mse", cig_film() | {"said": [cig_film()["said"][0] | {"regions": ["spine"]}]}),
        ("1", "anat-detect", {"regions": {"spine": [0.5, 0.5, 0.3, 0.3]}}),
    ],
)
def test_only_drawn_regions_learn_from_their_sentences_and_boxes(
    model: TrainedModel, stage: str, name: Objective, film: Line
) -> None:
    drawn = forwards(model, published(stage), film, times=20)
    spine = CATALOG.regions.index("spine")

    with torch.no_grad():
        losses = [float(LOSSES[name](forward)) for forward in drawn]

    assert [loss > 0 for loss in losses] == [spine in forward.drawn_regions for forward in drawn]
    assert 0 < sum(loss > 0 for loss in losses) < 20


@pytest.mark.parametrize("name", ["1", "2", "3"])
def test_films_without_labels_teach_nothing(model: TrainedModel, name: str) -> None:
    [forward] = forwards(model, published(name), {}, {}, times=1)

    with torch.no_grad():
        assert {loss: float(value) for loss, value in losses_of(forward).items() if value} == {}


def test_as_many_absent_classes_are_drawn_as_are_expected() -> None:
    torch.manual_seed(0)
    there = torch.zeros(1, 100, 53, dtype=torch.bool)
    there[0, :, 0], there[0, :5, 1:31] = True, True

    drawn = torch.stack([draw_absent(there, expected=10) for _ in range(200)])

    assert (drawn.sum(dim=1) == 10).all()
    # What is there 20 times as often is drawn nearly always, and nothing that is nowhere.
    assert drawn[:, 0].float().mean() > 0.9
    assert drawn[:, 1:31].any(dim=0).all() and not drawn[:, 31:].any()
    assert draw_absent(there[:, :, :4], expected=10).all()


def test_a_prompt_of_two_classes_is_no_contrast_to_itself() -> None:
    torch.manual_seed(0)
    positive, negative = torch.randn(10, 16), torch.randn(10, 16)
    present = torch.tensor([[True, False] * 5])
    features = torch.where(present[0, :, None], positive, negative)[None]

    alone = finding_contrast(features, positive, negative, present=present)
    twice = finding_contrast(
        torch.cat([features, features], dim=1),
        torch.cat([positive, positive]),
        torch.cat([negative, negative]),
        present=torch.cat([present, present], dim=1),
    )

    torch.testing.assert_close(twice, alone.repeat(1, 2))


def test_training_draws_anew_the_parts_that_an_import_lacked(run: Run, untrained_weights: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for path in untrained_weights.iterdir():
        (start / path.name).symlink_to(path)
    manifest = read_manifest(untrained_weights)
    (start / "manifest.toml").unlink()
    parts = ("image_encoder", "prompt_encoder", "detector", "post_decoder", "generator.prefix", "generator")
    origins = dict.fromkeys(parts, "never trained, zeros") | {"image_encoder": "CheXzero", "generator": "GPT-2"}
    write_manifest(start, replace(manifest, origins=origins))
    begun = replace(run, start=str(start), network=SMALL_SIZES, data=replace(run.data, words="full"))

    network = build_model(begun, CATALOG, []).network
    whole = build_model(replace(begun, start=str(untrained_weights)), CATALOG, []).network

    assert torch.equal(network.image_encoder.projection, whole.image_encoder.projection)
    assert torch.equal(network.generator.tokens.weight, whole.generator.tokens.weight)
    # spec §0 and 6: branches at 0.1 and a closed gate.
    assert network.post_decoder.gate.item() == 0 and whole.post_decoder.gate.item() == 0.5
    assert torch.equal(network.state_dict()["detector.layers.0.scale_mlp"], torch.full((64,), 0.1))
    prefixes = [each.state_dict()["generator.prefix.contract.weight"] for each in (network, whole)]
    assert not torch.equal(*prefixes)
    shared = replace(SMALL_SIZES, generator=replace(SMALL_SIZES.generator, prefix_shared=True))
    assert build_model(replace(begun, network=shared), CATALOG, []).network.generator.prefixes == 1
    with pytest.raises(ModelError, match="sizes differ"):
        build_model(replace(begun, network=shared, start=str(untrained_weights)), CATALOG, [])


def test_a_mined_label_may_be_wrong_and_a_soft_one_lies_between(model: TrainedModel) -> None:
    name, other = NAMES[:2]
    rates = MinedLabels(missed=0.1, invented=0.02, invented_by_class={other: 0.3})
    stage = replace(published("1"), losses={"presence": 1.0}, mined=rates, drawing=Drawing(classes=1e6))

    def loss(of: Objective = "presence", **line: Unpack[Line]) -> float:
        torch.manual_seed(0)  # The network drops out.
        [forward] = forwards(model, stage, line, times=1)
        with torch.no_grad():
            return float(LOSSES[of](forward))

    there = math.exp(-loss(present={name: True}))
    given = -math.log(there * 0.9 + (1 - there) * 0.02)
    absent = -math.log(1 - there * 0.9 - (1 - there) * 0.02)

    assert loss(present={name: False}) == pytest.approx(-math.log(1 - there), rel=1e-4)
    assert loss(present={name: True}, mined=[name]) == pytest.approx(given, rel=1e-4)
    assert loss(present={name: False}, mined=[name]) == pytest.approx(absent, rel=1e-4)
    soft = loss(present={name: True}, mined=[name], soft={name: 0.25})
    assert soft == pytest.approx(0.25 * given + 0.75 * absent, rel=1e-4)
    there = math.exp(-loss(present={other: True}))
    own_rate = -math.log(there * 0.9 + (1 - there) * 0.3)
    assert loss(present={other: True}, mined=[other]) == pytest.approx(own_rate, rel=1e-4)
    assert loss("patho-cls", present={name: True}) > 0 == loss("patho-cls", present={name: True}, mined=[name])
