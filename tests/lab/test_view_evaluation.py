"""The figures of the view head, and that a model without one has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.contract import VIEWS, View, ViewReading
from models.errors import ModelError
from models.lab.evaluation.command import evaluate
from models.lab.evaluation.document import task_section
from models.lab.evaluation.request import Request
from models.lab.evaluation.statistics import Bootstrap
from models.lab.evaluation.views import Kind, SeenView, measure
from models.progress import quiet


def seen(kind: Kind, view: View, share: float = 1.0, *, mirrored: bool = False, rotated: bool = False) -> SeenView:
    rest = (1 - share) / (len(VIEWS) - 1)
    reading = ViewReading(
        probabilities={name: share if name == view else rest for name in VIEWS},
        certain=0.9,
        mirrored=mirrored,
        rotated=rotated,
    )
    return SeenView(kind=kind, view="PA", reading=reading)


def test_each_figure_is_measured_on_its_own_pictures() -> None:
    right = [
        seen("frontal", "PA"),
        seen("mirrored", "PA", mirrored=True),
        seen("rotated", "PA", rotated=True),
        seen("lateral", "lateral"),
        seen("other", "not_chest"),
    ]
    wrong = [
        seen("frontal", "lateral", mirrored=True),
        seen("mirrored", "PA"),
        seen("rotated", "PA"),
        seen("lateral", "lateral", 0.7),
        seen("other", "AP"),
    ]
    names = "kept unmarked projection mirrored rotated lateral other stopped".split()

    all_right, half = (measure(films, Bootstrap(resamples=0)) for films in ([right], [right, wrong]))

    assert [all_right[name] for name in names] == [1.0] * len(names)
    assert [half[name] for name in names] == [0.5] * 5 + [1.0, 0.5, 0.75]
    assert (all_right["frontals"], half["frontals"]) == (1, 2)
    assert (
        len([line for line in task_section("views", half).splitlines() if line.startswith("|")]) == 2 + len(names) + 1
    )


def test_a_film_that_is_probably_lateral_is_stopped() -> None:
    doubtful = measure([[seen("frontal", "lateral", 0.8)]], Bootstrap(resamples=0))

    assert (doubtful["kept"], doubtful["projection"], doubtful["stopped"]) == (0.0, 0.0, None)


@pytest.mark.drill(part="laboratory")
def test_a_model_without_a_head_cannot_be_asked(imported_model: Path) -> None:
    with pytest.raises(ModelError, match="no view head"):
        evaluate(Request(model=imported_model, data="phantoms:1000000:1", tasks=["views"]), quiet)
