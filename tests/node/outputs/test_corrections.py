"""What a reader corrects: exactly that changes, with what follows from it, and another correction takes it back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from language.check import contradictions
from language.sentences import not_seen
from models.contract import Box, By, Contradiction, FindingState, ScoredBox, Side
from models.documents import encode
from node import metrics
from node.domain import Assessment, Evidence, Film, Finding, FindingBox, GroundedSentence, Note
from node.outputs import impression
from node.outputs.corrected_film import CORRECTED, correct, objection
from node.read import prompts
from node.store import correction
from node.store.correction import Correction, CorrectionKind

SET = prompts.load("chexpert14")
FILM = "1.2.3.4"
LEFT_BOX, RIGHT_BOX = Box(left=600, top=500, right=900, bottom=900), Box(left=100, top=500, right=400, bottom=900)
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
ZONE = Evidence(zone="left_lower_lung_zone", extent=0.4)
POSSIBLE = "Possible, please review"


def side_of(box: Box) -> Side | None:
    """The patient's left is on the right of the film, which has 1000 columns."""
    return Side.LEFT if box.left >= 500 else Side.RIGHT if box.right <= 500 else None


def finding(
    key: str, state: FindingState, sentence: int | None, *, contradiction: Contradiction | None = None
) -> Finding:
    prompt = SET[key]
    assert prompt.finding is not None
    is_absent = not state.is_reported
    box = FindingBox(box=LEFT_BOX, score=0.7, tracking_uid=f"2.25.{len(key)}", side=Side.LEFT, evidence=ZONE)
    return Finding(
        prompt=key,
        code=prompt.finding,
        site=prompt.site,
        side=None if is_absent else Side.LEFT if prompt.paired else None,
        probability=0.1 if is_absent else 0.8,
        state=state,
        boxes=() if is_absent else (replace(box, side=Side.LEFT if prompt.paired else None),),
        sentence=sentence,
        evidence=None if is_absent else ZONE,
        contradiction=contradiction,
    )


def sentence(text: str, key: str, *, by: By = "network", box: Box = LEFT_BOX) -> GroundedSentence:
    return GroundedSentence(text=text, prompt=key, score=0.5, boxes=(ScoredBox(box=box, score=0.7),), by=by)


def film() -> Film:
    return Film(
        source=FILM,
        columns=1000,
        rows=1200,
        analyzed=Box(left=0, top=100, right=1000, bottom=1100),
        sentences=(
            sentence("There is a left pleural effusion.", "pleural_effusion"),
            sentence("Left consolidation is possible; please review.", "consolidation", by="rule"),
            sentence("Left pleural effusion and cardiomegaly.", "cardiomegaly"),
            sentence("No pneumothorax.", "pneumothorax"),
            sentence("The right lung is clear.", "right_lung", box=RIGHT_BOX),
        ),
        findings=(
            finding("pleural_effusion", FindingState.PRESENT, 0),
            finding("consolidation", FindingState.INDETERMINATE, 1, contradiction="other_side"),
            finding("cardiomegaly", FindingState.PRESENT, 2),
            finding("pneumothorax", FindingState.ABSENT, 3),
            finding("edema", FindingState.ABSENT, None),
        ),
    )


def made(kind: CorrectionKind, number: int = 1, /, **changes: object) -> Correction:
    blank = Correction(
        id=f"{number:032x}",
        study_uid="1.2.3",
        film=FILM,
        kind=CorrectionKind.ACCEPT,
        prompt="edema",
        at=START + timedelta(seconds=number),
        by="anna",
        source="page",
    )
    emptied = {"prompt": ""} if kind is CorrectionKind.WITHDRAW else {}
    return replace(blank, kind=kind, **{**emptied, **changes})  # type: ignore[arg-type]


def corrected(*corrections: Correction) -> Film:
    return correct(film(), corrections, prompts=SET, side_of=side_of)


def found(key: str, answer: Film) -> Finding:
    return next(finding for finding in answer.findings if finding.prompt == key)


EFFUSION, HEART = "There is a left pleural effusion.", "Left pleural effusion and cardiomegaly."
CONSOLIDATION, LUNG = "Left consolidation is possible; please review.", "The right lung is clear."
ZONE_SAID, PACEMAKER = "There is severe consolidation in the left lower lung zone.", "There is a left pacemaker."
UNSEEN, DENIAL = not_seen("No acute fracture."), "No pneumothorax."


