"""Contact sheets of the best and the worst films."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from models.contract import FilmReading, FindingState, PromptKind, PromptReading
from models.engines import FloatArray
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.detection import Detections
from models.lab.evaluation.evaluated_model import Observation
from models.lab.evaluation.pictures import best_of, quality, write_sheets
from models.lab.evaluation.request import Task
from models.lab.phantoms import FINDINGS
from models.manifest import read_manifest
from models.reading.tokenizers import VOCABULARIES

PLACES: dict[str, int] = {key: number for number, key in enumerate(FINDINGS)}
MANIFEST = read_manifest(VOCABULARIES.parent)
HEART = np.array([0.5, 0.6, 0.4, 0.3], dtype=np.float32)
APART = np.array([0.2, 0.2, 0.2, 0.2], dtype=np.float32)
HALF = HEART * np.array([1, 1, 0.5, 1], dtype=np.float32)


def detected(*found: tuple[str, FloatArray, float]) -> Detections:
    return Detections(
        np.array([box for _, box, _ in found], dtype=np.float32).reshape(-1, 4),
        np.array([PLACES[key] for key, _, _ in found], dtype=np.intp),
        np.array([score for _, _, score in found], dtype=np.float32),
    )


def said(
    *found: tuple[str, FloatArray, float],
    asked: bool = True,
    regions: dict[str, FloatArray] | None = None,
    reading: FilmReading | None = None,
) -> Observation:
    return Observation(
        found=detected(*found) if asked else None,
        regions=regions or {},
        region_scores=np.zeros((0, len(FINDINGS)), dtype=np.float32),
        reading=reading,
        hints=np.zeros((0, 4), dtype=np.float32),
    )


def truth(*boxes: FloatArray, key: str = "cardiomegaly", regions: dict[str, FloatArray] | None = None) -> Truth:
    return Truth(boxes={key: np.stack(boxes)} if boxes else {}, regions=regions or {})


def film(gray: float, known: Truth, *, name: str = "film", side: int = 64) -> EvaluationCase:
    return EvaluationCase(name=name, gray=np.full((side, side), gray, dtype=np.float32), truth=known)


def test_a_film_is_rated_by_the_best_box_of_each_finding_that_it_has() -> None:
    every = [(key, APART, 0.1) for key in FINDINGS]

    assert quality(truth(HEART), said(*every, ("cardiomegaly", HALF, 0.9))) == pytest.approx(0.5)
    assert quality(truth(HEART), said(*every, ("cardiomegaly", HEART, 0.05))) == 0.0
    assert quality(truth(HALF, HEART), said(*every, ("cardiomegaly", HEART, 0.9))) == pytest.approx(1.0)
    both = Truth(boxes={"cardiomegaly": HEART[np.newaxis], "edema": HEART[np.newaxis]})
    assert quality(both, said(*every, ("cardiomegaly", HEART, 0.9))) == pytest.approx(0.5)


def test_without_a_box_to_find_a_film_is_rated_by_its_lungs_and_heart() -> None:
    known = {"right lung": HEART, "cardiac silhouette": HEART, "left lung": HEART, "spine": HEART}
    seen = {"right lung": HEART, "cardiac silhouette": HALF, "spine": APART}

    assert quality(truth(regions=known), said(regions=seen)) == pytest.approx(0.75)
    assert quality(truth(HEART, regions=known), said(asked=False, regions=seen)) == pytest.approx(0.75)
    assert quality(truth(regions={"spine": HEART}), said(regions=seen)) is None
    assert quality(truth(), said()) is None


def test_the_best_box_of_a_finding_has_its_highest_score() -> None:
    best = best_of(
        detected(("edema", APART, 0.2), ("edema", HEART, 0.6), ("edema", HALF, 0.4), ("fracture", HALF, 0.9))
    )

    assert {key: box.tolist() for key, box in best.items()} == {"edema": HEART.tolist(), "fracture": HALF.tolist()}


def sheets(
    monkeypatch: pytest.MonkeyPatch, known: Sequence[Truth], answers: Sequence[Observation], *, count: int
) -> dict[str, Figure]:
    """The sheets that are written of films of these truths and answers, by name; a film's name is its number."""
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(Figure, "savefig", lambda sheet, path: drawn.update({path.name: sheet}))
    films = Films(*(film(0.5, own, name=str(number)) for number, own in enumerate(known)))
    written = write_sheets(Path(), films, known, answers, rule=MANIFEST.input, count=count)
    assert written == list(drawn)
    return drawn


