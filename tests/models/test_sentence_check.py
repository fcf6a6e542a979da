"""Which generated sentences may leave, tried without a network; and that none that leaves contradicts a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from language.check import Fault
from models.contract import FindingState, PromptKind, ReaderPrompt, Side, Trusted
from models.engines import FloatArray
from models.reading import sentence_check
from models.reading.sentence_check import Decided, answer_in_words, settle
from node.metrics import WITHHELD
from node.read import prompts
from node.read.film import film_of
from node.read.model import RadiographReader, open_reader
from tests.drills.sweep.checks import incomplete, measured_on
from tests.drills.sweep.films import of_phantoms
from tests.drills.sweep.patterns import contradictions_of

EFFUSION = ReaderPrompt(
    key="pleural_effusion", kind=PromptKind.PATHOLOGY, phrases=("Pleural effusion",), negatives=("No pleural effusion",)
)
EDEMA = ReaderPrompt(key="edema", kind=PromptKind.PATHOLOGY, phrases=("Edema",), negatives=("No edema",))
NORMAL = ReaderPrompt(key="no_finding", kind=PromptKind.NO_FINDING, phrases=("Normal",), negatives=("Abnormal",))
OBJECTS = pytest.mark.drill(part="objects")
ZONE = ReaderPrompt(key="right_lower_lung_zone", kind=PromptKind.REGION, phrases=("Right lower lung zone",))
PROMPTS = (EFFUSION, EDEMA, NORMAL, ZONE)

RIGHT_BASE = np.array([[0.25, 0.75, 0.2, 0.2]], dtype=np.float32)
ELSEWHERE = np.array([[0.75, 0.25, 0.2, 0.2]], dtype=np.float32)


def side_of(x: float, _width: float) -> Side:
    return Side.RIGHT if x < 0.5 else Side.LEFT


def decided(
    effusion: FindingState = FindingState.PRESENT,
    *,
    is_measured: bool = True,
    knows_sides: bool = True,
    boxes: FloatArray = RIGHT_BASE,
) -> Decided:
    """An effusion in that state and no edema; the fourth prompt's region holds the right base."""
    return Decided(
        prompts=PROMPTS,
        states={0: effusion, 1: FindingState.ABSENT, 2: FindingState.ABSENT},
        measured=dict.fromkeys(range(3), is_measured),
        boxes=[boxes, ELSEWHERE, ELSEWHERE, RIGHT_BASE],
        side_of=side_of if knows_sides else None,
    )


def half(x: float, width: float) -> Side | None:
    """As the node does: on one side of the middle, or across it by 5 % at most."""
    is_right, is_left = x + width / 2 <= 0.55, x - width / 2 >= 0.45
    return None if is_right == is_left else Side.RIGHT if is_right else Side.LEFT


ACROSS = np.array([[0.45, 0.7, 0.3, 0.3]], dtype=np.float32)
FILM = decided()
UNMEASURED = decided(FindingState.UNCALIBRATED, is_measured=False, boxes=ELSEWHERE)
LEFT_OUT = replace(FILM, states={**FILM.states, 1: FindingState.LEFT_OUT})
SIDE_UNCERTAIN = replace(FILM, lateralities={0: "unknown"})  # then it is in no zone either
NO_SIDES = decided(knows_sides=False)
NO_SIDES_OF_TWO = decided(knows_sides=False, boxes=np.concatenate([RIGHT_BASE, ELSEWHERE]))
IN_THE_MIDDLE = replace(decided(boxes=ACROSS), side_of=half)  # the side is that of the center


