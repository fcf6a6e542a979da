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


def said(key: str, answer: Film) -> GroundedSentence:
    place = found(key, answer).sentence
    assert place is not None
    return answer.sentences[place]


def test_an_accepted_finding_is_present_and_says_so() -> None:
    answer = corrected(made(CorrectionKind.ACCEPT, prompt="consolidation"))
    accepted = found("consolidation", answer)

    assert (accepted.state, accepted.contradiction) == (FindingState.PRESENT, None)
    assert accepted.reader is not None and accepted.reader.what is Assessment.ACCEPTED
    assert accepted.boxes == found("consolidation", film()).boxes
    assert said("consolidation", answer).text == "There is left lung consolidation in the lower zone."
    assert "2. Left lung consolidation, lower zone, confirmed by a reader" in impression.of_film(answer)


def test_a_rejected_finding_is_gone_from_all_texts() -> None:
    answer = corrected(made(CorrectionKind.REJECT, prompt="pleural_effusion"))
    rejected = found("pleural_effusion", answer)

    assert (rejected.state, rejected.boxes, rejected.sentence) == (FindingState.ABSENT, (), None)
    assert not any("effusion" in line.lower() for line in impression.of_film(answer))
    assert not any("effusion" in sentence.text.lower() for sentence in answer.sentences)
    assert [withheld.reason for withheld in answer.withheld] == [CORRECTED, CORRECTED]
    assert said("cardiomegaly", answer).text == "There is cardiomegaly."  # it had spoken of the effusion, too


@pytest.mark.parametrize(
    ("correction", "stays"),
    [
        (made(CorrectionKind.ACCEPT, prompt="consolidation"), False),
        (made(CorrectionKind.REJECT, prompt="pleural_effusion"), True),
    ],
)
def test_where_a_reader_confirms_anything_nothing_is_said_of_what_was_not_seen(
    correction: Correction, stays: bool
) -> None:
    unseen = sentence(not_seen("No acute fracture."), "fracture")
    answer = replace(film(), sentences=(*film().sentences, unseen))

    changed = correct(answer, [correction], prompts=SET, side_of=side_of)

    assert (unseen in changed.sentences, unseen.text in {each.text for each in changed.withheld}) == (stays, not stays)


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


def test_a_moved_box_has_its_new_side_and_no_zone() -> None:
    before = found("pleural_effusion", film())
    move = made(
        CorrectionKind.MOVE, prompt="pleural_effusion", tracking_uid=before.boxes[0].tracking_uid, box=RIGHT_BOX
    )
    answer = corrected(move)
    moved = found("pleural_effusion", answer)

    assert [box.box for box in moved.boxes] == [RIGHT_BOX]
    assert moved.boxes[0].tracking_uid == before.boxes[0].tracking_uid
    assert (moved.side, moved.evidence, moved.boxes[0].evidence) == (Side.RIGHT, None, None)
    assert said("pleural_effusion", answer).text == "There is a right pleural effusion."
    assert said("pleural_effusion", answer).boxes[0].box == RIGHT_BOX
    assert said("cardiomegaly", answer).text == "There is cardiomegaly."  # it had put the effusion on the left
    assert not any("left pleural effusion" in sentence.text.lower() for sentence in answer.sentences)


def moved_to(box: Box, sentence: GroundedSentence, *, key: str) -> Film:
    """Move the box of a finding whose prompt has no sides on a film that says one more sentence."""
    answer = replace(film(), sentences=(*film().sentences, sentence))
    there = finding(key, FindingState.PRESENT, len(film().sentences))
    answer = replace(answer, findings=(*answer.findings, there))
    move = made(CorrectionKind.MOVE, prompt=key, tracking_uid=there.boxes[0].tracking_uid, box=box)
    return correct(answer, [move], prompts=SET, side_of=side_of)


