"""Films as training sees them: what is true of them stays true, whatever is done to their pixels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import boxes as unit_boxes
from models.errors import ModelError
from models.phantoms.picture import phantom
from models.training.augment import augment, draw_map, mirror, move, move_boxes
from models.training.batch import collate
from models.training.catalog import catalog_of, exchange_sides
from models.training.draws import film_numbers, stream
from models.training.films import is_held_out, read_films
from models.training.runfile import Films
from models.training.stages import Augmentation, Drawing
from models.training.truths import Line, Truth, line_of, truth_of

CATALOG = catalog_of(["chexpert"])
CLASSES = [one.name for one in CATALOG.classes]
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


def truth() -> Truth:
    return truth_of(line(), CATALOG)


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
    flipped = mirror(truth(), CATALOG)

    left, right, arch = (CATALOG.regions.index(name) for name in ("left lung", "right lung", "aortic arch"))
    assert flipped.seen[left] and not flipped.seen[right]
    assert flipped.region_present[left, EFFUSION] and flipped.region_known[left, EFFUSION]
    assert [one.text for one in flipped.said] == ["Small left pleural effusion.", "No edema."]
    assert flipped.said[0].regions == (left,)
    assert [one.side for one in flipped.sides] == ["left"]
    # A heart that points to the right has an arch too, but not where people have it.
    assert not flipped.seen[arch]


def test_flipping_moves_boxes_with_the_pixels() -> None:
    pixels = np.zeros((100, 100), dtype=np.uint8)
    pixels[70:90, 10:30] = 255
    rng = stream(0, "test")

    gray, shown = augment(pixels, truth(), Augmentation(flip=1.0), rng, catalog=CATALOG, size=100)

    rows, columns = np.nonzero(gray > 0.5)
    assert (columns.min(), columns.max() + 1, rows.min(), rows.max() + 1) == (70, 90, 70, 90)
    assert shown.boxes[EFFUSION, 0] == pytest.approx([0.8, 0.8, 0.2, 0.2], abs=1e-6)
    assert shown.said[0].boxes[0] == pytest.approx([0.8, 0.8, 0.2, 0.2], abs=1e-6)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.floats(0.3, 0.7), st.floats(0.3, 0.7))
def test_boxes_go_where_the_pixels_go(seed: int, x: float, y: float) -> None:
    pixels = np.zeros((224, 224), dtype=np.uint8)
    box = np.array([[x, y, 0.1, 0.1]], dtype=np.float32)
    left, top, right, bottom = np.rint(unit_boxes.to_corners(box)[0] * 224).astype(int)
    pixels[top:bottom, left:right] = 255
    known = replace(truth(), boxes=np.zeros_like(truth().boxes), valid=np.zeros_like(truth().valid))
    known.boxes[0, 0], known.valid[0, 0] = (
        unit_boxes.to_center_size(np.array([left, top, right, bottom], dtype=np.float32) / 224),
        True,
    )

    gray, shown = augment(pixels, known, RULE, stream(seed, "test"), catalog=CATALOG, size=224)

    rows, columns = np.nonzero(gray > 0.5)
    if shown.valid[0, 0] and len(rows):
        drawn = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 224
        assert unit_boxes.to_corners(shown.boxes[0, 0]) == pytest.approx(drawn, abs=2 / 224)


def test_what_is_cut_off_is_forgotten() -> None:
    away = np.array([[1.0, 0, -0.5], [0, 1.0, 0]])

    shown = move(truth(), away, visibility=0.1)

    assert not shown.valid[EFFUSION].any() and not shown.located[EFFUSION] and not shown.known[EFFUSION]
    assert shown.known[CLASSES.index("edema")] and not shown.known[CLASSES.index("no_finding")]
    assert [one.text for one in shown.said] == ["No edema."]
    assert shown.sides == ()


@pytest.mark.parametrize(("shift", "in_sight"), [(-0.27, True), (-0.29, False)])
def test_a_box_needs_a_tenth_in_sight(shift: float, in_sight: bool) -> None:
    box = np.array([0.2, 0.5, 0.2, 0.2], dtype=np.float32)

    _, seen = move_boxes(box, np.array([[1.0, 0, shift], [0, 1.0, 0]]), visibility=0.1)

    assert bool(seen) is in_sight


def test_without_a_rule_a_film_stays_as_it_is() -> None:
    film = phantom(3, side=64)
    known = truth_of(line_of(film), CATALOG)

    gray, shown = augment(film.pixels, known, Augmentation(), stream(1, "test"), catalog=CATALOG, size=64)

    assert gray == pytest.approx(film.pixels / 255, abs=1e-6)
    assert shown.boxes == pytest.approx(known.boxes, abs=1e-6)
    assert (shown.valid == known.valid).all() and (shown.seen == known.seen).all()


@settings(max_examples=30)
@given(st.integers(0, 1000))
def test_a_part_of_the_film_is_never_more_than_the_film(seed: int) -> None:
    place = draw_map(Augmentation(area=(0.5, 0.9), aspect=1.3), stream(seed, "test"), flipped=False)

    corners = np.linalg.inv(np.vstack([place, [0, 0, 1]])) @ np.array([[0, 1], [0, 1], [1, 1]])

    assert corners[:2].min() >= -1e-9 and corners[:2].max() <= 1 + 1e-9


def test_a_phantom_is_kept_with_all_that_is_true_of_it() -> None:
    film = phantom(11, side=64)

    known = truth_of(json.loads(json.dumps(line_of(film))), CATALOG)

    assert {CLASSES[number] for number in np.flatnonzero(known.present)} - {"no_finding"} == set(film.findings)
    for key, boxes in film.findings.items():
        assert known.boxes[CLASSES.index(key)][known.valid[CLASSES.index(key)]] == pytest.approx(boxes, abs=1e-5)
    assert {CATALOG.regions[number] for number in np.flatnonzero(known.seen)} == set(film.regions)
    for region, found in film.region_findings.items():
        held = known.region_present[CATALOG.regions.index(region)]
        assert {CLASSES[number] for number in np.flatnonzero(held)} == set(found)
    assert [one.text for one in known.said] == [one.text for one in film.sentences]


def test_questions_about_a_side_have_the_boxes_of_that_side() -> None:
    both = line(
        boxes={"pleural_effusion": [[0.2, 0.8, 0.2, 0.2], [0.8, 0.8, 0.2, 0.2]]},
        sides=[
            {"finding": "pleural_effusion", "side": "right", "zone": "lower", "box": [0.2, 0.8, 0.2, 0.2]},
            {"finding": "pleural_effusion", "side": "left", "zone": "lower", "box": [0.8, 0.8, 0.2, 0.2]},
        ],
    )
    films = [(np.zeros((8, 8), dtype=np.float32), truth_of(both, CATALOG))]

    batch = collate(
        films,
        catalog=CATALOG,
        drawing=Drawing(sentences=1, hints=9),
        rng=stream(0, "test"),
        mean=0.5,
        std=0.25,
        device="cpu",
    )

    hints = [one for one in batch.asked[0] if not one.is_sentence]
    found = [one for one in hints if len(one.boxes)]
    assert len(found) == 2 and len(hints) == 3
    for one in found:
        assert ("right" in one.text.lower()) == (one.boxes[0, 0] < 0.5)
    assert all("{" not in one.text for one in hints)


def test_an_epoch_has_every_film_once() -> None:
    numbers = film_numbers(7, 0, first=0, count=30, films=10)

    assert [sorted(numbers[start : start + 10]) for start in (0, 10, 20)] == [list(range(10))] * 3
    assert numbers[:10] != numbers[10:20]
    # Whoever begins in the middle gets what the others got.
    assert film_numbers(7, 0, first=13, count=5, films=10) == numbers[13:18]


def test_real_films_are_cut_to_their_square_and_their_boxes_with_them(tmp_path: Path) -> None:
    picture = np.zeros((100, 200), dtype=np.uint8)
    picture[20:60, 60:100] = 255
    cv2.imwrite(str(tmp_path / "a.png"), picture)
    film = {"file": "a.png", "patient": "p", "boxes": [{"label": "Right Lung", "xyxy": [60, 20, 100, 60]}]}
    labeled = {"file": "a.png", "nih_labels": ["Effusion"], "boxes": []}
    (tmp_path / "films.jsonl").write_text(f"{json.dumps(film)}\n{json.dumps(labeled)}\n")

    first, second = read_films(Films(file=str(tmp_path / "films.jsonl")), side=50)

    assert first.pixels.shape == (50, 50) and first.pixels[12:28, 8:22].min() > 250
    known = truth_of(first.line, CATALOG)
    assert known.regions[CATALOG.regions.index("right lung")] == pytest.approx([0.3, 0.4, 0.4, 0.4])
    assert not known.known.any()
    told = truth_of(second.line, CATALOG)
    assert told.present[EFFUSION] and told.known[CLASSES.index("edema")] and not told.located.any()


def test_a_box_around_both_lungs_is_of_no_single_region(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((100, 100), dtype=np.uint8))
    film = {"file": "a.png", "patient": "p", "boxes": [{"label": "Lungs", "xyxy": [10, 10, 90, 90]}]}
    (tmp_path / "films.jsonl").write_text(f"{json.dumps(film)}\n")

    (only,) = read_films(Films(file=str(tmp_path / "films.jsonl")), side=50)

    assert not truth_of(only.line, CATALOG).seen.any()


def test_a_patient_is_on_one_side_of_the_split() -> None:
    held = {name for name in map(str, range(3000)) if is_held_out(name, 1 / 3)}

    assert 900 < len(held) < 1100
    assert {name for name in map(str, range(3000)) if is_held_out(name, 0.5)} > held


def test_a_line_that_is_no_film_is_told(tmp_path: Path) -> None:
    (tmp_path / "films.jsonl").write_text('{"patient": "p"}\n')

    with pytest.raises(ModelError, match="line 1"):
        list(read_films(Films(file=str(tmp_path / "films.jsonl")), side=50))
