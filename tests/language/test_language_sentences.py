"""Sentences made by rule: plain, right in grammar, and without a fault for what they say."""

from __future__ import annotations

import itertools
import re
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from language.check import Claim, contradictions, faults
from language.labels import RuleLabeler, class_rules
from language.sentences import by_rule, is_not_seen, not_seen, stated, unstated
from models.contract import FindingState, Side
from tests.paths import REPOSITORY

LABELER = RuleLabeler()
PROMPTS = tomllib.loads((REPOSITORY / "node" / "read" / "prompt_sets" / "chexpert14.toml").read_text(encoding="utf-8"))[
    "prompts"
]
# Each finding by the phrase it is asked with and by the meaning of its code: two names that an output may use.
NAMES = sorted(
    {
        (prompt["key"], name)
        for prompt in PROMPTS
        if prompt["kind"] == "pathology"
        for name in (*prompt["phrases"], prompt["finding"][2])
    }
)
STATES: tuple[FindingState, ...] = (FindingState.PRESENT, FindingState.INDETERMINATE, FindingState.UNCALIBRATED)
SIDES: tuple[Side | None, ...] = (*Side, None)
ZONES = ("upper", "mid lung zone", "lower zone", "apex", "hilum", None)
OF_A_SITE = (
    "Aortic enlargement, Calcification, COPD, Enlarged pulmonary artery (PA), Hiatal hernia, ILD, Mass or nodule, "
    "Mediastinal shift, Pulmonary fibrosis, Rib fracture, Scoliosis, Vascular congestion, Clips, Azygos lobe"
).split(", ")


def test_every_pathology_of_the_prompt_set_is_tried() -> None:
    assert {key for key, _ in NAMES} == set(class_rules())


@pytest.mark.parametrize(("key", "name"), NAMES)
def test_a_sentence_by_rule_has_no_fault_for_its_claim(key: str, name: str) -> None:
    for state, side, zone in itertools.product(STATES, SIDES, ZONES):
        claim = Claim(finding=key, state=state, side=side, region=None, region_has_finding=False, names=(name,))
        sentence = by_rule(name=name, state=state, side=side, zone=zone)

        assert faults(sentence, claim) == (), sentence
        assert contradictions(sentence, dict.fromkeys(class_rules(), FindingState.PRESENT)) == (), sentence
        if state is FindingState.PRESENT and side is not None:
            other = replace(claim, side=Side.LEFT if side is Side.RIGHT else Side.RIGHT)
            assert faults(sentence, other) != (), sentence


@pytest.mark.parametrize(("key", "name"), NAMES)
def test_no_labeler_takes_a_sentence_by_rule_for_a_denial(key: str, name: str) -> None:
    for state, side, zone in itertools.product(STATES, SIDES, ZONES):
        sentence = by_rule(name=name, state=state, side=side, zone=zone)

        assert LABELER.label(sentence).get(key) != "negative", sentence
        assert not re.search(r"\b(not?|never|without)\b", sentence)


@given(st.sampled_from(OF_A_SITE), st.sampled_from(STATES), st.sampled_from(SIDES), st.sampled_from(ZONES))
def test_so_has_one_of_a_sites_own_finding(name: str, state: FindingState, side: Side | None, zone: str | None) -> None:
    claim = Claim(finding="own", state=state, side=side, region=None, region_has_finding=False, names=(name,))

    assert faults(by_rule(name=name, state=state, side=side, zone=zone), claim) == ()


@pytest.mark.parametrize(
    ("name", "side", "zone", "sentence"),
    [
        ("Atelectasis", Side.LEFT, None, "There is left atelectasis."),
        ("Cardiomegaly", None, None, "There is cardiomegaly."),
        ("Consolidation", Side.BILATERAL, "lower zone", "There is bilateral consolidation in the lower zones."),
        ("Edema", None, None, "There is edema."),
        ("Enlarged cardiomediastinum", None, None, "There is an enlarged cardiomediastinum."),
        ("Fracture", Side.LEFT, None, "There is a left fracture."),
        ("Fracture of bone", Side.BILATERAL, None, "There are bilateral fractures of bone."),
        ("Lung lesion", Side.BILATERAL, "upper", "There are bilateral lung lesions in the upper zones."),
        ("Lung opacity", Side.RIGHT, "mid", "There is a right lung opacity in the mid zone."),
        ("Opacity", None, None, "There is an opacity."),
        ("Pleural effusion", Side.RIGHT, "lower zone", "There is a right pleural effusion in the lower zone."),
        ("Pleural effusion", Side.BILATERAL, None, "There are bilateral pleural effusions."),
        ("Pleural pathology", Side.LEFT, None, "There is left pleural pathology."),
        ("Other pleural abnormality", None, None, "There is another pleural abnormality."),
        ("Pneumonia", Side.RIGHT, "lower", "There is right pneumonia in the lower zone."),
        ("Pneumothorax", Side.BILATERAL, None, "There are bilateral pneumothoraces."),
        ("Support devices", None, None, "There are support devices."),
        ("Mass or nodule", Side.BILATERAL, None, "There is a mass or nodule on both sides."),
        ("COPD", None, None, "There is COPD."),
        ("Air pouch", Side.BILATERAL, "lower zones", "There are bilateral air pouches in the lower zones."),
        ("Wide mediastinum", Side.BILATERAL, None, "There is a wide mediastinum on both sides."),
        ("Pneumothorax", Side.LEFT, "apex", "There is a left pneumothorax at the apex."),
    ],
)
def test_articles_and_plurals_are_right(name: str, side: Side | None, zone: str | None, sentence: str) -> None:
    assert by_rule(name=name, state=FindingState.PRESENT, side=side, zone=zone) == sentence


def test_what_is_not_certain_asks_for_review() -> None:
    assert by_rule(name="Pleural effusion", state=FindingState.INDETERMINATE, side=Side.RIGHT, zone=None) == (
        "A right pleural effusion is possible; please review."
    )
    assert by_rule(name="Support devices", state=FindingState.INDETERMINATE, side=None, zone=None) == (
        "Support devices are possible; please review."
    )
    assert by_rule(name="Pleural effusion", state=FindingState.UNCALIBRATED, side=Side.RIGHT, zone=None) == (
        "A right pleural effusion is possible; please review."
    )


@pytest.mark.parametrize(
    ("states", "before"),
    [
        ((FindingState.PRESENT, FindingState.PRESENT), ""),
        ((FindingState.INDETERMINATE, FindingState.UNCALIBRATED), "Possible, please review: "),
        ((FindingState.PRESENT, FindingState.INDETERMINATE), "Possible, please review (COPD): "),
        ((FindingState.UNCALIBRATED, FindingState.PRESENT), "Possible, please review (edema): "),
    ],
)
def test_a_networks_words_are_kept_after_what_is_to_be_reviewed(states: tuple[FindingState, ...], before: str) -> None:
    text = "Edema and COPD."

    told = stated(text, dict(zip(("Edema", "COPD"), states, strict=True)))

    assert (told, unstated(told), is_not_seen(told)) == (before + text, text, False)
    assert (unstated(not_seen(text)), is_not_seen(not_seen(text))) == (text, True)


@pytest.mark.parametrize(
    ("name", "state"),
    [("Edema", FindingState.ABSENT), (" ", FindingState.PRESENT)],
)
def test_nothing_is_denied_and_nothing_made_up(name: str, state: FindingState) -> None:
    with pytest.raises(ValueError):
        by_rule(name=name, state=state, side=None, zone=None)
