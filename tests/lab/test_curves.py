"""The area under the ROC curve, beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from models.decisions import sigmoid
from models.lab.evaluation.statistics import area_under_curve
from models.lab.evaluation.thresholds import TEMPERATURES, best_temperature


@pytest.mark.parametrize("decimals", [0, 1, 9])
def test_an_area_is_that_of_scikit_learn_with_ties_and_without(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    there = rng.random(200) < 0.3
    scores = (rng.normal(size=200) + there).round(decimals)

    assert area_under_curve(there, scores) == pytest.approx(roc_auc_score(there, scores), abs=1e-12)


def test_films_that_all_show_a_finding_or_none_have_no_area() -> None:
    scores = np.arange(5.0)

    assert area_under_curve(np.ones(5, dtype=bool), scores) is None
    assert area_under_curve(np.zeros(5, dtype=bool), scores) is None
    assert area_under_curve(np.zeros(0, dtype=bool), scores[:0]) is None


def test_the_temperature_is_that_of_the_least_log_loss() -> None:
    rng = np.random.default_rng(3)
    there = rng.random(300) < 0.5
    differences = rng.normal(size=300) * 0.3 + np.where(there, 0.2, -0.2)

    chosen = best_temperature(differences, there, start=1.0)

    least = min((1.0, *TEMPERATURES), key=lambda each: float(log_loss(there, sigmoid(differences / each))))
    assert chosen == least