@pytest.mark.parametrize(
    ("film", "index", "text", "fault"),
    [
        (FILM, 0, "There is a right pleural effusion.", None),
        (FILM, 0, "There is a small right pleural effusion.", None),
        (FILM, 0, "There is a right pleural effusion of 3 cm.", "severity"),
        (FILM, 0, "There is a larger right pleural effusion.", "severity"),
        (FILM, 0, "There is a right pleural effusion without pneumothorax.", "denial"),
        (FILM, 0, "No pleural effusion is seen.", "denied"),
        (FILM, 0, "There is a left pleural effusion.", "wrong_side"),
        (FILM, 0, "There is consolidation.", "not_named"),
        (FILM, 0, "There is a new right pleural effusion.", "earlier_film"),
        (FILM, 0, "There is a right pleural effusion and pulmonary edema.", "contradicts"),
        (FILM, 1, "No pulmonary edema is seen.", "denial"),
        (FILM, 1, "There is pulmonary edema.", "asserted"),
        (FILM, 2, "Abnormal.", "not_measured"),
        (FILM, 2, "Normal.", "not_measured"),
        (FILM, 3, "The right lower lung zone is normal.", "normal_with_finding"),
        (FILM, 3, "There is a pleural effusion in the right lower zone.", None),
        (NO_SIDES, 3, "There is a pleural effusion in the right lower zone.", "side_unknown"),
        (decided(boxes=ELSEWHERE), 3, "The right lower lung zone is normal.", "denial"),
        (UNMEASURED, 0, "There is a left pleural effusion.", None),
        (UNMEASURED, 0, "There is a right pleural effusion.", "wrong_side"),
        (UNMEASURED, 0, "There is a small left pleural effusion.", None),
        (UNMEASURED, 0, "There is a left pleural effusion and pulmonary edema.", "contradicts"),
        (UNMEASURED, 0, "There is a left pleural effusion, no edema.", "denial"),
        (UNMEASURED, 1, "No pulmonary edema is seen.", "denial"),
        (UNMEASURED, 3, "The right lower lung zone is normal.", "denial"),
        (UNMEASURED, 3, "There is a pleural effusion in the right lower zone.", "asserted"),
        (UNMEASURED, 3, "There is a pleural other in the right lower zone.", "not_measured"),
        (LEFT_OUT, 1, "There is pulmonary edema.", "not_measured"),
        (LEFT_OUT, 1, "No edema.", "not_measured"),
        (LEFT_OUT, 0, "There is a right pleural effusion without edema.", "denial"),
        (SIDE_UNCERTAIN, 0, "There is a pleural effusion.", None),
        (SIDE_UNCERTAIN, 0, "There is a right pleural effusion.", "side_unknown"),
        (SIDE_UNCERTAIN, 0, "There is a pleural effusion in the lower zone.", "wrong_zone"),
        (SIDE_UNCERTAIN, 3, "There is a pleural effusion.", "side_unknown"),  # its boxes lie in that region
        (NO_SIDES, 0, "There is a right pleural effusion.", "side_unknown"),
        (NO_SIDES, 0, "There is a pleural effusion.", None),
        (NO_SIDES_OF_TWO, 0, "There is a right pleural effusion.", "side_unknown"),
        (NO_SIDES_OF_TWO, 0, "There is a pleural effusion.", None),
        (IN_THE_MIDDLE, 0, "There is a right pleural effusion.", None),
        (IN_THE_MIDDLE, 0, "There is a left pleural effusion.", "wrong_side"),
        (IN_THE_MIDDLE, 0, "There are bilateral pleural effusions.", "wrong_side"),
        (IN_THE_MIDDLE, 0, "There is a pleural effusion.", None),
    ],
)
def test_a_sentence_must_say_what_was_decided(film: Decided, index: int, text: str, fault: str | None) -> None:
    assert film.fault(index, text) == fault


def _pathology(key: str, name: str) -> ReaderPrompt:
    return ReaderPrompt(key=key, kind=PromptKind.PATHOLOGY, phrases=(name,), negatives=(f"No {name}",))


