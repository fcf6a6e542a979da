"""The impression: what was found and where, first, in a few lines, in every output; one order for all lists."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import FindingState, PromptKind, Side
from node.domain import Code, Evidence, Film, Finding, Reason, Report
from node.hl7.text import read
from node.outputs import impression, oru, report_txt, vocabulary, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.read import prompts
from node.read.findings import ZONES
from tests.support import samples
from tests.support.samples import BERLIN, EDEMA, absent, cr, film, finding, report, several, sources, unread

CODES = [prompt.finding for prompt in prompts.load("chexpert14").prompts if prompt.finding]
OPACITY = Code(value="112001", scheme="DCM", meaning="Opacity")
POSSIBLE = vocabulary.STATES[FindingState.INDETERMINATE]


def everything(item: Dataset) -> list[Dataset]:
    """Return all content items of a report, in their order."""
    return [found for child in item.get("ContentSequence", ()) for found in (child, *everything(child))]


def beginnings(of: Report) -> dict[str, str]:
    """Return the first 200 characters of the text report, of the SR's first text and of the message's first OBX."""
    headers = sources(*(cr(number) for number in range(1, len(of.films) + 1)))
    *_, document = samples.datasets(sr.write, of, headers, BERLIN)
    contained = [item for item in everything(dcmread(BytesIO(save_bytes(document)))) if "TextValue" in item]
    texts = [item for item in contained if item.RelationshipType == "CONTAINS"]  # not those about the observer
    lines = read(oru.write(of, headers, BERLIN, order=None, documents=[])[1]).named("OBX")
    message = " ".join(next(lines).text(5) for _ in range(2))
    first = {"report.txt": report_txt.render(of), "SR": texts[0].TextValue, "OBX": message}
    return {name: " ".join(text[:200].split()) for name, text in first.items()}


@pytest.mark.parametrize(
    ("films", "expected"),
    [
        ((several(),), "Right pleural effusion, lower zone, 83 %"),
        ((film(findings=(samples.uncalibrated(),)),), f"pulmonary edema, 91 % ({POSSIBLE})"),
        ((film(findings=(absent(),)),), "No prompted finding came near its threshold."),
        ((unread(1),), "Not processed: its pixel data could not be decoded"),
        ((unread(1), film(2, findings=(absent(),)), replace(several(), source=samples.film_uid(3))),
         "Film 3 of 3: 1. Right pleural effusion, lower zone, 83 %"),
    ],
    ids=["present", "possible", "nothing", "not read", "several films"],
)  # fmt: skip
def test_the_first_200_characters_say_what_was_found_and_where(films: tuple[Film, ...], expected: str) -> None:
    for name, beginning in beginnings(report(*films)).items():
        assert expected.lower() in beginning.lower(), name
        assert beginning.startswith("AI RESEARCH - NOT FOR DIAGNOSIS"), name


def test_the_most_urgent_is_first_and_of_equally_urgent_what_is_present() -> None:
    """A possible pneumothorax stands before anything that may wait for hours."""
    pneumothorax = finding(samples.PNEUMOTHORAX, state=FindingState.UNCALIBRATED, probability=0.70)
    edema = finding(EDEMA, state=FindingState.INDETERMINATE, probability=0.95)
    opacity = finding(OPACITY, probability=0.99)

    ordered = vocabulary.by_urgency([opacity, edema, finding(probability=0.6), pneumothorax])

    assert [found.code.meaning for found in ordered] == [
        "Pneumothorax",
        "Pleural effusion",
        "Pulmonary edema",
        "Opacity",
    ]


def lying_in(found: Finding, zone: str | None) -> Finding:
    """A finding that lies in a zone with all of its boxes."""
    evidence = Evidence(zone=zone, extent=0.5)
    return replace(found, evidence=evidence, boxes=tuple(replace(box, evidence=evidence) for box in found.boxes))


@pytest.mark.parametrize(
    ("of", "zone", "expected"),
    [
        (finding(), "right_lower_lung_zone", "Right pleural effusion, lower zone, 83 %"),
        (finding(), "right_apical_zone", "Right pleural effusion, apex, 83 %"),
        (finding(), "left_lower_lung_zone", "Right pleural effusion, 83 %"),
        (finding(), "right_hilar_structures", "Right pleural effusion, 83 %"),
        (finding(), "abdomen", "Right pleural effusion, 83 %"),
        (finding(), None, "Right pleural effusion, 83 %"),
        (finding(OPACITY, site=samples.LUNG), "right_hilar_structures", "Right opacity, hilum, 83 %"),
        (finding(EDEMA, site=samples.LUNG), "right_lower_lung_zone", "Right pulmonary edema, 83 %"),
        (finding(side=None), "right_lower_lung_zone", "Pleural effusion, 83 %"),
        (finding(side=Side.BILATERAL), "right_lower_lung_zone", "Pleural effusion on both sides, 83 %"),
        (
            finding(state=FindingState.INDETERMINATE),
            "right_lower_lung_zone",
            f"Right pleural effusion, lower zone, 83 % ({POSSIBLE})",
        ),
    ],
)
def test_a_finding_names_its_zone_if_it_is_one_of_its_lung(of: Finding, zone: str | None, expected: str) -> None:
    assert impression.phrase(lying_in(of, zone)) == expected


def test_every_zone_is_a_region_of_the_set() -> None:
    regions = {prompt.key for prompt in prompts.load("chexpert14").prompts if prompt.kind is PromptKind.REGION}
    sites = {prompt.site.value for prompt in prompts.load("chexpert14").prompts if prompt.finding and prompt.site}

    for site, zones in ZONES.items():
        assert site in sites
        assert {f"{side}_{zone}" for side in ("right", "left") for zone in zones} <= regions


def test_the_most_urgent_film_comes_first_and_unread_films_last() -> None:
    pneumothorax = film(4, findings=(finding(samples.PNEUMOTHORAX, state=FindingState.INDETERMINATE),))
    films = (unread(1, Reason.LATERAL), film(2, findings=(absent(),)), film(3, findings=(finding(),)), pneumothorax)

    lines = impression.of_report(report(*films))

    assert [line[:6] for line in lines if not line.startswith(" ")] == ["Film 4", "Film 3", "Film 2", "Film 1"]


@given(st.lists(st.tuples(st.sampled_from(CODES), st.sampled_from(FindingState), st.floats(0, 1)), max_size=13))
def test_every_reported_finding_is_named_once_in_few_lines(drawn: list[tuple[Code, FindingState, float]]) -> None:
    made = (finding(code, state=state, probability=probability) for code, state, probability in drawn)
    findings = tuple(replace(unlocated, evidence=None) for unlocated in made)
    of = film(findings=findings)

    lines = impression.of_film(of)

    urgent = sum(vocabulary.urgency(each) == vocabulary.MINUTES for each in wording.reported(of))
    assert len([line for line in lines if line[:1].isdigit() or line.startswith("and: ")]) <= max(6, urgent + 1)
    said = " ".join(lines).lower()
    for reported in wording.reported(of):
        assert f"right {reported.code.meaning.lower()}, {wording.percent(reported.probability or 0.0)}" in said
    assert len([line for line in report_txt.render(report(of)).splitlines() if line]) <= 26


@pytest.mark.parametrize(
    ("probability", "expected"), [(0, "0 %"), (0.004, "0 %"), (0.005, "1 %"), (0.625, "63 %"), (1, "100 %")]
)
def test_a_probability_is_a_whole_percent(probability: float, expected: str) -> None:
    assert wording.percent(probability) == expected


def test_the_table_of_urgency_covers_the_set() -> None:
    assert vocabulary.URGENCIES.keys() == {(code.scheme, code.value) for code in CODES}
    unknown: Finding = finding(Code(value="1", scheme="99SITE", meaning="Something"), probability=0.6)
    assert vocabulary.by_urgency([unknown, finding(OPACITY, probability=0.7), finding()])[-1] == unknown


def test_an_abbreviation_stays_as_it_is_written() -> None:
    assert wording.sided("CT port", Side.LEFT) == "Left CT port"
    assert wording.sided("Opacity", None) == "Opacity"


def test_a_percent_sign_stays_with_its_number() -> None:
    for width in range(20, 60):
        for line in oru.broken("Left pleural effusion, 64 %; opacity on both sides, 60 %.", width=width):
            assert not line.strip().startswith("%")
            assert len(line) <= width
