"""The paper's evaluation prompts: every word of the published ones, and the short form in which they are kept."""

from __future__ import annotations

import json

import pytest
import torch

from models.lab.tasks.prompts import ClassPrompt, DataSet, class_prompts, embed, embed_classes, region_prompts
from models.network.chex import Chex
from models.reading.tokenizers import VOCABULARIES, PromptTokenizer
from tests.models.test_chex import SIZES
from tests.support.material import material

Published = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def published() -> Published:
    prompts: Published = json.loads(material("chex/prompts.json").read_text(encoding="utf-8"))
    return prompts


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer(VOCABULARIES)


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


def test_a_class_is_negated_by_rule_or_in_the_published_words() -> None:
    assert by_name("vindr")["vindrcxr/ILD"].negative == "No interstitial lung disease (ILD)"
    assert by_name("cig")["cig/disease/copd/emphysema"].negative == "No COPD or emphysema"
    assert by_name("cig")["cig/af/mass/nodule (not otherwise specified)"].negative == "No mass or nodule"


def test_an_enlarged_heart_is_found_as_the_heart() -> None:
    prompt = by_name("nih8")["nih/Cardiomegaly"]

    assert (prompt.located_by, prompt.positive, prompt.negative) == (
        "Cardiac silhouette",
        "Cardiomegaly",
        "No cardiomegaly",
    )


def test_a_joined_region_is_made_of_regions_with_one_box() -> None:
    single = {region.name for region in region_prompts() if not region.members}

    joined = [region for region in region_prompts() if region.members]
    assert joined and all(len(region.members) > 1 and single.issuperset(region.members) for region in joined)


def test_synonyms_are_averaged(network: Chex, tokenizer: PromptTokenizer) -> None:
    both, short, other = embed(network, tokenizer, [["SVC", "Superior vena cava"], ["SVC"], ["Superior vena cava"]])

    torch.testing.assert_close(both, (short + other) / 2)
    assert (short - other).abs().max() > 1e-3


def test_each_class_keeps_its_three_phrases(network: Chex, tokenizer: PromptTokenizer) -> None:
    prompts = class_prompts("mscxr")

    vectors = embed_classes(network, tokenizer, prompts)

    for place, prompt in enumerate(prompts):
        phrases = [[prompt.located_by], [prompt.positive], [prompt.negative]]
        torch.testing.assert_close(torch.stack([part[place] for part in vectors]), embed(network, tokenizer, phrases))
