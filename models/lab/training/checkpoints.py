"""The checkpoint of a run on disk. It is replaced atomically, so a kill at any moment leaves a complete file."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import torch
from torch import Tensor

from models.errors import ModelError
from models.files import replacing

CHECKPOINT = "checkpoint.pt"
PROGRAM = 2
"""The version of the step's computation. A run that another version began would continue with other losses."""


class Checkpoint(TypedDict):
    """Everything a run needs to continue as if it had not been stopped.

    program: see PROGRAM; absent in checkpoints older than its introduction; fingerprint: of the run
    stage, step: the number of the stage, and the number of its updates that are done
    seconds: of training so far; sums, counted: sums of the losses since the last row of the log, and over how many
    steps
    network, heads, optimizer, scaler: state dictionaries
    """

    program: NotRequired[int]
    fingerprint: str
    stage: int
    step: int
    seconds: float
    sums: Tensor
    counted: int
    network: dict[str, Tensor]
    heads: dict[str, Tensor]
    optimizer: Mapping[str, object]
    scaler: Mapping[str, object]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; it replaces the previous one."""
    with replacing(folder / CHECKPOINT) as file:
        torch.save({**checkpoint, "program": PROGRAM}, file)


def load(folder: Path, *, fingerprint: str) -> Checkpoint | None:
    """Read the checkpoint; None if there is none. Raises ModelError if it is damaged or belongs to another run."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        checkpoint = cast("Checkpoint", torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ModelError(f"{path} cannot be read ({error}); delete it to start the run from the beginning") from error
    if checkpoint.get("program", 1) != PROGRAM:
        raise ModelError(
            f"{path} was written by another version of this program, which cannot continue it; delete it to start again"
        )
    if checkpoint["fingerprint"] != fingerprint:
        raise ModelError(
            f"{path} belongs to a run with other settings; restore these settings, or name another output folder"
        )
    return checkpoint
