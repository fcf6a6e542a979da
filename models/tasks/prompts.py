"""What the paper's evaluations ask: the classes of four data sets and the regions of Chest ImaGenome (SPEC.md 11).

The words stand in `prompts.toml`; here is how its short form is meant.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, NotRequired, TypedDict, cast

import torch
from torch import Tensor

from models.chex import Chex
from models.phrasebook import opposite
from models.tokenizers import PromptTokenizer

DataSet = Literal["vindr", "nih8", "mscxr", "cig"]

_FILE = Path(__file__).with_name("prompts.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPrompt:
    """One class of a data set: the phrase that finds its boxes, and the pair that judges what they hold."""

    name: str
    located_by: str
    positive: str
    negative: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPrompt:
    """One region of a film.

    phrases: synonyms, whose embeddings are averaged
    members: the regions whose boxes are its own; empty for a region with one box
    """

    name: str
    phrases: tuple[str, ...]
    members: tuple[str, ...] = ()


class ClassVectors(NamedTuple):
    """Embeddings of C classes, each [C, dim] and not of unit length."""

    located_by: Tensor
    positive: Tensor
    negative: Tensor


def class_prompts(data_set: DataSet) -> tuple[ClassPrompt, ...]:
    """Give the classes of a data set, in the order of their numbers."""
    table = _read()[data_set]
    located_by, negatives = table.get("located_by", {}), table.get("negatives", {})
    return tuple(
        ClassPrompt(
            name=f"{table['prefix']}{name}",
            located_by=located_by.get(name, phrase),
            positive=phrase,
            negative=negatives.get(name, opposite(phrase, ())),
        )
        for name, phrase in table["classes"].items()
    )


def region_prompts() -> tuple[RegionPrompt, ...]:
    """Give the regions of Chest ImaGenome: those with one box, then those with several."""
    table = _read()
    single = (RegionPrompt(name=name, phrases=tuple(phrases)) for name, phrases in table["regions"].items())
    joined = (
        RegionPrompt(name=name, phrases=tuple(region["phrases"]), members=tuple(region["members"]))
        for name, region in table["joined_regions"].items()
    )
    return (*single, *joined)


def embed_classes(network: Chex, tokenizer: PromptTokenizer, prompts: Sequence[ClassPrompt]) -> ClassVectors:
    """Embed the three phrases of each class."""
    groups = [(prompt.located_by,) for prompt in prompts]
    groups += [(prompt.positive,) for prompt in prompts]
    groups += [(prompt.negative,) for prompt in prompts]
    return ClassVectors(*embed(network, tokenizer, groups).chunk(3))


def embed(network: Chex, tokenizer: PromptTokenizer, groups: Sequence[Sequence[str]]) -> Tensor:
    """Embed groups of synonyms into [group, dim]: the mean of each, of raw embeddings (SPEC.md 3)."""
    tokens = torch.from_numpy(tokenizer.encode([phrase for group in groups for phrase in group]))
    embeddings = network.encode_prompts(tokens.to(network.post_decoder.gate.device))
    synonyms = torch.split(embeddings, [len(group) for group in groups])
    return torch.stack([group.mean(dim=0) for group in synonyms])


class _Classes(TypedDict):
    prefix: str
    classes: dict[str, str]
    located_by: NotRequired[dict[str, str]]
    negatives: NotRequired[dict[str, str]]


class _JoinedRegion(TypedDict):
    phrases: list[str]
    members: list[str]


class _File(TypedDict):
    vindr: _Classes
    nih8: _Classes
    mscxr: _Classes
    cig: _Classes
    regions: dict[str, list[str]]
    joined_regions: dict[str, _JoinedRegion]


def _read() -> _File:
    return cast("_File", tomllib.loads(_FILE.read_text(encoding="utf-8")))
