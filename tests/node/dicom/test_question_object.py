"""What presentation states and structured reports of workstations ask: boxes, words, and what cannot be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy

import pytest
from pydicom.dataset import Dataset

from models.contract import Box
from node.dicom import identity, question_object
from node.dicom.marked_question import MarkedQuestion
from node.dicom.question_object import MOST, QuestionObject
from node.errors import InputError
from tests.support import films, workstation
from tests.support.workstation import TRACKING, finding, graphic, group, item, note, rectangle, region, report, state

FILM = films.thumbnail()
SQUARE = [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]
HIGHEST = 2**31 - MOST - 2  # leaves room for the numbers of the answers
PLACE = (2.0, 3.0, 20.0, 30.0)


def edges(question: MarkedQuestion) -> tuple[float, ...] | None:
    return None if question.box is None else tuple(round(edge, 3) for edge in question.box.edges)


def asked(dataset: Dataset) -> list[tuple[tuple[float, ...] | None, str | None]]:
    return [(edges(question), question.prompt) for question in question_object.read(dataset).questions]


@pytest.mark.parametrize(
    ("kind", "points", "expected"),
    [
        ("POLYLINE", SQUARE, PLACE),
        ("INTERPOLATED", [2, 3, 20, 10, 9, 30], PLACE),
        ("CIRCLE", [20, 30, 20, 40], (10, 20, 30, 40)),
        ("ELLIPSE", [10, 30, 50, 30, 30, 20, 30, 40], (10, 20, 50, 40)),
        ("ELLIPSE", [20, 20, 40, 40, 25, 35, 35, 25], (18.82, 18.82, 41.18, 41.18)),
        ("MULTIPOINT", [2, 3, 20, 30, 5, 5], PLACE),
    ],
)
def test_a_graphic_is_asked_by_the_box_around_it(
    kind: str, points: Sequence[float], expected: tuple[float, ...]
) -> None:
    drawn = state(FILM, graphics=[graphic(kind, points)])
    measured = report(FILM, group(region(FILM, kind, points)))

    assert asked(drawn) == asked(measured) == [(expected, None)]


def test_display_units_are_parts_of_the_displayed_area_unless_it_is_turned() -> None:
    half = state(FILM, graphics=[graphic("POLYLINE", [0, 0, 0.5, 0.5], units="DISPLAY")])
    zoomed = state(FILM, graphics=[graphic("POLYLINE", [0, 0, 1, 1], units="DISPLAY")])
    area = zoomed.DisplayedAreaSelectionSequence[0]
    area.DisplayedAreaTopLeftHandCorner, area.DisplayedAreaBottomRightHandCorner = [11, 21], [30, 50]

    other, another = deepcopy(area), Dataset()
    other.DisplayedAreaTopLeftHandCorner, another.ReferencedSOPInstanceUID = [1, 1], "1.2.3"
    other.ReferencedImageSequence = [another]
    zoomed.DisplayedAreaSelectionSequence = [other, area]

    assert asked(half) == [((0, 0, FILM.Columns / 2, FILM.Rows / 2), None)]
    assert asked(zoomed) == [((10, 20, 30, 50), None)]
    for half.ImageRotation, half.ImageHorizontalFlip in ((90, "N"), (0, "Y")):
        assert "turned" in "; ".join(question_object.read(half).left_out)


def test_a_text_belongs_to_the_graphic_that_is_nearest_to_its_anchor_or_its_middle() -> None:
    left, right = rectangle(2, 3, 20, 30), rectangle(60, 3, 80, 30)
    in_a_box = note("edema", 0, 0)
    del in_a_box.AnchorPoint
    in_a_box.BoundingBoxTopLeftHandCorner, in_a_box.BoundingBoxBottomRightHandCorner = [22, 4], [70, 8]
    in_a_box.BoundingBoxAnnotationUnits = "PIXEL"

    for text in (note("edema", 58, 5), in_a_box):
        read = asked(state(FILM, graphics=[left, right], texts=[text, note("  pleural\neffusion", 22, 5)]))
        assert read == [(PLACE, "pleural effusion"), ((60, 3, 80, 30), "edema")]


def compound(kind: str, **values: object) -> Dataset:
    """A compound graphic at the place (PS3.3 C.10.5)."""
    made = Dataset()
    made.CompoundGraphicType, made.CompoundGraphicUnits, made.CompoundGraphicInstanceID = kind, "PIXEL", 7
    made.GraphicData = [2, 3, 20, 30]
    return films.changed(made, values)


@pytest.mark.parametrize(
    ("drawn", "is_drawn_simply", "expected"),
    [
        (compound("RECTANGLE"), False, [(PLACE, None)]),
        (compound("RECTANGLE"), True, [(PLACE, None)]),
        (compound("RECTANGLE", RotationAngle=45), False, []),
        (compound("ARROW"), False, []),
        (compound("ARROW"), True, [(PLACE, None)]),
    ],
)
def test_a_compound_graphic_is_asked_once_if_it_is_a_box(
    drawn: Dataset, is_drawn_simply: bool, expected: list[object]
) -> None:
    simple = films.changed(rectangle(*PLACE), {"CompoundGraphicInstanceID": 7})
    made = state(FILM, graphics=[simple] if is_drawn_simply else [])
    made.GraphicAnnotationSequence[0].CompoundGraphicSequence = [drawn]

    assert asked(made) == expected
    said = ["a compound graphic is of a kind" in reason for reason in question_object.read(made).left_out]
    assert said == ([] if expected else [True])


def test_a_text_without_a_graphic_is_asked_of_the_film_and_a_graphic_without_a_film_of_all() -> None:
    assert asked(state(FILM, texts=[note("edema", 5, 5)])) == [(None, "edema")]
    of_one = report(FILM, group(finding("Edema")))
    assert asked(of_one) == [(None, "Edema")]
    (series,) = of_one.CurrentRequestedProcedureEvidenceSequence[0].ReferencedSeriesSequence
    another = films.changed(deepcopy(series.ReferencedSOPSequence[0]), {"ReferencedSOPInstanceUID": "1.2.3"})
    series.ReferencedSOPSequence = [*series.ReferencedSOPSequence, another]
    assert asked(of_one) == [], "nobody knows of which film"
    drawn = state(FILM, graphics=[rectangle(*PLACE)])
    del drawn.GraphicAnnotationSequence[0].ReferencedImageSequence
    assert asked(drawn) == [(PLACE, None)], "on all films"
    drawn.GraphicAnnotationSequence[0].GraphicLayer = identity.ANALYZED_LAYER
    assert asked(drawn) == [], "the square of the node"


def test_the_segments_of_a_dashed_box_are_one_box_without_broken_ones() -> None:
    sides: list[list[float]] = [[2, 3, 20, 3], [20, 3, 20, 30], [20, 30, 2, 30], [2, 30, 2, 3], [math.nan, 1, 1, 1]]
    drawn = state(FILM, graphics=[graphic("POLYLINE", side, tracking=TRACKING) for side in sides])

    [question] = question_object.read(drawn).questions

    assert question.box is not None
    assert question.box.edges == pytest.approx(PLACE, abs=0.01)
    assert question.tracking == ("place 1", TRACKING)


@pytest.mark.parametrize(
    ("content", "prompt"),
    [
        ([finding("Pleural effusion")], "Pleural effusion"),
        ([finding("Left lung", site=True)], "Left lung"),
        (
            [finding("Nodule"), item("TEXT", workstation.coded("121106", "DCM", "Comment"), TextValue="edema?")],
            "edema?",
        ),
        *(
            ([item("TEXT", workstation.coded(code, "DCM", "Algorithm"), TextValue="v1"), finding("Edema")], "Edema")
            for code in ("111001", "111003", "112000")
        ),
        ([finding("edema", value="CORNERSTONEFREETEXT", scheme="CORNERSTONEJS")], "edema"),
        ([finding("Mass"), finding("fluid", value="CORNERSTONEFREETEXT", scheme="X", site=True)], "fluid"),
        ([], None),
    ],
)
def test_the_words_of_a_group_are_the_prompt(content: list[Dataset], prompt: str | None) -> None:
    measured = report(FILM, group(*content, region(FILM, "POLYLINE", SQUARE), tracking=TRACKING))

    [question] = question_object.read(measured).questions

    assert (edges(question), question.prompt, question.tracking) == (PLACE, prompt, ("place 1", TRACKING))


def test_a_region_of_several_numbers_is_asked_once_and_one_under_a_text_with_that_text() -> None:
    numbers = [
        item("NUM", workstation.coded(value, "SCT", "Area"), region(FILM, "POLYLINE", SQUARE)) for value in ("1", "2")
    ]
    comment = workstation.coded("121106", "DCM", "Comment")
    texts = [
        item("TEXT", comment, region(FILM, "POLYLINE", [x, 3, x + 9, 30]), TextValue=text)
        for x, text in ((2, "edema"), (40, "fracture"))
    ]

    assert asked(report(FILM, group(finding("Edema"), *numbers))) == [(PLACE, "Edema")]
    assert asked(report(FILM, group(*texts))) == [((2, 3, 11, 30), "edema"), ((40, 3, 49, 30), "fracture")]


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (state(FILM, graphics=[graphic("POINT", [5, 5])]), "no area"),
        (state(FILM, graphics=[graphic("POLYLINE", [])]), "no usable points"),
        (state(FILM, graphics=[graphic("POLYLINE", [0, 0, 1, 1], units="MATRIX")]), "units"),
        (report(FILM, group(item("SCOORD", workstation.coded("1", "X", "Y"), GraphicType="POINT"))), "names no film"),
        (
            report(FILM, group(item("SCOORD3D", workstation.coded("1", "X", "Y"), GraphicType="POINT"))),
            "of the patient",
        ),
        (report(FILM), ""),
    ],
)
def test_what_cannot_be_asked_has_a_reason(dataset: Dataset, reason: str) -> None:
    read = question_object.read(dataset)

    assert read.questions == ()
    assert reason in "; ".join(read.left_out)


def test_an_object_says_who_made_it_and_its_name_and_number() -> None:
    drawn = question_object.read(state(FILM, graphics=[rectangle(*PLACE)]))
    measured = question_object.read(report(FILM, group(region(FILM, "POLYLINE", SQUARE))))

    assert drawn.asked_by == measured.asked_by == "Reader Rita"
    assert drawn.creators == measured.creators == {"workstation", "reader rita"}
    assert (drawn.labels, measured.labels) == ({"ask ai"}, {"ask ai"})
    assert (drawn.is_report, measured.is_report) == (False, True)
    for name, said in (("Rita^Reader=李^瑞", "Rita Reader"), ("Anonymous", ""), ("UNKNOWN^UNKNOWN", ""), ("", "")):
        named = films.changed(state(FILM, graphics=[rectangle(*PLACE)]), {"ContentCreatorName": name})
        assert question_object.read(named).asked_by == said
    for number, known in ((None, 0), (-1, 0), (7, 7), (HIGHEST, HIGHEST), (HIGHEST + 1, 0), (2**31 - 1, 0)):
        numbered = films.changed(state(FILM, graphics=[rectangle(*PLACE)]), {"InstanceNumber": number})
        assert question_object.read(numbered).instance_number == known


@pytest.mark.parametrize("break_it", ["class", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID"])
def test_other_objects_are_refused(break_it: str) -> None:
    dataset = state(FILM, graphics=[rectangle(*PLACE)])
    if break_it == "class":
        films.of_class(dataset, FILM.SOPClassUID)
    else:
        delattr(dataset, break_it)

    with pytest.raises(InputError):
        question_object.read(dataset)


def nested(depth: int) -> Dataset:
    inner = group(region(FILM, "POLYLINE", SQUARE))
    for _ in range(depth):
        inner = group(inner)
    return report(FILM, inner)


def test_deep_and_wide_objects_are_read_within_bounds() -> None:
    texts = [note("edema", 5, 5)] * 2000

    assert asked(nested(13)) == [(PLACE, None)]
    deep: QuestionObject = question_object.read(nested(14))
    wide = question_object.read(state(FILM, graphics=[rectangle(*PLACE)], texts=texts))

    boxes = [rectangle(x, 3, x + 2, 30) for x in range(MOST + 5)]
    bounded = question_object.read(state(FILM, graphics=boxes))
    assert len(bounded.questions) == MOST
    assert bounded.left_out == (f"5 of {MOST + 5} questions: one object may ask {MOST}",)
    assert deep.questions == ()
    assert "only the first 1000 graphics and texts are looked at" in wide.left_out
    many = question_object.read(report(FILM, group(*[finding("Edema")] * 5000)))
    assert many.left_out == ("only the first 5000 content items are looked at",)
    assert wide.questions[0].box == Box(left=2, top=3, right=20, bottom=30)
    assert len(wide.questions[0].prompt or "") <= 300
