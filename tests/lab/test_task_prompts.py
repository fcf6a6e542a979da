"""The paper's evaluation prompts: every word of the published ones, and the short form in which they are kept."""

from __future__ import annotations

import json

import pytest
import torch

from models.lab.tasks.prompts import ClassPrompt, DataSet, class_prompts, region_prompts
from models.network.chex import Chex
from tests.models.test_chex import SIZES
from tests.support.material import material

Published = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def published() -> Published:
    prompts: Published = json.loads(material("chex/prompts.json").read_text(encoding="utf-8"))
    return prompts


@pytest.fixture(scope="module")
def network() -> Chex:
    torch.manual_seed(7)
    return Chex(SIZES).eval().requires_grad_(False)


def by_name(data_set: DataSet) -> dict[str, ClassPrompt]:
    return {prompt.name: prompt for prompt in class_prompts(data_set)}


@pytest.mark.parametrize(
    ("data_set", "names", "prompts"),
    [
        ("vindr", "vindrcxr_loc_top15", "vindrcxr"),
        ("nih8", "nih8", "nih8"),
        ("mscxr", "ms_cxr", "mscxr"),
        ("cig", "cig_all", "cigcls"),
    ],
)
def test_classes_and_their_phrases_are_the_published_ones(
    published: Published, data_set: DataSet, names: str, prompts: str
) -> None:
    ours = by_name(data_set)

    assert list(ours) == list(published[f"class_names/{names}"])
    positives, negatives = published[f"prompts/{prompts}_pos"], published[f"prompts/{prompts}_neg"]
    assert {name: [prompt.positive] for name, prompt in ours.items()} == {name: positives[name] for name in ours}
    assert {name: [prompt.negative] for name, prompt in ours.items()} == {name: negatives[name] for name in ours}
    # Regions of Chest ImaGenome are given, so its classes have no phrase that finds them but their own.
    located_by = published.get(f"prompts/{prompts}_box", positives)
    assert {name: [prompt.located_by] for name, prompt in ours.items()} == {name: located_by[name] for name in ours}


def test_regions_and_their_synonyms_are_the_published_ones(published: Published) -> None:
    regions = region_prompts()

    assert {region.name: list(region.phrases) for region in regions} == published["prompts/cig_anat"]
    single, joined = published["anatomy_names/cig_default"], published["anatomy_names/cig_multi"]
    assert [region.name for region in regions] == [*single, *joined]
    members = {region.name: list(region.members) for region in regions if region.members}
    assert members == published["anatomy_multibox_mapping/cig_mapping"]
