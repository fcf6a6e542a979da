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
BOTH = (RIGHT_BASE, LEFT_BASE)
ACROSS = (0.5, 0.5, 0.4, 0.2)


def side_of(x: float, _width: float) -> Side | None:
    return None if x == 0.5 else Side.RIGHT if x < 0.5 else Side.LEFT


LOOK = reader_of(ScriptedEngine([], [])).look(np.zeros((300, 300), dtype=np.float32))
SIDELESS = ("edema", "fracture", "lung", "no", "opacity")
"""The words of a network that never learned the sides: it is asked about no other one."""


def reader_with(engine: ScriptedEngine, vocabulary: tuple[str, ...] = (), /, **changes: object) -> ChexReader:
    """Make a reader whose sentences are checked, with other decisions; without a vocabulary it takes any words."""
    manifest = reader_of(engine).manifest
    decisions = replace(manifest.decisions, **changes)  # type: ignore[arg-type]
    manifest = replace(manifest, decisions=decisions, vocabulary=vocabulary)
    return ChexReader(manifest, engine, PROMPTS, SENTENCES, trusted="any", rule="checked")


def look(reader: ChexReader, *prompts: ReaderPrompt, knows_sides: bool = False) -> list[tuple[str | None, str | None]]:
    """Read a film: the state of each finding and what speaks against it, as the answer to its prompt must say too."""
    sides = side_of if knows_sides else None
    readings = reader.report(LOOK, prompts, side_of=sides).prompts
    asked = [Question(prompt=f" {prompt.phrases[0].upper()} ") for prompt in prompts]
    answers = reader.ask(LOOK, asked, reference=prompts, side_of=sides)
    for reading, answer in zip(readings, answers, strict=True):
        assert (answer.state, answer.contradiction) == (reading.state, reading.contradiction)
        assert (answer.score, answer.boxes) == (reading.probability, reading.boxes)
    return [(reading.state, reading.contradiction) for reading in readings]


@pytest.mark.parametrize(
    ("asked", "likely", "said", "states"),
    [
        pytest.param((EDEMA, NORMAL), [0.8, 0.8], ["Edema.", ""], ["present", "present"], id="normal, by a note alone"),
        pytest.param((EDEMA, NORMAL), [0.8, 0.55], ["Edema.", ""], ["present", "indeterminate"], id="maybe normal"),
        pytest.param((NORMAL,), [0.8], ["Abnormal."], ["present"], id="a sentence on a normal film"),
        pytest.param((EDEMA,), [0.55], ["No edema."], ["indeterminate"], id="a denial of what is possible"),
        pytest.param((EDEMA,), [0.3], ["No edema."], ["absent"], id="a denial of what is absent"),
    ],
)
def test_this_contradicts_no_finding(
    asked: tuple[ReaderPrompt, ...], likely: list[float], said: list[str], states: list[str]
) -> None:
    engine = ScriptedEngine(likely, said, in_boxes=(0.2,))

    assert look(reader_of(engine), *asked) == [(state, None) for state in states]
    assert engine.described == [], "its best box alone spoke against as many right findings as wrong ones"


@dataclass
class SidedEngine(ScriptedEngine):
    """Finds what it is asked for at the right base, but a question that names a side at a place of its own."""

    sided: tuple[float, ...] = RIGHT_BASE

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        films, count = prompts.shape[:2]
        found = ScriptedEngine.find(self, patches, prompts)
        place = RIGHT_BASE if count == len(self.probabilities) else self.sided
        boxes, scores = np.tile(np.array(place, dtype=np.float32), (films, count, 3, 1)), found.scores
        if place is self.sided:  # its best box counts
            boxes[:, :, ::2], scores = RIGHT_BASE, np.tile(np.array([0.2, 0.3, 0.1], dtype=np.float32), (1, count, 1))
        return replace(found, boxes=boxes, scores=np.repeat(scores, films, axis=0))


