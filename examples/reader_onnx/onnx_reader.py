"""A classifier behind the node: probabilities of three findings, without boxes, sentences or a view."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.contract import FilmReading, FindingState, PromptReading, Reader, ReaderPrompt, SideOf, ZoneOf


def open_reader(directory: Path) -> Reader[NDArray[np.float32]]:
    """Open the classifier in a model directory, which `make_model.py` writes."""
    return Classifier(directory)


class Classifier(Reader[NDArray[np.float32]]):
    """What it keeps of a film is a small picture, [1, 1, side, side]."""

    engine = "onnxruntime"

    def __init__(self, directory: Path) -> None:
        table = tomllib.loads((directory / "model.toml").read_text(encoding="utf-8"))
        self.name, self.version = table["name"], table["version"]
        self._side: int = table["side"]
        self._thresholds: dict[str, float] = table["thresholds"]
        self.measured = tuple(table["measured"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(directory / "classifier.onnx", options)

    def look(self, gray: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cut out the analyzed square, and take the nearest pixels of a small picture."""
        rows, columns = gray.shape
        left, top, right, bottom = self.square(columns, rows)
        steps = (np.arange(self._side) + 0.5) / self._side
        across = (left + steps * (right - left)).astype(np.intp)
        down = (top + steps * (bottom - top)).astype(np.intp)
        return gray[np.ix_(down, across)][np.newaxis, np.newaxis].astype(np.float32)

    def report(
        self,
        look: NDArray[np.float32],
        prompts: Sequence[ReaderPrompt],
        *,
        side_of: SideOf | None = None,
        zone_of: ZoneOf | None = None,
    ) -> FilmReading:
        """Answer the prompts that it knows; the node calls the others not assessed."""
        [[values]] = self._session.run(None, {"film": look})
        found = dict(zip(self._thresholds, values.tolist(), strict=True))
        return FilmReading(
            prompts=tuple(
                PromptReading(
                    key=prompt.key,
                    probability=found[prompt.key],
                    state=FindingState.PRESENT
                    if found[prompt.key] >= self._thresholds[prompt.key]
                    else FindingState.ABSENT,
                )
                for prompt in prompts
                if prompt.key in found
            )
        )
