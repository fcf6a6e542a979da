"""Region classification and explanation: the content of given boxes, as classes and as sentences (spec §9.4).

Boxes of a film are [n, 4], center-size; `batch.fill_up` joins those of a batch, with shorter rows padded by zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.engines import FloatArray
from models.lab.tasks.batch import Picture, as_array
from models.network.chex import Chex, whole_picture
from models.reading.phrasebook import contrast
from models.reading.tokenizers import SentenceTokenizer


def tokens_of(network: Chex, picture: Picture, boxes: Tensor, padding: Tensor) -> Tensor:
    """Return the region tokens of boxes [F, B, 4], before the post decoder: [F, B, dim], zero at padding [F, B]."""
    tokens = network.detector.gather(network.detector.pool(picture[0], boxes))
    return tokens.masked_fill(padding.unsqueeze(-1), 0)


def features_apart(network: Chex, picture: Picture, boxes: Tensor, padding: Tensor) -> Tensor:
    """Compute the features of boxes [F, B, 4] independently: [F, B, dim], as `Chex.describe` without prompts.

    The result for a box does not depend on other boxes or on the batch; the evaluation of this program uses it.
    """
    tokens = tokens_of(network, picture, boxes, padding)
    features: Tensor = network.post_decoder(tokens, whole_picture(*picture), group=1)
    return features


def features_together(network: Chex, picture: Picture, boxes: Tensor, padding: Tensor) -> Tensor:
    """Compute the features of boxes [F, B, 4] that see each other and the padding [F, B]: [F, B, dim], as published.

    The paper's figures were made like this (spec §6 and 9.4, BUG-5): the result for a box depends on the other boxes
    of its film, and on how many boxes other films of the batch have. Only for comparison with those figures.
    """
    tokens = tokens_of(network, picture, boxes, padding)
    return network.post_decoder.of_boxes(tokens, whole_picture(*picture), padding=padding)


def classify_one(features: Tensor, positive: Tensor) -> tuple[FloatArray, NDArray[np.intp]]:
    """Choose one class for every feature [..., dim], as for MS-CXR.

    positive: [C, dim]; the opposite of every class is the mean of all
    Returns probabilities [..., C] and the number of the likeliest class [...], among equals the first.
    """
    probabilities = _probabilities(features, positive, positive.mean(dim=0))
    return probabilities, probabilities.argmax(axis=-1)


def classify_each(features: Tensor, positive: Tensor, negative: Tensor) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Decide for every class whether features [..., dim] hold it, as for Chest ImaGenome.

    positive, negative: [C, dim]; returns probabilities [..., C], and whether they are above 0.5.
    """
    probabilities = _probabilities(features, positive, negative)
    return probabilities, probabilities > 0.5


def explain(network: Chex, tokenizer: SentenceTokenizer, features: Tensor, padding: Tensor) -> list[list[str]]:
    """Generate sentences for features [F, B, dim], greedily: one per box that is not padding [F, B], for each film."""
    films = (film[~filled] for film, filled in zip(features, padding, strict=True))
    return [[tokenizer.decode(ids) for ids in network.write(film).tolist()] if len(film) else [] for film in films]


def _probabilities(features: Tensor, positive: Tensor, negative: Tensor) -> FloatArray:
    """Compare every feature [..., dim] with every class [C, dim]: [..., C] (spec §8)."""
    return contrast(as_array(features)[..., np.newaxis, :], positive=as_array(positive), negative=as_array(negative))
