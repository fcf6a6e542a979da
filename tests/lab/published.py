"""A small network for the tasks of the paper, with the shipped vocabularies."""

from __future__ import annotations

import numpy as np
import torch

from models.lab.evaluation.published.model import PublishedModel
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer, SentenceTokenizer
from tests.models.test_chex import small_network


def small_model(*, seed: int) -> PublishedModel:
    """A model with random weights."""
    network = small_network(seed=seed)
    return PublishedModel(
        network=network,
        phrases=PromptTokenizer(VOCABULARIES),
        sentences=SentenceTokenizer(VOCABULARIES),
        picture=lambda gray: network.encode_image(torch.from_numpy(gray[np.newaxis])),
    )
