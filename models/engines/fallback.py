"""Opens the first engine that this machine can run: TensorRT, ONNX Runtime or PyTorch on a GPU, else ONNX Runtime.

Another engine is used only if this machine lacks something. A model directory that is damaged or not proven is refused
by the first engine that needs the faulty file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from models.contract import Fallback
from models.engines import Engine, EngineUnavailable, open_engine
from models.engines.proof import Precision

if TYPE_CHECKING:
    from models.engines.devices import Gpu

ORDER: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tensorrt": ("tensorrt", "onnx-cuda", "torch-cuda", "onnx"),
        "onnx-cuda": ("onnx-cuda", "torch-cuda", "onnx"),
        "torch-cuda": ("torch-cuda", "onnx"),
    }
)
"""The engines to try in place of a configured one; any other engine has no fallback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The engine that runs, and the failed attempts before it."""

    engine: Engine
    fallbacks: tuple[Fallback, ...]


def open_first(
    directory: Path,
    *,
    engine: str,
    threads: int = 0,
    engines: Path | None = None,
    precision: Precision = "float32",
    gpu: Gpu | None = None,
) -> Opened:
    """Open the first engine that this machine can run; arguments and ModelError as in `engines.open_engine`."""
    fallbacks: list[Fallback] = []
    *preferred, last = ORDER.get(engine, (engine,))
    for name in preferred:
        try:
            opened = open_engine(directory, engine=name, threads=threads, engines=engines, precision=precision, gpu=gpu)
            return Opened(engine=opened, fallbacks=tuple(fallbacks))
        except EngineUnavailable as error:
            fallbacks.append(Fallback(engine=name, reason=error.reason, message=str(error)))
    return Opened(
        engine=open_engine(directory, engine=last, threads=threads, precision=precision), fallbacks=tuple(fallbacks)
    )
