"""Recognizes the content of a source: a complete ChEX network, the two encoders of CheXzero, or a GPT-2 (spec §12)."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, SupportsIndex

import torch
from torch import Tensor

from models.checkpoint import published
from models.errors import ModelError

Kind = Literal["ChEX", "CheXzero", "GPT-2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Weights under their published names, each once, and their metadata.

    config: `config_dict` of ChEX, `config.json` beside a GPT-2
    config_place: its name in messages
    step: the training step
    """

    kind: Kind
    state: Mapping[str, Tensor]
    config: Mapping[str, object] = field(default_factory=dict)
    config_place: str = ""
    step: int | None = None


def recognize(content: Mapping[str, object], *, path: Path) -> Contents:
    """Recognize the dictionary of a file.

    path: the file's path; a GPT-2 has its `config.json` beside it
    Raises ModelError if the contents are unknown, or if a weight is not a tensor of real numbers.
    """
    if "state_dict" in content:
        return _chex(content)
    if "visual.conv1.weight" in content:
        return Contents(kind="CheXzero", state=published.clean(published.from_chexzero(_tensors(content))))
    if "wte.weight" in content or "transformer.wte.weight" in content:
        state = published.clean(published.from_gpt2(_tensors(content)))
        config = path.with_name("config.json")
        return Contents(kind="GPT-2", state=state, config=_read_config(config), config_place=config.name)
    first = ", ".join(list(content)[:3]) or "nothing"
    raise ModelError(
        f"it holds {first}; expected state_dict (ChEX), visual.conv1.weight (CheXzero) or wte.weight (GPT-2)"
    )


def _chex(content: Mapping[str, object]) -> Contents:
    state, config = (_dictionary(content, key) for key in ("state_dict", "config_dict"))
    step = content.get("step")
    if isinstance(step, Tensor) or not isinstance(step, SupportsIndex):
        raise ModelError(f"step is {_described(step)}, expected a whole number")
    return Contents(
        kind="ChEX",
        state=published.clean(_tensors(state)),
        config=config,
        config_place="config_dict",
        step=operator.index(step),
    )


def _dictionary(content: Mapping[str, object], key: str) -> dict[str, object]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ModelError(f"{key} is {_described(value)}, expected a dictionary; is this a ChEX checkpoint?")
    return {str(name): entry for name, entry in value.items()}


def _tensors(content: Mapping[str, object]) -> dict[str, Tensor]:
    """Refuse anything but dense tensors."""
    tensors = {}
    for key, value in content.items():
        if not isinstance(value, Tensor) or value.is_meta or value.is_nested or value.layout != torch.strided:
            raise ModelError(f"{key} is {_described(value)}, expected a dense tensor")
        tensors[key] = value.detach()
    return tensors


def _read_config(path: Path) -> dict[str, object]:
    """Read the configuration that Hugging Face puts beside weights. Without the file there is nothing to check."""
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}); download it again, or remove it") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} is a {type(config).__name__}, expected an object; download it again, or remove it")
    return config


def _described(value: object) -> str:
    if value is None:
        return "missing"
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    if value.is_meta:
        return "a tensor without numbers"
    return f"a {'nested' if value.is_nested else str(value.layout).removeprefix('torch.')} tensor"