@pytest.mark.parametrize(
    ("sided", "name", "words", "knows_sides", "expected"),
    [
        (LEFT_BASE, "Edema", (), True, ("indeterminate", "other_side")),
        (RIGHT_BASE, "Edema", (), True, ("present", None)),
        (ACROSS, "Edema", (), True, ("present", None)),
        (LEFT_BASE, "Edema", (), False, ("present", None)),
        (LEFT_BASE, "Left edema", (), True, ("present", None)),
        (LEFT_BASE, "Edema", ("edema", "no", "fracture"), True, ("present", None)),  # it never learned the sides
    ],
)
def test_the_other_side_contradicts_a_box(
    sided: tuple[float, ...], name: str, words: tuple[str, ...], expected: tuple[str, str | None], *, knows_sides: bool
) -> None:
    reader = reader_with(SidedEngine([0.8, 0.3], ["Edema.", ""], sided=sided), words)

    edema, _ = look(reader, replace(EDEMA, phrases=(name,)), FRACTURE, knows_sides=knows_sides)

    assert edema == expected


@dataclass
class ReconsideringEngine(ScriptedEngine):
    """Says one thing first, and another when it is asked again."""

    first: str = "No edema."

    def says(self, feature: FloatArray) -> str:
        return super().says(feature) if self.heard else self.first


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(
    ("second", "expected", "said"),
    [
        ("No edema.", (FindingState.INDETERMINATE, "sentence_denies"), "Edema is possible; please review."),
        ("There is edema.", (FindingState.PRESENT, None), "There is edema."),
    ],
)
def test_a_sentence_that_denies_twice_contradicts(
    second: str, expected: tuple[str, str | None], said: str, *, checked: bool
) -> None:
    reader = reader_of(ReconsideringEngine([0.8], [second]))
    reader.rule = "checked" if checked else "raw"

    reading = reader.report(LOOK, [EDEMA])

    (edema,) = reading.prompts
    assert (edema.state, edema.contradiction) == expected
    if checked:
        assert [sentence.text for sentence in reading.sentences] == [said]


@pytest.mark.parametrize(("rule", "leaves"), [("checked", []), ("marked", ["Not seen by the network: No edema."])])
def test_a_denial_leaves_by_the_rule_for_it_alone(rule: SentenceRule, leaves: list[str]) -> None:
    own = {"edema": Measurement(measured_on="hospital", positives=9, negatives=9)}
    reader = reader_with(ScriptedEngine([0.2], ["No edema."]), SIDELESS, thresholds={"edema": 0.6}, measurements=own)
    reader.rule = rule

    assert [sentence.text for sentence in reader.report(LOOK, [EDEMA]).sentences] == leaves
    assert reader.ask(LOOK, [Question(prompt="Edema")], reference=[EDEMA])[0].sentence == "", "no answer denies"


def test_the_first_contradiction_of_a_finding_stays_and_only_what_is_present_becomes_possible() -> None:
    film = reader_of(ScriptedEngine([0.8], [])).find(LOOK, (EDEMA,))
    others = (FindingState.INDETERMINATE, FindingState.UNCALIBRATED, FindingState.ABSENT, FindingState.LEFT_OUT)
    film = replace(film, states=dict(enumerate((FindingState.PRESENT, *others))))

    doubted = film.doubting(dict.fromkeys(range(4), "other_side")).doubting(dict.fromkeys(range(5), "sentence_denies"))

    assert tuple(doubted.states.values()) == (FindingState.INDETERMINATE, *others)
    assert tuple(doubted.contradictions.values()) == (*["other_side"] * 4, "sentence_denies")
    assert film.doubting({1: "other_side"}).states == film.states


