"""Clinical efficacy as published: counted by hand, and as scikit-learn computes it on random marks."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from models.lab.evaluation.published.marks import (
    FIVE,
    Marks,
    counts_of,
    efficacy_names,
    efficacy_of,
    marks_or_nothing,
)
from models.lab.evaluation.statistics import Figures
from models.lab.tasks.labels import CHEXPERT

FIGURES = ("precision", "recall", "f1")
EDEMA: Marks = {"edema": "positive"}
FRACTURE: Marks = {"fracture": "positive"}
NONE: Marks = {"no_finding": "positive"}


def of(*texts: tuple[int, Marks, Marks]) -> Figures:
    """The figures of texts: the film of each, and the marks of the true and of the generated one."""
    films, true, generated = zip(*texts, strict=True)
    return efficacy_of(counts_of(films, true, generated), np.arange(max(films) + 1))


def test_figures_are_those_counted_by_hand() -> None:
    made = of(
        (0, {**EDEMA, **FRACTURE}, EDEMA),
        (0, NONE, EDEMA),
        (1, FRACTURE, NONE),
    )

    # One hit; "edema" and "no finding" are said in vain; "fracture" twice and "no finding" are missed.
    assert made["ce_14_micro_precision"] == pytest.approx(1 / 3)
    assert made["ce_14_micro_recall"] == pytest.approx(1 / 4)
    assert made["ce_14_micro_f1"] == pytest.approx(2 / 7)
    # Of 14 classes only edema has a hit: precision 1/2, recall 1.
    assert made["ce_14_macro_f1"] == pytest.approx(2 / 3 / 14)
    assert [made[f"ce_14_f1_{key}"] for key in ("edema", "fracture", "pneumonia")] == [pytest.approx(2 / 3), 0, None]
    # The first film has one hit of two and of three; the second has none, and as published no F1.
    assert made["ce_14_example_precision"] == pytest.approx((1 / 2 + 0) / 2)
    assert made["ce_14_example_recall"] == pytest.approx((1 / 3 + 0) / 2)
    assert made["ce_14_example_f1"] == pytest.approx(2 / 5)
    assert made["ce_14_example_f1_of_all"] == pytest.approx((2 / 5 + 0) / 2)
    # Of the five classes the second film has nothing, neither there nor said.
    assert made["ce_5_example_f1_of_all"] == made["ce_5_micro_f1"] == pytest.approx(2 / 3)


def test_uncertain_counts_in_five_plus_alone() -> None:
    made = of((0, {"edema": "uncertain"}, EDEMA))

    assert (made["ce_5_plus_micro_f1"], made["ce_5_micro_f1"], made["ce_14_micro_f1"]) == (1, 0, 0)
    assert made["ce_5_micro_recall"] is None, "no class is there"
    assert made["ce_14_f1_edema"] == 0


def test_an_empty_text_finds_nothing() -> None:
    assert marks_or_nothing([" ", "Edema."], [{}, EDEMA]) == [NONE, EDEMA]


@pytest.mark.parametrize("name", ["14", "5", "5_plus"])
def test_scikit_learn_finds_the_same(name: str) -> None:
    rng = np.random.default_rng(3)
    choices = [None, "positive", "negative", "uncertain"]
    drawn = rng.choice(4, size=(2, 60, 14), p=[0.4, 0.3, 0.1, 0.2])
    true, generated = (
        [{key: choices[n] for key, n in zip(CHEXPERT, row, strict=True) if n} for row in side] for side in drawn
    )
    made = of(*zip(range(60), true, generated, strict=True))

    own = [CHEXPERT.index(key) for key in (CHEXPERT if name == "14" else FIVE)]
    there, said = np.isin(drawn[:, :, own], [1, 3] if name == "5_plus" else [1])
    for average, known_as in (("micro", "micro"), ("macro", "macro"), ("example_f1_of_all", "samples")):
        expected = precision_recall_fscore_support(there, said, average=known_as, zero_division=np.nan)
        if average == "example_f1_of_all":
            assert made[f"ce_{name}_{average}"] == pytest.approx(expected[2])
            continue
        assert [made[f"ce_{name}_{average}_{key}"] for key in FIGURES] == pytest.approx(list(expected[:3]))


def test_every_figure_has_a_name_of_its_own() -> None:
    assert list(efficacy_names()) == list(of((0, EDEMA, EDEMA)))
    assert len(set(efficacy_names().values())) == len(efficacy_names()) == 44
