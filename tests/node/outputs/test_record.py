"""report.json and report.txt: exact there and back, and nothing that reads like a clean bill of health."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given

from models.contract import Box, FindingState, ScoredBox, Side
from models.documents import decode, encode
from node.cardiothoracic_ratio import CardiothoracicRatio, MeasuredLine
from node.domain import Code, Film, FilmView, Finding, GroundedSentence, Note, Reason, Report
from node.outputs import impression, report_json, report_txt, wording
from tests.support import samples, spoken
from tests.support.output_texts import texts_of
from tests.support.samples import absent, film, finding, report, several, unread

SIDEWAYS = CardiothoracicRatio(
    heart=MeasuredLine(start=(7.0, 300.5), end=(7.0, 700.25)), thorax=MeasuredLine(start=(9.0, 100.0), end=(9.0, 900.0))
)
"""Of a film that is stored on its side."""
SEARCHED = (ScoredBox(box=Box(left=1100.5, top=200, right=1500, bottom=640.25), score=0.125),)


@given(spoken.films())
@example(replace(several(), ratio=samples.ratio(mm_per_pixel=0.1), view=FilmView(tag="frontal", seen="AP")))
@example(replace(film(), ratio=SIDEWAYS, findings=(replace(absent(), searched=SEARCHED),)))
@example(unread(1, Reason.LATERAL))
def test_a_film_is_read_back_exactly(film: Film) -> None:
    assert decode(Film, json.loads(json.dumps(encode(film)))) == film


@pytest.mark.parametrize("key", encode(several()))
def test_a_damaged_record_is_refused(key: str) -> None:
    whole = encode(several())

    with pytest.raises((TypeError, ValueError)):
        decode(Film, whole | {key: "this" if key == "view" else {"not": "this"}})  # a view has no field that it needs
    with pytest.raises(ValueError):
        decode(Film, {name: value for name, value in whole.items() if name != key})


def for_programs(about: Report, outputs: Sequence[str] = (), *, left_alone: Sequence[Film] = ()) -> dict[str, Any]:
    """Return report.json as a program reads it."""
    read: dict[str, Any] = json.loads(json.dumps(report_json.report_to_json(about, outputs, left_alone=left_alone)))
    return read


def test_report_json_keeps_its_contract() -> None:
    left = unread(3, Reason.OWN_OBJECT)
    document = for_programs(report(several(), unread(2)), ["sr.dcm", "a.gsps.dcm"], left_alone=[left])

    first, second, third = document.pop("films")
    assert document == {
        "version": 1,
        "study": samples.STUDY,
        "model": {
            "name": "phantom",
            "version": "1.2.0",
            "weights_sha256": "ab" * 32,
            "engine": "onnx",
            "prompts": "chexpert14",
            "prompts_sha256": "cd" * 32,
        },
        "outputs": ["sr.dcm", "a.gsps.dcm"],
    }
    for film_ in (first, second, third):
        assert film_.keys() == {
            *("source", "status", "reason", "notes", "columns", "rows", "analyzed", "view"),
            *("sentences", "findings", "withheld", "impression", "measurements"),
        }
    assert (first["status"], first["reason"], first["notes"]) == ("read", None, ["view_unknown"])
    assert (first["columns"], first["rows"], first["analyzed"]) == (2000, 1760, [120, 0, 1880, 1760])
    assert (second["status"], second["reason"], second["analyzed"]) == ("not_processed", "undecodable", None)
    assert (third["source"], third["reason"]) == (samples.film_uid(3), "own_object")
    assert first["impression"] == impression.of_film(several())
    assert third["impression"] == [wording.not_processed(left)]
    box = [150.25, 900.5, 700.125, 1700]
    tracked = several().findings[0].boxes[0].tracking_uid
    assert first["findings"][0] == {
        "prompt": "pleural_effusion",
        "code": ["60046008", "SCT", "Pleural effusion"],
        "laterality": "right",
        "probability": 0.83,
        "state": "present",
        "reason": None,
        "sentence": 0,
        "boxes": [{"box": box, "score": 0.6, "tracking_uid": tracked}],
        "evidence": {"zone": "right_lower_lung_zone", "side": "right", "extent": 0.344, "measured": False},
    }
    left_out = for_programs(report(film(findings=(samples.left_out(),))))["films"][0]["findings"][0]
    assert left_out["reason"] == f"{wording.NEVER}."
    said = {"text": "Small right pleural effusion.", "prompt": "pleural_effusion", "by": "network", "score": 0.8}
    assert first["sentences"][0] == {**said, "boxes": [{"box": box, "score": 0.6}]}


def test_the_text_says_first_what_was_found_and_last_by_whom() -> None:
    rendered = report_txt.render(report(several()))

    label, blank, title, *lines = rendered.splitlines()
    assert (label, blank, title) == ("AI RESEARCH - NOT FOR DIAGNOSIS", "", "Impression")
    assert lines[: len(impression.of_film(several()))] == impression.of_film(several())
    for version in ("phantom 1.2.0", "chexpert14", samples.STUDY, samples.film_uid(1)):
        assert version in lines[-1]
        assert version not in "\n".join(lines[:-1])


def test_the_text_has_each_finding_on_a_line_with_boxes_and_sentence() -> None:
    lesion = replace(finding(state=FindingState.ABSENT, side=Side.LEFT, probability=0.04), sentence=None)
    sentence = GroundedSentence(text="One.\nTwo.\x00", prompt="left_lung", score=0.5, boxes=())
    made = replace(film(findings=(finding(), lesion)), sentences=(*film().sentences[:1], sentence))

    details = list(report_txt.details(made))

    assert details[1].startswith(
        "1. Right pleural effusion, 83 % (present). Box: covering 34 % of the lower zone of the right lung ("
    )
    assert details[1].endswith('"Small right pleural effusion."')
    assert details[2] == "Not reported (below threshold, may have been missed): Pleural effusion 4 %."
    assert details[3] == 'Other sentences: left lung: "One. Two."'


@pytest.mark.parametrize("place", [0, 1])
def test_the_same_words_stand_once_and_those_of_a_rule_repeat_no_finding(place: int) -> None:
    both = film(findings=(finding(), replace(finding(samples.EDEMA), sentence=place)))
    of_region = replace(both.sentences[0], prompt="right_lower_lung_zone")
    rendered = report_txt.render(report(replace(both, sentences=(both.sentences[0], both.sentences[0], of_region))))

    assert rendered.count("Small right pleural effusion.") == 1
    assert "(also of pulmonary edema)" in rendered
    assert "Other sentences" not in rendered
    by_rule = replace(both, sentences=tuple(replace(each, by="rule") for each in both.sentences))
    assert "Small right pleural effusion." not in report_txt.render(report(by_rule))


MEASURED = replace(finding(), thresholds=(0.25, 0.43))


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (film(findings=(finding(),)), "Analyzed was the square of columns 120 to 1880, rows 0 to 1760"),
        (film(findings=(samples.uncalibrated(),)), "not measured on such films: pulmonary edema."),
        (film(findings=(replace(finding(side=None), place="no_side"),)), "Places by this model are not reliable."),
        (film(findings=(replace(finding(boxes=()), place="no_place"),)), "; no box is drawn for pleural effusion."),
        (film(findings=(replace(finding(side=None), place="film_unsided"),)), "does not say which side is which."),
        (film(findings=(MEASURED,)), "pleural effusion present from 43 %, possible from 25 %."),
        (film(findings=(replace(MEASURED, state=FindingState.UNCALIBRATED),)), "pleural effusion possible from 25 %."),
    ],
)
def test_the_text_names_the_limits_once(of: Film, told: str) -> None:
    assert told in wording.limits(of)
    assert report_txt.render(report(of)).count(told) == 1


def test_every_note_is_told_and_the_gravest_in_every_output() -> None:
    assert sorted((*wording.NOTES, *wording.CAUTIONS)) == sorted(Note)
    for note in wording.NOTES:
        of = replace(film(findings=(finding(),)), notes=(note,))
        assert f"Note: {wording.NOTES[note]}." in wording.limits(of)
        assert wording.limits(of) in report_txt.render(report(of))
    assert set(wording.CAUTIONS) == {
        *(Note.VIEW_DISAGREES, Note.MIRRORED, Note.ROTATED, Note.MAYBE_CHILD, Note.IMAGE_TYPE, Note.TWO_VIEWS),
        *(Note.CALLED_NORMAL, Note.STRETCHED, Note.POLARITY_UNCLEAR, Note.IDENTIFIER_LEFT_OUT, Note.OBLONG_PIXELS),
        Note.HEADER_DISORDERED,
    }
    for note, caution in wording.CAUTIONS.items():
        said = texts_of(replace(film(findings=(finding(),)), notes=(note,)))
        assert [output for output, text in said.items() if caution not in text] == [], note


BELOW = replace(MEASURED, state=FindingState.ABSENT, probability=0.38, thresholds=(0.43, 0.6), boxes=())


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (BELOW, "Pleural effusion 38 % (threshold 43 %)."),
        (replace(BELOW, thresholds=None), "Pleural effusion 38 %."),
        (replace(BELOW, state=FindingState.LEFT_OUT, probability=None), "Pleural effusion."),
    ],
)
def test_what_is_not_reported_names_the_threshold_it_stays_below(of: Finding, told: str) -> None:
    assert f": {told}\n" in report_txt.render(report(film(findings=(of,))))


@pytest.mark.parametrize(("site", "place"), [(samples.LUNG, "in the right lung"), (samples.PLEURA, "on the right")])
def test_a_box_says_where_it_lies_though_no_side_is_told(site: Code, place: str) -> None:
    made = finding(side=None)
    box = replace(made.boxes[0], side=None, lies=Side.RIGHT, evidence=None)

    said = list(report_txt.details(film(findings=(replace(made, site=site, boxes=(box,), place="no_side"),))))

    assert f"Pleural effusion, 83 % (present). Box: {place} (columns " in said[1]
