"""Which generated sentences may leave, tried without a network; and that none that leaves contradicts a decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from language.check import Fault
from models.contract import FindingState, PromptKind, ReaderPrompt, Side
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
from tests.support.scripted_engine import EDEMA, FRACTURE, NORMAL


def pathology(key: str, name: str) -> ReaderPrompt:
    return ReaderPrompt(key=key, kind=PromptKind.PATHOLOGY, phrases=(name,), negatives=(f"No {name}",))


EFFUSION = pathology("pleural_effusion", "Pleural effusion")
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


def at_heights(*boxes: tuple[float, float]) -> list[FloatArray]:
    """Boxes on the right, each with the height of its center and its own height."""
    return [np.array([[0.25, y, 0.2, height]], dtype=np.float32) for y, height in boxes]


ACROSS = np.array([[0.45, 0.7, 0.3, 0.3]], dtype=np.float32)
FILM = decided()
UNMEASURED = decided(FindingState.UNCALIBRATED, is_measured=False, boxes=ELSEWHERE)
LEFT_OUT = replace(FILM, states={**FILM.states, 1: FindingState.LEFT_OUT})
SIDE_UNCERTAIN = replace(FILM, lateralities={0: "unknown"})  # then it is in no zone either
NO_SIDES = decided(knows_sides=False)
NO_SIDES_OF_TWO = decided(knows_sides=False, boxes=np.concatenate([RIGHT_BASE, ELSEWHERE]))
IN_THE_MIDDLE = replace(decided(boxes=ACROSS), side_of=half)  # the side is that of the center

HEART = ReaderPrompt(key="cardiac_silhouette", kind=PromptKind.REGION, phrases=("Cardiac silhouette",))
MEDIASTINUM = ReaderPrompt(key="mediastinum", kind=PromptKind.REGION, phrases=("Mediastinum",))
UPPER = ReaderPrompt(key="right_upper_lung_zone", kind=PromptKind.REGION, phrases=("Right upper lung zone",))
OF_TWO_ZONES = replace(FILM, prompts=(*PROMPTS, UPPER), boxes=[*FILM.boxes, *at_heights((0.25, 0.2))])
DEVICE = replace(OF_TWO_ZONES, prompts=(replace(EFFUSION, key="support_devices"), *OF_TWO_ZONES.prompts[1:]))
TWO_BOXES_OF_A_ZONE = replace(FILM, boxes=[RIGHT_BASE, ELSEWHERE, ELSEWHERE, np.concatenate([RIGHT_BASE, ELSEWHERE])])
HOLDS_BOTH = np.array([[0.5, 0.5, 1.0, 1.0]], dtype=np.float32)
HOLDS_NONE = np.array([[0.5, 0.5, 0.1, 0.1]], dtype=np.float32)
TWO_FINDINGS = Decided(  # an effusion at the right base, a fracture on the left
    prompts=(EFFUSION, FRACTURE, ZONE, HEART, MEDIASTINUM),
    states={0: FindingState.PRESENT, 1: FindingState.INDETERMINATE},
    measured={0: True, 1: True},
    boxes=[RIGHT_BASE, ELSEWHERE, RIGHT_BASE, HOLDS_NONE, HOLDS_BOTH],
    side_of=side_of,
)


def covering(height: float) -> Decided:
    """The lower zone, 0.4 high, and an effusion of this height within it, as wide."""
    box = (0.9 - height / 2, height)
    return replace(OF_TWO_ZONES, boxes=at_heights(box, box, box, (0.7, 0.4), (0.25, 0.4)))


def sharing(share: float) -> Decided:
    """The effusion's box lies in the zone with this share of it."""
    zone = np.array([[0.25 + 0.2 * (1 - share), 0.75, 0.2, 0.2]], dtype=np.float32)
    return replace(FILM, boxes=[RIGHT_BASE, ELSEWHERE, ELSEWHERE, zone])