def test_sentences_are_compared_with_all_that_was_decided_and_the_best_box_of_a_region() -> None:
    film = reader_of(ScriptedEngine([0.8], [])).find(LOOK, (EDEMA,), side_of=side_of, zone_of=lambda *_: "lower zone")
    film = replace(film, has_ratio=True, lateralities={0: "unknown"})

    decided = film.decided()

    names = ("prompts", "states", "measured", "side_of", "zone_of", "lateralities", "has_ratio")
    assert [getattr(decided, name) for name in names] == [getattr(film, name) for name in names]
    scores = np.array([[0.9, 0.1, 0.1], [0.6, 0.8, 0.7]], dtype=np.float32)
    film = reader_of(ScriptedEngine([0.8, 0.8], [], scores)).find(LOOK, (EDEMA, LEFT))
    assert film.decided().regions["left_lung"].tolist() == film.regions.boxes[0, 1, 1].tolist()


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
        (False, tuple(replace(EDEMA, key=f"edema_{number}") for number in range(70)), [32, 32, 6]),
    ],
    ids=["one", "one that is not checked", "few", "many", "more than are generated at once"],
)
def test_only_few_sentences_are_generated_with_their_second_try(
    prompts: tuple[ReaderPrompt, ...], batches: list[int], *, checked: bool
) -> None:
    engine = CountingEngine([0.8] * len(prompts), ["There is edema."] * len(prompts))
    reader = reader_of(engine)
    reader.rule = "checked" if checked else "raw"

    reader.report(LOOK, prompts)

    assert engine.batches == batches
    if batches == [2]:  # the second try is moved further toward the decision
        first, second = engine.heard
        assert second[0] > first[0]


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
    silent = samples.finding(sentence=None)
    for doubted, said in ((silent, None), (replace(silent, contradiction=contradiction), words)):
        assert wording.about_box(samples.film(findings=(doubted,)), doubted, doubted.boxes[0]) == said


def test_what_speaks_against_a_film_stands_in_its_impression() -> None:
    assert {note for note in Note if view_check.is_doubt(note)} <= set(wording.CAUTIONS)


SET = prompts.load("chexpert14")

DECISIONS = Decisions(temperature=1.0, default_threshold=0.5, review_band=0.1, box_threshold=0.5, region_threshold=0.5)
RULE = PlaceRule(measured_on="hospital", least=0.7, told=20, right=18)
SURE: Mapping[str, PlaceRule] = {"fracture": RULE, "edema": RULE}


@pytest.mark.parametrize(
    ("boxes", "scores", "right"),
    [
        ((RIGHT_BASE, LEFT_BASE, RIGHT_BASE), (0.8, 0.2, 0.4), 0.8),  # a weaker box of a side changes nothing
        ((RIGHT_BASE, LEFT_BASE), (0.3, 0.3), 0.5),
        ((RIGHT_BASE, LEFT_BASE), (0.0, 0.0), 0.5),
        ((ACROSS, LEFT_BASE), (0.2, 0.6), 0.25),  # it counts on both
    ],
)
def test_the_certainty_of_a_side_is_its_share(
    boxes: tuple[tuple[float, ...], ...], scores: tuple[float, ...], right: float
) -> None:
    found = side_certainty(np.array(boxes), np.array(scores), side_of=side_of)

    assert found == pytest.approx({Side.RIGHT: right, Side.LEFT: 1 - right})


@pytest.mark.parametrize(
    ("drawn", "scores", "boxes", "sides", "expected"),
    [
        ((RIGHT_BASE,), (0.8, 0.2), {}, SURE, "boxes"),
        ((RIGHT_BASE,), (0.6, 0.4), SURE, SURE, "unknown"),
        ((RIGHT_BASE,), (0.75, 0.25), {}, {"fracture": replace(RULE, least=0.75)}, "boxes"),
        ((RIGHT_BASE,), (0.8, 0.2), SURE, {}, "unknown"),
        ((), (0.8, 0.2), SURE, SURE, "unknown"),
        (BOTH, (0.6, 0.6), SURE, SURE, "boxes"),
        (BOTH, (0.6, 0.6), {}, SURE, "unknown"),
        (BOTH, (0.6, 0.6), SURE, {}, "unknown"),
        ((ACROSS, LEFT_BASE), (0.1, 0.9), SURE, SURE, "unknown"),
        ((ACROSS, RIGHT_BASE), (0.9, 0.1), SURE, SURE, "unknown"),
    ],
)
def test_a_side_needs_a_measured_certainty(
    drawn: tuple[tuple[float, ...], ...],
    scores: tuple[float, float],
    boxes: Mapping[str, PlaceRule],
    sides: Mapping[str, PlaceRule],
    expected: Laterality,
) -> None:
    decisions = replace(DECISIONS, boxes=boxes, sides=sides)
    visible, found = np.array(drawn).reshape(-1, 4), (np.array(BOTH), np.array(scores))

    assert laterality("fracture", visible, found, decisions, side_of) == expected
    assert laterality("fracture", visible, found, decisions, None) == "unknown"
    assert decisions.on_phantoms() == DECISIONS, "there no rule of places holds"


