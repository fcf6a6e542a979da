"""Which engine runs where the wanted one cannot: TensorRT, then ONNX Runtime on the GPU, then on the CPU.

Only what this machine lacks makes another engine run. A model directory that is damaged or not proven is refused by
the first engine that needs what is wrong with it, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from models.engines import Engine, EngineUnavailable, Unavailable, open_engine

ORDER: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"tensorrt": ("tensorrt", "onnx-cuda", "onnx")})
"""What is tried for a wanted engine; every other one is tried alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A try that failed: which engine, why, and what to do about it."""

    engine: str
    reason: Unavailable
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The engine that runs, and those that were wanted before it."""

    engine: Engine
    fallbacks: tuple[Fallback, ...]


def open_first(directory: Path, *, engine: str, threads: int = 0, engines: Path | None = None) -> Opened:
    """Open the first engine that this machine can run; arguments and ModelError as in `engines.open_engine`."""
    fallbacks: list[Fallback] = []
    *preferred, last = ORDER.get(engine, (engine,))
    for name in preferred:
        try:
            return Opened(
                engine=open_engine(directory, engine=name, threads=threads, engines=engines), fallbacks=tuple(fallbacks)
            )
        except EngineUnavailable as error:
            fallbacks.append(Fallback(engine=name, reason=error.reason, message=str(error)))
    return Opened(engine=open_engine(directory, engine=last, threads=threads), fallbacks=tuple(fallbacks))