@pytest.mark.parametrize(
    ("film", "index", "text", "fault"),
    [
        (FILM, 0, "There is a right pleural effusion.", None),
        (FILM, 0, "There is a small right pleural effusion.", None),
        (FILM, 0, "There is a right pleural effusion of 3 cm.", "severity"),
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
        (UNMEASURED, 0, "There is a left pleural effusion and pulmonary edema.", "contradicts"),
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
        # A zone is named only where a box lies: those of two zones, and where no region stands for the zone.
        (OF_TWO_ZONES, 0, "There is a pleural effusion at the right base.", None),
        (OF_TWO_ZONES, 0, "There is a pleural effusion in the right upper zone.", "wrong_zone"),
        (OF_TWO_ZONES, 0, "There is a pleural effusion in the right mid zone.", None),
        (OF_TWO_ZONES, 3, "There is a pleural effusion in the right upper zone.", "wrong_zone"),
        (OF_TWO_ZONES, 0, "An effusion is at the right base. An effusion is in the right upper zone.", "wrong_zone"),
        (DEVICE, 0, "A right catheter ends in the upper chest.", None),
        (covering(0.2), 3, "There is a pleural effusion in the right lower zone.", None),
        (covering(0.2), 3, "There is a pleural effusion in the right upper zone.", "wrong_zone"),
        (covering(0.15), 3, "There is a right pleural effusion.", None),  # three eighths of the zone
        (covering(0.12), 3, "There is a right pleural effusion.", "wrong_zone"),  # three tenths
        (sharing(0.11), 3, "The right lower lung zone is normal.", "normal_with_finding"),
        (sharing(0.09), 3, "The right lower lung zone is normal.", "denial"),
        (FILM, 0, "There is a pleural effusion at the right base.", None),
        (TWO_BOXES_OF_A_ZONE, 0, "There is a pleural effusion at the right base.", "wrong_zone"),
        # What else a sentence says must fit the boxes, too.
        (TWO_FINDINGS, 2, "There is a right pleural effusion.", None),
        (TWO_FINDINGS, 2, "There is a fracture.", "asserted"),
        (TWO_FINDINGS, 4, "There is a fracture of a left rib.", None),
        (TWO_FINDINGS, 4, "There is a left pleural effusion.", "wrong_side"),
        (TWO_FINDINGS, 4, "There is a right pleural effusion and a right rib fracture.", "wrong_side"),
        (TWO_FINDINGS, 0, "There is a right pleural effusion and a right rib fracture.", "wrong_side"),
        (TWO_FINDINGS, 0, "There is a right pleural effusion and a left rib fracture.", None),
        (TWO_FINDINGS, 3, "The cardiac silhouette is normal.", "denial"),
        (TWO_FINDINGS, 3, "The right lower lung zone is normal.", "not_named"),
        (
            TWO_FINDINGS,
            0,
            "There is a right pleural effusion; the right lower lung zone is normal.",
            "normal_with_finding",
        ),
        (TWO_FINDINGS, 1, "There is a fracture on the left; the cardiac silhouette is normal.", "denial"),
    ],
)
def test_a_sentence_must_say_what_was_decided(film: Decided, index: int, text: str, fault: str | None) -> None:
    assert film.fault(index, text) == fault


FIVE = (
    pathology("cardiomegaly", "Cardiomegaly"),
    pathology("edema", "Edema"),
    pathology("pneumothorax", "Pneumothorax"),
    EFFUSION,
    pathology("lung_opacity", "Lung opacity"),
)
CHEST = {"cardiac_silhouette": (0.5, 0.6, 0.35, 0.3)} | {
    f"{side}_{height}_lung_zone": (x, y, 0.24, 0.25)
    for side, x in (("right", 0.22), ("left", 0.78))
    for height, y in (("upper", 0.25), ("mid", 0.5), ("lower", 0.75))
}
"""A heart of 0.35 in a thorax of 0.8: a ratio of 0.44."""
PRESENT, ABSENT, POSSIBLE = FindingState.PRESENT, FindingState.ABSENT, FindingState.INDETERMINATE
UNCALIBRATED = FindingState.UNCALIBRATED


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
        (3, "No pleural effusion, and the bones are intact.", "denial"),
        (3, "No new pleural effusion.", "earlier_film"),
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
    film = replace(film, prompts=(FIVE[0], pathology(key, key.capitalize()), *FIVE[2:]))

    assert film.fault(4, "No lung opacity is seen.") == fault


@pytest.mark.parametrize(
    ("index", "text"),
    [(0, "There is a right pleural effusion."), (3, "There is an effusion in the right lower zone.")],
)
def test_what_was_not_measured_marks_the_sentence(index: int, text: str) -> None:
    unmeasured = replace(decided(FindingState.UNCALIBRATED), measured={0: False, 1: True})

    assert (unmeasured.maker(index, text), FILM.maker(index, text)) == ("network_uncalibrated", "network")


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


RULED = "A right pleural effusion in the lower zone is possible; please review."
SAID = "There is a right pleural effusion."


