"""The impression: what was found and where, first, in a few lines; and the cardiothoracic ratio, in every output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom import dcmread

from models.contract import Box, FindingState, Side
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine, View
from node.domain import Assessment, Code, Evidence, Film, Finding, GroundedSentence, ReaderMark, Report
from node.hl7.text import read
from node.outputs import impression, oru, ratio_text, report_json, report_txt, vocabulary, wording
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.read import prompts
from node.read.findings import locate
from node.web import shown_film
from tests.support import samples
from tests.support.documents import all_written, everything, groups, numbers, reference, replaced, said
from tests.support.output_texts import texts_of
from tests.support.samples import BERLIN, EDEMA, absent, cr, film, finding, report, several, sources, unread

CODES = [prompt.finding for prompt in prompts.load("chexpert14").prompts if prompt.finding]
OPACITY = Code(value="112001", scheme="DCM", meaning="Opacity")
LOWER = "right_lower_lung_zone"
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


def test_the_most_urgent_is_first_and_of_equally_urgent_what_is_present_and_unread_films_are_last() -> None:
    """A possible pneumothorax stands before anything that may wait for hours."""
    pneumothorax = finding(samples.PNEUMOTHORAX, state=FindingState.UNCALIBRATED, probability=0.70)
    edema = finding(EDEMA, state=FindingState.INDETERMINATE, probability=0.95)
    opacity, effusion = finding(OPACITY, probability=0.99), finding(probability=0.6)
    films = (
        unread(1),
        film(2, findings=(absent(),)),
        film(3, findings=(finding(),)),
        film(4, findings=(pneumothorax,)),
    )

    assert vocabulary.by_urgency([opacity, edema, effusion, pneumothorax]) == [pneumothorax, effusion, edema, opacity]
    lines = impression.of_report(report(*films))
    assert [line[:6] for line in lines if not line.startswith(" ")] == ["Film 4", "Film 3", "Film 2", "Film 1"]


def lying_in(found: Finding, *zones: str | None) -> Finding:
    """A finding that lies in a zone with each of its boxes."""
    evidence = [Evidence(zone=zone, extent=0.5) for zone in zones]
    boxes = tuple(replace(found.boxes[0], evidence=each) for each in evidence)
    return replace(found, evidence=evidence[0], boxes=boxes)


@pytest.mark.parametrize(
    ("of", "zones", "expected"),
    [
        (finding(), [LOWER, LOWER], "Right pleural effusion, lower zone, 83 %"),
        (finding(), [LOWER, "right_upper_lung_zone"], "Right pleural effusion, 83 %"),
        (finding(), [LOWER, None], "Right pleural effusion, 83 %"),
        (finding(), ["right_apical_zone"], "Right pleural effusion, apex, 83 %"),
        (finding(), ["left_lower_lung_zone"], "Right pleural effusion, 83 %"),
        (finding(), ["right_hilar_structures"], "Right pleural effusion, 83 %"),
        (finding(OPACITY, site=samples.LUNG), ["right_hilar_structures"], "Right opacity, hilum, 83 %"),
        (finding(EDEMA, site=samples.LUNG), [LOWER], "Right pulmonary edema, 83 %"),
        (finding(side=None), [LOWER], "Pleural effusion, 83 %"),
        (finding(side=Side.BILATERAL), [LOWER], "Pleural effusion on both sides, 83 %"),
        (finding(state=FindingState.INDETERMINATE), [LOWER], f"Right pleural effusion, lower zone, 83 % ({POSSIBLE})"),
    ],
)
def test_a_finding_names_its_zone_if_all_its_boxes_lie_there_in_its_lung(
    of: Finding, zones: list[str | None], expected: str
) -> None:
    assert impression.phrase(lying_in(of, *zones)) == expected


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


def test_a_probability_is_a_whole_percent_whose_sign_stays_with_it() -> None:
    percents = [wording.percent(probability) for probability in (0, 0.004, 0.005, 0.625, 1)]
    assert percents == ["0 %", "0 %", "1 %", "63 %", "100 %"]
    for width in range(20, 60):
        for line in oru.broken("Left pleural effusion, 64 %; opacity on both sides, 60 %.", width=width):
            assert not line.strip().startswith("%")
            assert len(line) <= width


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


def test_each_critical_finding_has_a_line_of_its_own() -> None:
    lines = impression.of_film(film(findings=(*(finding(samples.PNEUMOTHORAX) for _ in range(6)), finding())))

    assert [line[:2] for line in lines[:7]] == [*(f"{number}." for number in range(1, 7)), "an"]


def ratio_of(hundredths: int, objection: Incomparable | None) -> CardiothoracicRatio:
    return replace(
        samples.ratio(objection=objection),
        heart=MeasuredLine(start=(500.0, 900.0), end=(500.0 + 10 * hundredths, 900.0)),
        thorax=MeasuredLine(start=(250.0, 1200.0), end=(1250.0, 1200.0)),
    )


@pytest.mark.parametrize(
    ("hundredths", "objection", "found", "is_said"),
    [
        (60, None, absent(), True),
        (59, None, absent(), False),
        (67, Incomparable.VIEW_AP, absent(), False),
        (67, None, replace(absent(), site=samples.HEART), True),  # absent by the network
        (67, None, rejected(), True),  # of another site
        (67, None, replace(rejected(), site=samples.HEART), False),
    ],
)
def test_a_wide_heart_is_said_where_its_ratio_is_comparable_and_no_reader_rejected_the_heart(
    hundredths: int, objection: Incomparable | None, found: Finding, is_said: bool
) -> None:
    of = replace(film(findings=(found,)), ratio=ratio_of(hundredths, objection))

    lines, said = impression.of_film(of), everything_said(of)

    words = f"Wide heart: cardiothoracic ratio 0.{hundredths} (PA, adult), off by"
    assert any(line.startswith(words) for line in lines) is is_said
    told = {name for name, text in said.items() if "Wide heart" in text}
    assert told == (said.keys() - {"gsps"} if is_said else set())


def reviewed() -> Film:
    """An effusion to be reviewed, with a sentence of the network."""
    said = GroundedSentence(
        text="Possible, please review: There is a right pleural effusion.",
        prompt="pleural_effusion",
        score=0.5,
        boxes=(),
    )
    return replace(film(findings=(finding(state=FindingState.INDETERMINATE),)), sentences=(said,))


def test_the_state_stands_before_the_words_in_every_output_and_a_reader_rewords_them_without_it() -> None:
    texts = {name: text for name, text in everything_said(reviewed()).items() if "There is a right" in text}

    [found] = shown_film.show(reviewed()).findings
    assert (found.sentence, found.text) == (
        '"There is a right pleural effusion."',
        "There is a right pleural effusion.",
    )
    assert texts.keys() >= {"report.json", "report.txt", "sr", "sr3d", "text", "study page"}
    for name, text in texts.items():
        own = text.partition("text='There is")[0] if name == "study page" else text  # the words that a reader rewords
        for part in own.split("There is a right")[:-1]:
            assert "possible, please review" in part[-250:].lower(), name


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
        (Box(left=125, top=12, right=175, bottom=38), "left_apical_zone"),
        (Box(left=110, top=88, right=131, bottom=121), "left_hilar_structures"),
    ],
)
def test_a_box_lies_in_a_zone_that_holds_most_of_it(box: Box, zone: str | None) -> None:
    assert locate([box], CHEST).zone == zone


COMPARABLE = samples.ratio()
AP = samples.ratio(view=View.AP, objection=Incomparable.VIEW_AP, mm_per_pixel=0.143)
UNMEASURED = samples.ratio(view=View.AP, objection=Incomparable.UNMEASURED)


def with_ratio(of: CardiothoracicRatio = COMPARABLE, *, number: int = 1) -> Film:
    return replace(several(), source=samples.film_uid(number), ratio=of)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (AP, ["0.48, not comparable: AP view, which magnifies the heart; off by 0.018 on average on 380 phantoms"]),
        (samples.ratio(objection=Incomparable.CHILD), ["0.48, not comparable: patient under 18; off by 0.018"]),
        (UNMEASURED, []),
    ],
    ids=["by its view", "by age", "never measured"],
)
@pytest.mark.parametrize("shown", [several(), film(findings=(absent(),))], ids=["with boxes", "of text"])
def test_an_incomparable_ratio_is_at_most_one_line(shown: Film, of: CardiothoracicRatio, expected: list[str]) -> None:
    [document] = all_written(report(replace(shown, ratio=of)))

    told = said(document).split("Cardiothoracic ratio: ")[1:]
    assert [line.startswith(start) for line, start in zip(told, expected, strict=True)] == [True] * len(expected)
    assert "inner width" not in said(document)


def test_widths_are_pixels_without_a_calibrated_spacing() -> None:
    _, document = all_written(report(with_ratio()))

    values = [value for number in numbers(groups(document)[0]) for value in number.MeasuredValueSequence]
    told = [(value.NumericValue, value.MeasurementUnitsCodeSequence[0].CodeValue) for value in values]
    assert told == [(48, "%"), (720, "pixels"), (1500, "pixels")]
    assert "heart 720 pixels, inner width of the thorax 1500 pixels," in " ".join(said(document).split())


@pytest.mark.parametrize("of", [None, samples.ratio(error=None)], ids=["no ratio", "error never measured"])
def test_a_ratio_of_unknown_error_is_sent_nowhere(of: CardiothoracicRatio | None) -> None:
    without = report(replace(several(), ratio=of))
    message = oru.write(without, sources(cr(1)), BERLIN, order=None, documents=[])[1]

    [document] = all_written(without)

    assert "ardiothoracic" not in f"{said(document)}{report_txt.render(without)}"
    assert b"CTRATIO" not in message


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (with_ratio(), ["findings", "ratio"]),
        (with_ratio(AP), ["findings and ratio"]),
        (several(), ["findings and ratio"]),
    ],
    ids=["the same", "not comparable any more", "gone"],
)
def test_a_ratio_replaces_the_earlier_one_or_is_replaced_by_the_films_report(now: Film, expected: list[str]) -> None:
    older = {
        name: replace(reference(each), sop_instance_uid=f"{each.SOPInstanceUID}.1")
        for name, each in zip(("findings", "ratio"), all_written(report(with_ratio())), strict=True)
    }

    documents = all_written(replace(report(now), predecessors=tuple(older.values())))

    names = {output.sop_instance_uid: name for name, output in older.items()}
    assert [" and ".join(sorted(names[uid] for uid in replaced(document))) for document in documents] == expected


def ending_at(column: float) -> CardiothoracicRatio:
    """Return the ratio of a wider heart."""
    return replace(COMPARABLE, heart=replace(COMPARABLE.heart, end=(column, 1100.0)))


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (COMPARABLE, "below 0.50 (PA, adult)"),
        (ending_at(1400.5), "from 0.50 to below 0.55 (PA, adult)"),
        (ending_at(1460.5), "from 0.55 to below 0.60 (PA, adult)"),
        (ending_at(1560.5), "0.60 or more (PA, adult)"),
        (AP, "not comparable: AP view, which magnifies the heart"),
        (samples.ratio(view=None, objection=Incomparable.VIEW_UNKNOWN), "not comparable: view not known"),
        (samples.ratio(objection=Incomparable.CHILD), "not comparable: patient under 18"),
        (samples.ratio(objection=Incomparable.UNMEASURED), "not comparable: error not measured on such films"),
    ],
)
def test_the_band_is_told_in_words_or_why_there_is_none_and_of_real_films_their_name(
    of: CardiothoracicRatio, expected: str
) -> None:
    assert ratio_text.comparison(of) == expected
    real = replace(of, error=replace(samples.RATIO_ERROR, measured_on="our_hospital", films=212))
    text = " ".join(ratio_text.lines(real))
    assert "On 212 films of our hospital the ratio was off by 0.018" in text
    assert "never measured" not in text


def test_a_message_names_the_report_of_the_ratio_with_its_film() -> None:
    documents = [reference(document) for document in all_written(report(unread(2), with_ratio(number=3)))]

    content = read(
        oru.write(
            report(unread(2), with_ratio(number=3)), sources(cr(2), cr(3)), BERLIN, order=None, documents=documents
        )[1]
    )

    named = {
        segment.text(5).split("^")[0]: segment.text(4) for segment in content.named("OBX") if segment.text(2) == "HD"
    }
    assert named == {output.sop_instance_uid: number for output, number in zip(documents, ("2", "2", ""), strict=True)}


def test_the_report_for_programs_has_lines_and_error() -> None:
    unknown = with_ratio(samples.ratio(error=None))

    document = json.loads(json.dumps(report_json.report_to_json(report(with_ratio(AP), unread(2), unknown), [])))

    [found], of_unread, [of_unknown] = (film["measurements"] for film in document["films"])
    assert (of_unread, of_unknown["error"]) == ([], None)
    assert found == {
        "name": "cardiothoracic_ratio",
        "value": 0.48,
        "view": "AP",
        "comparable": False,
        "objection": "view_ap",
        "band": None,
        "heart": {"line": [620.5, 1100, 1340.5, 1100], "pixels": 720, "mm": pytest.approx(102.96)},
        "thorax": {"line": [250, 1400.25, 1750, 1400.25], "pixels": 1500, "mm": pytest.approx(214.5)},
        "mm_per_pixel": 0.143,
        "error": {"measured_on": "phantoms", "films": 380, "mean_absolute": 0.018, "lower": -0.036, "upper": 0.051},
    }