FIVE = (
    _pathology("cardiomegaly", "Cardiomegaly"),
    _pathology("edema", "Edema"),
    _pathology("pneumothorax", "Pneumothorax"),
    EFFUSION,
    _pathology("lung_opacity", "Lung opacity"),
)
CHEST = {"cardiac_silhouette": (0.5, 0.6, 0.35, 0.3)} | {
    f"{side}_{height}_lung_zone": (x, y, 0.24, 0.25)
    for side, x in (("right", 0.22), ("left", 0.78))
    for height, y in (("upper", 0.25), ("mid", 0.5), ("lower", 0.75))
}
"""A heart of 0.35 in a thorax of 0.8: a ratio of 0.44."""
PRESENT, ABSENT, POSSIBLE = FindingState.PRESENT, FindingState.ABSENT, FindingState.INDETERMINATE


def of_five(*states: FindingState, has_ratio: bool = False, deniable: Sequence[int] = ()) -> Decided:
    return Decided(
        prompts=FIVE,
        states=dict(enumerate(states)),
        measured=dict.fromkeys(range(len(states)), True),
        boxes=[RIGHT_BASE] * len(FIVE),
        side_of=side_of,
        regions={key: np.array(box, dtype=np.float32) for key, box in CHEST.items()},
        has_ratio=has_ratio,
        deniable=deniable,
    )


@pytest.mark.parametrize(
    ("index", "text", "has_ratio", "fault"),
    [
        (0, "The heart is mildly enlarged.", False, None),
        (0, "The heart is mildly enlarged.", True, "contradicts"),
        (0, "The heart is enlarged.", True, "contradicts"),
        (1, "There is moderate interstitial pulmonary edema.", True, None),
        (1, "There is moderate edema with a small pneumothorax.", False, "severity"),
        (1, "There is moderate edema and mild cardiomegaly.", True, "contradicts"),
        (2, "There is a large pneumothorax.", False, None),
        (2, "There is a tiny pneumothorax.", False, "severity"),
        (2, "There is a tension pneumothorax.", False, "severity"),
        (2, "There is a 2 cm pneumothorax.", False, "severity"),
    ],
)
def test_severity_is_worded_of_what_is_reported(index: int, text: str, fault: str | None, *, has_ratio: bool) -> None:
    film = of_five(PRESENT, PRESENT, PRESENT, has_ratio=has_ratio)

    assert film.fault(index, text) == fault
    assert replace(film, states={**film.states, index: ABSENT}).fault(index, text) is not None
    possible = replace(film, states={**film.states, index: POSSIBLE})
    assert fault or possible.stated(index, text) == f"Possible, please review: {text}"


@pytest.mark.parametrize(
    ("index", "text", "fault"),
    [
        (3, "No larger pleural effusion is seen.", None),
        (3, "There is no pleural effusion or pneumothorax.", "denial"),  # nobody measured the other
        (3, "There is no pleural effusion or edema.", "contradicts"),
        (3, "No pleural effusion or free air.", "denial"),
        (3, "No pleural effusion, and the bones are intact.", "denial"),
        (3, "No new pleural effusion.", "earlier_film"),
        (3, "No pleural effusion of more than 3 cm.", "denial"),
        (3, "No left pleural effusion.", "wrong_side"),
        (2, "There is no pneumothorax.", "denial"),
        (4, "No lung opacity is seen.", "denial"),  # which an edema never is without
        (1, "No edema.", "denied"),
    ],
)
def test_a_denial_leaves_marked_only_of_what_is_measured_and_below(index: int, text: str, fault: str | None) -> None:
    film = of_five(PRESENT, PRESENT, ABSENT, ABSENT, ABSENT, deniable=(1, 3, 4))

    assert film.fault(index, text) == fault
    assert replace(film, deniable=()).fault(index, text) == (fault or "denial")
    if fault is None:
        said = settle(film, {index: text}, lambda _: [])
        assert said.texts == {index: f"Not seen by the network: {text}"}
        assert (said.by(index), said.withheld) == ("network", ())


