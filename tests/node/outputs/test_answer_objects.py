"""The answer to a question: kept as it was, and what its report and its presentation state say, draw, and never say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, By, FindingState, Question, ScoredBox
from models.documents import encode
from node.commands import ask
from node.domain import JsonObject, Note
from node.errors import InputError
from node.outputs import answers, asked_question, gsps, wording
from node.outputs.asked_question import AskedQuestion, answer_to_json
from node.outputs.document import save_bytes
from node.read.model import FilmAnswer
from tests.support import samples
from tests.support.documents import contents, everything, said
from tests.support.samples import BERLIN, cr, film, received, several

BOX = Box(left=150.25, top=900.5, right=700.125, bottom=1700)
OTHER = Box(left=1000, top=200, right=1700, bottom=1500)
ASKED_AT = datetime(2026, 11, 23, 22, 30, 15, 123456, tzinfo=UTC)


def asked(
    prompt: str | None = "pleural effusion",
    *,
    box: Box | None = None,
    state: FindingState | None = FindingState.PRESENT,
    boxes: Sequence[Box] = (BOX,),
    sentence: str = "Small right pleural effusion.",
) -> AskedQuestion:
    """Make a question about the first film of the sample study."""
    return AskedQuestion(
        id="3f2a91bc" * 4,
        study_uid=samples.STUDY,
        film=samples.film_uid(1),
        asked_at=ASKED_AT,
        asked_by="anna",
        source="page",
        model="phantom 1.2.0",
        weights_sha256="ab" * 32,
        answer=FilmAnswer(
            question=Question(prompt=prompt, box=box),
            sentence=sentence,
            score=0.834,
            state=state,
            boxes=tuple(ScoredBox(box=found, score=0.6) for found in boxes),
        ),
    )


PROMPT = asked(boxes=(BOX, OTHER))
BOX_ALONE = asked(None, box=BOX, state=FindingState.UNCALIBRATED)
BOTH = asked(box=BOX, state=FindingState.INDETERMINATE)
REGION = asked("left lung", state=None, boxes=(OTHER,))
ABSENT = asked(state=FindingState.ABSENT, boxes=(), sentence="")
ABSENT_IN_BOX = asked(box=BOX, state=FindingState.ABSENT)
NOWHERE = asked("left lung", state=None, boxes=(), sentence="")
EXACT = replace(
    BOTH,
    engine="onnx",
    prompts="chexpert14 1",
    answer=replace(
        BOTH.answer,
        score=0.1 + 0.2,
        boxes=(ScoredBox(box=BOX, score=1 / 3),),
        by="rule",
        contradiction="other_side",
    ),
)
"""A question by prompt and box, whose numbers have no short decimal form."""
LEFT_OUT = replace(
    EXACT, answer=replace(EXACT.answer, sentence="", state=FindingState.LEFT_OUT, score=None, contradiction=None)
)
"""A question about a finding that the model leaves out."""
NEVER_LEARNED = replace(ABSENT, answer=replace(ABSENT.answer, score=None, state=None, never_learned=("zebra",)))
QUESTIONS = {
    "prompt": PROMPT,
    "box": BOX_ALONE,
    "both": BOTH,
    "region": REGION,
    "absent": ABSENT,
    "absent in the box": ABSENT_IN_BOX,
    "region nowhere": NOWHERE,
}
LOCATED = ("prompt", "box", "both", "region")


def written(question: AskedQuestion, *kinds: str, header: Dataset | None = None) -> list[tuple[str, Dataset]]:
    """Write the objects of an answer, and read them back from their bytes."""
    of = replace(samples.report(several()), created_at=question.asked_at)
    [source] = received(header or cr(1)).values()
    objects = answers.write_objects(question, of, source, zone=BERLIN, kinds=kinds)
    return [(made.kind, dcmread(BytesIO(save_bytes(made.dataset)))) for made in objects]


def report(question: AskedQuestion, kind: str = "sr") -> Dataset:
    [(_, dataset)] = written(question, kind)
    return dataset


def state(question: AskedQuestion) -> Dataset:
    [(_, dataset)] = written(question, "gsps")
    return dataset


def layers(dataset: Dataset) -> dict[str, Dataset]:
    return {str(item.GraphicLayer): item for item in dataset.GraphicAnnotationSequence}


def texts(layer: Dataset) -> list[str]:
    return [str(item.UnformattedTextValue) for item in layer.get("TextObjectSequence", ())]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("prompt", "Answer: Present, AI probability 83 %."),
        ("both", "Answer: Possible, please review, AI probability 83 %."),
        ("box", "Answer: Anything abnormal in the box: Possible, please review"),
        ("absent", "Not reported (below threshold, may have been missed), AI probability 83 %."),
        ("absent in the box", "Not reported (below threshold, may have been missed), AI probability 83 %."),
        ("region", "a place is neither present nor not reported"),
        ("region nowhere", "The network points to no place for what it was asked."),
    ],
)
def test_an_answer_says_question_state_and_limits_in_its_form(name: str, expected: str) -> None:
    question = QUESTIONS[name]
    words = said(report(question))

    assert "AI RESEARCH - NOT FOR DIAGNOSIS" in words
    assert "This answers one question and is no report on the film." in words
    assert (question.answer.question.prompt or "what does the network see") in words
    assert expected in words
    [item] = [each for each in everything(report(question)) if each.ConceptNameCodeSequence[0].CodeValue == "QUESTION"]
    [ground] = item.ContentSequence
    about = question.answer.question.box
    assert (ground.ValueType, ground.RelationshipType) == ("SCOORD" if about else "IMAGE", "INFERRED FROM")
    assert about is None or list(ground.GraphicData[:2]) == pytest.approx([about.left, about.top])
    forms = [
        (kind, each.ContentTemplateSequence[0].TemplateIdentifier) for kind, each in written(question, "sr", "sr3d")
    ]
    assert forms == ([("sr", "1500"), ("sr3d", "1500")] if name in LOCATED else [("sr", "2000")])
    drawn = " ".join(line for layer in layers(state(question)).values() for line in texts(layer))
    assert not {"normal", "absent"} & set(f"{words} {drawn}".lower().replace(".", " ").split())


@pytest.mark.parametrize(
    ("question", "meaning", "letter"),
    [
        (asked(prompt="Pleural effusion"), "Pleural effusion, AI", "P"),
        (asked(prompt="edema", state=FindingState.INDETERMINATE), "edema, review, AI", "R"),
        (asked(prompt="left lung", state=None), "left lung, AI score", "S"),
        (asked(prompt=None, box=BOX), "Anything abnormal in the box, AI", "P"),
        (asked(prompt="x" * 300), "x" * 48 + ", AI", "P"),
    ],
)
def test_the_number_of_an_answer_names_what_was_asked(question: AskedQuestion, meaning: str, letter: str) -> None:
    name = answers.quantity_name(question)

    assert (name.meaning, name.value[:10]) == (meaning, f"{letter}ASKEDFOR-")
    assert max(len(name.value), len(name.meaning) // 4) <= 16
    assert name.value != answers.quantity_name(asked(prompt="another")).value


def test_the_box_that_was_asked_about_is_dashed_in_its_layer_and_without_one_the_heading_answers() -> None:
    both, denied, found = (layers(state(question)) for question in (BOTH, ABSENT_IN_BOX, PROMPT))

    dashes = np.array([list(item.GraphicData) for item in both[gsps.ASKED].GraphicObjectSequence]).reshape(-1, 2)
    assert len(dashes) > 8
    assert (*dashes.min(axis=0), *dashes.max(axis=0)) == pytest.approx(BOX.edges)
    assert texts(both[gsps.BOXES]) == ["pleural effusion 83 % (possible)"]
    assert texts(denied[gsps.ASKED]) == ["pleural effusion: not reported (below threshold, may have been missed)"]
    assert gsps.BOXES not in denied
    assert gsps.ASKED not in found
    for question, expected in ((ABSENT, "may have been missed"), (NOWHERE, "not located")):
        without_box = layers(state(question))
        assert without_box.keys() == {gsps.SQUARE, gsps.LABEL}
        assert any(expected in line for line in texts(without_box[gsps.LABEL]))


def test_a_repeated_answer_is_the_same_object_and_each_answer_has_series_of_its_own() -> None:
    first, again, other = (
        [dataset for _, dataset in written(question, "sr", "sr3d", "gsps")]
        for question in (BOTH, BOTH, replace(BOTH, id="0" * 32))
    )

    assert list(map(save_bytes, first)) == list(map(save_bytes, again))
    assert {(dataset.InstanceCreationDate, dataset.InstanceCreationTime) for dataset in first} == {
        ("20261123", "233015")  # the time of the question, in the site's time zone
    }
    for keyword in ("SeriesInstanceUID", "SOPInstanceUID"):
        assert len({dataset[keyword].value for dataset in (*first, *other)}) == 6
    assert {dataset.SeriesNumber for dataset in (*first, *other)} == {9006, 9007, 9017}
    assert not any("PredecessorDocumentsSequence" in dataset for dataset in first)


def test_who_asked_is_an_observer_and_no_patient() -> None:
    for name, found in (("anna", ["anna^"]), (" ", [])):
        document = report(replace(PROMPT, asked_by=name))
        assert [str(person.PersonName) for person in contents(document, "121008")] == found
        assert len(contents(document, "121012")) == 1  # the device still observes
        assert "anna" not in str(document.PatientName)


def test_notes_of_the_film_stand_in_its_answers() -> None:
    of = samples.report(replace(film(), notes=(Note.MIRRORED,)))
    [source] = received(cr(1)).values()

    document, drawn = (
        made.dataset for made in answers.write_objects(PROMPT, of, source, zone=BERLIN, kinds=["sr", "gsps"])
    )

    assert "The picture looks mirrored: check the sides." in said(document)
    assert "The picture looks mirrored: check the sides." in texts(layers(drawn)[gsps.LABEL])


def test_no_answer_is_sent_that_is_none_or_no_longer_fits_its_film() -> None:
    [source] = received(cr(1)).values()

    with pytest.raises(InputError, match="never learned"):
        written(NEVER_LEARNED, "sr")
    with pytest.raises(InputError, match="outside the film"):
        written(asked(boxes=(Box(left=0, top=0, right=samples.COLUMNS + 1, bottom=10),)), "sr")
    with pytest.raises(InputError, match="cannot be read any more"):
        list(answers.write_objects(PROMPT, samples.report(samples.unread(1)), source, zone=BERLIN, kinds=["sr"]))


# What is kept of a question and its answer, and told to people and programs.

POSSIBLE = "Possible, please review: "


@pytest.mark.parametrize(
    "question", [EXACT, LEFT_OUT, NEVER_LEARNED], ids=["prompt and box", "left out", "never learned"]
)
def test_a_question_is_read_back_unchanged_and_from_nowhere_else(question: AskedQuestion) -> None:
    assert asked_question.question_from_json(json.loads(json.dumps(encode(question)))) == question
    with pytest.raises(ValueError, match="comes from one of"):
        replace(question, source="nowhere")


@pytest.mark.parametrize(
    ("by", "sentence", "said"),
    [
        ("network", "There is edema.", '"There is edema."'),
        ("network_uncalibrated", f"{POSSIBLE}There is edema.", f'{POSSIBLE}"There is edema."'),
        ("rule", "There is edema.", "There is edema."),
        ("network", "", None),
    ],
)
def test_every_way_marks_the_own_words_of_the_network(by: By, sentence: str, said: str | None) -> None:
    asked = replace(EXACT, answer=replace(EXACT.answer, sentence=sentence, by=by, contradiction=None))

    told = answer_to_json(asked.answer)
    ways = {
        "interface and page": told["said"] or None,
        "command": next((line.strip() for line in lines_of(told) if "edema" in line), None),
        "structured report": asked_question.sentence(asked),
    }

    assert ways == dict.fromkeys(ways, said)
    assert (told["sentence"], told["by"]) == (sentence, by if said else None)


def lines_of(answer: JsonObject) -> list[str]:
    """The lines of `node ask` about an answer."""
    return ask.in_words({"film": "a.dcm", "questions": [answer]}).splitlines()


def test_an_answer_about_what_is_left_out_says_why() -> None:
    said, told = asked_question.lines(LEFT_OUT, samples.film()), answer_to_json(LEFT_OUT.answer)

    assert (told["state"], told["score"], told["reason"]) == (FindingState.LEFT_OUT, None, f"{wording.NEVER}.")
    assert answer_to_json(EXACT.answer)["score"] == 0.1 + 0.2
    assert "Answer: Not evaluated by this model." in said
    assert "probability" not in " ".join(said)
