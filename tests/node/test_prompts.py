"""The prompt set chexpert14 against what was published, and clear words for mistakes in another one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import cast

import pytest
from pydicom.sr._concepts_dict import concepts

from models.contract import PromptKind, Side
from node.domain import Code
from node.errors import ConfigError
from node.read import prompts
from tests.paths import REPOSITORY

PATHOLOGIES = [
    "atelectasis", "cardiomegaly", "consolidation", "edema", "enlarged_cardiomediastinum", "fracture", "lung_lesion",
    "lung_opacity", "no_finding", "pleural_effusion", "pleural_other", "pneumonia", "pneumothorax", "support_devices",
]  # fmt: skip
NOT_IN_PS3_16 = {"46621007", "8186001", "95436008", "233604007", "125605004"}
CONCEPTS = cast("dict[str, dict[str, dict[str, tuple[str, list[int]]]]]", concepts)  # [scheme][name][value]
OUR_CODES = {"ENLARGED_CM", "LUNG_LESION", "PLEURAL_OTHER", "SUPPORT_DEVICES"}


def is_in_ps3_16(code: Code) -> bool:
    """Whether pydicom's copy of the standard's tables has the code with that meaning."""
    return any(
        (value, meaning) == (code.value, code.meaning)
        for concept in CONCEPTS.get(code.scheme, {}).values()
        for value, (meaning, _) in concept.items()
    )


LOADED = prompts.load("chexpert14")


def test_chexpert14_asks_14_pathologies_and_15_regions_of_a_side_each_where_there_are_two() -> None:
    assert [prompt.key for prompt in LOADED.prompts[:14]] == PATHOLOGIES
    assert [prompt.kind for prompt in LOADED.prompts[14:]] == [PromptKind.REGION] * 15
    assert LOADED.name == "chexpert14"
    assert LOADED["no_finding"].kind is PromptKind.NO_FINDING
    sides = {"right": Side.RIGHT, "left": Side.LEFT}
    for prompt in LOADED.prompts:
        assert prompt.side is sides.get(prompt.key.partition("_")[0])
        organ = prompt.site.meaning if prompt.site is not None else ""
        assert prompt.paired == (prompt.kind is PromptKind.PATHOLOGY and organ in ("Lung", "Pleura"))


def test_chexpert14_has_the_published_phrases_in_order() -> None:
    source = REPOSITORY.parent / "shared" / "chex" / "prompts.json"
    if not source.is_file():
        pytest.skip("needs the published prompts beside the repository")
    published = json.loads(source.read_text())
    names, regions = published["class_names/chexpert_14"], published["anatomy_names/cig_rg"]
    positive, negative = published["prompts/chexpert_pos"], published["prompts/chexpert_neg"]
    keys = [name.removeprefix("cxp/").lower().replace(" ", "_") for name in (*names, *regions)]
    phrases = [*((positive[name], negative[name]) for name in names)]
    phrases += [(published["prompts/cig_anat"][name], []) for name in regions]

    found = [(prompt.key, (list(prompt.phrases), list(prompt.negatives))) for prompt in LOADED.prompts]

    assert found == [*zip(keys, phrases, strict=True)]


def test_every_code_is_standard_but_for_the_listed_ones() -> None:
    findings = [prompt.finding for prompt in LOADED.prompts if prompt.finding is not None]
    sites = [prompt.site for prompt in LOADED.prompts if prompt.site is not None]

    assert {code.value for code in findings if code.scheme == "99CHEX"} == OUR_CODES
    assert {code.value for code in findings if code.scheme != "99CHEX" and not is_in_ps3_16(code)} == NOT_IN_PS3_16
    assert all(is_in_ps3_16(code) for code in sites)
    assert len({code.value for code in findings}) == 13


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('version = "7"\n[[prompts]]\nkey = "spine"\nkind = "region"\nphrases = ["Spine"]\n')

    loaded = prompts.load(str(path))

    assert (loaded.name, loaded.version) == ("mine", "7")
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


VERSION = 'version = "1"\n'
REGION = VERSION + '[[prompts]]\nkey = "spine"\nkind = "region"\n'
SPINE = 'phrases = ["Spine"]\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("version = ", "Invalid value"),
        ("", "version: is missing"),
        (VERSION, "prompts: is missing"),
        ("color = 1\n" + REGION + SPINE, "color: unknown key"),
        (REGION + 'phrase = ["Spine"]', "phrase: unknown key; did you mean phrases?"),
        (REGION.replace("spine", "The spine") + SPINE, "snake_case"),
        (REGION.replace("region", "organ") + SPINE, "kind: 'organ' is unknown; use 'pathology'"),
        (REGION.replace("region", "pathology") + SPINE, "needs a finding code"),
        (REGION, "prompt spine: phrases: is missing"),
        (REGION + 'phrases = "Spine"', "phrases: must be a list"),
        (REGION + SPINE + 'side = "upper"', "side: 'upper' is unknown"),
        (REGION + SPINE + "paired = 1", "paired: must be true or false"),
        (REGION + SPINE + 'site = ["1", "SCT"]', "site[3]: is missing"),
        (REGION + SPINE + 'site = ["12345678901234567", "SCT", "Spine"]', "longer than 16"),
        (REGION + SPINE + r'site = ["1\\2", "SCT", "Spine"]', "holds a backslash"),
        (REGION + SPINE + REGION.removeprefix(VERSION) + SPINE, "several have the key spine"),
    ],
)
def test_mistakes_are_told_in_clear_words(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(content)

    with pytest.raises(ConfigError, match=r"wrong\.toml") as refused:
        prompts.load(str(path))

    assert says in str(refused.value)


def test_every_mistake_is_listed_at_once_and_a_set_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('[[prompts]]\nkey = "a"\nkind = "organ"\n[[prompts]]\nkey = "b"\nkind = "region"\n')

    with pytest.raises(ConfigError) as refused:
        prompts.load(str(path))

    assert len(refused.value.mistakes) == 4
    for name in ("chexpert15", "../chexpert14", "missing.toml"):
        with pytest.raises(ConfigError):
            prompts.load(name)
