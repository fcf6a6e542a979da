"""The loss of the sentence generator, and its inputs during training (spec §10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from models.network.sentence_generator import KeyValueCache, SentenceGenerator
from models.reading.tokenizers import SENTENCE_END


class Lesson(NamedTuple):
    """Target sentences.

    ids: [S, T], int64, each sentence between two end tokens, padded with the same token
    attended: [S, T], False for padding
    """

    ids: Tensor
    attended: Tensor

    @property
    def positions(self) -> Tensor:
        """Number the tokens of each sentence [S, T] from 0; padding has position 1."""
        return (self.attended.cumsum(dim=1) - 1).masked_fill(~self.attended, 1)


def lesson(sentences: Sequence[Sequence[int]], *, max_length: int) -> Lesson:
    """Put the token ids of sentences, without end tokens, into rows of equal length, on the CPU.

    max_length: longer rows are truncated, which removes the final end token first; the initial one counts. Published:
    128.
    """
    rows = [[SENTENCE_END, *sentence, SENTENCE_END][:max_length] for sentence in sentences]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    longest = max(map(len, rows), default=0)
    attended = torch.arange(longest) < lengths.unsqueeze(1)
    ids = torch.full((len(rows), longest), SENTENCE_END, dtype=torch.int64)
    ids[attended] = torch.tensor([token for row in rows for token in row], dtype=torch.int64)
    return Lesson(ids=ids, attended=attended)


def logits_of(generator: SentenceGenerator, features: Tensor, taught: Lesson) -> Tensor:
    """Return the logits [S, T, row] of the token after each token of given sentences, in one pass.

    features: [S, dim], or [S, N, dim] if N of them stand before one sentence, each with its own prefix
    Every token sees the whole prefix and the attended tokens up to itself (spec §7.2 and 10).
    """
    length = taught.ids.shape[1]
    several = features if features.dim() == 3 else features.unsqueeze(1)
    prefixes = generator.prefix_key_values(several.flatten(0, 1))
    prefixes = prefixes.reshape(*prefixes.shape[:2], *several.shape[:2], *prefixes.shape[3:])
    # [layer, key or value, S, N, head, position, width]: the feature varies slower than its position.
    prefixes = prefixes.transpose(3, 4).flatten(4, 5)
    prefix = prefixes.shape[4]
    earlier = torch.ones(length, prefix + length, dtype=torch.bool, device=taught.ids.device).tril(prefix)
    attended = functional.pad(taught.attended, (prefix, 0), value=True)
    visible = earlier & attended[:, None, None, :]
    caches = [KeyValueCache(key, value, room=length) for key, value in prefixes]
    logits: Tensor = generator(taught.ids, taught.positions, caches, visible)
    return logits


def sentence_loss(logits: Tensor, rows: Tensor) -> Tensor:
    """Losses "anat-gen", "sent-gen": cross-entropy of logits [S, T, row] for the next tokens, given as rows [S, T].

    Returns a scalar, the mean over all S (T - 1) tokens, padding included: the published training teaches its network
    to continue with end tokens (spec §10, BUG-10). 0 if there is no sentence.
    """
    wanted = rows[:, 1:].flatten()
    total = functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted, reduction="sum")
    return total / max(wanted.numel(), 1)
