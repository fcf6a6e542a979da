"""The published selection of a report: which prompts speak, which sentences stay, whose numbers they carry."""

from __future__ import annotations

import numpy as np
import torch

from models.lab.tasks.sentence_selection import (
    SelectedSentence,
    gets_sentence,
    published_selection,
)
from models.manifest import ReportRule

# Two pairs: the first is about the first axis, the second about the second one.
POSITIVE, NEGATIVE = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[-1.0, 0.0], [0.0, -1.0]])

# Five prompts, of which the fourth speaks not: the last of four sentences is that of the fifth prompt.
PREFERENCE = np.array([0.9, 0.1, 0.4, 0.8, 0.2], dtype=np.float32)
# The last two sentences say the same.
SIMILARITY = np.zeros((4, 4), dtype=np.float32)
SIMILARITY[2, 3] = SIMILARITY[3, 2] = 0.99


def test_pathologies_are_always_told_and_regions_when_of_note() -> None:
    noted = np.array([[0.4, 0.6, 0.5, 0.51]], dtype=np.float32)
    pathologies = [True, True, False, False]

    assert gets_sentence(noted, pathologies).tolist() == [[True, True, False, True]]
    assert gets_sentence(noted, pathologies, all_regions=True).all()
    ignoring = gets_sentence(noted, pathologies, ignore_negative_pathologies=True)
    assert ignoring.tolist() == [[False, True, False, True]]


def test_the_published_code_gives_numbers_of_another_prompt() -> None:
    told = published_selection(SIMILARITY, PREFERENCE, rule=ReportRule())

    # The fourth sentence, made for the fifth prompt, stays and is shown as the fourth prompt's.
    assert told == [SelectedSentence(0, 0), SelectedSentence(1, 1), SelectedSentence(3, 3)]
