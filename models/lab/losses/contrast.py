"""Contrastive losses between features and texts (spec §10).

Similarity is the cosine divided by a temperature. The callers choose the texts that a feature is compared with: they
pass the drawn classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from models.lab.losses.detection import mean_by_film

_FINDINGS, _TEXTS, _FILMS = 0.2, 0.25, 0.2
"""The published temperatures: of findings, of regions and sentences, of whole films."""


def finding_contrast(features: Tensor, positive: Tensor, negative: Tensor, *, present: Tensor) -> Tensor:
    """Loss "patho-cls": cross-entropy of each class over the prompts of all classes.

    A prompt that several classes have, as a finding that two data sets know, is one target, and right for all of them.

    features: [F, C, dim], one for each class; positive, negative: prompts [C, dim]
    present: [F, C], the target is the own positive prompt where True, the own negative one where False
    Returns [F, C], for `mean_by_film` over the labeled classes.
    """
    prompts = torch.cat([positive, negative])
    similar = _similar(features, prompts) / _FINDINGS
    classes = torch.arange(positive.shape[0], device=features.device)
    own = torch.where(present, classes, classes + positive.shape[0])
    first = (prompts.unsqueeze(1) == prompts).int().amin(dim=-1).argmax(dim=1)
    repeated = first != torch.arange(len(prompts), device=features.device)
    similar = similar.masked_fill(repeated, -torch.inf)
    return functional.cross_entropy(similar.transpose(1, 2), first[own], reduction="none")


def anatomy_contrast(
    features: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    present: Tensor,
    known: Tensor,
    drawn: Tensor,
) -> Tensor:
    """Loss "anat-cls": contrast of each region with the right prompts of its classes (DEP-20).

    features: [F, A, dim]; positive, negative: prompts [C, dim]; present, known: [F, A, C]
    drawn: [C], the classes whose absence counts; presence always does. The published training draws about 10 in
    proportion to how often each is present in the batch.
    Returns [F, A]: minus the mean similarity to the right prompts of the classes that count, plus the log of the summed
    exponentials of both prompts of these; 0 where no class counts. For `mean_of` over the regions with known classes.
    """
    counted = known & (present | drawn)
    empty = ~counted.any(dim=-1, keepdim=True)
    to_positive = _similar(features, positive) / _TEXTS
    to_negative = _similar(features, negative) / _TEXTS
    right = torch.where(present, to_positive, to_negative).masked_fill(~counted, 0)
    both = torch.stack([to_positive, to_negative], dim=-1).masked_fill(~counted.unsqueeze(-1), -torch.inf)
    # Minus infinity everywhere would make the gradient NaN.
    both = both.masked_fill(empty.unsqueeze(-1), 0)
    drawn_to = right.sum(dim=-1) / counted.sum(dim=-1).clamp(min=1)
    return (both.flatten(-2).logsumexp(dim=-1) - drawn_to).masked_fill(empty.squeeze(-1), 0)


def sentence_contrast(regions: Tensor, sentences: Tensor, valid: Tensor) -> Tensor:
    """Loss "sent-contr": cross-entropy of each feature over all sentences of the batch.

    regions, sentences: [F, S, dim]; valid: [F, S], False for padding, which is no sentence to choose from either
    From regions to sentences only. Returns a scalar: the mean over the sentences of a film, then over films.
    """
    similar = _similar(regions[valid], sentences[valid]) / _TEXTS
    chosen = similar.logsumexp(dim=1) - similar.diagonal()
    losses = torch.zeros(valid.shape, dtype=chosen.dtype, device=chosen.device).masked_scatter(valid, chosen)
    return mean_by_film(losses, valid)


def global_contrast(films: Tensor, texts: Tensor) -> Tensor:
    """Loss "global-contr": CLIP's loss, cross-entropy of films over texts and of texts over films.

    films: [F, dim], the mean of a film's patches; texts: [F, dim], the mean of its sentences
    Returns the sum, not the mean, of both directions, each averaged over the batch.
    """
    similar = _similar(films, texts) / _FILMS
    total = similar.logsumexp(dim=1) + similar.logsumexp(dim=0) - 2 * similar.diagonal()
    return total.sum() / max(len(total), 1)


def squared_error(features: Tensor, texts: Tensor, valid: Tensor) -> Tensor:
    """Losses "sent-mse" and "anat-mse": squared error between features and the embeddings of their texts.

    features, texts: [F, S, dim]; of a region with several sentences the mean of their embeddings; valid: [F, S]
    Returns a scalar: squares summed over dim, the mean over the sentences of a film, then over films.
    """
    return mean_by_film((features - texts).square().sum(dim=-1), valid)


def _similar(features: Tensor, texts: Tensor) -> Tensor:
    """Return the cosines [..., n] of features [..., dim] and texts [n, dim]."""
    return functional.normalize(features, dim=-1) @ functional.normalize(texts, dim=-1).T
