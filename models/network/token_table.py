"""The embeddings of a vocabulary, of which a small model keeps only those that its training met (spec §3 and 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


class TokenTable(nn.Module):
    """Embeddings by token id. All ids without a row of their own share row 0.

    Ids are those of the published tokenizer outside of this class, whatever rows there are.
    """

    _rows: Tensor
    _ids: Tensor

    def __init__(self, vocabulary: int, width: int, *, own: Sequence[int] = ()) -> None:
        """Make the rows; own: the ids, rising, that have a row of their own; if empty, all have."""
        super().__init__()
        self._vocabulary, self._shares = vocabulary, bool(own)
        self.weight = nn.Parameter(torch.randn(len(own) + 1 if own else vocabulary, width))
        rows = np.zeros(vocabulary if own else 0, dtype=np.int64)
        rows[list(own)] = np.arange(1, len(own) + 1)
        # From numpy, because a network without numbers is built on a device where tensors have no values.
        self.register_buffer("_rows", torch.from_numpy(rows), persistent=False)
        first_shared = int(rows.argmin()) if own else 0
        ids = torch.from_numpy(np.array([first_shared, *own], dtype=np.int64))
        self.register_buffer("_ids", ids, persistent=False)

    @property
    def shared_id(self) -> int:
        """An id without a row of its own. Raises ValueError if there is none."""
        if not self.shared:
            raise ValueError("each token has an embedding of its own")
        return int(self._ids[0])

    @property
    def shared(self) -> int:
        """How many ids share row 0; 0 if each has its own."""
        return self._vocabulary - len(self.weight) + 1 if self._shares else 0

    def forward(self, ids: Tensor) -> Tensor:
        """Look up token ids [...]: [..., width]."""
        return functional.embedding(self.rows_of(ids), self.weight)

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the row of each token id."""
        return self._rows[ids] if self._shares else ids

    def likeliest(self, logits: Tensor) -> Tensor:
        """Return the id with the greatest logit, of logits [..., row]; of the ids that share a row the first."""
        rows = logits.argmax(dim=-1)
        return self._ids[rows] if self._shares else rows

    def logits(self, hidden: Tensor) -> Tensor:
        """Compare hidden states [..., width] with all rows: [..., row]."""
        return functional.linear(hidden, self.weight)

    def weighed(self, logits: Tensor) -> Tensor:
        """Add to the logit of the shared row what the ids that share it weigh together.

        A softmax over all ids, most of which have the same embedding, equals a softmax over the rows with these logits.
        """
        if not self.shared:
            return logits
        first = logits.new_zeros(logits.shape[-1])
        first[0] = math.log(self.shared)
        return logits + first
