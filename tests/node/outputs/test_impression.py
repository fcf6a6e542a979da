"""The impression: what was found and where, first, in a few lines, in every output; and what none may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import dcmread

from models.contract import Box, FindingState, PromptKind, Side
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine
from node.domain import Assessment, Code, Evidence, Film, Finding, GroundedSentence, ReaderMark, Reason, Report
from node.hl7.text import read
from node.outputs import impression, oru, report_txt, vocabulary, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.read import prompts
from node.read.findings import ZONES, locate
from node.web import shown_film
from tests.support import samples
from tests.support.documents import everything
from tests.support.output_texts import texts_of
from tests.support.samples import BERLIN, EDEMA, absent, cr, film, finding, report, several, sources, unread

CODES = [prompt.finding for prompt in prompts.load("chexpert14").prompts if prompt.finding]
OPACITY = Code(value="112001", scheme="DCM", meaning="Opacity")
POSSIBLE = vocabulary.STATES[FindingState.INDETERMINATE]


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


def everything_said(of: Film) -> dict[str, str]:
    return {name: " ".join(text.split()) for name, text in texts_of(of).items()}


def rejected() -> Finding:
    mark = ReaderMark(what=Assessment.REJECTED, by="anna", at=datetime(2026, 11, 23, tzinfo=UTC))
    return replace(absent(), near=True, reader=mark)


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


def lying_in(found: Finding, *zones: str | None) -> Finding:
    """A finding that lies in a zone with each of its boxes."""
    evidence = [Evidence(zone=zone, extent=0.5) for zone in zones]
    boxes = tuple(replace(found.boxes[0], evidence=each) for each in evidence)
    return replace(found, evidence=evidence[0], boxes=boxes)


@pytest.mark.parametrize(
    ("zones", "words"),
    [
        (("right_lower_lung_zone", "right_lower_lung_zone"), ", lower zone"),
        (("right_lower_lung_zone", "right_upper_lung_zone"), ""),
        (("right_lower_lung_zone", None), ""),
    ],
)
def test_a_finding_has_a_zone_if_all_its_boxes_lie_there(zones: tuple[str | None, ...], words: str) -> None:
    assert impression.phrase(lying_in(finding(), *zones)) == f"Right pleural effusion{words}, 83 %"


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
    soon = {code.meaning for code in CODES if vocabulary.urgency(finding(code)) == vocabulary.HOURS}
    assert soon == {
        *("Lung consolidation", "Enlarged cardiomediastinum", "Fracture of bone", "Pleural effusion", "Pneumonia"),
        "Pulmonary edema",
    }
    assert [code for code in CODES if vocabulary.urgency(finding(code)) == vocabulary.MINUTES] == [samples.PNEUMOTHORAX]
    unknown: Finding = finding(Code(value="1", scheme="99SITE", meaning="Something"), probability=0.6)
    assert vocabulary.by_urgency([unknown, finding(OPACITY, probability=0.7), finding()])[-1] == unknown


def test_each_critical_finding_has_a_line_of_its_own() -> None:
    of = film(findings=(*(finding(samples.PNEUMOTHORAX) for _ in range(6)), finding()))

    lines = impression.of_film(of)

    assert [line[:2] for line in lines[:7]] == [*(f"{number}." for number in range(1, 7)), "an"]


def test_a_percent_sign_stays_with_its_number() -> None:
    for width in range(20, 60):
        for line in oru.broken("Left pleural effusion, 64 %; opacity on both sides, 60 %.", width=width):
            assert not line.strip().startswith("%")
            assert len(line) <= width


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ((absent(), absent(EDEMA)), "No prompted finding came near its threshold."),
        (
            (absent(), replace(absent(EDEMA), near=True)),
            "No prompted finding is reported, though pulmonary edema came near its threshold.",
        ),
        (
            (replace(absent(), near=True), replace(absent(EDEMA), near=True)),
            "No prompted finding is reported, though pneumothorax and pulmonary edema came near their thresholds.",
        ),
        ((replace(samples.left_out(), near=None), absent(EDEMA)), "No prompted finding came near its threshold."),
        ((replace(absent(), near=None), absent(EDEMA)), "No prompted finding is reported."),
        ((rejected(), absent(EDEMA)), "No prompted finding is reported."),
    ],
)
def test_nothing_came_near_is_said_only_where_it_is_true(findings: tuple[Finding, ...], words: str) -> None:
    of = film(findings=findings)

    assert impression.of_film(of)[0] == f"{words} This is not a report of a normal film."
    is_near = "No prompted finding came near its threshold" not in words
    for name, text in everything_said(of).items():
        assert ("No prompted finding came near" in text or "No prompted finding near" in text) is not is_near, name
        assert ("No prompted finding is reported" in text or "No prompted finding reported" in text) is is_near, name


def ratio_of(hundredths: int, objection: Incomparable | None) -> CardiothoracicRatio:
    return replace(
        samples.ratio(objection=objection),
        heart=MeasuredLine(start=(500.0, 900.0), end=(500.0 + 10 * hundredths, 900.0)),
        thorax=MeasuredLine(start=(250.0, 1200.0), end=(1250.0, 1200.0)),
    )


@pytest.mark.parametrize(
    ("hundredths", "objection", "is_said"),
    [(60, None, True), (67, None, True), (59, None, False), (67, Incomparable.VIEW_AP, False)],
)
def test_a_wide_heart_is_said_where_its_ratio_is_comparable(
    hundredths: int, objection: Incomparable | None, is_said: bool
) -> None:
    of = replace(film(findings=(absent(),)), ratio=ratio_of(hundredths, objection))

    lines, said = impression.of_film(of), everything_said(of)

    words = f"Wide heart: cardiothoracic ratio 0.{hundredths} (PA, adult), off by"
    assert lines[0].startswith(words) is is_said
    told = {name for name, text in said.items() if "Wide heart" in text}
    assert told == (said.keys() - {"gsps"} if is_said else set())


@pytest.mark.parametrize(
    ("of", "is_said"),
    [
        (replace(rejected(), site=samples.HEART), False),
        (replace(absent(), site=samples.HEART), True),  # by the network
        (rejected(), True),  # of another site
    ],
)
def test_after_a_finding_of_the_heart_is_rejected_no_heart_is_wide(of: Finding, is_said: bool) -> None:
    lines = impression.of_film(replace(film(findings=(of,)), ratio=ratio_of(67, None)))

    assert ("Wide heart" in " ".join(lines)) is is_said


def reviewed() -> Film:
    """An effusion to be reviewed, with a sentence of the network."""
    said = GroundedSentence(
        text="Possible, please review: There is a right pleural effusion.",
        prompt="pleural_effusion",
        score=0.5,
        boxes=(),
    )
    return replace(film(findings=(finding(state=FindingState.INDETERMINATE),)), sentences=(said,))


def test_the_state_stands_before_the_words_in_every_output() -> None:
    texts = {name: text for name, text in everything_said(reviewed()).items() if "There is a right" in text}

    assert texts.keys() >= {"report.json", "report.txt", "sr", "sr3d", "text", "study page"}
    for name, text in texts.items():
        own = text.partition("text='There is")[0] if name == "study page" else text  # the words that a reader rewords
        for part in own.split("There is a right")[:-1]:
            assert "possible, please review" in part[-250:].lower(), name


def test_the_reader_rewords_the_words_without_the_state() -> None:
    [found] = shown_film.show(reviewed()).findings

    assert found.sentence == '"There is a right pleural effusion."'
    assert found.text == "There is a right pleural effusion."


def test_what_has_no_box_is_named_by_urgency() -> None:
    effusion, edema = finding(boxes=(), side=None), finding(EDEMA, boxes=(), probability=0.9, side=None)
    possible = finding(samples.PNEUMOTHORAX, boxes=(), state=FindingState.INDETERMINATE, side=None)

    named = list(wording.unplaced(film(findings=(effusion, edema, possible))))

    assert [name.split(" ")[0] for name in named] == ["Pneumothorax", "Pulmonary", "Pleural"]


CHEST: Mapping[str, Box] = {
    "left_apical_zone": Box(left=120, top=10, right=180, bottom=40),
    "left_upper_lung_zone": Box(left=110, top=10, right=190, bottom=70),
    "left_mid_lung_zone": Box(left=110, top=70, right=190, bottom=130),
    "left_lower_lung_zone": Box(left=110, top=130, right=190, bottom=210),
    "left_hilar_structures": Box(left=110, top=90, right=130, bottom=120),
}


@pytest.mark.parametrize(
    ("box", "zone"),
    [
        (Box(left=105, top=5, right=195, bottom=215), None),  # the whole left chest
        (Box(left=110, top=70, right=190, bottom=210), None),  # mid and lower zone
        (Box(left=0, top=0, right=200, bottom=220), None),  # both sides
        (Box(left=110, top=115, right=190, bottom=210), "left_lower_lung_zone"),
        (Box(left=130, top=150, right=170, bottom=260), "left_lower_lung_zone"),  # and below the lung
        (Box(left=110, top=12, right=190, bottom=68), "left_upper_lung_zone"),
        (Box(left=125, top=12, right=175, bottom=38), "left_apical_zone"),
        (Box(left=110, top=88, right=131, bottom=121), "left_hilar_structures"),
    ],
)
def test_a_box_lies_in_a_zone_that_holds_most_of_it(box: Box, zone: str | None) -> None:
    assert locate([box], CHEST).zone == zone
