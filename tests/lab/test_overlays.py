"""What is drawn onto films for training, and how their gray values are changed."""

from __future__ import annotations

import numpy as np
import pytest

from models.lab.training.augment import expose, overlay
from models.lab.training.stages import Augmentation

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
