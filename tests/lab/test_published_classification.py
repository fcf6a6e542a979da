"""What given boxes hold, as the paper measures it: figures by hand and by scikit-learn on made-up scores."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from models.lab.evaluation.anatomy import REGIONS
from models.lab.evaluation.published.classification import (
    CIG,
    MSCXR,
    Classified,
    Judged,
    classified,
    judged,
    measure_boxes,
    measure_regions,
    vectors_of,
)
from models.lab.evaluation.published.labels import PublishedLabels
from models.lab.evaluation.published.model import PublishedModel
from models.lab.evaluation.statistics import Bootstrap
from tests.lab.published import small_model
from tests.models.test_chex import picture_of

NO_RESAMPLES = Bootstrap(resamples=0)


@pytest.fixture(scope="module")
def model() -> PublishedModel:
    return small_model(seed=17)


def scored(rows: list[tuple[str, dict[str, float]]]) -> Classified:
    """Boxes by their class, with the scores of some classes, 0 of all others."""
    table = [[scores.get(name, 0.0) for name in MSCXR] for _, scores in rows]
    classes = np.array([MSCXR.index(name) for name, _ in rows], dtype=np.intp)
    return Classified(classes, np.array(table, dtype=np.float32))


def test_boxes_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(3)
    films = [
        Classified(rng.integers(len(MSCXR), size=4), rng.random((4, len(MSCXR)), dtype=np.float32)) for _ in range(40)
    ]

    made = measure_boxes(films, Bootstrap(resamples=5))

    classes, scores = (np.concatenate(part) for part in zip(*films, strict=True))
    areas = [roc_auc_score(classes == number, scores[:, number]) for number in range(len(MSCXR))]
    assert made["auroc"] == pytest.approx(np.mean(areas))
    assert made["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(classes, scores.argmax(axis=1)))
    assert set(made["deviations"]) == {"auroc", "balanced_accuracy"}  # type: ignore[call-overload] # by name


def test_regions_are_weighted_by_how_often_they_hold_a_class() -> None:
    scores = np.full((4, len(REGIONS), len(CIG)), np.nan, dtype=np.float32)
    there = np.zeros(scores.shape, dtype=np.bool_)
    # The first region holds the first class on three of four films, scored rightly; the second on one, wrongly.
    scores[:, 0, 0], there[:, 0, 0] = [0.9, 0.8, 0.7, 0.1], [True, True, True, False]
    scores[:, 1, 0], there[:, 1, 0] = [0.1, 0.8, 0.7, 0.9], [True, False, False, False]
    # A second class, in the first region alone: half of the pairs are in order. The third is on all films.
    scores[:, 0, 1], there[:, 0, 1] = [0.5, 0.1, 0.9, np.nan], [True, False, False, False]
    scores[:, 0, 2], there[:, 0, 2] = 0.5, True

    made = measure_regions(list(map(Judged, scores, there)), NO_RESAMPLES)

    assert made["per_class"] == dict.fromkeys(CIG) | {CIG[0]: (3 * 1 + 1 * 0) / 4, CIG[1]: 0.5}
    assert made["auroc"] == pytest.approx((0.75 + 0.5) / 2)
    assert made["auroc_weighted"] == pytest.approx((3 * 1 + 1 * 0 + 1 * 0.5) / 5)


@pytest.mark.drill(part="laboratory")
def test_regions_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(4)
    shape = (30, len(REGIONS), len(CIG))
    scores, there = rng.random(shape, dtype=np.float32), rng.random(shape) < 0.2
    scores[rng.random(shape[:2]) < 0.3] = np.nan
    there &= ~np.isnan(scores)

    made = measure_regions(list(map(Judged, scores, there)), NO_RESAMPLES)

    sums, counts = np.zeros(len(CIG)), np.zeros(len(CIG))
    for region in range(len(REGIONS)):
        seen = ~np.isnan(scores[:, region, 0])
        for number in range(len(CIG)):
            labels = there[seen, region, number]
            if 0 < labels.sum() < len(labels):
                sums[number] += labels.sum() * roc_auc_score(labels, scores[seen, region, number])
                counts[number] += labels.sum()
    assert made["auroc"] == pytest.approx(np.mean(sums / counts))
    assert made["auroc_weighted"] == pytest.approx(sums.sum() / counts.sum())


def test_the_boxes_of_a_film_see_each_other(model: PublishedModel) -> None:
    picture = picture_of(model.network, seed=9)
    picture = picture[0][:1], picture[1][:1], picture[2][:1]
    boxes = [np.array([x, 0.5, 0.3, 0.4], dtype=np.float32) for x in (0.3, 0.7)]
    both, alone = (PublishedLabels(boxes=tuple(("mscxr/Edema", box) for box in some)) for some in (boxes, boxes[:1]))

    vectors = vectors_of(model, "mscxr")
    together, apart = (classified(model, vectors, labels, picture) for labels in (both, alone))

    assert together is not None and apart is not None
    assert together.scores.shape == (2, len(MSCXR))
    assert np.abs(together.scores[0] - apart.scores[0]).max() > 1e-6
    assert classified(model, vectors, PublishedLabels(), picture) is None


def test_regions_without_a_box_are_unknown(model: PublishedModel) -> None:
    patches, positions, cls = picture_of(model.network, seed=9)
    picture = patches[:1], positions[:1], cls[:1]
    labels = PublishedLabels(
        regions={"spine": np.array([0.5, 0.5, 0.2, 0.9], dtype=np.float32)},
        region_findings={"spine": frozenset({CIG[24]})},
    )

    vectors = vectors_of(model, "cig")
    made = judged(model, vectors, labels, picture)

    assert made is not None and made.scores.shape == (29, 53)
    known = [bool(row.all()) for row in ~np.isnan(made.scores)]
    assert [name for name, is_known in zip(REGIONS, known, strict=True) if is_known] == ["spine"]
    assert made.there.sum() == 1 and made.there[REGIONS.index("spine"), 24]
    assert judged(model, vectors, PublishedLabels(), picture) is None
