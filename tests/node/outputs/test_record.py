"""report.json and report.txt: exact there and back, and nothing that reads like a clean bill of health."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.contract import VIEWS, Box, FindingState, ScoredBox, Side
from models.documents import decode, encode
from node.answers import comparison, replies
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine, View
from node.dicom import identity
from node.domain import (
    Code,
    Evidence,
    Film,
    FilmView,
    Finding,
    FindingBox,
    GroundedSentence,
    Note,
    Reason,
    Report,
)
from node.outputs import asked_question, impression, ratio_text, report_json, report_txt, vocabulary, wording
from tests.support import samples
from tests.support.output_texts import texts_of
from tests.support.samples import absent, film, finding, report, several, unread

T = TypeVar("T")

_number = st.floats(allow_nan=False, allow_infinity=False)
_score = st.floats(0, 1)
_words = st.text(min_size=1, max_size=20)
_codes = st.builds(Code, value=_words, scheme=_words, meaning=_words)
_sides = st.none() | st.sampled_from(Side)


@st.composite
def _boxes(draw: st.DrawFn) -> Box:
    left, right = sorted(draw(st.lists(_number, min_size=2, max_size=2, unique=True)))
    top, bottom = sorted(draw(st.lists(_number, min_size=2, max_size=2, unique=True)))
    return Box(left=left, top=top, right=right, bottom=bottom)


def _tuples(of: st.SearchStrategy[T]) -> st.SearchStrategy[tuple[T, ...]]:
    return st.lists(of, max_size=3).map(tuple)


_scored = _tuples(st.builds(ScoredBox, box=_boxes(), score=_score))
_sentences = st.builds(GroundedSentence, text=_words.filter(str.strip), prompt=_words, score=_score, boxes=_scored)
_findings = st.builds(
    Finding,
    prompt=_words,
    code=_codes,
    site=st.none() | _codes,
    side=_sides,
    probability=_score,
    state=st.sampled_from(FindingState),
    boxes=_tuples(st.builds(FindingBox, box=_boxes(), score=_score, tracking_uid=_words, side=_sides)),
    sentence=st.none() | st.integers(0, 9),
    evidence=st.none() | st.builds(Evidence, zone=st.none() | _words, extent=_score),
    contradiction=st.none() | st.sampled_from(list(wording.CONTRADICTIONS)),
    searched=_scored,
)


@st.composite
def _ratios(draw: st.DrawFn) -> CardiothoracicRatio:
    heart, wider, place = (draw(st.floats(1, 99)) for _ in range(3))
    ends = [((place, 7.0), (place + width, 7.0)) for width in (heart, heart + wider)]
    if draw(st.booleans()):  # a film stored on its side
        ends = [(start[::-1], end[::-1]) for start, end in ends]
    short, long = (MeasuredLine(start=start, end=end) for start, end in ends)
    return CardiothoracicRatio(
        heart=short,
        thorax=long,
        view=View.PA,
        objection=draw(st.none() | st.sampled_from(Incomparable)),
        mm_per_pixel=draw(st.none() | st.floats(0.1, 1)),
        error=draw(st.none() | st.just(samples.RATIO_ERROR)),
    )


_films = st.builds(
    Film,
    source=_words,
    reason=st.none() | st.sampled_from(Reason),
    notes=_tuples(st.sampled_from(Note)),
    columns=st.integers(1, 9000),
    rows=st.integers(1, 9000),
    analyzed=_boxes(),
    sentences=_tuples(_sentences),
    findings=_tuples(_findings),
    ratio=st.none() | _ratios(),
    view=st.none() | st.builds(FilmView, tag=st.none() | st.just("frontal"), seen=st.none() | st.sampled_from(VIEWS)),
)


@given(_films)
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

    assert document.keys() == {"version", "study", "model", "films", "outputs"}
    assert (document["version"], document["study"]) == (1, samples.STUDY)
    assert document["model"] == {
        "name": "phantom",
        "version": "1.2.0",
        "weights_sha256": "ab" * 32,
        "engine": "onnx",
        "prompts": "chexpert14",
        "prompts_sha256": "cd" * 32,
    }
    assert document["outputs"] == ["sr.dcm", "a.gsps.dcm"]
    for film_ in document["films"]:
        assert film_.keys() == {
            *("source", "status", "reason", "notes", "columns", "rows", "analyzed", "view"),
            *("sentences", "findings", "withheld", "impression", "measurements"),
        }
    first, second, third = document["films"]
    assert (first["status"], first["reason"], first["notes"]) == ("read", None, ["view_unknown"])
    assert (first["columns"], first["rows"], first["analyzed"]) == (2000, 1760, [120, 0, 1880, 1760])
    assert (second["status"], second["reason"], second["analyzed"]) == ("not_processed", "undecodable", None)
    assert (third["source"], third["reason"]) == (samples.film_uid(3), "own_object")
    assert first["impression"] == impression.of_film(several())
    assert third["impression"] == [wording.not_processed(left)]


def test_findings_and_sentences_of_report_json_keep_their_contract() -> None:
    [film_] = for_programs(report(several()), [])["films"]

    assert film_["findings"]
    for found in film_["findings"]:
        assert found.keys() == {
            *("prompt", "code", "laterality", "probability", "state", "reason", "sentence", "boxes", "evidence")
        }
        assert all(box.keys() == {"box", "score", "tracking_uid"} for box in found["boxes"])
    for sentence in film_["sentences"]:
        assert sentence.keys() == {"text", "prompt", "by", "score", "boxes"}
    effusion = film_["findings"][0]
    assert effusion["code"] == ["60046008", "SCT", "Pleural effusion"]
    assert (effusion["laterality"], effusion["probability"], effusion["state"]) == ("right", 0.83, "present")
    assert effusion["boxes"][0]["box"] == [150.25, 900.5, 700.125, 1700]
    assert effusion["boxes"][0]["tracking_uid"] == several().findings[0].boxes[0].tracking_uid
    sentence = film_["sentences"][effusion["sentence"]]
    assert sentence["text"] == "Small right pleural effusion."
    assert sentence["boxes"] == [{"box": [150.25, 900.5, 700.125, 1700], "score": 0.6}]


def test_report_json_says_why_what_is_left_out_is_never_reported() -> None:
    written = for_programs(report(film(findings=(samples.left_out(), absent(samples.EDEMA)))), [])

    reasons = [found["reason"] for found in written["films"][0]["findings"]]
    assert reasons == [f"{wording.NEVER}.", None]


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
def test_the_same_words_stand_once(place: int) -> None:
    both = film(findings=(finding(), replace(finding(samples.EDEMA), sentence=place)))
    of_region = replace(both.sentences[0], prompt="right_lower_lung_zone")
    rendered = report_txt.render(report(replace(both, sentences=(both.sentences[0], both.sentences[0], of_region))))

    assert rendered.count("Small right pleural effusion.") == 1
    assert "(also of pulmonary edema)" in rendered
    assert "Other sentences" not in rendered


def test_a_sentence_by_rule_repeats_no_finding() -> None:
    made = film(findings=(finding(),))
    by_rule = replace(made, sentences=(replace(made.sentences[0], by="rule"), *made.sentences[1:]))

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
        (film(findings=(replace(MEASURED, thresholds=(0.43, 0.43)),)), "pleural effusion present from 43 %."),
        (film(findings=(replace(MEASURED, state=FindingState.UNCALIBRATED),)), "pleural effusion possible from 25 %."),
    ],
)
def test_the_text_names_the_limits_once(of: Film, told: str) -> None:
    assert told in wording.limits(of)
    assert report_txt.render(report(of)).count(told) == 1


@pytest.mark.parametrize(
    "module", [wording, vocabulary, ratio_text, impression, asked_question, replies, comparison, identity, report_json]
)
def test_no_text_of_an_output_is_empty(module: ModuleType) -> None:
    own = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    tables = {name: [*value.values()] if isinstance(value, Mapping) else [value] for name, value in own.items()}

    assert [
        name for name, values in tables.items() for text in values if isinstance(text, str) and not text.strip()
    ] == []
    for name in ("REASONS", "NOTES", "CAUTIONS", "READER"):
        assert len(set(tables.get(name, ()))) == len(tables.get(name, ())), name


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
