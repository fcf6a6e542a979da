"""The prompts of the paper's training and evaluations: classes of four data sets, and regions (spec §11).

They are in `prompts.toml` in a short form, which is expanded here. The regions are those of Chest ImaGenome.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, NotRequired, TypedDict, cast

from models.reading.phrasebook import opposite

if TYPE_CHECKING:
    from torch import Tensor

    from models.network.chex import Chex
    from models.reading.tokenizers import PromptTokenizer

DataSet = Literal["vindr", "nih8", "mscxr", "cig"]

_FILE = Path(__file__).with_name("prompts.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPrompt:
    """One class of a data set: the phrase that locates its boxes, and the two phrases that classify their content."""

    name: str
    located_by: str
    positive: str
    negative: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPrompt:
    """One region of a film.

    phrases: synonyms whose embeddings are averaged
    members: the regions whose boxes it consists of; empty for a region with one box
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
    """Return the classes of a data set that the paper evaluates, in the order of their numbers."""
    table = _read()[data_set]
    left_out = {f"{table['prefix']}{name}" for name in table.get("not_evaluated", [])}
    return tuple(prompt for prompt in trained_prompts(data_set) if prompt.name not in left_out)


def trained_prompts(data_set: DataSet) -> tuple[ClassPrompt, ...]:
    """Return the classes of a data set that the paper trains with: of VinDr-CXR all 22 that have boxes."""
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


def class_names() -> frozenset[str]:
    """Return every class label of the data sets, also those without a prompt."""
    file = _read()
    return frozenset(
        f"{table['prefix']}{name}"
        for table in (file["vindr"], file["nih8"], file["mscxr"], file["cig"])
        for name in (*table["classes"], *table.get("others", []))
    )


def region_prompts() -> tuple[RegionPrompt, ...]:
    """Return the regions of Chest ImaGenome: those with one box, then those with several."""
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
    """Embed groups of synonyms into [group, dim]: the mean of each, of raw embeddings (spec §3)."""
    # Imported here: processes that render films need only the words, and PyTorch would fill the memory of each.
    import torch

    tokens = torch.from_numpy(tokenizer.encode([phrase for group in groups for phrase in group]))
    embeddings = network.encode_prompts(tokens.to(network.post_decoder.gate.device))
    synonyms = torch.split(embeddings, [len(group) for group in groups])
    return torch.stack([group.mean(dim=0) for group in synonyms])


class _Classes(TypedDict):
    prefix: str
    classes: dict[str, str]
    located_by: NotRequired[dict[str, str]]
    negatives: NotRequired[dict[str, str]]
    not_evaluated: NotRequired[list[str]]
    others: NotRequired[list[str]]


class _JoinedRegion(TypedDict):
    phrases: list[str]
    members: list[str]


class _PromptsFile(TypedDict):
    vindr: _Classes
    nih8: _Classes
    mscxr: _Classes
    cig: _Classes
    regions: dict[str, list[str]]
    joined_regions: dict[str, _JoinedRegion]


def _read() -> _PromptsFile:
    return cast("_PromptsFile", tomllib.loads(_FILE.read_text(encoding="utf-8")))
