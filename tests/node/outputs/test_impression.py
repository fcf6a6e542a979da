"""The impression: what was found and where, first, in a few lines, in every output."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, PromptKind, Side
from node.domain import Code, Evidence, Film, Finding, Reason, Report
from node.hl7.text import read
from node.outputs import impression, oru, report_txt, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.read import prompts
from node.read.findings import ZONES
from tests.support import samples
from tests.support.samples import (
    BERLIN,
    EDEMA,
    absent,
    cr,
    film,
    finding,
    left_out,
    report,
    several,
    sources,
    uncalibrated,
    unread,
)

CODES = [prompt.finding for prompt in prompts.load("chexpert14").prompts if prompt.finding]
OPACITY = Code(value="112001", scheme="DCM", meaning="Opacity")
REST = "Not looked for: all else, and all outside the analyzed square."


def everything(item: Dataset) -> list[Dataset]:
    """Return all content items of a report, in their order."""
    return [found for child in item.get("ContentSequence", ()) for found in (child, *everything(child))]


def beginnings(of: Report) -> dict[str, str]:
    """Return the first 200 characters of the text report, of the SR's first text and of the message's first OBX."""
    headers = sources(*(cr(number) for number in range(1, len(of.films) + 1)))
    *_, document = samples.datasets(sr.write, of, headers, BERLIN)
    contained = [item for item in everything(dcmread(BytesIO(save_bytes(document)))) if "TextValue" in item]
    texts = [item for item in contained if item.RelationshipType == "CONTAINS"]  # not those about the observer
    message = read(oru.write(of, headers, BERLIN, order=None, documents=[])[1])
    first = {"report.txt": report_txt.render(of), "SR": texts[0].TextValue, "OBX": next(message.named("OBX")).text(5)}
    return {name: " ".join(text[:200].split()) for name, text in first.items()}


@pytest.mark.parametrize(
    ("films", "expected"),
    [
        ((several(),), "Right pleural effusion, lower zone, 83 %"),
        ((film(findings=(uncalibrated(),)),), "Review, not calibrated: pulmonary edema, 91 %"),
        ((film(findings=(absent(),)),), "No prompted finding came near its threshold."),
        ((unread(1),), "Not processed: its pixel data could not be decoded"),
        ((unread(1), film(2, findings=(absent(),)), replace(several(), source=samples.film_uid(3))),
         "Film 3 of 3: Right pleural effusion, lower zone, 83 %"),
    ],
    ids=["present", "to be reviewed", "nothing", "not read", "several films"],
)  # fmt: skip
def test_the_first_200_characters_say_what_was_found_and_where(films: tuple[Film, ...], expected: str) -> None:
    for name, beginning in beginnings(report(*films)).items():
        assert expected in beginning, name
        assert beginning.startswith("AI RESEARCH - NOT FOR DIAGNOSIS"), name


def test_findings_come_by_urgency_and_then_by_probability() -> None:
    found = film(
        findings=(
            finding(OPACITY, probability=0.99),
            finding(probability=0.6),
            finding(samples.PNEUMOTHORAX, probability=0.55, side=Side.LEFT),
            finding(EDEMA, probability=0.41, state=FindingState.INDETERMINATE, side=Side.BILATERAL),
            absent(samples.DEVICES),
        )
    )

    assert impression.of_film(found) == [
        "Left pneumothorax, 55 %",
        "Right pleural effusion, lower zone, 60 %",
        "Right opacity, lower zone, 99 %",
        "Review: pulmonary edema on both sides, 41 %",
        f"Not reported, may have been missed: 1 other finding. {REST}",
    ]


def test_it_counts_what_the_model_never_reports() -> None:
    found = film(findings=(finding(), left_out(), absent(EDEMA)))

    assert impression.of_film(found)[-1] == (
        "Not reported, may have been missed: 1 other finding. "
        f"Not assessed by this model, may be there: 1 finding. {REST}"
    )


def test_what_is_to_be_reviewed_follows_what_is_present() -> None:
    opacity = finding(OPACITY, state=FindingState.UNCALIBRATED, probability=0.64, side=Side.BILATERAL)

    lines = impression.of_film(film(findings=(opacity, finding(probability=0.91))))

    assert lines[:2] == [
        "Right pleural effusion, lower zone, 91 %",
        "Review, not calibrated: opacity on both sides, 64 %",
    ]


def lying_in(found: Finding, zone: str | None) -> Finding:
    """A finding that lies in a zone with all of its boxes."""
    evidence = Evidence(zone=zone, extent=0.5)
    return replace(found, evidence=evidence, boxes=tuple(replace(box, evidence=evidence) for box in found.boxes))


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("right_lower_lung_zone", "Right pleural effusion, lower zone, 83 %"),
        ("right_mid_lung_zone", "Right pleural effusion, mid zone, 83 %"),
        ("right_apical_zone", "Right pleural effusion, apex, 83 %"),
        ("left_lower_lung_zone", "Right pleural effusion, 83 %"),
        ("right_hilar_structures", "Right pleural effusion, 83 %"),
        ("right_clavicle", "Right pleural effusion, 83 %"),
        ("abdomen", "Right pleural effusion, 83 %"),
        (None, "Right pleural effusion, 83 %"),
    ],
)
def test_a_finding_names_its_zone_if_it_is_one_of_its_lung(zone: str | None, expected: str) -> None:
    assert impression.of_film(film(findings=(lying_in(finding(), zone),)))[0] == expected


@pytest.mark.parametrize(
    ("of", "zone", "expected"),
    [
        (finding(OPACITY, site=samples.LUNG), "right_hilar_structures", "Right opacity, hilum, 83 %"),
        (finding(EDEMA, site=samples.LUNG), "right_lower_lung_zone", "Right pulmonary edema, 83 %"),
        (finding(EDEMA, site=None), "right_lower_lung_zone", "Right pulmonary edema, 83 %"),
        (finding(side=None), "right_lower_lung_zone", "Pleural effusion, 83 %"),
        (finding(side=Side.BILATERAL), "right_lower_lung_zone", "Pleural effusion on both sides, 83 %"),
        (finding(side=Side.LEFT), "left_lower_lung_zone", "Left pleural effusion, lower zone, 83 %"),
    ],
)
def test_no_zone_is_named_that_says_too_much(of: Finding, zone: str, expected: str) -> None:
    assert impression.of_film(film(findings=(lying_in(of, zone),)))[0] == expected


def test_a_finding_to_be_reviewed_names_its_zone_too() -> None:
    located = replace(
        finding(state=FindingState.INDETERMINATE), evidence=Evidence(zone="right_lower_lung_zone", extent=1)
    )

    assert impression.of_film(film(findings=(located,)))[0] == "Review: right pleural effusion, lower zone, 83 %"


def test_every_zone_is_a_region_of_the_set() -> None:
    regions = {prompt.key for prompt in prompts.load("chexpert14").prompts if prompt.kind is PromptKind.REGION}
    sites = {prompt.site.value for prompt in prompts.load("chexpert14").prompts if prompt.finding and prompt.site}

    for site, zones in ZONES.items():
        assert site in sites
        assert {f"{side}_{zone}" for side in ("right", "left") for zone in zones} <= regions


def test_a_film_without_findings_is_not_called_normal() -> None:
    lines = impression.of_film(film(findings=(absent(), absent(EDEMA))))

    assert lines == [
        "No prompted finding came near its threshold. This is not a report of a normal film.",
        f"Not reported, may have been missed: 2 findings. {REST}",
    ]


def test_a_film_that_was_analyzed_whole_has_no_rest() -> None:
    whole = replace(several(), analyzed=Box(left=0, top=0, right=samples.COLUMNS, bottom=samples.ROWS))

    assert impression.of_film(whole)[-1].endswith("1 other finding. Not looked for: all else.")


def test_the_most_urgent_film_comes_first_and_unread_films_last() -> None:
    pneumothorax = film(4, findings=(finding(samples.PNEUMOTHORAX, state=FindingState.INDETERMINATE),))
    films = (unread(1, Reason.LATERAL), film(2, findings=(absent(),)), film(3, findings=(finding(),)), pneumothorax)

    lines = impression.of_report(report(*films))

    numbers = [line.split(":")[0] for line in lines if not line.startswith("  ")]
    assert numbers == ["Film 3 of 4", "Film 4 of 4", "Film 2 of 4", "Film 1 of 4"]
    assert lines[0] == "Film 3 of 4: Right pleural effusion, lower zone, 83 %"
    assert lines[1].startswith("  Not looked for")


@given(st.lists(st.tuples(st.sampled_from(CODES), st.sampled_from(FindingState), st.floats(0, 1)), max_size=13))
def test_at_most_six_lines_name_every_reported_finding(
    drawn: list[tuple[Code, FindingState, float]],
) -> None:
    made = (finding(code, state=state, probability=probability) for code, state, probability in drawn)
    findings = tuple(replace(unlocated, evidence=None) for unlocated in made)

    lines = impression.of_film(film(findings=findings))

    assert len([line for line in lines if not line.startswith("Not calibrated on such films")]) <= 6
    said = " ".join(lines).lower()
    for reported in wording.reported(film(findings=findings)):
        assert f"right {reported.code.meaning.lower()}, {wording.percent(reported.probability or 0.0)}" in said


@pytest.mark.parametrize(
    ("probability", "expected"), [(0, "0 %"), (0.004, "0 %"), (0.005, "1 %"), (0.625, "63 %"), (1, "100 %")]
)
def test_a_probability_is_a_whole_percent(probability: float, expected: str) -> None:
    assert wording.percent(probability) == expected


def test_the_table_of_urgency_covers_the_set_and_names_its_sourc() -> None:
    assert impression.URGENCIES.keys() == {(code.scheme, code.value) for code in CODES}
    assert [code for code, urgency in impression.URGENCIES.items() if urgency == impression.MINUTES] == [
        ("SCT", "36118008")
    ]
    assert "Larson et al., JACR 2014" in " ".join((impression.__doc__ or "").split())


def test_a_finding_that_is_not_in_the_table_comes_last() -> None:
    unknown: Finding = finding(Code(value="1", scheme="99SITE", meaning="Something"), probability=0.6)

    assert impression.by_urgency([unknown, finding(OPACITY, probability=0.7), finding()])[-1] == unknown


def test_an_abbreviation_stays_as_it_is_written() -> None:
    assert wording.sided("CT port", Side.LEFT) == "Left CT port"
    assert wording.sided("Opacity", None) == "Opacity"


def test_a_percent_sign_stays_with_its_number() -> None:
    for width in range(20, 60):
        for line in wording.broken("Review: left pleural effusion, 64 %; opacity on both sides, 60 %.", width=width):
            assert not line.startswith("%")
            assert len(line) <= width