@pytest.mark.parametrize(
    ("key", "fault"), [("consolidation", "denial"), ("pneumonia", "denial"), ("atelectasis", None)]
)
def test_no_opacity_is_denied_beside_what_implies_it(key: str, fault: str | None) -> None:
    film = of_five(ABSENT, PRESENT, ABSENT, ABSENT, ABSENT, deniable=(4,))
    film = replace(film, prompts=(FIVE[0], _pathology(key, key.capitalize()), *FIVE[2:]))

    assert film.fault(4, "No lung opacity is seen.") == fault


@pytest.mark.parametrize(
    ("key", "text", "fault"),
    [
        ("pleural_effusion", "There is a pleural effusion at the right base.", None),
        ("pleural_effusion", "There is a right pleural effusion.", None),
        ("pleural_effusion", "There is a pleural effusion in the right upper zone.", "wrong_zone"),
        ("pleural_effusion", "There is a pleural effusion in the right mid zone.", None),  # which no region stands for
        (
            "pleural_effusion",
            "There is an effusion at the right base. There is an effusion in the right upper zone.",
            "wrong_zone",
        ),
        ("support_devices", "A right catheter ends in the upper chest.", None),
    ],
)
def test_a_sentence_names_no_zone_without_a_box(key: str, text: str, fault: str | None) -> None:
    upper = ReaderPrompt(key="right_upper_lung_zone", kind=PromptKind.REGION, phrases=("Right upper lung zone",))
    base = decided()
    film = replace(
        base,
        prompts=(replace(EFFUSION, key=key), *PROMPTS[1:], upper),
        boxes=[*base.boxes, np.array([[0.25, 0.25, 0.2, 0.2]], dtype=np.float32)],
    )

    assert film.fault(0, text) == fault
    if key == EFFUSION.key:  # the same said of the region that holds the effusion
        assert film.fault(3, text) == fault


@pytest.mark.parametrize(
    ("height", "text", "fault"),
    [
        pytest.param(0.2, "There is a pleural effusion in the right lower zone.", None, id="a half"),
        pytest.param(0.15, "There is a right pleural effusion.", None, id="three eighths"),
        pytest.param(0.12, "There is a right pleural effusion.", "wrong_zone", id="three tenths"),
        pytest.param(0.2, "There is a pleural effusion in the right upper zone.", "wrong_zone", id="another zone"),
    ],
)
def test_a_zone_of_a_region_is_covered_by_a_third(height: float, text: str, fault: str | None) -> None:
    """The zones are 0.4 high; the box of the effusion lies within the lower one, and is as wide."""
    upper = ReaderPrompt(key="right_upper_lung_zone", kind=PromptKind.REGION, phrases=("Right upper lung zone",))
    zone, box = (0.25, 0.7, 0.2, 0.4), (0.25, 0.9 - height / 2, 0.2, height)
    boxes = [np.array([each], dtype=np.float32) for each in (box, box, box, zone, (0.25, 0.25, 0.2, 0.4))]
    film = replace(decided(), prompts=(*PROMPTS, upper), boxes=boxes)

    assert film.fault(3, text) == fault


@pytest.mark.parametrize(("share", "fault"), [(0.11, "normal_with_finding"), (0.09, "denial")])
def test_a_box_lies_in_a_region_with_a_tenth_of_it(share: float, fault: str) -> None:
    zone = np.array([[0.25 + 0.2 * (1 - share), 0.75, 0.2, 0.2]], dtype=np.float32)
    film = replace(decided(), boxes=[RIGHT_BASE, ELSEWHERE, ELSEWHERE, zone])

    assert film.fault(3, "The right lower lung zone is normal.") == fault


def test_each_box_of_a_zone_holds_a_finding_that_is_said_there() -> None:
    text = "There is a pleural effusion at the right base."
    two = np.concatenate([RIGHT_BASE, ELSEWHERE])

    assert decided().fault(0, text) is None
    assert replace(decided(), boxes=[RIGHT_BASE, ELSEWHERE, ELSEWHERE, two]).fault(0, text) == "wrong_zone"


