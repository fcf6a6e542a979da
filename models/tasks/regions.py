"""Region classification and explanation: what given boxes hold, as classes and in words (SPEC.md 9.4).

Boxes of a film are [n, 4], center-size; `batch.fill_up` joins those of a batch, whose shorter rows end in zeros.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.answers import FloatArray
from models.chex import Chex, whole_picture
from models.phrasebook import contrast
from models.tasks.batch import Picture, as_array
from models.tokenizers import SentenceTokenizer


def tokens_of(network: Chex, picture: Picture, boxes: Tensor, padding: Tensor) -> Tensor:
    """Gather what lies in boxes [F, B, 4], before the post decoder: [F, B, dim], zero at padding [F, B]."""
    tokens = network.detector.gather(network.detector.pool(picture[0], boxes))
    return tokens.masked_fill(padding.unsqueeze(-1), 0)


def features_apart(network: Chex, picture: Picture, boxes: Tensor, padding: Tensor) -> Tensor:
    """Look at boxes [F, B, 4], each on its own: [F, B, dim], as `Chex.describe` without prompts.

    What a box is said to hold does not depend on the other boxes, nor on the batch: this is what is evaluated here.
    """
    tokens = tokens_of(network, picture, boxes, padding)
    features: Tensor = network.post_decoder(tokens, whole_picture(*picture), group=1)
    return features


def features_together(network: Chex, picture: Picture, boxes: Tensor, padding: Tensor) -> Tensor:
    """Look at boxes [F, B, 4] that all see each other, and the padding [F, B] too: [F, B, dim], as published.

    The paper's figures were made so (SPEC.md 6 and 9.4, BUG-5): a box is judged by the other boxes of its film, and by
    how many boxes other films of the batch have. For the comparison with those figures only.
    """
    tokens = tokens_of(network, picture, boxes, padding)
    return network.post_decoder.of_boxes(tokens, whole_picture(*picture), padding=padding)


def classify_one(features: Tensor, positive: Tensor) -> tuple[FloatArray, NDArray[np.intp]]:
    """Choose one class for every feature [..., dim], as for MS-CXR.

    positive: [C, dim]; the opposite of every class is what all of them have in common
    Returns probabilities [..., C] and the number of the likeliest class [...], the first of equals.
    """
    probabilities = _probabilities(features, positive, positive.mean(dim=0))
    return probabilities, probabilities.argmax(axis=-1)


def classify_each(
    features: Tensor, positive: Tensor, negative: Tensor, *, threshold: float = 0.5
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Say of every class whether features [..., dim] hold it, as for Chest ImaGenome.

    positive, negative: [C, dim]; returns probabilities [..., C], and whether they are above the threshold.
    """
    probabilities = _probabilities(features, positive, negative)
    return probabilities, probabilities > threshold


def explain(network: Chex, tokenizer: SentenceTokenizer, features: Tensor, padding: Tensor) -> list[list[str]]:
    """Put features [F, B, dim] into words, greedily: for each film one sentence per box that is not padding [F, B]."""
    films = (film[~filled] for film, filled in zip(features, padding, strict=True))
    return [[tokenizer.decode(ids) for ids in network.write(film).tolist()] if len(film) else [] for film in films]


def _probabilities(features: Tensor, positive: Tensor, negative: Tensor) -> FloatArray:
    """Weigh every feature [..., dim] against every class [C, dim]: [..., C] (SPEC.md 8)."""
    return contrast(as_array(features)[..., np.newaxis, :], positive=as_array(positive), negative=as_array(negative))
