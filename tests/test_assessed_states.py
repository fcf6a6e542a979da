"""What a reader decided about the node's results in a presentation state: read from the state and the node's boxes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from node.dicom import assessed_states, question_object
from node.dicom.assessments import ReaderDecision, ResultAssessment, Verdict, supplement_in
from node.domain import Box, derive_uid
from node.read import prompts
from tests import films
from tests.workstation import TRACKING, graphic, note, rectangle, state

FILM = films.thumbnail()
UID = str(FILM.SOPInstanceUID)
OURS, OTHER = derive_uid("a box"), derive_uid("another box")
PLACE, SECOND = (2.0, 3.0, 20.0, 30.0), (60.0, 3.0, 80.0, 30.0)
KNOWN = {OURS: [Box(left=2, top=3, right=20, bottom=30)], OTHER: [Box(left=60, top=3, right=80, bottom=30)]}


def read(*graphics: Dataset, texts: tuple[Dataset, ...] = ()) -> ResultAssessment | None:
    return assessed_states.read(state(FILM, graphics=graphics, texts=texts), KNOWN)


def decided(*graphics: Dataset, texts: tuple[Dataset, ...] = ()) -> list[ReaderDecision]:
    found = read(*graphics, texts=texts)
    assert found is not None
    assert found.left_out == ()
    return list(found.decisions)


def of_text(text: str, tracking: str) -> Dataset:
    item = note(text, 90, 90)
    item.TrackingID, item.TrackingUID = "place 1", tracking
    return item


def test_a_box_of_the_node_in_another_place_is_moved() -> None:
    (found,) = decided(rectangle(5, 6, 30, 40, tracking=OURS), rectangle(*SECOND, tracking=OTHER))

    assert (found.verdict, found.tracking_uid, found.films) == (Verdict.MODIFIED, OURS, (UID,))
    assert found.box is not None
    assert found.box.edges == (5, 6, 30, 40)


@pytest.mark.parametrize("shift", [0.0, 0.9])
def test_a_box_where_a_report_had_it_decides_nothing(shift: float) -> None:
    left, top, right, bottom = PLACE

    assert read(rectangle(left + shift, top, right, bottom - shift, tracking=OURS)) is None


def test_a_box_of_somebody_else_decides_nothing() -> None:
    assert read(rectangle(*PLACE, tracking=TRACKING), texts=(note("edema", 5, 5),)) is None


def test_the_segments_of_a_dashed_box_are_moved_as_one_box() -> None:
    sides = [[5, 6, 30, 6], [30, 6, 30, 40], [30, 40, 5, 40], [5, 40, 5, 6]]

    (found,) = decided(*(graphic("POLYLINE", side, tracking=OURS) for side in sides))

    assert found.box is not None
    assert found.box.edges == pytest.approx((5, 6, 30, 40), abs=0.01)


@pytest.mark.parametrize(
    ("word", "verdict"),
    [
        ("accept", Verdict.ACCEPTED),
        ("AI result accepted", Verdict.ACCEPTED),
        ("True Positive", Verdict.ACCEPTED),
        ("REJECTED", Verdict.REJECTED),
        ("disagree.", Verdict.REJECTED),
        ("false\r\npositive", Verdict.REJECTED),
    ],
)
def test_a_verdict_belongs_to_the_nearest_box_of_the_node(word: str, verdict: Verdict) -> None:
    boxes = rectangle(*PLACE, tracking=OURS), rectangle(*SECOND, tracking=OTHER), rectangle(50, 3, 58, 30)

    found = read(*boxes, texts=(note(word, 55, 5),))

    assert found is not None
    assert [(item.verdict, item.tracking_uid) for item in found.decisions] == [(verdict, OTHER)]
    assert found.left_out == ("a graphic beside its decisions is not asked about; save a question as another object",)


def test_a_verdict_has_the_tracking_uid_of_its_text() -> None:
    assert decided(rectangle(*PLACE, tracking=OURS), texts=(of_text("rejected", OTHER),)) == [
        ReaderDecision(verdict=Verdict.REJECTED, tracking_uid=OTHER, films=(UID,))
    ]


def test_a_verdict_on_an_unknown_box_is_read_to_be_refused() -> None:
    found = read(rectangle(*PLACE, tracking=TRACKING), texts=(note("rejected", 5, 5),))

    assert found is not None
    assert [item.tracking_uid for item in found.decisions] == [TRACKING]


@pytest.mark.parametrize(("word", "verdict"), [("accepted", Verdict.MODIFIED), ("rejected", Verdict.REJECTED)])
def test_a_verdict_stands_above_a_moved_box(word: str, verdict: Verdict) -> None:
    (found,) = decided(rectangle(5, 6, 30, 40, tracking=OURS), texts=(note(word, 5, 5),))

    assert found.verdict is verdict


def test_two_verdicts_are_both_read() -> None:
    texts = note("accept", 5, 5), note("reject", 6, 6)

    assert [found.verdict for found in decided(rectangle(*PLACE, tracking=OURS), texts=texts)] == [
        Verdict.ACCEPTED,
        Verdict.REJECTED,
    ]


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (("cardiomegaly missed",), ("cardiomegaly",)),
        (("Missed: Pleural effusion",), ("pleural effusion",)),
        (("false negative (edema)",), ("edema",)),
        (("missed", "Edema"), ("missed", "Edema")),
    ],
)
def test_a_missed_finding_lies_in_the_box_of_the_reader(texts: tuple[str, ...], names: tuple[str, ...]) -> None:
    notes = tuple(note(text, 55, 40 + number) for number, text in enumerate(texts))

    (found,) = decided(rectangle(*SECOND, tracking=OTHER), rectangle(30, 40, 50, 60), texts=notes)

    assert (found.verdict, found.tracking_uid, found.films) == (Verdict.SUPPLEMENTED, "", (UID,))
    assert found.names == names
    assert found.box is not None
    assert found.box.edges == (30, 40, 50, 60)


@pytest.mark.parametrize(
    ("graphics", "texts", "reason"),
    [
        ((), ("accepted",), "no graphic with the tracking UID"),
        ((rectangle(*PLACE),), ("accepted",), "no graphic with the tracking UID"),
        ((), ("edema missed",), "no region on a film"),
        ((rectangle(*PLACE, tracking=OURS),), ("edema missed",), "no region on a film"),
        ((graphic("POLYLINE", [5, 6, 30, 6], tracking=OURS),), (), "has no area"),
        (
            (rectangle(1, 1, 20, 30, tracking=OURS), rectangle(1, 1, 25, 30, tracking=OTHER)),
            ("accepted",),
            "within several graphics",
        ),
    ],
)
def test_what_has_no_effect_says_why(graphics: tuple[Dataset, ...], texts: tuple[str, ...], reason: str) -> None:
    found = read(*graphics, texts=tuple(note(text, 5, 5) for text in texts))

    assert found is not None
    assert any(reason in said for said in found.left_out)


@pytest.mark.parametrize("text", ["edema", "what changed?", "was an effusion missed?", "heart, unmoved", "permissed"])
def test_other_words_are_questions(text: str) -> None:
    assert read(rectangle(30, 40, 50, 60), texts=(note(text, 31, 41),)) is None


def test_the_analyzed_square_is_no_graphic_of_a_reader() -> None:
    saved = state(FILM, graphics=[rectangle(0, 0, 100, 100)])
    saved.GraphicAnnotationSequence[0].GraphicLayer = "AI SQUARE"

    assert question_object.read(saved).questions == ()


@given(
    st.sampled_from([phrase.lower() for prompt in prompts.load("chexpert14").prompts for phrase in prompt.phrases]),
    st.sampled_from(["missed", "Added", "supplemented", "false negative"]),
    st.sampled_from([" ", ": ", ", ", " - ", "\n"]),
)
def test_the_name_of_what_was_missed_stands_before_or_after_it(name: str, missed: str, between: str) -> None:
    assert supplement_in(f"{name}{between}{missed}") == supplement_in(f"{missed}{between}{name}") == name
