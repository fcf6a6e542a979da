"""What a group of a structured report says of its box: its number's name, its sites, its zone and its label."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydicom.dataset import Dataset

from models.contract import FindingState, Side
from node.domain import Code, Evidence
from node.outputs import wording
from node.outputs.sr.findings import probability_name
from node.read import prompts
from tests.support import samples, validators
from tests.support.documents import SEVERAL, contents, groups, numbers, written
from tests.support.samples import film, finding, report


def sites_of(group: Dataset) -> list[Dataset]:
    """Return the sites of a group's only number; the group itself has none, which OHIF would show with its code."""
    assert contents(group, "363698007") == []
    [number] = numbers(group)
    return contents(number, "363698007")


def test_a_numbers_name_tells_the_finding_and_if_to_review_it() -> None:
    names = [number.ConceptNameCodeSequence[0] for group in groups(written(SEVERAL)) for number in numbers(group)]

    assert [(name.CodeValue, name.CodingSchemeDesignator, name.CodeMeaning) for name in names] == [
        ("P60046008-R", "99CHEX", "Right pleural effusion, AI"),
        ("R19242006", "99CHEX", "Pulmonary edema, review, AI"),
        ("R19242006", "99CHEX", "Pulmonary edema, review, AI"),
        ("PSUPPORT_DEVICES", "99CHEX", "Support devices, AI"),
    ]


@pytest.mark.parametrize("state", [FindingState.PRESENT, FindingState.INDETERMINATE])
def test_the_names_of_all_numbers_of_the_set_fit_and_differ(state: FindingState) -> None:
    findings = [prompt.finding for prompt in prompts.load("chexpert14").prompts if prompt.finding]

    names = [probability_name(finding(code, state=state), side) for code in findings for side in (None, *Side)]

    assert all(len(name.meaning) <= 64 for name in names)
    assert len({name.value for name in names}) == len({name.meaning for name in names}) == len(names)
    assert all(len(name.value) <= 16 for name in names[:: len(Side) + 1])  # without a side


def test_the_longest_code_of_a_prompt_set_can_be_reported() -> None:
    long = Code(value="W" * 16, scheme="99SITE", meaning="M" * 64)

    dataset = written(report(film(findings=(finding(long, state=FindingState.INDETERMINATE),))))

    [number] = numbers(groups(dataset)[0])
    assert number.ConceptNameCodeSequence[0].LongCodeValue == "R" + "W" * 16 + "-R"
    assert number.ConceptNameCodeSequence[0].CodeMeaning.endswith("M, review, AI")
    assert validators.dciodvfy(dataset) == []
    assert validators.dsrdump(dataset) == []


def test_a_side_stands_with_the_site_unless_it_is_unknown() -> None:
    effusion, edema, _, devices = groups(written(SEVERAL))

    site, _ = sites_of(effusion)
    assert contents(site, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Right"
    assert "ContentSequence" not in sites_of(edema)[0]
    assert sites_of(devices) == []


def test_the_zone_of_a_box_is_a_site_with_side_and_share() -> None:
    effusion, edema, _, _ = groups(written(SEVERAL))

    [_, zone] = sites_of(effusion)
    [value] = zone.ConceptCodeSequence
    assert (value.CodeValue, value.CodingSchemeDesignator, value.CodeMeaning) == (
        "281394001",
        "SCT",
        "Lower zone of lung",
    )
    assert contents(zone, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Right"
    [share] = numbers(zone)
    [measured] = share.MeasuredValueSequence
    assert (measured.NumericValue, measured.MeasurementUnitsCodeSequence[0].CodeValue) == (34, "%")
    assert len(sites_of(edema)) == 1  # in no zone; the groups have the same shape all the same
    assert [len(numbers(group)) for group in (effusion, edema)] == [1, 1]


@pytest.mark.parametrize("site", [None, samples.HEART])
def test_a_zone_that_is_the_site_itself_stands_once(site: Code | None) -> None:
    lies = Evidence(zone="cardiac_silhouette", extent=0.5, site=samples.HEART)
    enlarged = finding(site=site, side=None)
    enlarged = replace(enlarged, boxes=(replace(enlarged.boxes[0], evidence=lies),))

    [group] = groups(written(report(film(findings=(enlarged,)))))

    [found] = sites_of(group)
    assert found.ConceptCodeSequence[0].CodeMeaning == "Heart"
    assert [number.MeasuredValueSequence[0].NumericValue for number in numbers(found)] == [50]


def test_the_short_label_is_the_label_that_is_drawn() -> None:
    found = groups(written(SEVERAL))

    labels = [contents(group, "125309")[0] for group in found]

    assert {(label.ValueType, label.RelationshipType) for label in labels} == {("TEXT", "HAS CONCEPT MOD")}
    drawn = [wording.label(reported, box) for reported in wording.reported(SEVERAL.films[0]) for box in reported.boxes]
    assert sorted(label.TextValue for label in labels) == sorted(drawn)
    assert labels[0].TextValue == "Right pleural effusion 83 %"


def test_the_side_of_a_box_comes_before_the_side_of_its_finding() -> None:
    bilateral = finding(side=Side.BILATERAL)
    left = replace(bilateral.boxes[0], side=Side.LEFT)

    [group] = groups(written(report(film(findings=(replace(bilateral, boxes=(left,)),)))))

    [site] = sites_of(group)
    assert contents(site, "272741003")[0].ConceptCodeSequence[0].CodeMeaning == "Left"
