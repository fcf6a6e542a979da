"""The training losses (spec §10): functions of tensors, without weights, state or random numbers.

F films, C classes, A regions, Q prompts of any kind, R proposed boxes of a prompt, T target boxes, S sentences. Masks
mark the padding of a batch, which may hold any finite numbers; if a mask is empty the loss and its gradients are 0, so
that a batch without boxes or sentences does no harm.
"""

from typing import Literal

Answerer = Literal["first", "cheapest"]
"""Which proposal of a target gets its score raised: that of its first copy, as published, or the cheapest."""
