"""What is said of the runtime that computes the network: which were tried before it, and how far it is from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A runtime that was wanted and does not run here.

    engine: name of the runtime, a value of the setting `model.engine`
    reason: not_installed, no_gpu, no_graphs, not_built, not_loaded or not_proven
    message: what to do
    """

    engine: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far the runtime in use is from the network at most, and the tolerance."""

    found: float
    allowed: float
