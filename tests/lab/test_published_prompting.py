"""Figures 4, 5, 6, 8 and 9: which boxes count, what is asked about them, and what is counted of the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

from language.labels import RuleLabeler
from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation.boxes_file import FileFilms
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.document import task_section
from models.lab.evaluation.published import prompting
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.request import FIGURE_TASKS
from models.progress import quiet
from tests.lab.published import small_model

EFFUSION, CARDIOMEGALY = "mscxr/Pleural Effusion", "mscxr/Cardiomegaly"
HELD = {"cig/af/pleural effusion"}


def box(x: float, y: float, side: float) -> FloatArray:
    return np.array([x, y, side, side], dtype=np.float32)


REGIONS = {
    "right lung": box(0.3, 0.5, 0.4),
    "right lower lung zone": box(0.3, 0.6, 0.2),
    "left lung": box(0.7, 0.5, 0.4),
    "left lower lung zone": box(0.7, 0.6, 0.2),
    "cardiac silhouette": box(0.5, 0.6, 0.3),
}


def labels(boxes: dict[str, list[FloatArray]], held: dict[str, set[str]]) -> PublishedLabels:
    return PublishedLabels(
        boxes=tuple((name, own) for name, some in boxes.items() for own in some),
        regions=REGIONS,
        region_findings={name: frozenset(held.get(name, ())) for name in REGIONS},
    )


BOTH = labels({EFFUSION: [box(0.3, 0.6, 0.25), box(0.7, 0.5, 0.4)]}, {"right lung": HELD, "left lung": HELD})
ONE = labels({EFFUSION: [box(0.3, 0.6, 0.2)]}, {"right lung": HELD})
OTHERWISE = labels({CARDIOMEGALY: [box(0.5, 0.6, 0.3)]}, {"left lung": HELD})
"""Two boxes of a class, one in each lung; one; and one whose class no region holds."""


@dataclass(frozen=True)
class Films:
    """Films with these labels, and noise for pixels."""

    labels: list[PublishedLabels]
    side: int

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, index: int) -> EvaluationCase:
        gray = np.random.default_rng(index).random((self.side, self.side), dtype=np.float32)
        return EvaluationCase(name=str(index), gray=gray, truth=Truth(), published=self.labels[index])


@pytest.fixture(scope="module")
def model() -> PublishedModel:
    return small_model(seed=17)


def test_a_box_lies_in_the_part_of_the_lung_that_it_overlaps_most() -> None:
    right, left = prompting.instances_of(BOTH)

    assert (right.fine, right.coarse) == ("right lower lung zone", "right lung"), "a part of a region that holds it"
    assert (left.fine, left.coarse) == ("left lung", "left lung")
    assert right.others.tolist() == [left.box.tolist()] and left.others.tolist() == [right.box.tolist()]
    assert right.opposite is not None and right.opposite.tolist() == REGIONS["left lung"].tolist()
    assert right.asked(right.fine) == "Pleural effusion in the right lower lung zone"
    assert right.asked(word="Mild") == "Mild pleural effusion"
    assert prompting.instances_of(OTHERWISE) == [], "MS-CXR and Chest ImaGenome differ"


def test_each_figure_is_about_its_instances(model: PublishedModel) -> None:
    films = cast("FileFilms", Films([BOTH, ONE, OTHERWISE], model.network.sizes.image_encoder.image_size))

    made = prompting.figures(model, films, FIGURE_TASKS, RuleLabeler(), quiet)

    counted = {
        task: {kind: row["boxes"] for kind, row in made[task]["by_prompt"].items()}  # type: ignore[attr-defined] # a table
        for task in prompting.BOXES
    }
    assert counted == {
        "figure_4": dict.fromkeys(("no hint", "coarse hint", "fine hint"), 2),
        "figure_5": dict.fromkeys(("no hint", "right hint", "opposite hint"), 1),
        "figure_6": dict.fromkeys(("no hint", "coarse hint", "fine hint"), 3),
        "figure_8": dict.fromkeys(
            ("as it is", "mild", "moderate", "severe", "improved", "unchanged", "worsened", "no"), 3
        ),
    }
    assert all(own["films"] == 2 and own["films_of_the_paper"] == 98 for own in made.values())
    told = made["figure_6"]["by_sentence"]
    assert set(told) == {"pathology", "box", "box and pathology", "region", "pathology in the region"}  # type: ignore[call-overload] # a table
    assert "| no hint | 2 | " in task_section("figure_4", made["figure_4"])
    nearest = cast("dict[str, int]", made["figure_9"]["nearest_region"])
    assert sum(nearest.values()) <= 7 + 7 + 6 and not any(name.startswith("Pleural effusion") for name in nearest)


def test_the_box_of_an_instance_has_a_giou_of_one(model: PublishedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    [instance] = prompting.instances_of(ONE)
    found = np.stack([REGIONS["left lung"], instance.box, box(0.3, 0.6, 0.1)])
    monkeypatch.setattr(prompting, "likeliest", lambda *_: found)
    picture = model.picture(np.zeros((model.network.sizes.image_encoder.image_size,) * 2, dtype=np.float32))

    rows = list(prompting.located(model, picture, instance, "figure_5"))

    # The last is a quarter of the box, and all of it lies inside.
    assert [row.own for row in rows[1:]] == pytest.approx([1.0, 0.25], abs=1e-6)
    assert rows[0].own < 0 and rows[0].other == pytest.approx(1.0, abs=1e-6) and rows[1].other < 0


def test_sentences_are_counted_by_what_they_find(monkeypatch: pytest.MonkeyPatch, model: PublishedModel) -> None:
    told = {"pathology": "There is a pleural effusion.", "region": "No pleural effusion. There is edema."}
    monkeypatch.setattr(prompting, "sentences", lambda *_: told)
    films = cast("FileFilms", Films([ONE], model.network.sizes.image_encoder.image_size))

    made = prompting.figures(model, films, ["figure_6"], RuleLabeler(), quiet)["figure_6"]["by_sentence"]

    assert made == {
        "pathology": {"queried": 1.0, "others_found": 0.0, "others_named": 0.0},
        "region": {"queried": 0.0, "others_found": 1.0, "others_named": 1.0},
    }


def test_films_without_regions_are_refused(model: PublishedModel) -> None:
    films = cast("FileFilms", Films([OTHERWISE], model.network.sizes.image_encoder.image_size))

    with pytest.raises(ModelError, match="prepare mscxr with --mimic and the folder that imagenome was prepared to"):
        prompting.figures(model, films, ["figure_4"], RuleLabeler(), quiet)