def frames(picture: Axes) -> set[tuple[str, str]]:
    """The color and the place of each box on a picture."""
    colors = {to_rgba(color): name for name, color in (("green", "#3cc85a"), ("orange", "#ff8c00"))}
    named = {"heart": HEART, "apart": APART, "half": HALF}
    found = set()
    for patch in picture.patches:
        assert isinstance(patch, Rectangle)
        box = [patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2]
        box += [patch.get_width(), patch.get_height()]
        [place] = [name for name, own in named.items() if own == pytest.approx(np.array(box), abs=1e-6)]
        found.add((colors[to_rgba(patch.get_edgecolor())], place))
    return found


def test_true_boxes_are_green_and_those_of_the_model_orange(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [(key, APART, 0.9) for key in FINDINGS]

    def shown(known: Truth, answer: Observation) -> set[tuple[str, str]]:
        [picture] = sheets(monkeypatch, [known], [answer], count=1)["hits.jpg"].axes
        return frames(picture)

    assert shown(truth(HEART), said(*everything)) == {("green", "heart"), ("orange", "apart")}
    beside = said(("cardiomegaly", HALF, 0.9), ("edema", APART, 0.9))
    assert shown(truth(HEART), beside) == {("green", "heart"), ("orange", "half")}, "of findings that the film has"

    def present(state: FindingState) -> FilmReading:
        one = PromptReading(key="edema", kind=PromptKind.PATHOLOGY, probability=0.9, state=state)
        return FilmReading(sentences=(), prompts=(one,))

    green = {("green", "heart")}
    answers = {state: said(*everything, reading=present(state)) for state in FindingState}
    assert shown(truth(HEART), answers[FindingState.PRESENT]) == green | {("orange", "apart")}
    assert shown(truth(HEART), answers[FindingState.ABSENT]) == green

    regions = {"right lung": APART}, {"right lung": HEART}
    alone = shown(truth(regions=regions[0]), said(regions=regions[1]))
    assert alone == {("green", "apart"), ("orange", "heart")}
    assert shown(truth(HALF, regions=regions[0]), said(asked=False, regions=regions[1])) == {("green", "half")}


class Films:
    """Films of one gray each."""

    tasks = frozenset[Task]()

    def __init__(self, *films: EvaluationCase) -> None:
        self._films = films

    def __len__(self) -> int:
        return len(self._films)

    def load(self, index: int) -> EvaluationCase:
        return self._films[index]


def test_the_best_and_the_worst_films_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    every = [(key, APART, 0.1) for key in FINDINGS]
    known = [truth(HEART), truth(), truth(HEART), truth(HEART)]
    answers = [
        said(*every, ("cardiomegaly", HALF, 0.9)),
        said(*every),
        said(*every, ("cardiomegaly", HEART, 0.9)),
        said(*every),
    ]

    made = sheets(monkeypatch, known, answers, count=2)

    titles = {name: [picture.get_title() for picture in sheet.axes] for name, sheet in made.items()}
    assert titles == {"hits.jpg": ["2  IoU 1.00", "0  IoU 0.50"], "failures.jpg": ["3  IoU 0.00", "0  IoU 0.50"]}
    assert sheets(monkeypatch, [truth()], [said()], count=2) == {}


def test_pictures_lie_four_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = sheets(monkeypatch, [truth(HEART)] * 5, [said(("cardiomegaly", HEART, 0.9))] * 5, count=5)["hits.jpg"]

    corners = [(picture.get_position().x0, picture.get_position().y0) for picture in sheet.axes]
    xs = [round(x, 6) for x, _ in corners]
    assert xs == [*sorted(set(xs)), xs[0]]
    assert len({round(y, 6) for _, y in corners[:4]}) == 1 and corners[4][1] < corners[0][1]
    assert sheet.get_size_inches().tolist() == pytest.approx([4 * 3.2, 2 * 3.2])


def test_any_name_of_a_film_is_drawn(tmp_path: Path) -> None:
    films = Films(film(0.5, truth(HEART), name="US$film_{1$.png"))

    written = write_sheets(
        tmp_path, films, [truth(HEART)], [said(("cardiomegaly", HALF, 0.9))], rule=MANIFEST.input, count=1
    )

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written) != []