def talkative() -> Film:
    """The film with devices and more sentences: about a zone, the devices, and what was not seen."""
    more = (
        sentence(ZONE_SAID, "left_lower_lung_zone"),
        sentence(PACEMAKER, "support_devices"),
        sentence(UNSEEN, "fracture"),
    )
    devices = finding("support_devices", FindingState.PRESENT, len(film().sentences) + 1)
    return replace(film(), sentences=(*film().sentences, *more), findings=(*film().findings, devices))


def moved(key: str, box: Box) -> Correction:
    tracked = found(key, talkative()).boxes[0].tracking_uid
    return made(CorrectionKind.MOVE, prompt=key, tracking_uid=tracked, box=box)


# what is done to a finding; its state, its side, who says so, its boxes; what is said no more, and what is said instead
DONE: dict[
    str, tuple[Correction, tuple[FindingState, Side | None, Assessment | None, list[Box]], list[str], list[str]]
] = {
    "accepted": (
        made(CorrectionKind.ACCEPT, prompt="consolidation"),
        (FindingState.PRESENT, Side.LEFT, Assessment.ACCEPTED, [LEFT_BOX]),
        [CONSOLIDATION, UNSEEN],
        ["There is left lung consolidation in the lower zone."],
    ),
    "rejected": (
        made(CorrectionKind.REJECT, prompt="pleural_effusion"),
        (FindingState.ABSENT, None, Assessment.REJECTED, []),
        [EFFUSION, HEART],  # which had spoken of the effusion, too
        ["There is cardiomegaly."],
    ),
    "moved to the other side": (
        moved("pleural_effusion", RIGHT_BOX),
        (FindingState.PRESENT, Side.RIGHT, Assessment.MOVED, [RIGHT_BOX]),
        [EFFUSION, HEART, LUNG, UNSEEN],
        ["There is a right pleural effusion.", "There is cardiomegaly."],
    ),
    "added": (
        made(CorrectionKind.ADD, prompt="pneumothorax", box=RIGHT_BOX),
        (FindingState.PRESENT, Side.RIGHT, Assessment.ADDED, [RIGHT_BOX]),
        [DENIAL, LUNG, UNSEEN],
        ["There is a right pneumothorax."],
    ),
    "a second box": (
        made(CorrectionKind.ADD, prompt="pleural_effusion", box=RIGHT_BOX),
        (FindingState.PRESENT, Side.BILATERAL, Assessment.DRAWN, [LEFT_BOX, RIGHT_BOX]),
        [EFFUSION, HEART, LUNG, UNSEEN],
        ["There are bilateral pleural effusions.", "There is cardiomegaly."],
    ),
    "reworded": (
        made(CorrectionKind.REWORD, prompt="pleural_effusion", text="Trace effusion on the left."),
        (FindingState.PRESENT, Side.LEFT, None, [LEFT_BOX]),
        [EFFUSION],
        ["Trace effusion on the left."],
    ),
}


@pytest.mark.parametrize(("correction", "expected", "gone", "new"), DONE.values(), ids=DONE)
def test_a_correction_changes_its_finding_and_what_follows_from_it(
    correction: Correction,
    expected: tuple[FindingState, Side | None, Assessment | None, list[Box]],
    gone: list[str],
    new: list[str],
) -> None:
    before, answer = talkative(), correct(talkative(), [correction], prompts=SET, side_of=side_of)

    now = found(correction.prompt, answer)
    assert (now.state, now.side, now.reader and now.reader.what, [box.box for box in now.boxes]) == expected
    assert len({box.tracking_uid for box in now.boxes}) == len(now.boxes)
    texts = [each.text for each in before.sentences if each.text not in gone]
    assert sorted(each.text for each in answer.sentences) == sorted([*texts, *new])
    own = {CONSOLIDATION} if correction.kind is not CorrectionKind.REWORD else set(gone)  # by a rule, or reworded
    withheld = [(text, CORRECTED) for text in gone if text not in own]
    assert [(each.text, each.reason) for each in answer.withheld] == withheld
    for other in before.findings:
        if other.prompt != correction.prompt:
            assert replace(found(other.prompt, answer), sentence=None) == replace(other, sentence=None)
    marks = {Assessment.ADDED: ", added by a reader", Assessment.ACCEPTED: ", confirmed by a reader"}
    if expected[2] in marks:
        assert marks[expected[2]] in " ".join(impression.of_film(answer))
    if now.sentence is not None and correction.kind is not CorrectionKind.REWORD:
        assert [each.box for each in answer.sentences[now.sentence].boxes] == expected[3]
    if correction.kind is CorrectionKind.MOVE:
        assert (now.boxes[0].tracking_uid, now.evidence) == (correction.tracking_uid, None)


