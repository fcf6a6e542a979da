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
from models.lab.training.augment import augment, expose, mirror, move, move_boxes, overlay
from models.lab.training.batch import collate
from models.lab.training.catalog import catalog_of, exchange_sides
from models.lab.training.films import TrainingFilm, digest_of, find_films, read_films
from models.lab.training.labels import FilmLabels, Line, labels_of
from models.lab.training.random_streams import film_numbers, stream
from models.lab.training.runfile import FilmSource
from models.lab.training.split import HeldOut, read_held_out
from models.lab.training.stages import Augmentation, Drawing

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


def films_of(path: Path) -> list[TrainingFilm]:
    return list(read_films(path, find_films(FilmSource(file=str(path))), side=50))


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


def test_what_is_cut_off_is_forgotten() -> None:
    away = np.array([[1.0, 0, -0.5], [0, 1.0, 0]])

    shown = move(labels(), away)

    assert not shown.valid[EFFUSION].any() and not shown.located[EFFUSION] and not shown.known[EFFUSION]
    assert shown.known[CLASSES.index("edema")] and not shown.known[CLASSES.index("no_finding")]
    assert [sentence.text for sentence in shown.said] == ["No edema."]
    assert shown.sides == ()


def test_a_run_may_leave_sides_and_cropped_labels_as_published() -> None:
    published = Augmentation(flip=1.0, exchange_sides=False, forget_cropped=False)
    pixels = np.zeros((100, 100), dtype=np.uint8)

    _, flipped = augment(pixels, labels(), published, stream(0, "test"), catalog=CATALOG, size=100)
    cropped = move(labels(), np.array([[1.0, 0, -0.5], [0, 1.0, 0]]), forget=False)

    right = CATALOG.regions.index("right lung")
    assert flipped.seen[right] and flipped.regions[right] == pytest.approx([0.75, 0.5, 0.4, 0.8], abs=1e-6)
    assert [sentence.text for sentence in flipped.said] == [sentence.text for sentence in labels().said]
    assert not cropped.valid[EFFUSION].any() and cropped.located[EFFUSION] and cropped.known[EFFUSION]
    assert [len(sentence.boxes) for sentence in cropped.said] == [0, 0]


@pytest.mark.parametrize(("shift", "in_sight"), [(-0.27, True), (-0.29, False)])
def test_a_box_needs_a_tenth_in_sight(shift: float, in_sight: bool) -> None:
    box = np.array([0.2, 0.5, 0.2, 0.2], dtype=np.float32)

    _, seen = move_boxes(box, np.array([[1.0, 0, shift], [0, 1.0, 0]]))

    assert bool(seen) is in_sight


def test_questions_about_a_side_have_the_boxes_of_that_side() -> None:
    both = line(
        boxes={"pleural_effusion": [[0.2, 0.8, 0.2, 0.2], [0.8, 0.8, 0.2, 0.2]]},
        sides=[
            {"finding": "pleural_effusion", "side": "right", "zone": "lower", "box": [0.2, 0.8, 0.2, 0.2]},
            {"finding": "pleural_effusion", "side": "left", "zone": "lower", "box": [0.8, 0.8, 0.2, 0.2]},
        ],
    )
    films = [(np.zeros((8, 8), dtype=np.float32), labels_of(both, CATALOG))]

    batch = collate(
        films,
        catalog=CATALOG,
        drawing=Drawing(sentences=1, hints=9),
        rng=stream(0, "test"),
    )

    hints = [hint for hint in batch.asked[0] if not hint.is_sentence]
    found = [hint for hint in hints if len(hint.boxes)]
    assert len(found) == 2 and len(hints) == 3
    for hint in found:
        assert ("right" in hint.text.lower()) == (hint.boxes[0, 0] < 0.5)
    assert all("{" not in hint.text for hint in hints)
    arrays, asked = batch.asked_boxes(), batch.asked[0]
    assert arrays.is_sentence[0, : len(asked)].tolist() == [question.is_sentence for question in asked]
    assert arrays.is_placed[0, : len(asked)].tolist() == [question.is_placed for question in asked]
    assert [question for question in asked if question.is_sentence != question.is_placed]