@pytest.mark.parametrize(
    ("state", "generated", "leaves", "maker", "withheld"),
    [
        (PRESENT, "No effusion.", "There is a right pleural effusion in the lower zone.", "rule", ["denied"]),
        (POSSIBLE, "No effusion.", RULED, "rule", ["denied"]),
        (UNCALIBRATED, "No effusion.", RULED, "rule", ["denied"]),
        (UNCALIBRATED, SAID, f"Possible, please review: {SAID}", "network_uncalibrated", []),
        (ABSENT, SAID, None, None, ["asserted"]),
    ],
)
def test_a_reported_finding_alone_has_a_sentence_if_need_be_by_rule(
    state: FindingState, generated: str, leaves: str | None, maker: str | None, withheld: list[str]
) -> None:
    film = replace(
        decided(state, is_measured=state is not FindingState.UNCALIBRATED),
        regions={ZONE.key: RIGHT_BASE[0]},
        zone_of=lambda key, boxes, regions: (
            "lower zone" if (key, len(boxes), [*regions]) == (EFFUSION.key, 1, [ZONE.key]) else None
        ),
    )

    said = settle(film, {0: generated}, lambda _: [generated])

    assert (said.texts.get(0), said.makers.get(0)) == (leaves, maker)
    assert [sentence.reason for sentence in said.withheld] == withheld


REVIEW, OF_NETWORK = "Possible, please review: ", "network_uncalibrated"
NODULE, LEFT_NODULE = "A nodule is possible; please review.", "A left nodule is possible; please review."
NOTCHING = "Rib notching is possible; please review."


@pytest.mark.parametrize(
    ("prompt", "text", "state", "said", "by"),
    [
        ("Nodule", "There is a nodule.", PRESENT, "There is a nodule.", "network"),
        ("Nodule", "There is a nodule.", ABSENT, "", "network"),
        ("Nodule", "No nodule.", ABSENT, "", "network"),
        ("Nodule", "There is a nodule.", None, "", "network"),
        ("Nodule", "There is a nodule.", UNCALIBRATED, f"{REVIEW}There is a nodule.", OF_NETWORK),
        ("left nodule", "There is a left nodule.", UNCALIBRATED, f"{REVIEW}There is a left nodule.", OF_NETWORK),
        ("rib notching", "There is rib notching.", UNCALIBRATED, f"{REVIEW}There is rib notching.", OF_NETWORK),
        # An answer asserts nothing but what was asked for.
        ("Nodule", "There is a nodule and edema.", UNCALIBRATED, NODULE, "rule"),
        ("Nodule", "There is edema.", UNCALIBRATED, NODULE, "rule"),
        ("Nodule", "There is a nodule on the left.", UNCALIBRATED, NODULE, "rule"),
        ("left nodule", "There is a left nodule and an effusion.", UNCALIBRATED, LEFT_NODULE, "rule"),
        ("left nodule", "There is a right nodule.", UNCALIBRATED, LEFT_NODULE, "rule"),
        ("rib notching", "The aorta is tortuous.", UNCALIBRATED, NOTCHING, "rule"),
        ("rib notching", "There is rib notching and edema.", UNCALIBRATED, NOTCHING, "rule"),
    ],
)
def test_other_words_are_answered_as_decided(
    prompt: str, text: str, state: FindingState | None, said: str, by: str
) -> None:
    assert answer_in_words(text, prompt=prompt, state=state) == (said, by)


def test_every_reason_is_counted_from_zero() -> None:
    own = {
        sentence_check.CONTRADICTS,
        sentence_check.NOT_MEASURED,
        sentence_check.SIDE_UNKNOWN,
        sentence_check.WRONG_ZONE,
    }
    reasons = {fault.value for fault in Fault} | own

    assert set(WITHHELD) == reasons


def test_no_sentence_that_leaves_contradicts_a_decision(phantom_model: Path) -> None:
    """By patterns that share no rule with the program, and with words and boxes for all that is reported."""
    asked = prompts.load("chexpert14")
    reader: RadiographReader = open_reader(phantom_model, prompts=asked, engine="onnx", threads=1, trusted="any")
    measured = measured_on(phantom_model, "any", asked)

    wrong, said = [], 0
    for name, image in of_phantoms(2_000_100, 12).images(reader):
        reading = reader.read(image, asked)
        film = film_of(reading, image, asked, source="1.2.3", model=reader.identity)
        faults = [*contradictions_of(film, reading.regions), *incomplete(film, measured)]
        wrong += [f"{name}: {fault}" for fault in faults]
        said += len(film.sentences)
    assert wrong == []
    assert said > 12