@pytest.mark.parametrize(
    ("correction", "gone"),
    [
        (moved("consolidation", replace(LEFT_BOX, left=610)), []),
        (moved("consolidation", replace(LEFT_BOX, top=100, bottom=400)), [ZONE_SAID]),
        (moved("support_devices", RIGHT_BOX), [LUNG, PACEMAKER]),  # a finding without sides
        (moved("support_devices", replace(LEFT_BOX, top=100)), []),
        (moved("support_devices", replace(RIGHT_BOX, right=600)), [LUNG]),
        (made(CorrectionKind.ADD, box=LEFT_BOX), []),
        (made(CorrectionKind.ADD, box=RIGHT_BOX), [LUNG]),
        (made(CorrectionKind.ADD, box=replace(RIGHT_BOX, left=340, right=640)), [LUNG]),  # a fifth lies in the lung
        (made(CorrectionKind.ADD, box=replace(RIGHT_BOX, left=385, right=685)), []),  # a twentieth
    ],
)
def test_nothing_is_said_of_a_place_that_a_moved_or_added_box_makes_wrong(
    correction: Correction, gone: list[str]
) -> None:
    answer = correct(talkative(), [correction], prompts=SET, side_of=side_of)

    assert [each.text for each in answer.withheld] == [*gone, UNSEEN]


@pytest.mark.parametrize(
    ("rejected", "stays"),
    [
        (["pleural_effusion"], True),
        (["pleural_effusion", "cardiomegaly"], False),
    ],
    ids=["a finding of the network is left", "none but devices and what a reader added"],
)
def test_a_film_is_called_normal_only_beside_what_the_network_reports(rejected: list[str], *, stays: bool) -> None:
    devices = finding("support_devices", FindingState.PRESENT, None)
    normal = replace(film(), notes=(Note.CALLED_NORMAL,), findings=(*film().findings, devices))
    rejects = [made(CorrectionKind.REJECT, number, prompt=key) for number, key in enumerate(rejected, 1)]
    added = made(CorrectionKind.ADD, 9, prompt="edema", box=LEFT_BOX)

    answer = correct(normal, [*rejects, added], prompts=SET, side_of=side_of)

    assert (Note.CALLED_NORMAL in answer.notes) is stays


@pytest.mark.parametrize("key", ["pleural_effusion", "pneumothorax"])
def test_a_correction_taken_back_leaves_what_was_there(key: str) -> None:
    reject = made(CorrectionKind.REJECT, 1, prompt=key)
    withdrawal = made(CorrectionKind.WITHDRAW, 2, withdraws=reject.id)

    assert corrected(reject) != film()
    assert corrected(reject, withdrawal) == film()
    assert corrected(reject, withdrawal, made(CorrectionKind.WITHDRAW, 3, withdraws=withdrawal.id)) == corrected(reject)
    assert corrected(replace(reject, film="9.9")) == film()
    again = corrected(reject, made(CorrectionKind.ACCEPT, 2, prompt="pleural_effusion"))
    assert found("pleural_effusion", again).boxes == found("pleural_effusion", film()).boxes


@pytest.mark.parametrize(
    ("text", "by", "reworded", "left"),
    [
        (f"{POSSIBLE} (pleural effusion): There is an effusion.", "network", "", "There is an effusion."),
        ("A left pleural effusion is possible; please review.", "rule", "", "There is a left pleural effusion."),
        (f"{POSSIBLE}: There is an effusion.", "network", "No effusion on the left.", "No effusion on the left."),
    ],
)
def test_a_correction_takes_the_state_before_a_sentence_away(text: str, by: By, reworded: str, left: str) -> None:
    reviewed = replace(finding("pleural_effusion", FindingState.INDETERMINATE, 0), evidence=None)
    answer = replace(film(), findings=(reviewed,), sentences=(sentence(text, "pleural_effusion", by=by),))
    kind = CorrectionKind.REWORD if reworded else CorrectionKind.ACCEPT

    now = correct(answer, [made(kind, prompt="pleural_effusion", text=reworded)], prompts=SET, side_of=side_of)

    assert [each.text for each in now.sentences] == [left]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (made(CorrectionKind.ACCEPT, prompt="edema"), "add it by drawing its box"),
        (made(CorrectionKind.MOVE, prompt="edema", tracking_uid="2.25.1", box=LEFT_BOX), "no such box"),
        (made(CorrectionKind.REWORD, prompt="edema", text="Edema."), "accept or add it first"),
        (made(CorrectionKind.REJECT, prompt="zebra"), "choose one of its findings"),
        (made(CorrectionKind.WITHDRAW, withdraws="0" * 32), "no such correction"),
        (
            made(CorrectionKind.ADD, prompt="edema", box=Box(left=0, top=0, right=1001, bottom=10)),
            "1000 x 1200 pixels",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Correction) else "",
)
def test_what_cannot_be_corrected_is_said(wrong: Correction, words: str) -> None:
    assert words in str(objection(film(), [], wrong, prompts=SET, side_of=side_of))
    added = made(CorrectionKind.ADD, prompt="pneumothorax", box=RIGHT_BOX)
    accept = made(CorrectionKind.ACCEPT, 2, prompt="pneumothorax")
    assert "does not report" in str(objection(film(), [added], accept, prompts=SET, side_of=side_of))