def test_every_box_of_a_class_counts_however_many_there_are() -> None:
    many = [[0.1 * place, 0.5, 0.05, 0.05] for place in range(1, 6)]
    films = [
        (np.zeros((8, 8), dtype=np.float32), labels_of(known, CATALOG))
        for known in (line(), line(boxes={"pleural_effusion": many}))
    ]

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
    labeled = {"file": "a.png", "nih_labels": ["Effusion"], "boxes": []}
    path = tmp_path / "films.jsonl"
    path.write_text(f"{json.dumps(film)}\n{json.dumps(labeled)}\n")

    first, second = films_of(path)
    exact = next(read_films(path, find_films(FilmSource(file=str(path))), side=50, jpeg=False)).pixels

    assert (first.patient, second.patient) == ("p", "a")
    assert {*exact.flat} == {0, 255} != {*first.pixels.flat}
    assert first.pixels.shape == (50, 50) and first.pixels[12:28, 8:22].min() > 250
    known = labels_of(first.line, CATALOG)
    assert known.regions[CATALOG.regions.index("right lung")] == pytest.approx([0.3, 0.4, 0.4, 0.4])
    assert not known.known.any()
    told = labels_of(second.line, CATALOG)
    assert told.present[EFFUSION] and told.known[CLASSES.index("edema")] and not told.located.any()


def test_a_patient_is_on_one_side_of_the_split() -> None:
    third, half = HeldOut(share=1 / 3), HeldOut(share=0.5)
    held = {name for name in map(str, range(3000)) if name in third}

    assert 900 < len(held) < 1100
    assert {name for name in map(str, range(3000)) if name in half} > held


def test_the_films_of_a_held_out_patient_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "held_out.txt").write_text("b\n")
    path = tmp_path / "films.jsonl"
    path.write_text("".join(json.dumps({"file": "x.png", "patient": name}) + "\n" for name in "abcb"))

    places = find_films(FilmSource(file=str(path), held_out=str(tmp_path / "held_out.txt")))

    assert places[:, 0].tolist() == [1, 3]
    half = read_held_out("0.5")
    shown = [number for number, name in enumerate("abcb", 1) if name not in half]
    assert find_films(FilmSource(file=str(path), held_out="0.5"))[:, 0].tolist() == shown != [1, 2, 3, 4]


def test_films_are_told_apart_by_what_is_read_of_them(tmp_path: Path) -> None:
    path, held_out = tmp_path / "films.jsonl", tmp_path / "held_out.txt"
    path.write_text("one\n")
    held_out.write_text("a\n")
    source = FilmSource(file=str(path), held_out=str(held_out))

    def digest(source: FilmSource = source, *, version: int = 1) -> str:
        return digest_of(source, version=version)

    first = digest()
    assert digest(replace(source, repeat=3, balanced=True)) == first
    others = [digest(version=2), digest(replace(source, most=5)), digest(replace(source, held_out="0.5"))]
    held_out.write_text("a\nb\n")
    others.append(digest())
    held_out.write_text("a\n")
    path.write_text("other\n")
    others.append(digest())
    assert len({first, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0", "above 0"),
        ("1.5", "at most 1"),
        ("nan", "above 0"),
        ("away.txt", "cannot be read"),
        ("empty.txt", "names no patient"),
    ],
)
def test_a_split_that_says_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("# nobody\n")

    with pytest.raises(ModelError, match=complaint):
        read_held_out(text)


SIDE = {"finding": "edema", "side": "right", "zone": None, "box": [0.5, 0.5, 0.1, 0.1]}
SENTENCE = {"text": "Edema.", "positive": True, "findings": [], "regions": [], "boxes": []}


