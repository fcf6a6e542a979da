"""Where a finding lies and what speaks against it: which boxes are drawn, when a side is told, and what outputs say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from models.contract import (
    Box,
    Contradiction,
    FilmReading,
    FindingState,
    Laterality,
    PromptKind,
    PromptReading,
    Question,
    ReaderPrompt,
    ScoredBox,
    SentenceRule,
    Side,
)
from models.decisions import Decisions, Measurement, PlaceRule
from models.engines import FloatArray, IntArray, Patches, Regions
from models.reading.contradictions import found_on_other_side
from models.reading.places import laterality, side_certainty
from models.reading.reader import ChexReader
from node.answers import questions, replies
from node.domain import Finding, Note
from node.outputs import impression, report_json, report_txt, wording
from node.outputs.sr.findings import measurements
from node.read import prompts, view_check
from node.read.findings import find
from node.read.framing import Framing
from tests.support import samples
from tests.support.scripted_engine import (
    EDEMA,
    FRACTURE,
    LEFT,
    NORMAL,
    PROMPTS,
    SENTENCES,
    ScriptedEngine,
    reader_of,
)

DEVICES = ReaderPrompt(
    key="support_devices", kind=PromptKind.PATHOLOGY, phrases=("Support devices",), negatives=("No support devices",)
)
RIGHT_BASE = (0.25, 0.75, 0.2, 0.2)
LEFT_BASE = (0.75, 0.75, 0.2, 0.2)


def side_of(x: float, _width: float) -> Side:
    return Side.RIGHT if x < 0.5 else Side.LEFT


def look(reader: ChexReader, *prompts: ReaderPrompt, knows_sides: bool = False) -> tuple[PromptReading, ...]:
    """Read a film; all that stands in the reading must stand in the answer to each prompt too."""
    film = reader.look(np.zeros((300, 300), dtype=np.float32))
    sides = side_of if knows_sides else None
    readings = reader.report(film, prompts, side_of=sides).prompts
    answers = reader.ask(film, [Question(prompt=p.phrases[0]) for p in prompts], reference=prompts, side_of=sides)
    assert [(a.state, a.contradiction) for a in answers] == [(r.state, r.contradiction) for r in readings]
    return readings


@pytest.mark.parametrize(("likely", "state"), [(0.8, FindingState.PRESENT), (0.55, FindingState.INDETERMINATE)])
def test_a_film_called_normal_contradicts_no_finding(likely: float, state: FindingState) -> None:
    """The film has a note instead (`node.read.film`)."""
    edema, normal = look(reader_of(ScriptedEngine([0.8, likely], ["Edema.", ""])), EDEMA, NORMAL)

    assert (edema.state, edema.contradiction) == (FindingState.PRESENT, None)
    assert normal.state is state


def test_what_its_best_box_alone_says_is_not_asked() -> None:
    """On films of people it spoke against as many right findings as wrong ones."""
    engine = ScriptedEngine([0.8], ["Edema."], in_boxes=(0.2,))

    (edema,) = look(reader_of(engine), EDEMA)

    assert (edema.state, edema.contradiction, list(engine.described)) == (FindingState.PRESENT, None, [])


@dataclass
class SidedEngine(ScriptedEngine):
    """Finds what it is asked for at the right base, but a question that names a side at a place of its own."""

    sided: tuple[float, float, float, float] = RIGHT_BASE

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        films, count = prompts.shape[:2]
        found = ScriptedEngine.find(self, patches, prompts)
        place = RIGHT_BASE if count == len(self.probabilities) else self.sided
        boxes, scores = np.tile(np.array(place, dtype=np.float32), (films, count, 3, 1)), found.scores
        if place is self.sided:  # its best box counts
            boxes[:, :, ::2], scores = RIGHT_BASE, np.tile(np.array([0.2, 0.3, 0.1], dtype=np.float32), (1, count, 1))
        return replace(found, boxes=boxes, scores=np.repeat(scores, films, axis=0))


@pytest.mark.parametrize(
    ("sided", "knows_sides", "state"),
    [
        (LEFT_BASE, True, FindingState.INDETERMINATE),
        (RIGHT_BASE, True, FindingState.PRESENT),
        (LEFT_BASE, False, FindingState.PRESENT),
    ],
)
def test_the_other_side_contradicts_a_box(
    sided: tuple[float, float, float, float], knows_sides: bool, state: str
) -> None:
    engine = SidedEngine([0.8, 0.3], ["Edema.", ""], sided=sided)

    edema, _ = look(reader_of(engine), EDEMA, FRACTURE, knows_sides=knows_sides)

    assert (edema.state, edema.contradiction) == (state, "other_side" if state is FindingState.INDETERMINATE else None)


def test_a_finding_whose_name_has_a_side_is_not_asked_on_another() -> None:
    sided = ReaderPrompt(key="edema", kind=PromptKind.PATHOLOGY, phrases=("Left edema",), negatives=("No edema",))

    edema, _ = look(reader_of(SidedEngine([0.8, 0.3], ["", ""], sided=LEFT_BASE)), sided, FRACTURE, knows_sides=True)

    assert (edema.state, edema.contradiction) == (FindingState.PRESENT, None)


def test_an_answer_across_the_middle_is_on_no_other_side() -> None:
    boxes = np.array([LEFT_BASE, (0.5, 0.5, 0.9, 0.2), RIGHT_BASE], dtype=np.float32)

    found = found_on_other_side(
        [(index, Side.RIGHT) for index in range(3)],
        boxes,
        lambda x, width: None if width > 0.5 else Side.RIGHT if x < 0.5 else Side.LEFT,
    )

    assert found == {0}


def test_sides_are_not_asked_for_in_words_never_learned() -> None:
    reader = reader_of(SidedEngine([0.8, 0.3], ["Edema.", ""], sided=LEFT_BASE))
    words = ("edema", "no", "fracture")
    taught = ChexReader(replace(reader.manifest, vocabulary=words), reader._engine, PROMPTS, SENTENCES, trusted="any")

    edema, _ = look(taught, EDEMA, FRACTURE, knows_sides=True)

    assert (edema.state, edema.contradiction) == (FindingState.PRESENT, None)


@dataclass
class ReconsideringEngine(ScriptedEngine):
    """Says one thing first, and another when it is asked again."""

    first: str = "No edema."

    def says(self, feature: FloatArray) -> str:
        return super().says(feature) if self.heard else self.first


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("second", "state", "contradiction"),
    [("No edema.", FindingState.INDETERMINATE, "sentence_denies"), ("There is edema.", FindingState.PRESENT, None)],
)
def test_a_sentence_that_denies_twice_contradicts(
    second: str, state: str, contradiction: str | None, *, checked: bool
) -> None:
    reader = reader_of(ReconsideringEngine([0.8], [second]))
    reader.rule = "checked" if checked else "raw"

    reading = reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), [EDEMA])

    (edema,) = reading.prompts
    assert (edema.state, edema.contradiction) == (state, contradiction)
    if checked:
        said = "Edema is possible; please review." if contradiction else second
        assert [sentence.text for sentence in reading.sentences] == [said]


@pytest.mark.parametrize("probability", [0.55, 0.3])
def test_only_what_is_present_is_contradicted_by_its_sentence(probability: float) -> None:
    (edema,) = look(reader_of(ScriptedEngine([probability], ["No edema."])), EDEMA)

    assert (edema.state is FindingState.INDETERMINATE, edema.contradiction) == (probability > 0.5, None)


@pytest.mark.parametrize(("rule", "leaves"), [("checked", []), ("marked", ["Not seen by the network: No edema."])])
def test_a_denial_leaves_by_the_rule_for_it_alone(rule: SentenceRule, leaves: list[str]) -> None:
    own = {"edema": Measurement(measured_on="hospital", positives=9, negatives=9)}
    reader = reader_with(ScriptedEngine([0.2], ["No edema."]), thresholds={"edema": 0.6}, measurements=own)
    reader.rule = rule

    assert [sentence.text for sentence in reader.report(LOOK, [EDEMA]).sentences] == leaves
    assert reader.ask(LOOK, [Question(prompt="Edema")], reference=[EDEMA])[0].sentence == "", "no answer denies"


def test_the_region_of_a_film_is_its_best_box() -> None:
    scores = np.array([[0.9, 0.1, 0.1], [0.6, 0.8, 0.7]], dtype=np.float32)
    film = reader_of(ScriptedEngine([0.8, 0.8], [], scores)).find(LOOK, (EDEMA, LEFT))

    assert film.decided().regions["left_lung"].tolist() == film.regions.boxes[0, 1, 1].tolist()


def test_the_first_contradiction_of_a_finding_stays_and_only_what_is_present_becomes_possible() -> None:
    film = reader_of(ScriptedEngine([0.8], [])).find(LOOK, (EDEMA,))
    others = (FindingState.INDETERMINATE, FindingState.UNCALIBRATED, FindingState.ABSENT, FindingState.LEFT_OUT)
    film = replace(film, states=dict(enumerate((FindingState.PRESENT, *others))))

    doubted = film.doubting(dict.fromkeys(range(4), "other_side")).doubting(dict.fromkeys(range(5), "sentence_denies"))

    assert tuple(doubted.states.values()) == (FindingState.INDETERMINATE, *others)
    assert tuple(doubted.contradictions.values()) == (*["other_side"] * 4, "sentence_denies")
    assert film.doubting({1: "other_side"}).states == film.states


def test_sentences_are_compared_with_all_that_was_decided() -> None:
    film = reader_of(ScriptedEngine([0.8], [])).find(LOOK, (EDEMA,), side_of=side_of, zone_of=lambda *_: "lower zone")
    film = replace(film, has_ratio=True, lateralities={0: "unknown"})

    decided = film.decided()

    for name in ("prompts", "states", "measured", "side_of", "zone_of", "lateralities", "has_ratio"):
        assert getattr(decided, name) == getattr(film, name), name
    assert film.zone_of is not None and film.side_of is not None


@dataclass
class CountingEngine(ScriptedEngine):
    """Counts the sentences that are generated together."""

    batches: list[int] = field(default_factory=list)

    def write(self, features: FloatArray) -> IntArray:
        self.batches.append(len(features))
        return super().write(features)


@pytest.mark.parametrize(
    ("checked", "prompts", "batches"),
    [
        (True, (EDEMA,), [2]),
        (False, (EDEMA,), [1]),
        (True, (EDEMA, FRACTURE, NORMAL, LEFT), [6]),
        (True, (EDEMA, FRACTURE, NORMAL, LEFT, DEVICES), [5, 3]),
    ],
)
def test_only_few_sentences_are_generated_with_their_second_try(
    prompts: tuple[ReaderPrompt, ...], batches: list[int], *, checked: bool
) -> None:
    engine = CountingEngine([0.8] * len(prompts), ["Words."] * len(prompts))
    reader = reader_of(engine)
    reader.rule = "checked" if checked else "raw"

    reader.report(reader.look(np.zeros((300, 300), dtype=np.float32)), prompts)

    assert engine.batches == batches
    if batches == [2]:  # the second try is moved further toward the decision
        first, second = engine.heard
        assert second[0] > first[0]


def test_no_sentence_contradicts_that_a_film_is_normal() -> None:
    (normal,) = look(reader_of(ScriptedEngine([0.8], ["Abnormal."])), NORMAL)

    assert (normal.state, normal.contradiction) == (FindingState.PRESENT, None)


@pytest.mark.parametrize("contradiction", wording.CONTRADICTIONS)
def test_report_and_group_say_why_a_finding_is_in_doubt(contradiction: Contradiction) -> None:
    effusion = replace(samples.finding(), contradiction=contradiction)
    report = samples.report(samples.film(findings=(effusion,)))
    words = wording.CONTRADICTIONS[contradiction]

    [[group]] = measurements(report, report.films[0], samples.cr(), zone=samples.BERLIN)

    texts = [str(item.TextValue) for item in group.ContentSequence if "TextValue" in item]
    assert f'"Small right pleural effusion." {words}' in texts
    assert (words in report_txt.render(report)) is (contradiction not in wording.OF_FILM)
    assert f'"reason": "{words}"' in json.dumps(report_json.report_to_json(report, []))


def test_what_speaks_against_a_film_stands_in_its_impression() -> None:
    assert {note for note in Note if view_check.is_doubt(note)} <= set(wording.CAUTIONS)


def test_a_finding_without_a_sentence_still_says_why() -> None:
    bare = replace(samples.finding(sentence=None), contradiction="other_side")

    assert (
        wording.about_box(samples.film(findings=(bare,)), bare, bare.boxes[0]) == wording.CONTRADICTIONS["other_side"]
    )
    silent = samples.finding(sentence=None)
    assert wording.about_box(samples.film(), silent, silent.boxes[0]) is None


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
    boxes = np.array([RIGHT_BASE, LEFT_BASE, RIGHT_BASE])

    found = side_certainty(boxes, np.array([*scores, scores[0] / 2]), side_of=side_of)

    assert found == pytest.approx(expected), "a weaker box of a side changes nothing"


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


def test_both_sides_need_a_rule_of_sides_and_one_of_boxes() -> None:
    both = np.array([RIGHT_BASE, LEFT_BASE])

    for decisions in (replace(DECISIONS, boxes=SURE), replace(DECISIONS, sides=SURE)):
        assert laterality("fracture", both, (both, np.array([0.6, 0.6])), decisions, side_of) == "unknown"


def test_one_side_needs_a_rule_of_sides_alone() -> None:
    found = np.array([RIGHT_BASE, LEFT_BASE]), np.array([0.8, 0.2])
    decisions = replace(DECISIONS, sides=SURE)

    assert laterality("fracture", found[0][:1], found, decisions, side_of) == "boxes"
    assert laterality("fracture", found[0][:1], found, decisions, None) == "unknown"
    least = replace(DECISIONS, sides={"fracture": replace(RULE, least=0.75)})
    reached = found[0], np.array([0.75, 0.25])
    assert laterality("fracture", found[0][:1], reached, least, side_of) == "boxes"


@pytest.mark.parametrize("base", [RIGHT_BASE, LEFT_BASE])
def test_a_box_across_the_middle_beside_one_of_a_side_names_none(base: tuple[float, ...]) -> None:
    drawn = np.array([(0.5, 0.5, 0.4, 0.2), base])

    def across(x: float, width: float) -> Side | None:
        return None if x == 0.5 else side_of(x, width)

    decisions = replace(DECISIONS, boxes=SURE, sides=SURE)
    assert laterality("fracture", drawn, (drawn, np.array([0.1, 0.9])), decisions, across) == "unknown"


DECISIONS = Decisions(temperature=1.0, default_threshold=0.5, review_band=0.1, box_threshold=0.5, region_threshold=0.5)


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
    (edema, fracture), texts = read([0.25, 0.1, 0.1], boxes={"fracture": replace(RULE, least=0.25)})

    assert (edema.boxes, edema.laterality) == ((), "unknown")
    assert ([scored.score for scored in fracture.boxes], fracture.laterality) == ([0.25], "unknown")
    assert texts == ["There is edema.", "There is a fracture."]


def test_a_certain_side_is_told() -> None:
    (edema, fracture), texts = read([0.9, 0.1, 0.2], boxes=SURE, sides=SURE)

    assert {(reading.laterality, len(reading.boxes)) for reading in (edema, fracture)} == {("boxes", 1)}
    assert texts == ["Edema on the right.", "Fracture on the right."]
    uncertain, texts = read([0.6, 0.4, 0.2], sides=SURE)
    assert [reading.laterality for reading in uncertain] == ["unknown", "unknown"]
    assert texts == ["There is edema.", "There is a fracture."]


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


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("right base?", "The box lies in a zone that is not told, and may reach into the right lower lung zone."),
        (
            "left base?",
            "None of the reported boxes lies in the left lower lung zone; what is there may have been missed.",
        ),
    ],
)
def test_a_box_on_one_side_reaches_into_no_zone_of_the_other(asked: str, expected: str) -> None:
    film = samples.film(findings=(found({"laterality": "unknown"}),))

    assert replies.answer(questions.understand(asked, SET), film).text.endswith(expected)


def found(changes: Mapping[str, object], *, sides_known: bool = True) -> Finding:
    """Code an effusion whose box lies on the right."""
    framing = Framing(columns=1000, rows=1000, square=samples.SQUARE)
    box = ScoredBox(box=Box(left=100.0, top=600.0, right=300.0, bottom=800.0), score=0.6)
    answer = PromptReading(key="pleural_effusion", probability=0.8, state=FindingState.PRESENT, boxes=(box,))
    reading = FilmReading(prompts=(replace(answer, **changes),))  # type: ignore[arg-type]
    [finding] = find(reading, SET, source="1.2", framing=framing, model=samples.MODEL, sides_known=sides_known)
    return finding
