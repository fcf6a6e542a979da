"""An engine on a GPU proves itself on its device: at its start, and then with every 100th film.

NVIDIA's own check passed a detector whose fused float16 attention was silently wrong on one device (NVIDIA/TensorRT
issue 4837). So films go through the engine and through the network in PyTorch on the CPU, in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Final

from models.contract import StageDifference
from models.engines import Engine, EngineUnavailable, FloatArray, Patches, Regions
from models.engines.comparison import Tolerance, agree, compare_readings, encoded, located, worst
from models.manifest import NetworkSizes

FILMS: Final = 8
"""Pictures of a proof at the start. They are drawn, always the same ones, so no patient's film is stored for it."""
EVERY: Final = 100
"""Of this many films one is read by the network on the CPU as well."""


def proven(engine: Engine, reference: Engine, sizes: NetworkSizes, *, allowed: Tolerance, where: str) -> WatchedEngine:
    """Read drawn films with an engine and the reference, and return the engine watched.

    where: the engine and its device
    Raises EngineUnavailable if it is not proven.
    """
    stages = compare_readings(reference, engine, sizes, films=FILMS, allowed=allowed)
    if not agree(stages):
        told = "; ".join(
            f"{name} {stage.max_abs:.1e}, allowed {stage.tolerance:.1e}"
            for name, stage in stages.items()
            if not stage.passed
        )
        raise EngineUnavailable(
            "not_proven",
            f"{where} differs from the network: {told}; another driver or version may do, or the next engine",
        )
    return WatchedEngine(engine, reference, allowed=allowed, stages=stages)


class WatchedEngine:
    """A proven engine that goes on proving itself. May be called from several threads if both engines may.

    parity: the largest differences since the proof, the proof included
    """

    def __init__(
        self, engine: Engine, reference: Engine, *, allowed: Tolerance, stages: Mapping[str, StageDifference]
    ) -> None:
        """Watch an engine; stages: the differences of its proof, to which those of films are added."""
        self.name = engine.name
        self.encode_prompts, self.describe, self.view = engine.encode_prompts, engine.describe, engine.view
        self.write = engine.write
        self._engine = engine
        self._reference = reference
        self._allowed = allowed
        self.parity: Mapping[str, StageDifference] = dict(stages)
        self._films = 0
        self._watched: tuple[Patches, FloatArray] | None = None
        self._lock = Lock()

    def encode_image(self, pixels: FloatArray) -> Patches:
        """See `Engine`."""
        patches = self._engine.encode_image(pixels)
        with self._lock:
            self._films += len(pixels)
            if self._films >= EVERY:  # until one of them is read: a film may only have been asked about
                self._watched = (patches, pixels)
        return patches

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        """See `Engine`. A film is compared when its prompts are located, for then its reading is complete."""
        regions = self._engine.find(patches, prompts)
        with self._lock:
            watched = self._watched if self._watched is not None and self._watched[0] is patches else None
            if watched is not None:
                self._films, self._watched = 0, None
        if watched is not None:
            self._compare(*watched, prompts, regions)
        return regions

    def _compare(self, patches: Patches, pixels: FloatArray, prompts: FloatArray, regions: Regions) -> None:
        expected = self._reference.encode_image(pixels)
        outputs = [
            *encoded(expected, patches),
            *located(self._reference.find(expected, prompts), regions),
        ]
        with self._lock:
            self.parity = worst(outputs, self._allowed, before=self.parity)