@pytest.mark.parametrize(
    ("film", "complaint"),
    [
        ({"truth": {"present": {"vindrcxr/Cardiomegly": True}}}, "did you mean 'vindrcxr/Cardiomegaly'"),
        ({"truth": {"boxes": {"Edema": []}}}, "no catalog has the class 'Edema'; did you mean 'edema'"),
        ({"truth": {"located": ["cig/af/edema"]}}, "no catalog has the class 'cig/af/edema'"),
        ({"truth": {"region_known": ["edem"]}}, "no catalog has the class 'edem'"),
        ({"truth": {"region_present": {"right lung": ["edem"]}}}, "no catalog has the class 'edem'"),
        ({"truth": {"regions": {"right lungs": [0, 0, 1, 1]}}}, "the region 'right lungs'; did you mean 'right lung'"),
        ({"truth": {"regions": {"lungs": [0, 0, 1, 1]}}}, "name right lung and left lung instead"),
        ({"truth": {"region_present": {"liver": []}}}, "no catalog has the region 'liver'"),
        ({"truth": {"said": [SENTENCE | {"findings": ["edem"]}]}}, "no catalog has the class 'edem'"),
        ({"truth": {"said": [SENTENCE | {"regions": ["liver"]}]}}, "no catalog has the region 'liver'"),
        ({"truth": {"sides": [SIDE | {"finding": "edem"}]}}, "no catalog has the class 'edem'"),
        ({"truth": {"regions": {"right lung": [0, 0, 1]}}}, "truth.regions.right lung: must be four numbers"),
        ({"truth": ["edema"]}, "truth: must be a table"),
        ({"truth": {"present": {"edema": True}, "soft": {"edema": 0.5}}}, "of classes that mined names"),
        (
            {"truth": {"present": {"edema": True}, "mined": ["edema"], "soft": {"edema": 1.5}}},
            "edema: must lie in 0..1",
        ),
    ],
)
def test_a_wrong_line_is_named_before_any_picture_is_read(
    tmp_path: Path, film: dict[str, object], complaint: str
) -> None:
    path = tmp_path / "films.jsonl"
    good: dict[str, object] = {"file": "nowhere.png"}
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(good | film)}\n")

    with pytest.raises(ModelError, match=complaint) as refused:
        find_films(FilmSource(file=str(path)))
    assert str(refused.value).startswith(f"{path}, line 3: ")


def test_a_class_of_two_catalogs_gets_its_label_by_its_own_name() -> None:
    both = catalog_of(["chexpert", "cig"])
    names = [phrases.name for phrases in both.classes]

    known = labels_of({"present": {"atelectasis": True, "cig/af/atelectasis": False}}, both)

    assert known.known.sum() == 2
    assert known.present[names.index("atelectasis")] and not known.present[names.index("cig/af/atelectasis")]


FILM = np.tile(np.linspace(20, 200, 96, dtype=np.uint8), (96, 1))


@pytest.mark.parametrize(
    "rule", [Augmentation(leads=1.0), Augmentation(clips=1.0), Augmentation(margin=1.0), Augmentation(letters=1.0)]
)
def test_what_is_drawn_covers_little_of_a_film(rule: Augmentation) -> None:
    shares = []
    for seed in range(40):
        shown = overlay(FILM, rule, np.random.default_rng(seed))
        shares.append(float((shown != FILM).mean()))

    assert max(shares) < 0.4 and np.mean(shares) > 0.002
    assert np.array_equal(FILM, np.tile(np.linspace(20, 200, 96, dtype=np.uint8), (96, 1))), "the film is not changed"


@pytest.mark.parametrize(
    "rule",
    [
        Augmentation(gamma=0.5),
        Augmentation(equalize=1.0),
        Augmentation(coarse=1.0),
        Augmentation(noise=0.05),
        Augmentation(jpeg=1.0),
    ],
)
def test_gray_values_change_and_stay_in_range(rule: Augmentation) -> None:
    shown = expose(FILM, rule, np.random.default_rng(3))

    assert shown.dtype == np.float32 and shown.shape == FILM.shape
    assert shown.min() >= 0 and shown.max() <= 1
    assert 1e-4 < np.abs(shown - FILM / 255).mean() < 0.3