OPACITY = ReaderPrompt(key="lung_opacity", kind=EDEMA.kind, phrases=("Lung opacity",), negatives=("No lung opacity",))
BOXES = np.array([[RIGHT_BASE, LEFT_BASE, LEFT_BASE]] * 2, dtype=np.float32)
UNKNOWN: Mapping[str, object] = {"laterality": "unknown"}
NOWHERE: Mapping[str, object] = {"laterality": "unknown", "boxes": ()}


SIDED, PLAIN = ["Edema on the right.", "Fracture on the right."], ["There is edema.", "There is a fracture."]


@pytest.mark.parametrize(
    ("scores", "rules", "places", "texts"),
    [
        ([0.25, 0.1, 0.1], {"boxes": {"fracture": replace(RULE, least=0.25)}}, [(0, "unknown"), (1, "unknown")], PLAIN),
        ([0.9, 0.1, 0.2], {"boxes": SURE, "sides": SURE}, [(1, "boxes")] * 2, SIDED),
        ([0.6, 0.4, 0.2], {"sides": SURE}, [(1, "unknown")] * 2, PLAIN),
        ([0.2, 0.1, 0.1], {}, [(1, "boxes")] * 2, SIDED),
    ],
    ids=["a weak box is not drawn", "a certain side is told", "an uncertain one is not", "as published"],
)
def test_reports_and_answers_tell_certain_places_alone(
    scores: list[float], rules: dict[str, object], places: list[tuple[int, Laterality]], texts: list[str]
) -> None:
    """An edema and a fracture, whose boxes on right, left and left have these scores."""
    engine = ScriptedEngine([0.8, 0.8], SIDED, scores=np.array([scores] * 2, dtype=np.float32), boxes=BOXES)
    reader = reader_with(engine, SIDELESS, **rules)

    said = reader.report(LOOK, (EDEMA, FRACTURE), side_of=side_of)
    answers = reader.ask(LOOK, [Question(prompt="Fracture")], reference=(EDEMA, FRACTURE), side_of=side_of)

    assert [(len(reading.boxes), reading.laterality) for reading in said.prompts] == places
    assert [sentence.text for sentence in said.sentences] == texts
    assert [(a.boxes, a.laterality) for a in answers] == [(said.prompts[1].boxes, said.prompts[1].laterality)]


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

    said = reader_with(engine, **rules).report(LOOK, asked, side_of=side_of)

    [sentence] = said.sentences
    assert len(said.prompts[0].boxes) == len(sentence.boxes) == is_drawn
    if not is_drawn:
        assert said.prompts[0].laterality == "unknown"
        assert not {"right", "upper", "zone"} & set(sentence.text.removesuffix(".").lower().split())


class ThenLungs(ScriptedEngine):
    """Locates what is asked first where a test says, and what is asked next in the upper zone."""

    def find(self, patches: Patches, prompts: FloatArray) -> Regions:
        regions = super().find(patches, prompts)
        self.boxes = np.array([[UPPER_ZONE] * 3], dtype=np.float32)
        return regions


@pytest.mark.parametrize(("box", "place"), [(NECK, (0, "unknown")), (UPPER_ZONE, (1, "boxes"))])
def test_neither_has_one_that_is_asked_for_in_other_words(box: tuple[float, ...], place: tuple[int, str]) -> None:
    scores, boxes = np.array([[0.9, 0.1, 0.1]], dtype=np.float32), np.array([[box] * 3], dtype=np.float32)
    reader = reader_with(ThenLungs([0.8], ["Small pneumothorax."], scores, boxes=boxes))

    asked, reference = [Question(prompt="small pneumothorax")], (SET["pneumothorax"], LUNG_ZONE)
    [answer] = reader.ask(LOOK, asked, reference=reference)

    assert (len(answer.boxes), answer.laterality) == place