@pytest.mark.parametrize(
    ("box", "stays"), [(RIGHT_BOX, False), (replace(LEFT_BOX, top=100), True), (replace(RIGHT_BOX, right=600), True)]
)
def test_a_finding_without_sides_leaves_the_side_it_was_on(box: Box, stays: bool) -> None:
    pacemaker = sentence("There is a left pacemaker with leads in the heart.", "support_devices")
    assert not SET["support_devices"].paired

    answer = moved_to(box, pacemaker, key="support_devices")

    assert (said("support_devices", answer).text == pacemaker.text) == stays
    assert any(pacemaker.text == each.text for each in answer.sentences) == stays


@pytest.mark.parametrize(
    ("box", "stays"), [(replace(LEFT_BOX, left=610), True), (replace(LEFT_BOX, top=100, bottom=400), False)]
)
def test_no_region_holds_a_finding_that_was_moved_out(box: Box, stays: bool) -> None:
    zone = sentence("There is severe consolidation in the left lower lung zone.", "left_lower_lung_zone")
    answer = replace(film(), sentences=(*film().sentences, zone))
    tracked = found("consolidation", answer).boxes[0].tracking_uid
    move = made(CorrectionKind.MOVE, prompt="consolidation", tracking_uid=tracked, box=box)

    texts = [each.text for each in correct(answer, [move], prompts=SET, side_of=side_of).sentences]

    assert (zone.text in texts) == stays


def test_a_region_with_an_added_finding_is_not_called_normal() -> None:
    added = corrected(made(CorrectionKind.ADD, prompt="edema", box=RIGHT_BOX))
    elsewhere = corrected(made(CorrectionKind.ADD, prompt="edema", box=LEFT_BOX))

    assert "The right lung is clear." in [sentence.text for sentence in elsewhere.sentences]
    assert "The right lung is clear." not in [sentence.text for sentence in added.sentences]
    assert "The right lung is clear." in [withheld.text for withheld in added.withheld]
    for left, stays in ((340, False), (385, True)):  # a fifth of the box, and a twentieth, lie in the region
        partly = corrected(
            made(CorrectionKind.ADD, prompt="edema", box=replace(RIGHT_BOX, left=left, right=left + 300))
        )
        assert ("The right lung is clear." in [sentence.text for sentence in partly.sentences]) is stays


def test_a_box_that_a_reader_added_stays_so_when_it_is_moved() -> None:
    added = made(CorrectionKind.ADD, prompt="pneumothorax", box=RIGHT_BOX)
    (box,) = found("pneumothorax", corrected(added)).boxes

    move = made(CorrectionKind.MOVE, 2, prompt="pneumothorax", tracking_uid=box.tracking_uid, box=LEFT_BOX)
    (moved,) = found("pneumothorax", corrected(added, move)).boxes

    assert moved.reader is not None
    assert (moved.box, moved.reader.what) == (LEFT_BOX, Assessment.ADDED)


def test_an_added_finding_is_present_in_its_box() -> None:
    answer = corrected(made(CorrectionKind.ADD, prompt="pneumothorax", box=RIGHT_BOX))
    added = found("pneumothorax", answer)

    assert (added.state, added.side, [box.box for box in added.boxes]) == (
        FindingState.PRESENT,
        Side.RIGHT,
        [RIGHT_BOX],
    )
    assert added.probability == found("pneumothorax", film()).probability
    assert said("pneumothorax", answer).text == "There is a right pneumothorax."
    assert "No pneumothorax." not in [sentence.text for sentence in answer.sentences]
    assert impression.of_film(answer)[0] == "1. Right pneumothorax, added by a reader"


def test_a_second_box_makes_a_finding_bilateral() -> None:
    answer = corrected(made(CorrectionKind.ADD, prompt="pleural_effusion", box=RIGHT_BOX))

    assert found("pleural_effusion", answer).side is Side.BILATERAL
    assert len({box.tracking_uid for box in found("pleural_effusion", answer).boxes}) == 2


