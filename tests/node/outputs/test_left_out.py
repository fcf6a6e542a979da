"""A finding that the model leaves out has no number in any output, and each output names it once, as not assessed.

One whose threshold was not measured on such films is something else: it is to be reviewed, with its number.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from models.contract import FilmReading, FindingState, PromptReading, ScoredBox, Trusted
from models.decisions import Decisions, Measurement
from models.reading.decision import decide
from node.answers.questions import understand
from node.answers.replies import answer
from node.domain import Assessment, Film, Finding, ReaderMark
from node.metrics import Metrics
from node.outputs import impression, report_json
from node.outputs.asked_question import answer_to_json
from node.read import prompts
from node.read.findings import find
from node.read.framing import Framing
from node.read.model import FilmAnswer
from node.store.correction import CorrectionKind
from tests.node.outputs.test_asked import LEFT_OUT as ASKED
from tests.node.outputs.test_said_by_readers import DRAWN, corrected
from tests.support import samples
from tests.support.output_texts import texts_of
from tests.support.samples import EDEMA, PNEUMOTHORAX, absent, finding, uncalibrated
from tests.support.spoken import PROMPTS

SET = prompts.load("chexpert14")
P = 0.7391
"""Of what is left out: neither this number nor its 74 percent stands anywhere else."""
NUMBER = re.compile(r"(?<![\d.])(74|0\.7[34]\d*)(?![\d.])")
LEFT_OUT = samples.left_out()
OUTPUTS = ("sr", "sr3d", "text", "gsps", "oru", "report.txt", "report.json", "study page", "impression", "sc")
NAMING = tuple(name for name in OUTPUTS if name not in ("gsps", "sc", "impression"))
"""Outputs that list what is not reported; pictures draw what is, the impression counts the rest."""


def said_by_reader(*kinds: CorrectionKind) -> Film:
    """The film with what is left out after a reader's corrections of it."""
    film = samples.film(findings=(finding(), LEFT_OUT))
    return corrected(tuple((kind, "pneumothorax") for kind in kinds), film)