def without_box() -> Film:
    """A film whose consolidation is to be reviewed on a known side and has no box, as most findings of people have."""
    placeless = replace(finding("consolidation", FindingState.INDETERMINATE, 1), boxes=(), evidence=None)
    return replace(film(), findings=(film().findings[0], placeless, *film().findings[2:]))


@pytest.mark.parametrize("before", [(), (CorrectionKind.REJECT,)])
def test_a_finding_without_a_box_is_accepted(before: tuple[CorrectionKind, ...]) -> None:
    earlier = [made(kind, prompt="consolidation") for kind in before]
    accept = made(CorrectionKind.ACCEPT, 2, prompt="consolidation")

    assert objection(without_box(), earlier, accept, prompts=SET, side_of=side_of) is None

    answer = correct(without_box(), [*earlier, accept], prompts=SET, side_of=side_of)
    accepted = found("consolidation", answer)
    assert (accepted.state, accepted.boxes, accepted.side) == (FindingState.PRESENT, (), Side.LEFT)
    assert accepted.reader is not None and accepted.reader.what is Assessment.ACCEPTED
    assert accepted.output_probability == 0.8
    assert "There is left lung consolidation." in [each.text for each in answer.sentences]


@pytest.mark.parametrize("changes", [{"prompt": ""}, {"text": "x"}, {"box": LEFT_BOX}, {"withdraws": "1"}])
def test_a_correction_has_what_its_kind_needs_and_no_more(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="and nothing else"):
        made(CorrectionKind.ACCEPT, **changes)
    assert list(CorrectionKind) == list(metrics.CORRECTIONS), "the metric knows every kind"


KEYS = [found.prompt for found in film().findings]


@st.composite
def sequences(draw: st.DrawFn) -> list[Correction]:
    """Corrections of one film in any order, some of which do not fit what was corrected before."""
    corrections: list[Correction] = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(list(CorrectionKind)))
        key = draw(st.sampled_from(KEYS))
        box = draw(st.sampled_from([LEFT_BOX, RIGHT_BOX, Box(left=400, top=200, right=600, bottom=700)]))
        changes: dict[str, object] = {"prompt": key}
        if kind is CorrectionKind.MOVE:
            changes |= {"tracking_uid": f"2.25.{len(key)}", "box": box}
        elif kind is CorrectionKind.ADD:
            changes |= {"box": box}
        elif kind is CorrectionKind.REWORD:
            changes |= {"text": "As the reader says."}
        elif kind is CorrectionKind.WITHDRAW:
            changes = {"withdraws": draw(st.sampled_from([made(kind, withdraws="0" * 32), *corrections])).id}
        corrections.append(made(kind, number, **changes))
    return corrections


@settings(deadline=None)
@given(sequences())
def test_no_sentence_contradicts_a_reader(corrections: list[Correction]) -> None:
    answer = corrected(*corrections)
    decided = {finding.prompt: finding.state for finding in answer.findings if finding.reader is not None}

    for spoken in answer.sentences:
        if spoken.by != "reader":
            assert contradictions(spoken.text, decided) == ()
    for finding in answer.findings:
        assert bool(finding.boxes) == (finding.state.is_reported)
        assert finding.sentence is None or finding.sentence < len(answer.sentences)


@settings(deadline=None)
@given(sequences())
def test_a_correction_is_read_back_unchanged(corrections: list[Correction]) -> None:
    for one_correction in corrections:
        stored = json.loads(json.dumps(encode(one_correction)))
        assert correction.from_json(stored) == one_correction
