"""The error of the cardiothoracic ratio: figures against errors that were chosen, and labels that do not suffice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from models.engines import FloatArray
from models.lab.evaluation import anatomy
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.cases import Truth, truth_of_phantom
from models.lab.phantoms import phantom
from models.manifest import read_manifest
from models.phantoms import main as make_phantoms
from models.reading.cardiothoracic import ChestWidths, Extent
from models.reading.tokenizers import VOCABULARIES

Figures = Mapping[str, float]


def box(left: float, right: float) -> FloatArray:
    return np.array([(left + right) / 2, 0.5, right - left, 0.4], dtype=np.float32)


def truth(*, known: float | None = None, heart: bool = True, begin: float = 0.1) -> Truth:
    """Return labels of a thorax from `begin` to 0.9, and of a heart half as wide as one from 0.1."""
    regions = {"right lung": box(begin, 0.4), "left lung": box(0.6, 0.9)}
    return Truth(regions=regions | ({"cardiac silhouette": box(0.3, 0.7)} if heart else {}), cardiothoracic_ratio=known)


def chest(heart: float, thorax: float = 0.8) -> ChestWidths:
    return ChestWidths(
        heart=Extent(left=0.5 - heart / 2, right=0.5 + heart / 2, height=0.6),
        thorax=Extent(left=0.5 - thorax / 2, right=0.5 + thorax / 2, height=0.8),
    )


def figures(truths: list[Truth], found: list[ChestWidths | None], what: str = "cardiothoracic_ratio") -> Figures:
    return cast("Figures", anatomy.measure_ratio(truths, found)[what])


def test_errors_are_measured_minus_true() -> None:
    # The true ratio is 0.5; those measured are 0.525, 0.475 and 0.55.
    made = figures([truth()] * 3, [chest(0.42), chest(0.38), chest(0.44)])

    errors = np.array([0.025, -0.025, 0.05])
    assert made["films"] == 3
    assert made["mean_absolute_error"] == pytest.approx(1 / 30, abs=1e-6)
    assert made["bias"] == pytest.approx(errors.mean(), abs=1e-6)
    assert made["upper"] - made["bias"] == pytest.approx(1.96 * errors.std(ddof=1), abs=1e-6)
    assert made["bias"] - made["lower"] == pytest.approx(1.96 * errors.std(ddof=1), abs=1e-6)


def test_films_without_a_ratio_lower_the_share_and_nothing_else() -> None:
    films: list[ChestWidths | None] = [chest(0.42), None, chest(0.38), None]

    made = figures([truth()] * 4, films)

    assert (made["films"], made["share_measured"]) == (2, 0.5)
    assert made["mean_absolute_error"] == pytest.approx(0.025, abs=1e-6)


def test_the_constant_answer_is_the_median() -> None:
    made = figures([truth(known=known) for known in (0.4, 0.5, 0.7)], [None] * 3)

    assert made["error_of_constant"] == pytest.approx(0.1)
    assert "bias" not in made


def test_a_known_ratio_goes_before_that_of_boxes() -> None:
    assert figures([truth(known=0.45)] * 2, [chest(0.4)] * 2)["bias"] == pytest.approx(0.05, abs=1e-6)


def test_boxes_of_lungs_alone_tell_the_width_of_the_thorax() -> None:
    made = anatomy.measure_ratio([truth(heart=False)] * 2, [chest(0.4, thorax=0.84), chest(0.4, thorax=0.8)])

    assert made.keys() == {"thorax_width"}
    assert figures([truth()] * 2, [chest(0.4, thorax=0.84)] * 2, "thorax_width")["bias"] == pytest.approx(
        0.05, abs=1e-6
    )


def test_a_thorax_that_is_cut_off_has_no_true_width() -> None:
    assert anatomy.measure_ratio([truth(begin=0.0)] * 2, [chest(0.4)] * 2) == {}


def test_films_without_boxes_have_no_figures() -> None:
    assert anatomy.measure_ratio([Truth()], [chest(0.4)]) == {}


def test_a_phantom_knows_its_ratio() -> None:
    film = phantom(2_000_007, side=64)

    assert anatomy.true_ratio(truth_of_phantom(film)) == film.cardiothoracic_ratio


def test_a_line_of_a_file_tells_its_ratio_or_its_boxes_do(tmp_path: Path) -> None:
    assert make_phantoms(["phantoms:2910000:3", "--out", str(tmp_path), "--truth", "--side", "320"]) == 0
    path = tmp_path / "truth.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    manifest = read_manifest(VOCABULARIES.parent)
    told = [anatomy.true_ratio(film) for film in (read_films(path, manifest).load(i).truth for i in range(3))]

    path.write_text("\n".join(json.dumps({**line, "cardiothoracic_ratio": None}) for line in lines))
    by_boxes = [anatomy.true_ratio(film) for film in (read_films(path, manifest).load(i).truth for i in range(3))]

    assert told == [line["cardiothoracic_ratio"] for line in lines]
    whole = [(known, value) for known, value in zip(told, by_boxes, strict=True) if value is not None]
    assert whole
    assert all(value == pytest.approx(known, abs=0.03) for known, value in whole)
