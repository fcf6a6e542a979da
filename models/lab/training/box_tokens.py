"""Initializes the box tokens of the detector from words, so that the boxes of a prompt differ before a stage trains.

Tokens that are drawn at random are small beside the vectors of prompts, to which they are added: all boxes of a prompt
become one, every target is equally near to each, and noise decides which of them learns from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.lab.training.catalog import Catalog
from models.lab.training.stages import Stage
from models.lab.training.text_encoding import Vocabulary
from models.network.chex import Chex


@torch.no_grad()
def set_box_tokens(network: Chex, stage: Stage, *, catalog: Catalog, vocabulary: Vocabulary) -> None:
    """Initialize the box tokens from `stage.start_box_tokens`; do nothing if the stage has none.

    Each becomes the mean of the present ones, plus `strength` times the mean difference that its words make to the
    vectors of the classes' phrases.
    """
    rule, tokens = stage.start_box_tokens, network.detector.box_tokens
    if rule is None:
        return
    phrases = [entry.positive[0] for entry in catalog.classes]

    def mean_vector(texts: Sequence[str]) -> Tensor:
        ids = vocabulary.prompt_ids(texts).to(tokens.device)
        vector: Tensor = network.prompt_encoder(ids).mean(dim=0)
        return vector

    plain = mean_vector(phrases)
    changes = [mean_vector([f"{phrase} {words}".strip() for phrase in phrases]) - plain for words in rule.words]
    tokens.copy_(tokens.mean(dim=0) + rule.strength * torch.stack(changes))
