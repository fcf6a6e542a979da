"""Where a run stands, on disk: written aside, synced, renamed, so that a kill at any moment leaves a whole file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

import torch
from torch import Tensor

from models.errors import ModelError

CHECKPOINT = "checkpoint.pt"


class Standing(TypedDict):
    """What a run needs to go on as if it had not been stopped.

    fingerprint: of the run; stage, step: the number of the stage, and of its updates that are done
    seconds: of training so far; sums, counted: of losses that no row has yet, and of how many steps
    network, heads, optimizer, scaler: states
    """

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


def save(folder: Path, standing: Standing) -> None:
    """Write a checkpoint in place of the last one."""
    aside = folder / f"{CHECKPOINT}.part"
    with aside.open("wb") as file:
        torch.save(dict(standing), file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(folder / CHECKPOINT)
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def load(folder: Path, *, fingerprint: str) -> Standing | None:
    """Read the checkpoint, None where there is none. Raises ModelError where it is of another run, or damaged."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        standing = cast("Standing", torch.load(path, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ModelError(f"{path} cannot be read ({error}); remove it to begin anew") from error
    if standing["fingerprint"] != fingerprint:
        raise ModelError(f"{path} is of a run with other settings; restore them, or name another output folder")
    return standing