FRACTURE = ReaderPrompt(key="fracture", kind=PromptKind.PATHOLOGY, phrases=("Fracture",), negatives=("No fracture",))
HEART = ReaderPrompt(key="cardiac_silhouette", kind=PromptKind.REGION, phrases=("Cardiac silhouette",))
MEDIASTINUM = ReaderPrompt(key="mediastinum", kind=PromptKind.REGION, phrases=("Mediastinum",))
WHOLE_FILM = np.array([[0.5, 0.5, 1.0, 1.0]], dtype=np.float32)
CENTER = np.array([[0.5, 0.5, 0.1, 0.1]], dtype=np.float32)


@pytest.mark.parametrize(
    ("index", "text", "fault"),
    [
        # An effusion at the right base, a fracture on the left; the mediastinum's box holds both, the heart's none.
        (2, "There is a right pleural effusion.", None),
        (2, "There is a fracture.", "asserted"),
        (4, "There is a fracture of a left rib.", None),
        (4, "There is a left pleural effusion.", "wrong_side"),
        (4, "There is a right pleural effusion and a right rib fracture.", "wrong_side"),
        (0, "There is a right pleural effusion and a right rib fracture.", "wrong_side"),
        (0, "There is a right pleural effusion and a left rib fracture.", None),
        (3, "The cardiac silhouette is normal.", "denial"),
        (3, "The right lower lung zone is normal.", "not_named"),
        (0, "There is a right pleural effusion; the right lower lung zone is normal.", "normal_with_finding"),
        (1, "There is a fracture on the left; the cardiac silhouette is normal.", "denial"),
    ],
)
def test_what_else_a_sentence_says_must_fit_the_boxes(index: int, text: str, fault: str | None) -> None:
    film = Decided(
        prompts=(EFFUSION, FRACTURE, ZONE, HEART, MEDIASTINUM),
        states={0: FindingState.PRESENT, 1: FindingState.INDETERMINATE},
        measured={0: True, 1: True},
        boxes=[RIGHT_BASE, ELSEWHERE, RIGHT_BASE, CENTER, WHOLE_FILM],
        side_of=side_of,
    )

    assert film.fault(index, text) == fault


@pytest.mark.parametrize(
    ("index", "text", "measured", "by"),
    [
        (0, "There is a right pleural effusion.", {0: False, 1: True}, "network_uncalibrated"),
        (3, "There is an effusion in the right lower zone.", {0: False, 1: True}, "network_uncalibrated"),
    ],
)
def test_what_was_not_measured_marks_the_sentence(index: int, text: str, measured: dict[int, bool], by: str) -> None:
    film = replace(decided(FindingState.UNCALIBRATED), measured=measured)

    assert film.maker(index, text) == by
    assert decided().maker(index, text) == "network"


def test_a_second_try_comes_before_a_sentence_by_rule() -> None:
    asked: list[list[int]] = []

    def again(indices: list[int]) -> list[str]:
        asked.append(indices)
        return ["There is a right pleural effusion."]

    said = settle(decided(), {0: "No pleural effusion.", 1: "No edema.", 2: "Normal."}, again)

    assert asked == [[0]]
    assert said.texts == {0: "There is a right pleural effusion."}
    assert said.by(0) == "network"
    assert [(sentence.text, sentence.prompt, sentence.reason) for sentence in said.withheld] == [
        ("No pleural effusion.", "pleural_effusion", "denied"),
        ("No edema.", "edema", "denial"),
        ("Normal.", "no_finding", "not_measured"),
    ]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (FindingState.PRESENT, "There is a right pleural effusion in the lower zone."),
        (FindingState.INDETERMINATE, "A right pleural effusion in the lower zone is possible; please review."),
        (FindingState.UNCALIBRATED, "A right pleural effusion in the lower zone is possible; please review."),
    ],
)
def test_a_reported_finding_gets_a_sentence_by_rule(state: FindingState, text: str) -> None:
    film = replace(
        decided(state, is_measured=state is not FindingState.UNCALIBRATED),
        regions={ZONE.key: RIGHT_BASE[0]},
        zone_of=lambda key, boxes, regions: (
            "lower zone" if (key, len(boxes), [*regions]) == (EFFUSION.key, 1, [ZONE.key]) else None
        ),
    )

    said = settle(film, {0: "No effusion."}, lambda _: ["No effusion."])

    assert (said.texts, said.makers) == ({0: text}, {0: "rule"})


