"""Films as training sees them: what is true of them stays true, whatever is done to pixels; what a step asks."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models import boxes as unit_boxes
from models.checkpoint.assembly import PARTS
from models.errors import ModelError
from models.lab.losses.contrast import finding_contrast
from models.lab.training.augment import augment, expose, mirror, move, move_boxes, overlay
from models.lab.training.batch import collate
from models.lab.training.catalog import catalog_of, exchange_sides
from models.lab.training.films import digest_of, find_films, read_films
from models.lab.training.forward import Forward
from models.lab.training.labels import FilmLabels, Line, labels_of
from models.lab.training.objectives import LOSSES, draw_absent, losses_of
from models.lab.training.random_streams import film_numbers, stream
from models.lab.training.runfile import FilmSource, Run, read_run
from models.lab.training.split import HeldOut, read_held_out
from models.lab.training.stages import Augmentation, Drawing, MinedLabels, Objective, Stage
from models.lab.training.text_encoding import TextEncoder
from models.lab.training.trained_model import TrainedModel, build_model
from models.manifest import MANIFEST, read_manifest, write_manifest
from tests.paths import REPOSITORY
from tests.support.random_model import SMALL_SIZES
from tests.support.training import PUBLISHED, PUBLISHED_NAMES, cig_film, vindr_film, write_run

CATALOG = catalog_of(["chexpert"])
CLASSES = [entry.name for entry in CATALOG.classes]
RULE = Augmentation(flip=0.5, area=(0.5, 1.0), aspect=1.3, scale=(0.9, 1.1), shift=0.05, rotate=10)
EFFUSION = CLASSES.index("pleural_effusion")


def line(**known: object) -> Line:
    return {
        "present": {"pleural_effusion": True, "edema": False, "no_finding": False},
        "boxes": {"pleural_effusion": [[0.2, 0.8, 0.2, 0.2]]},
        "located": ["pleural_effusion", "edema"],
        "regions": {"right lung": [0.25, 0.5, 0.4, 0.8], "aortic arch": [0.6, 0.3, 0.1, 0.1]},
        "region_present": {"right lung": ["pleural_effusion"]},
        "region_known": ["pleural_effusion", "edema"],
        "said": [
            {
                "text": "Small right pleural effusion.",
                "positive": True,
                "findings": ["pleural_effusion"],
                "regions": ["right lung"],
                "boxes": [[0.2, 0.8, 0.2, 0.2]],
            },
            {"text": "No edema.", "positive": False, "findings": ["edema"], "regions": [], "boxes": []},
        ],
        "sides": [{"finding": "pleural_effusion", "side": "right", "zone": "lower", "box": [0.2, 0.8, 0.2, 0.2]}],
        **known,  # type: ignore[typeddict-item] # only keys of a line are given
    }


def labels() -> FilmLabels:
    return labels_of(line(), CATALOG)


@pytest.mark.parametrize(
    ("text", "mirrored"),
    [
        ("Small right pleural effusion.", "Small left pleural effusion."),
        ("LEFT base, Right apex, left-sided", "RIGHT base, Left apex, right-sided"),
        ("A line ends in the right atrium.", "A line ends in the right atrium."),
        ("Bright upright copyright.", "Bright upright copyright."),
    ],
)
def test_sides_are_exchanged_in_words(text: str, mirrored: str) -> None:
    assert exchange_sides(text) == mirrored
    assert exchange_sides(exchange_sides(text)) == text


def test_a_mirrored_film_has_its_sides_exchanged() -> None:
    flipped = mirror(labels(), CATALOG)

    left, right, arch = (CATALOG.regions.index(name) for name in ("left lung", "right lung", "aortic arch"))
    assert flipped.seen[left] and not flipped.seen[right]
    assert flipped.region_present[left, EFFUSION] and flipped.region_known[left, EFFUSION]
    assert [sentence.text for sentence in flipped.said] == ["Small left pleural effusion.", "No edema."]
    assert flipped.said[0].regions == (left,)
    assert [side.side for side in flipped.sides] == ["left"]
    # A heart that points to the right has an arch too, but not where people have it.
    assert not flipped.seen[arch]


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.3, 0.7), st.floats(0.3, 0.7))
def test_boxes_go_where_the_pixels_go(seed: int, x: float, y: float) -> None:
    pixels = np.zeros((224, 224), dtype=np.uint8)
    box = np.array([[x, y, 0.1, 0.1]], dtype=np.float32)
    left, top, right, bottom = np.rint(unit_boxes.to_corners(box)[0] * 224).astype(int)
    pixels[top:bottom, left:right] = 255
    known = replace(labels(), boxes=np.zeros_like(labels().boxes), valid=np.zeros_like(labels().valid))
    known.boxes[0, 0], known.valid[0, 0] = (
        unit_boxes.to_center_size(np.array([left, top, right, bottom], dtype=np.float32) / 224),
        True,
    )

    gray, shown = augment(pixels, known, RULE, stream(seed, "test"), catalog=CATALOG, size=224)

    rows, columns = np.nonzero(gray > 0.5)
    corners = unit_boxes.to_corners(shown.boxes[0, 0])
    # Of a turned box that is cut off, the corner that reached farthest may be gone; its box then is a little too large.
    if shown.valid[0, 0] and len(rows) and corners.min() > 0 and corners.max() < 1:
        drawn = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 224
        assert corners == pytest.approx(drawn, abs=2 / 224)


AWAY = np.array([[1.0, 0, -0.5], [0, 1.0, 0]])


def test_what_is_cut_off_is_forgotten_and_a_box_needs_a_tenth_in_sight() -> None:
    shown = move(labels(), AWAY)

    assert not shown.valid[EFFUSION].any() and not shown.located[EFFUSION] and not shown.known[EFFUSION]
    assert shown.known[CLASSES.index("edema")] and not shown.known[CLASSES.index("no_finding")]
    assert [sentence.text for sentence in shown.said] == ["No edema."]
    assert shown.sides == ()
    box = np.array([0.2, 0.5, 0.2, 0.2], dtype=np.float32)
    seen = [bool(move_boxes(box, np.array([[1.0, 0, shift], [0, 1.0, 0]]))[1]) for shift in (-0.27, -0.29)]
    assert seen == [True, False]


def test_a_run_may_leave_sides_and_cropped_labels_as_published() -> None:
    published = Augmentation(flip=1.0, exchange_sides=False, forget_cropped=False)
    pixels = np.zeros((100, 100), dtype=np.uint8)

    _, flipped = augment(pixels, labels(), published, stream(0, "test"), catalog=CATALOG, size=100)
    cropped = move(labels(), AWAY, forget=False)

    right = CATALOG.regions.index("right lung")
    assert flipped.seen[right] and flipped.regions[right] == pytest.approx([0.75, 0.5, 0.4, 0.8], abs=1e-6)
    assert [sentence.text for sentence in flipped.said] == [sentence.text for sentence in labels().said]
    assert not cropped.valid[EFFUSION].any() and cropped.located[EFFUSION] and cropped.known[EFFUSION]
    assert [len(sentence.boxes) for sentence in cropped.said] == [0, 0]


def test_questions_about_a_side_have_the_boxes_of_that_side() -> None:
    right, left = [0.2, 0.8, 0.2, 0.2], [0.8, 0.8, 0.2, 0.2]
    of_right = {"finding": "pleural_effusion", "side": "right", "zone": "lower", "box": right}
    both = line(boxes={"pleural_effusion": [right, left]}, sides=[of_right, of_right | {"side": "left", "box": left}])
    films = [(np.zeros((8, 8), dtype=np.float32), labels_of(both, CATALOG))]

    batch = collate(films, catalog=CATALOG, drawing=Drawing(sentences=1, hints=9), rng=stream(0, "test"))

    arrays, asked = batch.asked_boxes(), batch.asked[0]
    hints = [hint for hint in asked if not hint.is_sentence]
    found = [hint for hint in hints if len(hint.boxes)]
    assert len(found) == 2 and len(hints) == 3
    for hint in found:
        assert ("right" in hint.text.lower()) == (hint.boxes[0, 0] < 0.5)
    assert all("{" not in hint.text for hint in hints)
    assert arrays.is_sentence[0, : len(asked)].tolist() == [question.is_sentence for question in asked]
    assert arrays.is_placed[0, : len(asked)].tolist() == [question.is_placed for question in asked]
    assert [question for question in asked if question.is_sentence != question.is_placed]


def test_every_box_of_a_class_counts_however_many_there_are() -> None:
    many = [[0.1 * place, 0.5, 0.05, 0.05] for place in range(1, 6)]
    lines = line(), line(boxes={"pleural_effusion": many})
    films = [(np.zeros((8, 8), dtype=np.float32), labels_of(known, CATALOG)) for known in lines]

    batch = collate(films, catalog=CATALOG, drawing=Drawing(), rng=stream(0, "test"))

    assert batch.valid[:, EFFUSION].sum(dim=1).tolist() == [1, 5]
    assert batch.boxes[1, EFFUSION].numpy() == pytest.approx(np.array(many))
    assert batch.asked_boxes()[0].shape[2] == 5


def test_an_epoch_has_every_film_once() -> None:
    numbers = film_numbers(7, 0, first=0, count=30, films=10)

    assert [sorted(numbers[start : start + 10]) for start in (0, 10, 20)] == [list(range(10))] * 3
    assert numbers[:10] != numbers[10:20]
    # Whoever begins in the middle gets what the others got.
    assert film_numbers(7, 0, first=13, count=5, films=10) == numbers[13:18]


def test_real_films_and_their_boxes_are_cut_to_the_square(tmp_path: Path) -> None:
    picture = np.zeros((100, 200), dtype=np.uint8)
    picture[20:60, 60:100] = 255
    cv2.imwrite(str(tmp_path / "a.png"), picture)
    film = {"file": "a.png", "patient": "p", "boxes": [{"label": "Right Lung", "xyxy": [60, 20, 100, 60]}]}
    path = tmp_path / "films.jsonl"
    path.write_text(json.dumps(film) + "\n")
    places = find_films(FilmSource(file=str(path)))

    (film_of_jpeg,), (exact,) = (read_films(path, places, side=50, jpeg=jpeg) for jpeg in (True, False))

    assert {*exact.pixels.flat} == {0, 255} != {*film_of_jpeg.pixels.flat}
    assert film_of_jpeg.pixels.shape == (50, 50) and film_of_jpeg.pixels[12:28, 8:22].min() > 250
    known = labels_of(exact.line, CATALOG)
    assert known.regions[CATALOG.regions.index("right lung")] == pytest.approx([0.3, 0.4, 0.4, 0.4])
    assert exact.patient == "p" and not known.known.any()


def test_a_patient_is_on_one_side_of_the_split() -> None:
    third, half = ({name for name in map(str, range(3000)) if name in HeldOut(share=share)} for share in (1 / 3, 0.5))

    assert 900 < len(third) < 1100 and half > third


def test_the_films_of_a_held_out_patient_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("b\n")
    path = tmp_path / "films.jsonl"
    path.write_text("".join(json.dumps({"file": "x.png", "patient": name}) + "\n" for name in "abcb"))

    places = find_films(FilmSource(file=str(path), held_out=str(tmp_path / "held_out.txt")))

    assert places[:, 0].tolist() == [1, 3]
    half = read_held_out("0.5")
    shown = [number for number, name in enumerate("abcb", 1) if name not in half]
    assert find_films(FilmSource(file=str(path), held_out="0.5"))[:, 0].tolist() == shown != [1, 2, 3, 4]

    (tmp_path / "empty.txt").write_text("# nobody\n")
    wrong = {"0": "above 0", "1.5": "at most 1", "nan": "above 0", str(tmp_path / "away.txt"): "cannot be read"}
    for text, complaint in (wrong | {str(tmp_path / "empty.txt"): "names no patient"}).items():
        with pytest.raises(ModelError, match=complaint):
            read_held_out(text)


def test_films_are_told_apart_by_what_is_read_of_them(tmp_path: Path) -> None:
    path, held_out = tmp_path / "films.jsonl", tmp_path / "held_out.txt"
    source = FilmSource(file=str(path), held_out=str(held_out))

    def digest(film: str = "one", patient: str = "a", *, version: int = 1, **changes: object) -> str:
        path.write_text(f"{film}\n")
        held_out.write_text(f"{patient}\n")
        return digest_of(replace(source, **changes), version=version)  # type: ignore[arg-type] # as its fields are

    assert digest(repeat=3, balanced=True) == digest()
    told_apart = [
        digest(),
        digest(version=2),
        digest(most=5),
        digest(held_out="0.5"),
        digest("two"),
        digest(patient="b"),
    ]
    assert len({*told_apart}) == len(told_apart)


def test_a_wrong_line_is_named_before_any_picture_is_read(tmp_path: Path) -> None:
    path = tmp_path / "films.jsonl"
    path.write_text('{"file": "nowhere.png"}\n\n{"file": "nowhere.png", "truth": ["edema"]}\n')

    with pytest.raises(ModelError, match="truth: must be a table") as refused:
        find_films(FilmSource(file=str(path)))
    assert str(refused.value).startswith(f"{path}, line 3: ")


def test_a_class_of_two_catalogs_gets_its_label_by_its_own_name() -> None:
    both = catalog_of(["chexpert", "cig"])
    names = [phrases.name for phrases in both.classes]

    known = labels_of({"present": {"atelectasis": True, "cig/af/atelectasis": False}}, both)

    assert known.known.sum() == 2
    assert known.present[names.index("atelectasis")] and not known.present[names.index("cig/af/atelectasis")]


FILM = np.tile(np.linspace(20, 200, 96, dtype=np.uint8), (96, 1))


@pytest.mark.parametrize("kind", ["leads", "clips", "margin", "letters"])
def test_what_is_drawn_covers_little_of_a_film(kind: str) -> None:
    film, rule = FILM.copy(), Augmentation(**{kind: 1.0})  # type: ignore[arg-type] # a share
    shares = [float((overlay(film, rule, np.random.default_rng(seed)) != FILM).mean()) for seed in range(40)]

    assert max(shares) < 0.4 and np.mean(shares) > 0.002
    assert np.array_equal(film, FILM), "the film is not changed"


@pytest.mark.parametrize(
    ("kind", "strength"), [("gamma", 0.5), ("equalize", 1.0), ("coarse", 1.0), ("noise", 0.05), ("jpeg", 1.0)]
)
def test_gray_values_change_and_stay_in_range(kind: str, strength: float) -> None:
    rule = Augmentation(**{kind: strength})  # type: ignore[arg-type] # a share
    shown = expose(FILM, rule, np.random.default_rng(3))

    assert shown.dtype == np.float32 and shown.shape == FILM.shape
    assert shown.min() >= 0 and shown.max() <= 1
    assert 1e-4 < np.abs(shown - FILM / 255).mean() < 0.3


# ---- what a step asks about: classes of the data sets that the batch has labels of, regions, and no prompt beside them


RUNS = REPOSITORY / "models" / "lab" / "training" / "runs"
NAMES = PUBLISHED_NAMES
VINDR, CIG = PUBLISHED.sets
DRAWS = 150


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    run = read_run(write_run(folder / "run.toml", store=folder))
    return replace(run, data=replace(run.data, classes=("vindr", "cig")))


@pytest.fixture(scope="module")
def model(run: Run) -> TrainedModel:
    return build_model(run, PUBLISHED, ["Edema."])


def published(name: str) -> Stage:
    [stage] = read_run(RUNS / f"published_{name}.toml").stages
    return stage


def forwards(model: TrainedModel, stage: Stage, *lines: Line, times: int = DRAWS) -> list[Forward]:
    network, vocabulary = model.network, model.vocabulary
    text_encoder = TextEncoder(network.prompt_encoder, vocabulary, learns=False, forgets=0.0)
    films = [(np.zeros((64, 64), dtype=np.float32), labels_of(line, PUBLISHED)) for line in lines]
    batch = collate(films, catalog=PUBLISHED, drawing=stage.drawing, rng=stream(0, "test"))
    given = (network, model.heads, text_encoder, vocabulary, batch)
    return [Forward(*given, catalog=PUBLISHED, stage=stage, rng=stream(number, "draws")) for number in range(times)]


def test_classes_are_drawn_from_those_labelled_in_the_batch_ten_of_each_data_set(model: TrainedModel) -> None:
    both = vindr_film()
    both["present"] = both.get("present", {}) | dict.fromkeys(NAMES[CIG.start :], False)

    of_vindr = [forward.classes for forward in forwards(model, published("1"), vindr_film(), cig_film())]
    of_both = [forward.classes for forward in forwards(model, published("1"), both)]

    assert {number for classes in of_vindr for number in classes} == set(VINDR)
    # An expected 10 of 22, and of 53; over so many draws the deviation is 0.19.
    for drawn, numbers in ((of_vindr, VINDR), (of_both, VINDR), (of_both, CIG)):
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
    spine = PUBLISHED.regions.index("spine")

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
    start = shutil.copytree(untrained_weights, tmp_path / "start", copy_function=os.symlink)
    manifest = read_manifest(untrained_weights)
    (start / MANIFEST).unlink()
    origins = dict.fromkeys(PARTS, "never trained, zeros") | {"image_encoder": "CheXzero", "generator": "GPT-2"}
    write_manifest(start, replace(manifest, origins=origins))
    begun = replace(run, start=str(start), network=SMALL_SIZES, data=replace(run.data, words="full"))

    network = build_model(begun, PUBLISHED, []).network
    whole = build_model(replace(begun, start=str(untrained_weights)), PUBLISHED, []).network

    assert torch.equal(network.image_encoder.projection, whole.image_encoder.projection)
    assert torch.equal(network.generator.tokens.weight, whole.generator.tokens.weight)
    # spec §0 and 6: branches at 0.1 and a closed gate.
    assert network.post_decoder.gate.item() == 0 and whole.post_decoder.gate.item() == 0.5
    assert torch.equal(network.state_dict()["detector.layers.0.scale_mlp"], torch.full((64,), 0.1))
    prefixes = [each.state_dict()["generator.prefix.contract.weight"] for each in (network, whole)]
    assert not torch.equal(*prefixes)
    shared = replace(SMALL_SIZES, generator=replace(SMALL_SIZES.generator, prefix_shared=True))
    assert build_model(replace(begun, network=shared), PUBLISHED, []).network.generator.prefixes == 1
    with pytest.raises(ModelError, match="sizes differ"):
        build_model(replace(begun, network=shared, start=str(untrained_weights)), PUBLISHED, [])


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