@pytest.mark.parametrize(
    ("opacity", "measured_on", "expected"),
    [
        (0.3, "hospital", (FindingState.INDETERMINATE, "companion_silent")),
        (0.58, "hospital", (FindingState.PRESENT, None)),
        (0.3, "phantoms", (FindingState.PRESENT, None)),
        (0.3, None, (FindingState.PRESENT, None)),
    ],
)
def test_an_edema_without_an_opacity_is_to_be_reviewed(
    opacity: float, measured_on: str | None, expected: tuple[str, str | None]
) -> None:
    engine = ScriptedEngine([0.8, opacity], ["Edema.", ""], likeness={"No lung opacity": 1})
    own = {"lung_opacity": Measurement(measured_on=measured_on, positives=9, negatives=9)} if measured_on else {}

    edema, _ = look(reader_with(engine, thresholds={"lung_opacity": 0.6}, measurements=own), EDEMA, OPACITY)

    assert edema == expected


@pytest.mark.parametrize(
    ("answer", "side", "place", "name"),
    [
        ({}, Side.RIGHT, "told", "Right pleural effusion"),
        (UNKNOWN, None, "no_side", "Pleural effusion"),
        (NOWHERE, None, "no_place", "Pleural effusion"),
    ],
)
def test_all_outputs_begin_with_what_is_certain_of_a_place(
    answer: dict[str, object], side: Side | None, place: str, name: str
) -> None:
    finding = found(answer)
    film = samples.film(findings=(finding,))

    assert (finding.side, finding.place, finding.evidence is None) == (side, place, side is None)
    assert impression.of_film(film)[0] == f"1. {name}, 80 %"
    assert (wording.UNRELIABLE in wording.limits(film)) is (place != "told")


UNPLACED = "Where it lies is not told: places by this model are not reliable."
OF_NO_ZONE = "The box lies in a zone that is not told"


@pytest.mark.parametrize(
    ("asked", "answer", "is_film_sided", "expected"),
    [
        ("Effusion on the left?", UNKNOWN, True, f"Its box lies on the right. {wording.UNRELIABLE}."),
        ("Effusion on the left?", UNKNOWN, False, "The film does not say which side is which."),
        ("Effusion on the left?", {}, False, "The film does not say which side is which."),
        ("Effusion in the left lower lung zone?", NOWHERE, True, UNPLACED),
        ("Effusion in the left lower lung zone?", {"boxes": ()}, True, "Where it lies is not told."),
        ("Where is the effusion?", UNKNOWN, True, f"Its box lies on the right. {wording.UNRELIABLE}."),
        ("Where is the effusion?", UNKNOWN, False, "Its box lies in a zone that is not told."),
        ("Where is the effusion?", NOWHERE, True, UNPLACED),
        ("right base?", UNKNOWN, True, f"{OF_NO_ZONE}, and may reach into the right lower lung zone."),
    ],
)
def test_a_reply_says_why_it_tells_no_place(
    asked: str, answer: dict[str, object], expected: str, *, is_film_sided: bool
) -> None:
    film = samples.film(findings=(found(answer, sides_known=is_film_sided),))

    reply = replies.answer(questions.understand(asked, SET), film)

    assert reply.text == f"There is a pleural effusion. The probability is 80 %. {expected}"


def test_a_box_on_one_side_reaches_into_no_zone_of_the_other() -> None:
    reply = replies.answer(questions.understand("left base?", SET), samples.film(findings=(found(UNKNOWN),)))

    zone = "None of the reported boxes lies in the left lower lung zone"
    assert reply.text == f"{zone}; what is there may have been missed."


def found(changes: Mapping[str, object], *, sides_known: bool = True) -> Finding:
    """Code an effusion whose box lies on the right."""
    framing = Framing(columns=1000, rows=1000, square=samples.SQUARE)
    box = ScoredBox(box=Box(left=100.0, top=600.0, right=300.0, bottom=800.0), score=0.6)
    answer = PromptReading(key="pleural_effusion", probability=0.8, state=FindingState.PRESENT, boxes=(box,))
    reading = FilmReading(prompts=(replace(answer, **changes),))  # type: ignore[arg-type]
    [finding] = find(reading, SET, source="1.2", framing=framing, model=samples.MODEL, sides_known=sides_known)
    return finding
