"""The learning rate, counted in batches, not in updates (spec §10)."""

from __future__ import annotations

import math

from models.lab.training.stages import Stage

_LOWEST = 1e-7
_DECAY = 0.3


def learning_rate(stage: Stage, *, batch: int, batches: int) -> float:
    """Return the rate at a batch; batches: how many the stage has.

    "cosine" is timm's CosineLRScheduler with one cycle: the warm-up replaces the beginning of the cycle.
    """
    if batch < stage.warm_up:
        return stage.learning_rate * batch / stage.warm_up
    done = min(batch / batches, 1.0)
    if stage.schedule == "cosine":
        return _LOWEST + (stage.learning_rate - _LOWEST) * (1 + math.cos(math.pi * done)) / 2
    return max(_LOWEST, stage.learning_rate * min(1.0, (1 - done) / _DECAY))
