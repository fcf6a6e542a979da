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
from tests.support.documents import contents, everything, groups, numbers, said
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


@pytest.mark.parametrize("name", QUESTIONS)
def test_an_answer_says_question_state_and_limits(name: str) -> None:
    question = QUESTIONS[name]
    dataset, words = report(question), said(report(question))

    assert "AI RESEARCH - NOT FOR DIAGNOSIS" in words
    assert "This answers one question and is no report on the film." in words
    assert (question.answer.question.prompt or "what does the network see") in words
    assert (dataset.VerificationFlag, dataset.PreliminaryFlag) == ("UNVERIFIED", "PRELIMINARY")
    assert (dataset.PatientID, dataset.StudyInstanceUID) == ("4711", samples.STUDY)
    drawn = " ".join(line for layer in layers(state(question)).values() for line in texts(layer))
    assert not {"normal", "absent"} & set(f"{words} {drawn}".lower().replace(".", " ").split())


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
def test_an_answer_has_the_words_of_its_state(name: str, expected: str) -> None:
    assert expected in said(report(QUESTIONS[name]))


def test_the_question_refers_to_the_region_it_is_about() -> None:
    for question, kind in ((BOTH, "SCOORD"), (ABSENT_IN_BOX, "SCOORD"), (PROMPT, "IMAGE")):
        [item] = [item for item in everything(report(question)) if is_named(item, "QUESTION")]
        [ground] = item.ContentSequence
        assert (ground.ValueType, ground.RelationshipType) == (kind, "INFERRED FROM")
        if kind == "SCOORD":
            assert list(ground.GraphicData[:2]) == pytest.approx([BOX.left, BOX.top])


def is_named(item: Dataset, code: str) -> bool:
    return bool(item.ConceptNameCodeSequence[0].CodeValue == code)


@pytest.mark.parametrize(
    ("question", "meaning", "letter"),
    [
        (asked(prompt="Pleural effusion"), "Pleural effusion, AI", "P"),
        (asked(prompt="edema", state=FindingState.INDETERMINATE), "edema, review, AI", "R"),
        (asked(prompt="left lung", state=None), "left lung, AI score", "S"),
        (asked(prompt=None, box=BOX), "Anything abnormal in the box, AI", "P"),
        (asked(prompt="x" * 300), "x" * 48 + ", AI", "P"),
        (asked(prompt="x" * 300, state=FindingState.UNCALIBRATED), "x" * 48 + ", review, AI", "R"),
    ],
)
def test_the_number_of_an_answer_names_what_was_asked(question: AskedQuestion, meaning: str, letter: str) -> None:
    name = answers.quantity_name(question)

    assert (name.meaning, name.value[:10]) == (meaning, f"{letter}ASKEDFOR-")
    assert max(len(name.value), len(name.meaning) // 4) <= 16
    assert name.value != answers.quantity_name(asked(prompt="another")).value


@pytest.mark.parametrize("name", sorted(set(QUESTIONS) - set(LOCATED)))
def test_an_answer_that_locates_nothing_is_a_text(name: str) -> None:
    objects = written(QUESTIONS[name], "sr", "sr3d")

    assert [kind for kind, _ in objects] == ["sr"]  # one object for both kinds
    assert objects[0][1].ContentTemplateSequence[0].TemplateIdentifier == "2000"


def test_report_and_state_of_an_answer_share_their_boxes() -> None:
    document, drawn = report(PROMPT), layers(state(PROMPT))[gsps.BOXES]

    reported = {
        contents(group, "112040")[0].UID: contents(group, "111030")[0].GraphicData for group in groups(document)
    }
    assert len(reported) == 2
    assert {item.TrackingUID: item.GraphicData for item in drawn.GraphicObjectSequence} == reported
    assert [contents(group, "112039")[0].TextValue for group in groups(document)] == [
        "pleural effusion 1/2",
        "pleural effusion 2/2",
    ]
    assert all(len(numbers(group)) == 1 for group in groups(document))


def test_the_box_that_was_asked_about_is_dashed_in_its_layer() -> None:
    both, denied, found = (layers(state(question)) for question in (BOTH, ABSENT_IN_BOX, PROMPT))

    dashes = np.array([list(item.GraphicData) for item in both[gsps.ASKED].GraphicObjectSequence]).reshape(-1, 2)
    assert len(dashes) > 8
    assert (*dashes.min(axis=0), *dashes.max(axis=0)) == pytest.approx(BOX.edges)
    assert texts(both[gsps.BOXES]) == ["pleural effusion 83 % (possible)"]
    assert texts(denied[gsps.ASKED]) == ["pleural effusion: not reported (below threshold, may have been missed)"]
    assert gsps.BOXES not in denied
    assert gsps.ASKED not in found


def test_a_state_without_a_box_says_the_answer_in_its_heading() -> None:
    for question, expected in ((ABSENT, "may have been missed"), (NOWHERE, "not located")):
        drawn = layers(state(question))
        assert drawn.keys() == {gsps.SQUARE, gsps.LABEL}
        assert any(expected in line for line in texts(drawn[gsps.LABEL]))


def test_who_asked_is_an_observer_and_no_patient() -> None:
    named, unnamed = report(PROMPT), report(replace(PROMPT, asked_by=" "))

    [person] = contents(named, "121008")
    assert (person.ValueType, str(person.PersonName)) == ("PNAME", "anna^")
    assert contents(unnamed, "121008") == []
    assert "anna" not in str(named.PatientName)
    assert len(contents(named, "121012")) == 1  # the device still observes


def test_a_repeated_answer_is_the_same_object() -> None:
    first, again = (written(BOTH, "sr", "sr3d", "gsps") for _ in range(2))

    assert [save_bytes(dataset) for _, dataset in first] == [save_bytes(dataset) for _, dataset in again]
    assert {(dataset.InstanceCreationDate, dataset.InstanceCreationTime) for _, dataset in first} == {
        ("20261123", "233015")  # the time of the question, in the site's time zone
    }


def test_each_answer_has_series_of_its_own() -> None:
    other = replace(BOTH, id="0" * 32)
    objects = [dataset for question in (BOTH, other) for _, dataset in written(question, "sr", "sr3d", "gsps")]

    assert len({dataset.SeriesInstanceUID for dataset in objects}) == len(objects) == 6
    assert len({dataset.SOPInstanceUID for dataset in objects}) == 6
    assert {dataset.SeriesNumber for dataset in objects} == {9006, 9007, 9017}
    assert not any("PredecessorDocumentsSequence" in dataset for dataset in objects)


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
def test_a_question_is_read_back_unchanged(question: AskedQuestion) -> None:
    assert asked_question.question_from_json(json.loads(json.dumps(encode(question)))) == question


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


def test_a_question_from_anywhere_else_is_refused() -> None:
    with pytest.raises(ValueError, match="comes from one of"):
        replace(EXACT, source="nowhere")
