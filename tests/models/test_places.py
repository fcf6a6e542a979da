"""Which boxes of a finding are drawn on films of people, whether a side is told, and what the reader makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from models.contract import (
    Box,
    FilmReading,
    FindingState,
    Laterality,
    PromptReading,
    Question,
    ReaderPrompt,
    ScoredBox,
    Side,
)
from models.decisions import Decisions, Measurement, PlaceRule
from models.engines import FloatArray, Patches, Regions
from models.reading.places import laterality, side_certainty
from models.reading.reader import ChexReader
from node.answers import questions, replies
from node.domain import Finding
from node.outputs import impression, wording
from node.read import prompts
from node.read.findings import find
from node.read.framing import Framing
from tests.models.test_contradictions import LEFT_BASE, RIGHT_BASE, look, side_of
from tests.support import samples
from tests.support.scripted_engine import EDEMA, FRACTURE, PROMPTS, SENTENCES, ScriptedEngine, reader_of

SET = prompts.load("chexpert14")

RULE = PlaceRule(measured_on="hospital", least=0.7, told=20, right=18)
SURE: Mapping[str, PlaceRule] = {"fracture": RULE, "edema": RULE}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((0.8, 0.2), {Side.RIGHT: 0.8, Side.LEFT: 0.2}),
        ((0.3, 0.3), {Side.RIGHT: 0.5, Side.LEFT: 0.5}),
        ((0.0, 0.0), {Side.RIGHT: 0.5, Side.LEFT: 0.5}),
    ],
)
def test_the_certainty_of_a_side_is_its_share(scores: tuple[float, float], expected: dict[Side, float]) -> None:
    found = side_certainty(np.array([RIGHT_BASE, LEFT_BASE]), np.array(scores), side_of=side_of)

    assert found == pytest.approx(expected)


def test_a_box_across_the_middle_counts_on_both_sides() -> None:
    def across(x: float, _width: float) -> Side | None:
        return None if x == 0.5 else Side.LEFT

    found = side_certainty(np.array([(0.5, 0.5, 0.4, 0.2), LEFT_BASE]), np.array([0.2, 0.6]), side_of=across)

    assert found == pytest.approx({Side.RIGHT: 0.25, Side.LEFT: 0.75})


@pytest.mark.parametrize(
    ("key", "drawn", "scores", "measured", "expected"),
    [
        ("fracture", [RIGHT_BASE], (0.8, 0.2), SURE, "boxes"),
        ("fracture", [RIGHT_BASE], (0.6, 0.4), SURE, "unknown"),
        ("fracture", [RIGHT_BASE], (0.8, 0.2), {}, "unknown"),
        ("fracture", [], (0.8, 0.2), SURE, "unknown"),
        ("fracture", [RIGHT_BASE, LEFT_BASE], (0.6, 0.6), SURE, "boxes"),
        ("fracture", [RIGHT_BASE, LEFT_BASE], (0.6, 0.6), {}, "unknown"),
        ("edema", [RIGHT_BASE], (0.6, 0.4), SURE, "unknown"),
        ("edema", [RIGHT_BASE], (0.8, 0.2), {}, "unknown"),
        ("edema", [RIGHT_BASE], (0.8, 0.2), SURE, "boxes"),
    ],
)
def test_a_side_needs_a_measured_certainty(
    key: str,
    drawn: list[tuple[float, ...]],
    scores: tuple[float, float],
    measured: Mapping[str, PlaceRule],
    expected: Laterality,
) -> None:
    decisions = replace(DECISIONS, boxes=measured, sides=measured)
    found = np.array([RIGHT_BASE, LEFT_BASE]), np.array(scores)

    assert laterality(key, np.array(drawn).reshape(-1, 4), found, decisions, side_of) == expected


DECISIONS = Decisions(temperature=1.0, default_threshold=0.5, review_band=0.1, box_threshold=0.5, region_threshold=0.5)


@pytest.mark.parametrize(("measured_on", "told", "right"), [("phantoms", 2, 1), (" ", 2, 1), ("hospital", 1, 2)])
def test_a_rule_of_places_is_of_people(measured_on: str, told: int, right: int) -> None:
    with pytest.raises(ValueError, match=r"measured_on|right"):
        PlaceRule(measured_on=measured_on, least=0.5, told=told, right=right)


def test_on_phantoms_no_rule_of_places_holds() -> None:
    assert replace(DECISIONS, boxes=SURE, sides=SURE).on_phantoms() == DECISIONS


OPACITY = ReaderPrompt(key="lung_opacity", kind=EDEMA.kind, phrases=("Lung opacity",), negatives=("No lung opacity",))
BOXES = np.array([[RIGHT_BASE, LEFT_BASE, LEFT_BASE]] * 2, dtype=np.float32)


def reader_with(engine: ScriptedEngine, **changes: object) -> ChexReader:
    """Make a reader whose sentences are checked, with other decisions."""
    manifest = reader_of(engine).manifest
    decisions = replace(manifest.decisions, **changes)  # type: ignore[arg-type]
    words = ("edema", "fracture", "lung", "no", "opacity")  # neither left nor right: no other side is asked about
    manifest = replace(manifest, decisions=decisions, vocabulary=words)
    return ChexReader(manifest, engine, PROMPTS, SENTENCES, trusted="any", rule="checked")


def read(scores: list[float], **rules: object) -> tuple[tuple[PromptReading, ...], list[str]]:
    """Read a film with an edema and a fracture, whose boxes on right, left and left have these scores."""
    engine = ScriptedEngine(
        [0.8, 0.8],
        ["Edema on the right.", "Fracture on the right."],
        scores=np.array([scores] * 2, dtype=np.float32),
        boxes=BOXES,
    )
    reader = reader_with(engine, **rules)
    film = reader.look(np.zeros((300, 300), dtype=np.float32))
    said = reader.report(film, (EDEMA, FRACTURE), side_of=side_of)
    answers = reader.ask(film, [Question(prompt="Fracture")], reference=(EDEMA, FRACTURE), side_of=side_of)
    told = next(reading for reading in said.prompts if reading.key == "fracture")
    assert [(a.boxes, a.laterality) for a in answers] == [(told.boxes, told.laterality)]
    return said.prompts, [sentence.text for sentence in said.sentences]


def test_a_weak_box_is_not_drawn() -> None:
    (edema, fracture), texts = read([0.2, 0.1, 0.1], boxes={"fracture": replace(RULE, least=0.15)})

    assert (edema.boxes, edema.laterality) == ((), "unknown")
    assert ([round(scored.score, 3) for scored in fracture.boxes], fracture.laterality) == ([0.2], "unknown")
    assert texts == ["There is edema.", "There is a fracture."]


def test_a_certain_side_is_told() -> None:
    (edema, fracture), texts = read([0.9, 0.1, 0.2], boxes=SURE, sides=SURE)

    assert {(reading.laterality, len(reading.boxes)) for reading in (edema, fracture)} == {("boxes", 1)}
    assert texts == ["Edema on the right.", "Fracture on the right."]


def test_without_any_rule_places_are_as_published() -> None:
    (edema, fracture), texts = read([0.2, 0.1, 0.1])

    assert {(reading.laterality, len(reading.boxes)) for reading in (edema, fracture)} == {("boxes", 1)}
    assert texts == ["Edema on the right.", "Fracture on the right."]


NECK = (0.25, 0.05, 0.2, 0.08)
ACROSS_THE_EDGE = (0.25, 0.22, 0.2, 0.2)
LUNG_ZONE = SET["right_upper_lung_zone"]
UPPER_ZONE = (0.25, 0.4, 0.3, 0.3)


@pytest.mark.parametrize("rules", [{}, {"boxes": SURE, "sides": SURE}])
@pytest.mark.parametrize(
    ("key", "box", "region", "is_drawn"),
    [
        ("pneumothorax", NECK, LUNG_ZONE, False),
        ("lung_opacity", NECK, LUNG_ZONE, False),
        ("pneumothorax", ACROSS_THE_EDGE, LUNG_ZONE, True),
        ("pneumothorax", UPPER_ZONE, LUNG_ZONE, True),
        ("fracture", NECK, LUNG_ZONE, True),  # a clavicle, say
        ("pneumothorax", NECK, SET["abdomen"], True),  # no part of the lungs is asked for
    ],
)
def test_a_finding_of_the_lungs_has_no_place_outside_them(
    key: str, box: tuple[float, ...], region: ReaderPrompt, rules: dict[str, object], *, is_drawn: bool
) -> None:
    asked = (SET[key], region)
    engine = ScriptedEngine(
        [0.8, 0.5],
        [f"{asked[0].phrases[0]} in the right upper zone.", ""],
        scores=np.array([[0.9, 0.1, 0.1]] * 2, dtype=np.float32),
        boxes=np.array([[box] * 3, [UPPER_ZONE] * 3], dtype=np.float32),
    )

    said = open_to_all(engine, **rules).report(LOOK, asked, side_of=side_of)

    [sentence] = said.sentences
    assert len(said.prompts[0].boxes) == len(sentence.boxes) == is_drawn
    if not is_drawn:
        assert said.prompts[0].laterality == "unknown"
        assert not {"right", "upper", "zone"} & set(sentence.text.removesuffix(".").lower().split())


@pytest.mark.parametrize(("box", "is_drawn"), [(NECK, False), (UPPER_ZONE, True)])
def test_neither_has_one_that_is_asked_for_in_other_words(box: tuple[float, ...], *, is_drawn: bool) -> None:
    engine = ThenLungs(
        [0.8],
        ["Small pneumothorax."],
        scores=np.array([[0.9, 0.1, 0.1]], dtype=np.float32),
        boxes=np.array([[box] * 3], dtype=np.float32),
    )

    [answer] = open_to_all(engine).ask(
        LOOK, [Question(prompt="small pneumothorax")], reference=(SET["pneumothorax"], LUNG_ZONE)
    )

    assert (len(answer.boxes), answer.laterality) == ((1, "boxes") if is_drawn else (0, "unknown"))


class ThenLungs(ScriptedEngine):
    """Locates what is asked first where a test says, and what is asked next in the upper zone."""

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        regions = super().find(patches, prompts)
        self.boxes = np.array([[UPPER_ZONE] * 3], dtype=np.float32)
        return regions


LOOK = reader_of(ScriptedEngine([], [])).look(np.zeros((300, 300), dtype=np.float32))


def open_to_all(engine: ScriptedEngine, **rules: object) -> ChexReader:
    """Make a reader with these rules of places whose vocabulary is open."""
    manifest = reader_of(engine).manifest
    manifest = replace(manifest, decisions=replace(manifest.decisions, **rules))  # type: ignore[arg-type]
    return ChexReader(manifest, engine, PROMPTS, SENTENCES, trusted="any", rule="checked")


@pytest.mark.parametrize(
    ("opacity", "measured_on", "state", "contradiction"),
    [
        (0.3, "hospital", FindingState.INDETERMINATE, "companion_silent"),
        (0.58, "hospital", FindingState.PRESENT, None),
        (0.3, "phantoms", FindingState.PRESENT, None),
        (0.3, None, FindingState.PRESENT, None),
    ],
)
def test_an_edema_without_an_opacity_is_to_be_reviewed(
    opacity: float, measured_on: str | None, state: FindingState, contradiction: str | None
) -> None:
    engine = ScriptedEngine([0.8, opacity], ["Edema.", ""], likeness={"No lung opacity": 1})
    own = (
        {} if measured_on is None else {"lung_opacity": Measurement(measured_on=measured_on, positives=9, negatives=9)}
    )

    edema, _ = look(reader_with(engine, thresholds={"lung_opacity": 0.6}, measurements=own), EDEMA, OPACITY)

    assert (edema.state, edema.contradiction) == (state, contradiction)


@pytest.mark.parametrize(
    ("answer", "side", "place", "impression_begins"),
    [
        ({"laterality": "boxes"}, Side.RIGHT, "told", "1. Right pleural effusion, 80 %"),
        ({"laterality": "unknown"}, None, "no_side", "1. Pleural effusion, 80 %"),
        ({"laterality": "unknown", "boxes": ()}, None, "no_place", "1. Pleural effusion, 80 %"),
    ],
)
def test_all_outputs_begin_with_what_is_certain_of_a_place(
    answer: dict[str, object], side: Side | None, place: str, impression_begins: str
) -> None:
    finding = found(answer)

    assert (finding.side, finding.place, {box.side for box in finding.boxes} <= {Side.RIGHT, None}) == (
        side,
        place,
        True,
    )
    assert (finding.evidence is None) == (answer["laterality"] != "boxes")
    film = samples.film(findings=(finding,))
    assert impression.of_film(film)[0] == impression_begins
    assert ("Places by this model are not reliable" in wording.limits(film)) is (place != "told")


NOWHERE: Mapping[str, object] = {"laterality": "unknown", "boxes": ()}
UNPLACED = "Where it lies is not told: places by this model are not reliable."


@pytest.mark.parametrize(
    ("asked", "answer", "is_film_sided", "expected"),
    [
        ("on the left?", {"laterality": "unknown"}, True, f"Its box lies on the right. {wording.UNRELIABLE}."),
        ("on the left?", {"laterality": "unknown"}, False, "The film does not say which side is which."),
        ("on the left?", {}, False, "The film does not say which side is which."),
        ("on the left?", NOWHERE, True, UNPLACED),
        ("in the left lower lung zone?", NOWHERE, True, UNPLACED),
        ("in the left lower lung zone?", {"boxes": ()}, True, "Where it lies is not told."),
        ("Where is", {"laterality": "unknown"}, True, f"Its box lies on the right. {wording.UNRELIABLE}."),
        ("Where is", {"laterality": "unknown"}, False, "Its box lies in a zone that is not told."),
        ("Where is", NOWHERE, True, UNPLACED),
    ],
)
def test_a_reply_says_why_it_tells_no_place(
    asked: str, answer: dict[str, object], expected: str, *, is_film_sided: bool
) -> None:
    film = samples.film(findings=(found(answer, sides_known=is_film_sided),))
    text = f"{asked} the effusion?" if asked == "Where is" else f"Effusion {asked}"

    reply = replies.answer(questions.understand(text, SET), film)

    assert reply.text == f"There is a pleural effusion. The probability is 80 %. {expected}"


def found(changes: Mapping[str, object], *, sides_known: bool = True) -> Finding:
    """Code an effusion whose box lies on the right."""
    framing = Framing(columns=1000, rows=1000, square=samples.SQUARE)
    box = ScoredBox(box=Box(left=100.0, top=600.0, right=300.0, bottom=800.0), score=0.6)
    answer = PromptReading(key="pleural_effusion", probability=0.8, state=FindingState.PRESENT, boxes=(box,))
    reading = FilmReading(prompts=(replace(answer, **changes),))  # type: ignore[arg-type]
    [finding] = find(reading, SET, source="1.2", framing=framing, model=samples.MODEL, sides_known=sides_known)
    return finding