FILMS = {
    "left out": samples.film(findings=(finding(), LEFT_OUT, absent(EDEMA))),
    "all left out": samples.film(findings=(LEFT_OUT,)),
    "rejected": said_by_reader(CorrectionKind.REJECT),
    "added": said_by_reader(CorrectionKind.ADD),
    "added and confirmed": said_by_reader(CorrectionKind.ADD, CorrectionKind.ACCEPT),
    "added and rejected": said_by_reader(CorrectionKind.ADD, CorrectionKind.REJECT),
}


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("of", FILMS)
def test_what_is_left_out_has_no_number(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = texts_of(FILMS[of], monkeypatch)

    assert {output: found for output, text in texts.items() if (found := NUMBER.findall(text))} == {}


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("of", ["left out", "all left out"])
def test_what_is_left_out_is_named_once(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = texts_of(FILMS[of], monkeypatch)

    # A message has a code of each finding, and the report as text.
    once = {output: 1 if output != "oru" else names_in_message(texts[output]) for output in NAMING}
    assert {output: texts[output].count("Pneumothorax") for output in NAMING} == once
    assert [output for output in NAMING if "not " not in texts[output].casefold()] == []


def names_in_message(text: str) -> int:
    """Once by its code, once in the report as text."""
    coded, spoken = (
        [line for line in text.splitlines() if line.startswith(kind)] for kind in (("CWE|", "NM|"), ("TX|",))
    )
    assert [line.split("|")[2] for line in coded if line.split("|")[1] == PNEUMOTHORAX.value] == ["NOTASSESSED"]
    assert not any(PNEUMOTHORAX.value in line for line in coded if line.startswith("NM|"))
    return sum("Pneumothorax" in line for line in spoken)


@pytest.mark.parametrize(
    ("of", "state", "probability"),
    [
        ("left out", FindingState.LEFT_OUT, None),
        ("rejected", FindingState.ABSENT, None),
        ("added", FindingState.PRESENT, None),
        ("added and confirmed", FindingState.PRESENT, None),
    ],
)
def test_report_json_has_null_for_its_probability(of: str, state: str, probability: float | None) -> None:
    written = json.loads(json.dumps(report_json.film_for_programs(FILMS[of])))

    (found,) = (item for item in written["findings"] if item["prompt"] == "pneumothorax")
    assert (found["state"], found["probability"]) == (state, probability)
    assert written["findings"][0]["probability"] == 0.83


def test_a_number_of_it_never_enters_the_node() -> None:
    box = ScoredBox(box=DRAWN, score=P)
    answer = PromptReading(key="pneumothorax", probability=P, state=FindingState.LEFT_OUT, boxes=(box,))

    [found] = find(
        FilmReading(prompts=(answer,)),
        SET,
        source="1.2",
        framing=Framing(columns=1000, rows=1000, square=samples.SQUARE),
        model=samples.MODEL,
        sides_known=True,
    )

    assert (found.probability, found.boxes, found.side, found.place) == (None, (), None, "told")


def test_what_a_reader_said_of_it_counts() -> None:
    added, rejected = (found_in(FILMS[of]) for of in ("added", "rejected"))

    assert (added.state, [box.box for box in added.boxes]) == (FindingState.PRESENT, [DRAWN])
    assert "1. Pneumothorax, added by a reader" in impression.of_film(FILMS["added"])
    assert rejected.state is FindingState.ABSENT
    assert "not evaluated" not in " ".join(impression.of_film(FILMS["rejected"])).lower()


def found_in(film: Film) -> Finding:
    return next(found for found in film.findings if found.prompt == "pneumothorax")


def test_a_question_about_it_is_answered_without_a_number() -> None:
    content = answer_to_json(ASKED.answer)

    assert (content["state"], content["score"]) == (FindingState.LEFT_OUT, None)
    assert content["boxes"] == [{"box": [10.5, 20, 300, 400], "score": None}]
    assert str(content["reason"]).startswith("Not assessed")


def test_a_question_about_what_is_assessed_keeps_its_number() -> None:
    asked: FilmAnswer = replace(ASKED.answer, state=FindingState.ABSENT, score=0.1 + 0.2)

    content = answer_to_json(asked)

    assert content["score"] == 0.1 + 0.2


@pytest.mark.parametrize("text", ["pneumothorax?", "list the findings", "summarize", "where is the pneumothorax?"])
def test_a_reply_says_no_number_of_it(text: str) -> None:
    for film in FILMS.values():
        assert NUMBER.findall(answer(understand(text, PROMPTS), film).text) == []


def test_metrics_have_no_number_of_it() -> None:
    metrics = Metrics()

    metrics.count_film(FILMS["left out"], None)

    counted = {
        str(sample.labels["prompt"]): sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "cxr_finding_probability_count" and sample.value
    }
    assert counted == {"pleural_effusion": 1, "pulmonary_edema": 1}


@pytest.mark.parametrize(
    ("threshold", "measured_on", "probability", "trusted", "expected"),
    [
        (1.0, "hospital", 0.99, "real", FindingState.LEFT_OUT),
        (1.0, "phantoms", 1.0, "real", FindingState.LEFT_OUT),
        (1.0, None, 0.99, "any", FindingState.LEFT_OUT),
        (0.5, "phantoms", 0.99, "real", FindingState.UNCALIBRATED),
        (0.5, None, 0.46, "real", FindingState.UNCALIBRATED),
        (0.5, None, 0.44, "real", FindingState.ABSENT),
        (0.5, "hospital", 0.99, "phantoms", FindingState.UNCALIBRATED),
        (0.5, None, 0.99, "any", FindingState.PRESENT),
    ],
)
def test_left_out_and_uncalibrated_are_told_apart(
    threshold: float, measured_on: str | None, probability: float, trusted: Trusted, expected: FindingState
) -> None:
    decisions = Decisions(
        temperature=1.0,
        default_threshold=0.5,
        thresholds={"edema": threshold},
        measurements={}
        if measured_on is None
        else {"edema": Measurement(measured_on=measured_on, positives=5, negatives=5)},
        review_band=0.05,
        box_threshold=0.5,
        region_threshold=0.5,
    )

    assert decide(decisions, "edema", probability, trusted=trusted) == expected
    assert decisions.leaves_out("edema") is (threshold == 1)


def test_what_is_uncalibrated_is_reviewed_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = texts_of(samples.film(findings=(uncalibrated(),)), monkeypatch)

    for output, text in texts.items():
        assert "91" in text or "0.91" in text, output
        assert "not evaluated" not in text.lower(), output
        assert "review" in text.lower() or FindingState.UNCALIBRATED in text, output


def test_a_mark_of_a_reader_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever mark a finding that is left out has, and wherever its boxes come from."""
    for what in Assessment:
        mark = ReaderMark(what=what, by="anna", at=datetime(2026, 11, 23, tzinfo=UTC))
        film = samples.film(findings=(replace(LEFT_OUT, reader=mark),))
        for output, text in texts_of(film, monkeypatch).items():
            assert NUMBER.findall(text) == [], output