def test_a_sentence_that_nothing_measured_leaves_with_its_state() -> None:
    text = "There is a right pleural effusion."

    said = settle(decided(FindingState.UNCALIBRATED, is_measured=False), {0: text}, lambda _: [])

    assert said.texts == {0: f"Possible, please review: {text}"}
    assert (said.makers, said.withheld) == ({0: "network_uncalibrated"}, ())


def test_a_finding_that_is_not_reported_gets_none() -> None:
    said = settle(
        decided(FindingState.ABSENT), {0: "There is a right pleural effusion."}, lambda _: ["Pleural effusion."]
    )

    assert said.texts == {}
    assert [sentence.reason for sentence in said.withheld] == ["asserted"]


@pytest.mark.parametrize(
    ("prompt", "text", "state", "said"),
    [
        ("Nodule", "There is a nodule.", FindingState.PRESENT, ("There is a nodule.", "network")),
        ("Nodule", "There is a nodule.", FindingState.UNCALIBRATED, None),
        ("left nodule", "There is a left nodule.", FindingState.UNCALIBRATED, None),
        ("rib notching", "There is rib notching.", FindingState.UNCALIBRATED, None),
        ("Nodule", "There is a nodule.", FindingState.ABSENT, ("", "network")),
        ("Nodule", "No nodule.", FindingState.ABSENT, ("", "network")),
        ("Nodule", "There is a nodule.", None, ("", "network")),
    ],
)
def test_other_words_are_answered_as_decided(
    prompt: str, text: str, state: FindingState | None, said: tuple[str, str] | None
) -> None:
    assert answer_in_words(text, prompt=prompt, state=state) == (
        said or (f"Possible, please review: {text}", "network_uncalibrated")
    )


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("Nodule", "There is a nodule and edema."),
        ("Nodule", "There is edema."),
        ("Nodule", "There is a nodule on the left."),
        ("left nodule", "There is a left nodule and an effusion."),
        ("left nodule", "There is a right nodule."),
        ("rib notching", "The aorta is tortuous."),
        ("rib notching", "There is rib notching and edema."),
    ],
)
def test_an_answer_asserts_nothing_but_what_was_asked_for(prompt: str, text: str) -> None:
    assert answer_in_words(text, prompt=prompt, state=FindingState.UNCALIBRATED)[1] == "rule"


def test_every_reason_is_counted_from_zero() -> None:
    own = {
        sentence_check.CONTRADICTS,
        sentence_check.NOT_MEASURED,
        sentence_check.SIDE_UNKNOWN,
        sentence_check.WRONG_ZONE,
    }
    reasons = {fault.value for fault in Fault} | own

    assert set(WITHHELD) == reasons


@pytest.mark.parametrize("trusted", [pytest.param(name, marks=OBJECTS) for name in ("phantoms", "real")] + ["any"])
def test_no_sentence_that_leaves_contradicts_a_decision(phantom_model: Path, trusted: Trusted) -> None:
    """By patterns that share no rule with the program, and with words and boxes for all that is reported."""
    asked = prompts.load("chexpert14")
    reader: RadiographReader = open_reader(phantom_model, prompts=asked, engine="onnx", threads=1, trusted=trusted)
    measured = measured_on(phantom_model, trusted, asked)

    wrong, said = [], 0
    for name, image in of_phantoms(2_000_100, 12).images(reader):
        reading = reader.read(image, asked)
        film = film_of(reading, image, asked, source="1.2.3", model=reader.identity)
        faults = [*contradictions_of(film, reading.regions), *incomplete(film, measured)]
        wrong += [f"{name}: {fault}" for fault in faults]
        said += len(film.sentences)
    assert wrong == []
    assert said > 12
