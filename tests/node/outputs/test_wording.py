"""The words of outputs: nothing came near, a wide heart, the state before a sentence; and the zone of a box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from models.contract import Box, FindingState, Side
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine
from node.domain import Assessment, Evidence, Film, Finding, GroundedSentence, ReaderMark
from node.outputs import impression, wording
from node.outputs.corrected_film import correct
from node.read import prompts
from node.read.findings import locate, zone_of
from node.store.correction import Correction, CorrectionKind
from node.web import shown
from tests.support import samples
from tests.support.output_texts import texts_of
from tests.support.samples import absent, finding

LEFT_CHEST: Mapping[str, Box] = {
    "left_apical_zone": Box(left=120, top=10, right=180, bottom=40),
    "left_upper_lung_zone": Box(left=110, top=10, right=190, bottom=70),
    "left_mid_lung_zone": Box(left=110, top=70, right=190, bottom=130),
    "left_lower_lung_zone": Box(left=110, top=130, right=190, bottom=210),
    "left_hilar_structures": Box(left=110, top=90, right=130, bottom=120),
}


@pytest.mark.parametrize(
    ("box", "zone"),
    [
        (Box(left=105, top=5, right=195, bottom=215), None),  # the whole left chest
        (Box(left=110, top=70, right=190, bottom=210), None),  # mid and lower zone
        (Box(left=110, top=10, right=190, bottom=130), None),  # upper and mid zone
        (Box(left=0, top=0, right=200, bottom=220), None),  # both sides
        (Box(left=110, top=115, right=190, bottom=210), "left_lower_lung_zone"),
        (Box(left=130, top=150, right=170, bottom=260), "left_lower_lung_zone"),  # and below the lung
        (Box(left=110, top=12, right=190, bottom=68), "left_upper_lung_zone"),
        (Box(left=125, top=12, right=175, bottom=38), "left_apical_zone"),
        (Box(left=110, top=88, right=131, bottom=121), "left_hilar_structures"),
        (Box(left=300, top=300, right=310, bottom=310), None),
    ],
)
def test_a_box_lies_in_a_zone_that_holds_most_of_it(box: Box, zone: str | None) -> None:
    assert locate([box], LEFT_CHEST).zone == zone


@pytest.mark.parametrize(
    ("zones", "words"),
    [
        (("left_lower_lung_zone",), "lower zone"),
        (("left_lower_lung_zone", "left_lower_lung_zone"), "lower zone"),
        (("left_lower_lung_zone", "left_upper_lung_zone"), None),
        (("left_lower_lung_zone", None), None),
        (("left_apical_zone",), "apex"),
        ((None,), None),
    ],
)
def test_a_finding_has_a_zone_if_all_its_boxes_lie_there(zones: tuple[str | None, ...], words: str | None) -> None:
    boxes = [Box(left=10 + 10 * number, top=10, right=15 + 10 * number, bottom=20) for number in range(len(zones))]
    found = finding(side=Side.LEFT, boxes=tuple(boxes))
    placed = [
        replace(box, evidence=Evidence(zone=zone, extent=0.5)) for box, zone in zip(found.boxes, zones, strict=True)
    ]

    located = replace(found, boxes=tuple(placed), evidence=Evidence(zone=zones[0], extent=0.5))

    assert zone_of(located) == words
    assert impression.phrase(located) == ", ".join(filter(None, ("Left pleural effusion", words, "83 %")))


def everything_said(film: Film, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    return {name: " ".join(text.split()) for name, text in texts_of(film, monkeypatch).items()}


def rejected() -> Finding:
    mark = ReaderMark(what=Assessment.REJECTED, by="anna", at=datetime(2026, 11, 23, tzinfo=UTC))
    return replace(absent(), near=True, reader=mark)


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ((absent(), absent(samples.EDEMA)), "No prompted finding came near its threshold."),
        (
            (absent(), replace(absent(samples.EDEMA), near=True)),
            "No prompted finding is reported, though pulmonary edema came near its threshold.",
        ),
        (
            (replace(absent(), near=True), replace(absent(samples.EDEMA), near=True)),
            "No prompted finding is reported, though pneumothorax and pulmonary edema came near their thresholds.",
        ),
        (
            (replace(samples.left_out(), near=None), absent(samples.EDEMA)),
            "No prompted finding came near its threshold.",
        ),
        ((replace(absent(), near=None), absent(samples.EDEMA)), "No prompted finding is reported."),
        ((rejected(), absent(samples.EDEMA)), "No prompted finding is reported."),
    ],
)
def test_nothing_came_near_is_said_only_where_it_is_true(
    findings: tuple[Finding, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = samples.film(findings=findings)

    assert impression.of_film(film)[0] == f"{words} This is not a report of a normal film."
    is_near = "No prompted finding came near its threshold" not in words
    for name, text in everything_said(film, monkeypatch).items():
        assert ("No prompted finding came near" in text or "No prompted finding near" in text) is not is_near, name
        assert ("No prompted finding is reported" in text or "No prompted finding reported" in text) is is_near, name


def ratio_of(hundredths: int, objection: Incomparable | None) -> CardiothoracicRatio:
    return replace(
        samples.ratio(objection=objection),
        heart=MeasuredLine(start=(500.0, 900.0), end=(500.0 + 10 * hundredths, 900.0)),
        thorax=MeasuredLine(start=(250.0, 1200.0), end=(1250.0, 1200.0)),
    )


@pytest.mark.parametrize(
    ("hundredths", "objection", "is_said"),
    [
        (60, None, True),
        (67, None, True),
        (59, None, False),
        (67, Incomparable.VIEW_AP, False),
        (67, Incomparable.VIEW_UNKNOWN, False),
        (67, Incomparable.AGE_UNKNOWN, False),
        (67, Incomparable.CHILD, False),
        (67, Incomparable.UNMEASURED, False),
    ],
)
def test_a_wide_heart_is_said_where_its_ratio_is_comparable(
    hundredths: int, objection: Incomparable | None, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = replace(samples.film(findings=(absent(),)), ratio=ratio_of(hundredths, objection))

    lines = impression.of_film(film)

    said = f"Wide heart: cardiothoracic ratio 0.{hundredths} (PA, adult), off by"
    assert lines[0].startswith(said) is is_said
    told = {name for name, text in everything_said(film, monkeypatch).items() if "Wide heart" in text}
    silent = {"gsps"} if is_said else everything_said(film, monkeypatch).keys()
    assert told == everything_said(film, monkeypatch).keys() - silent
    assert [found.state for found in film.findings] == [FindingState.ABSENT]


def test_after_cardiomegaly_is_rejected_no_heart_is_wide() -> None:
    heart = replace(rejected(), prompt="cardiomegaly", site=samples.HEART)
    film = replace(samples.film(findings=(heart,)), ratio=ratio_of(67, None))

    assert not any("Wide heart" in line for line in impression.of_film(film))


REVIEWED = "Possible, please review: There is a right pleural effusion."


def reviewed(text: str = REVIEWED) -> Film:
    """An effusion to be reviewed, with a sentence of the network."""
    found = finding(state=FindingState.INDETERMINATE, sentence=0)
    sentence = GroundedSentence(text=text, prompt="pleural_effusion", score=0.5, boxes=())
    return replace(samples.film(findings=(found,)), sentences=(sentence,))


def test_the_state_stands_before_the_words_in_every_output(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        name: text for name, text in everything_said(reviewed(), monkeypatch).items() if "There is a right" in text
    }

    assert texts.keys() >= {"report.json", "report.txt", "sr", "sr3d", "text", "study page"}
    for name, text in texts.items():
        own = text.partition("text='There is")[0] if name == "study page" else text  # the words that a reader rewords
        for part in own.split("There is a right")[:-1]:
            assert "possible, please review" in part[-250:].lower(), name


def test_the_reader_rewords_the_words_without_the_state() -> None:
    [found] = shown.show(reviewed()).findings

    assert found.sentence == '"There is a right pleural effusion."'
    assert found.text == "There is a right pleural effusion."


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (CorrectionKind.ACCEPT, REVIEWED, "There is a right pleural effusion."),
        (
            CorrectionKind.ACCEPT,
            "Possible, please review (pleural effusion): There is a right pleural effusion.",
            "There is a right pleural effusion.",
        ),
        (
            CorrectionKind.ACCEPT,
            "A right pleural effusion in the lower zone is possible; please review.",
            "There is a right pleural effusion in the lower zone.",
        ),
        (CorrectionKind.REWORD, REVIEWED, "No effusion on the left."),
    ],
)
def test_a_correction_takes_the_state_away(kind: CorrectionKind, text: str, said: str) -> None:
    film = reviewed(text)
    by_rule = "please review" in text
    film = replace(film, sentences=(replace(film.sentences[0], by="rule" if by_rule else "network"),))
    new = Correction(
        id="1" * 32,
        study_uid=samples.STUDY,
        film=film.source,
        kind=kind,
        at=datetime(2026, 11, 23, tzinfo=UTC),
        by="anna",
        source="page",
        prompt="pleural_effusion",
        text=said if kind is CorrectionKind.REWORD else "",
    )

    [sentence] = correct(film, [new], prompts=prompts.load("chexpert14"), side_of=lambda _box: Side.RIGHT).sentences

    assert sentence.text == said


def test_what_has_no_box_is_named_by_urgency() -> None:
    effusion, edema = finding(boxes=(), side=None), finding(samples.EDEMA, boxes=(), probability=0.9, side=None)
    possible = finding(samples.PNEUMOTHORAX, boxes=(), state=FindingState.INDETERMINATE, side=None)

    named = list(wording.unplaced(samples.film(findings=(effusion, edema, possible))))

    assert [name.split(" ")[0] for name in named] == ["Pneumothorax", "Pulmonary", "Pleural"]
