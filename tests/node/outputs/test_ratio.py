"""The cardiothoracic ratio in every output: when it is sent, in which words, and what independent readers see in it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from pydicom.dataset import Dataset

from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, View
from node.domain import Film, OutputObject
from node.hl7.text import read
from node.outputs import impression, oru, ratio_text, report_json, report_txt
from tests.support import samples
from tests.support.documents import (
    all_written,
    contents,
    everything,
    groups,
    numbers,
    reference,
    replaced,
    said,
)
from tests.support.samples import BERLIN, absent, cr, film, report, several, sources, unread

COMPARABLE = samples.ratio()
AP = samples.ratio(view=View.AP, objection=Incomparable.VIEW_AP, mm_per_pixel=0.143)
CALIBRATED = samples.ratio(mm_per_pixel=0.143)
UNMEASURED = samples.ratio(view=View.AP, objection=Incomparable.UNMEASURED)


def with_ratio(of: CardiothoracicRatio = COMPARABLE, *, number: int = 1) -> Film:
    return replace(several(), source=samples.film_uid(number), ratio=of)


def written(of: CardiothoracicRatio = COMPARABLE) -> Dataset:
    """Write the report on a ratio, and read it back from its bytes."""
    _, document = all_written(report(with_ratio(of)))
    return document


def test_a_number_is_inferred_from_lines_on_the_film() -> None:
    [group] = groups(written())

    ratio, heart, thorax = numbers(group)
    lines = [
        [item for item in number.ContentSequence if item.ValueType == "SCOORD"] for number in (ratio, heart, thorax)
    ]
    assert [len(found) for found in lines] == [2, 1, 1]
    for line in (line for found in lines for line in found):
        assert (line.RelationshipType, line.GraphicType, len(line.GraphicData)) == ("INFERRED FROM", "POLYLINE", 4)
        [image] = line.ContentSequence
        assert image.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == samples.film_uid(1)
    assert contents(ratio, "370129005")[0].ConceptCodeSequence[0].CodeValue == "REGIONBOXES"
    assert contents(group, "111001")[0].TextValue == "phantom"
    assert contents(group, "121106") == []  # OHIF would add it to the label
    assert [number.ConceptNameCodeSequence[0].CodeMeaning for number in numbers(group)] == ["CTR", "Heart", "Thorax"]
    assert not [item for item in group.ContentSequence if item.ValueType == "SCOORD"]  # OHIF would draw it alone


def test_the_report_says_what_it_is_for_and_how_far_it_is_off() -> None:
    document = written()

    first, *_ = contents(document, "121106")
    assert first.TextValue.startswith("AI RESEARCH - NOT FOR DIAGNOSIS\r\nCardiothoracic ratio: 0.48")
    text = " ".join(said(document).split())
    for expected in (
        "Cardiothoracic ratio: 0.48, below 0.50 (PA, adult)",
        "On 380 phantoms the ratio was off by 0.018 on average, 95 % limits of agreement -0.04 to +0.05.",
        "It was never measured on patient films.",
        "raises no finding",
        "without review by a person",
    ):
        assert expected in text
    assert document.SeriesDescription == "AI heart size - RESEARCH, NOT FOR DIAGNOSIS"
    assert [item.CodingSchemeDesignator for item in document.CodingSchemeIdentificationSequence] == ["99CHEX"]


@pytest.mark.parametrize(
    ("of", "widths", "words"),
    [
        (COMPARABLE, [(720, "pixels"), (1500, "pixels")], "heart 720 pixels, inner width of the thorax 1500 pixels,"),
        (
            CALIBRATED,
            [(103, "mm"), (214.5, "mm")],
            "720 pixels (103 mm), inner width of the thorax 1500 pixels (214 mm)",
        ),
    ],
)
def test_widths_are_millimeters_only_with_a_calibrated_spacing(
    of: CardiothoracicRatio, widths: list[tuple[float, str]], words: str
) -> None:
    document = written(of)

    values = [value for number in numbers(groups(document)[0]) for value in number.MeasuredValueSequence]
    told = [(value.NumericValue, value.MeasurementUnitsCodeSequence[0].CodeValue) for value in values]
    assert told == [(48, "%"), *widths]
    assert words in " ".join(said(document).split())


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


def test_the_films_report_is_the_same_with_and_without_a_ratio() -> None:
    [without] = all_written(report(several()))

    document, _ = all_written(report(with_ratio()))

    assert [item.ConceptNameCodeSequence[0].CodeMeaning for item in everything(document)] == [
        item.ConceptNameCodeSequence[0].CodeMeaning for item in everything(without)
    ]
    assert document.SOPInstanceUID == without.SOPInstanceUID


@pytest.mark.parametrize("of", [None, samples.ratio(error=None)], ids=["no ratio", "error never measured"])
def test_a_ratio_of_unknown_error_is_sent_nowhere(of: CardiothoracicRatio | None) -> None:
    without = replace(several(), ratio=of)

    assert len(all_written(report(without))) == 1
    assert "ardiothoracic" not in report_txt.render(report(without))
    assert "CTRATIO" not in message(without)


def earlier(document: Dataset) -> OutputObject:
    return replace(reference(document), sop_instance_uid=f"{document.SOPInstanceUID}.1")


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
        name: earlier(each) for name, each in zip(("findings", "ratio"), all_written(report(with_ratio())), strict=True)
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
        (samples.ratio(view=None, objection=Incomparable.VIEW_UNKNOWN), "not comparable: view not known"),
        (samples.ratio(objection=Incomparable.CHILD), "not comparable: patient under 18"),
        (samples.ratio(objection=Incomparable.UNMEASURED), "not comparable: error not measured on such films"),
    ],
)
def test_the_band_is_told_in_words_or_why_there_is_none(of: CardiothoracicRatio, expected: str) -> None:
    assert ratio_text.comparison(of) == expected


def test_an_error_on_real_films_is_told_with_their_name() -> None:
    real = samples.ratio(error=replace(samples.RATIO_ERROR, measured_on="our_hospital", films=212))

    text = " ".join(ratio_text.lines(real))

    assert "On 212 films of our hospital the ratio was off by 0.018" in text
    assert "never measured" not in text


@pytest.mark.parametrize("shown", [several(), film(findings=(absent(),))])
def test_a_ratio_that_is_not_wide_stands_in_no_impression(shown: Film) -> None:
    assert impression.of_film(replace(shown, ratio=COMPARABLE)) == impression.of_film(shown)


def message(of: Film) -> str:
    return oru.write(report(of), sources(cr(1)), BERLIN, order=None, documents=[])[1].decode()


def test_a_message_has_the_number_with_its_unit_and_its_band() -> None:
    segments = [segment for segment in message(with_ratio(AP)).split("\r") if "CTRATIO" in segment]

    number, band = (segment.split("|") for segment in segments)
    assert number[2:7] == ["NM", "CTRATIO^Cardiothoracic ratio^99CHEX", "1", "0.48", "1^no units^UCUM"]
    assert (band[2], band[5]) == ("ST", "not comparable: AP view, which magnifies the heart")
    assert (number[8], number[11], band[11]) == ("", "P", "P")


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
    document = json.loads(json.dumps(report_json.report_to_json(report(with_ratio(AP)), [])))

    [found] = document["films"][0]["measurements"]
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


def test_the_report_for_programs_has_a_number_of_unknown_error() -> None:
    unknown = with_ratio(samples.ratio(error=None))

    document = json.loads(json.dumps(report_json.report_to_json(report(unknown, unread(2)), [])))

    assert [film["measurements"] and film["measurements"][0]["error"] for film in document["films"]] == [None, []]