def test_a_reworded_sentence_reads_as_it_was_written() -> None:
    answer = corrected(made(CorrectionKind.REWORD, prompt="pleural_effusion", text="Trace effusion on the left."))

    assert said("pleural_effusion", answer).text == "Trace effusion on the left."
    assert said("pleural_effusion", answer).by == "reader"
    assert found("pleural_effusion", answer) == found("pleural_effusion", film())


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
    ("kind", "text", "by", "left"),
    [
        (CorrectionKind.ACCEPT, f"{POSSIBLE}: There is a left effusion.", "network", "There is a left effusion."),
        (
            CorrectionKind.ACCEPT,
            f"{POSSIBLE} (pleural effusion): There is a left effusion.",
            "network",
            "There is a left effusion.",
        ),
        (
            CorrectionKind.ACCEPT,
            "A left pleural effusion in the lower zone is possible; please review.",
            "rule",
            "There is a left pleural effusion in the lower zone.",
        ),
        (CorrectionKind.REWORD, f"{POSSIBLE}: There is a left effusion.", "network", "No effusion on the left."),
    ],
)
def test_a_correction_takes_the_state_before_a_sentence_away(
    kind: CorrectionKind, text: str, by: By, left: str
) -> None:
    reviewed = replace(
        film(),
        findings=(finding("pleural_effusion", FindingState.INDETERMINATE, 0),),
        sentences=(sentence(text, "pleural_effusion", by=by),),
    )
    reader_said = {"text": left} if kind is CorrectionKind.REWORD else {}

    answer = correct(reviewed, [made(kind, prompt="pleural_effusion", **reader_said)], prompts=SET, side_of=side_of)

    assert [each.text for each in answer.sentences] == [left]


def test_findings_that_nobody_corrected_stay_as_they_are() -> None:
    answer = corrected(made(CorrectionKind.REJECT, prompt="consolidation"))

    for key in ("pleural_effusion", "cardiomegaly", "pneumothorax", "edema"):
        assert replace(found(key, answer), sentence=None) == replace(found(key, film()), sentence=None)
    texts = [sentence.text for sentence in film().sentences if sentence.prompt != "consolidation"]
    assert [sentence.text for sentence in answer.sentences] == texts


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
    assert said("consolidation", answer).text == "There is left lung consolidation."


@pytest.mark.parametrize(
    ("key", "what", "number"),
    [("consolidation", Assessment.DRAWN, 0.8), ("pneumothorax", Assessment.ADDED, None)],
)
def test_a_box_that_is_drawn_adds_a_finding_only_if_the_network_does_not_report_it(
    key: str, what: Assessment, number: float | None
) -> None:
    drawn = made(CorrectionKind.ADD, prompt=key, box=RIGHT_BOX)
    answer = found(key, correct(without_box(), [drawn], prompts=SET, side_of=side_of))

    assert answer.reader is not None and answer.boxes[0].reader is not None
    assert (answer.reader.what, answer.boxes[0].reader.what) == (what, what)
    assert (answer.state, answer.side, answer.output_probability) == (FindingState.PRESENT, Side.RIGHT, number)


def test_what_a_reader_added_stays_added_when_it_is_accepted_too() -> None:
    made_before = [made(CorrectionKind.ADD, prompt="pneumothorax", box=RIGHT_BOX)]
    accept = made(CorrectionKind.ACCEPT, 2, prompt="pneumothorax")

    assert "does not report" in str(objection(film(), made_before, accept, prompts=SET, side_of=side_of))
    added = found("pneumothorax", corrected(*made_before, accept))
    assert added.reader is not None and added.reader.what is Assessment.ADDED


@pytest.mark.parametrize("changes", [{"prompt": ""}, {"text": "x"}, {"box": LEFT_BOX}, {"withdraws": "1"}])
def test_a_correction_has_what_its_kind_needs_and_no_more(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="and nothing else"):
        made(CorrectionKind.ACCEPT, **changes)


def test_the_metric_knows_every_kind() -> None:
    assert list(CorrectionKind) == list(metrics.CORRECTIONS)


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
