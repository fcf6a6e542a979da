"""Sentences against their decisions: each case that was reported as a small input of its own, with the right words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from models.contract import Box, FindingState, PromptKind, Question, ReaderPrompt, Side
from models.decisions import Band, Decisions, Measurement
from models.reading.checking import Decided, answer_in_words, settle
from models.reading.decision import is_near
from models.reading.reader import ChexReader
from node.cardiothoracic_ratio import CardiothoracicRatio, Incomparable, MeasuredLine
from node.domain import Assessment, Evidence, Film, Finding, GroundedSentence, ReaderMark
from node.outputs import gsps, impression, oru, report_json, report_txt
from node.outputs.corrected_film import correct
from node.outputs.sr import report as sr
from node.read import prompts
from node.read.findings import locate, zone_of
from node.store.correction import Correction, CorrectionKind
from node.web import shown
from tests.support import samples
from tests.support.documents import said as said_in
from tests.support.samples import BERLIN, absent, cr, finding, received, report, sources
from tests.support.scripted_engine import EDEMA, FRACTURE, LEFT, PROMPTS, SENTENCES, ScriptedEngine, reader_of

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
    assert impression.of_film(samples.film(findings=(located,)))[0] == ", ".join(
        filter(None, ("Left pleural effusion", words, "83 %"))
    )


EFFUSION = ReaderPrompt(
    key="pleural_effusion", kind=PromptKind.PATHOLOGY, phrases=("Pleural effusion",), negatives=("No pleural effusion",)
)
ZONE = ReaderPrompt(key="right_lower_lung_zone", kind=PromptKind.REGION, phrases=("Right lower lung zone",))
BASE = np.array([[0.25, 0.75, 0.2, 0.2]], dtype=np.float32)


def decided(effusion: FindingState, edema: FindingState, *, zone: str | None = "lower zone") -> Decided:
    """An effusion and an edema at the right base, every threshold measured."""
    return Decided(
        prompts=(EFFUSION, EDEMA, ZONE),
        states={0: effusion, 1: edema},
        measured={0: True, 1: True},
        boxes=[BASE, BASE, BASE],
        side_of=lambda x, _width: Side.RIGHT if x < 0.5 else Side.LEFT,
        regions={ZONE.key: BASE[0]},
        zone_of=lambda _key, _boxes, _regions: zone,
    )


@pytest.mark.parametrize(
    ("states", "index", "generated", "leaves", "reason"),
    [
        (
            (FindingState.PRESENT, FindingState.ABSENT),
            0,
            "There is a right pleural effusion.",
            "There is a right pleural effusion.",
            None,
        ),
        (
            (FindingState.INDETERMINATE, FindingState.ABSENT),
            0,
            "There is a right pleural effusion.",
            "To be reviewed: There is a right pleural effusion.",
            None,
        ),
        (
            (FindingState.UNCALIBRATED, FindingState.ABSENT),
            0,
            "There is a right pleural effusion.",
            "To be reviewed: There is a right pleural effusion.",
            None,
        ),
        (
            (FindingState.PRESENT, FindingState.INDETERMINATE),
            0,
            "There is a right pleural effusion and edema.",
            "To be reviewed (edema): There is a right pleural effusion and edema.",
            None,
        ),
        (
            (FindingState.INDETERMINATE, FindingState.ABSENT),
            2,
            "There is a right pleural effusion.",
            "To be reviewed: There is a right pleural effusion.",
            None,
        ),
        (
            (FindingState.PRESENT, FindingState.ABSENT),
            0,
            "There is a large right pleural effusion.",
            "There is a right pleural effusion in the lower zone.",
            "severity",
        ),
        (
            (FindingState.INDETERMINATE, FindingState.ABSENT),
            0,
            "Severe pleural effusion.",
            "A right pleural effusion in the lower zone is possible; please review.",
            "severity",
        ),
        (
            (FindingState.PRESENT, FindingState.ABSENT),
            0,
            "There is a right pleural effusion, and no edema.",
            "There is a right pleural effusion in the lower zone.",
            "denial",
        ),
        ((FindingState.PRESENT, FindingState.ABSENT), 1, "No edema.", None, "denial"),
        ((FindingState.PRESENT, FindingState.ABSENT), 1, "There is edema.", None, "asserted"),
        ((FindingState.ABSENT, FindingState.ABSENT), 2, "The right lower lung zone is clear.", None, "denial"),
        ((FindingState.PRESENT, FindingState.ABSENT), 2, "There is a small right pleural effusion.", None, "severity"),
    ],
)
def test_a_checked_sentence_leaves_or_is_withheld(
    states: tuple[FindingState, FindingState], index: int, generated: str, leaves: str | None, reason: str | None
) -> None:
    said = settle(decided(*states), {index: generated}, lambda indices: [generated] * len(indices))

    assert said.texts.get(index) == leaves
    assert [withheld.reason for withheld in said.withheld] == ([] if reason is None else [reason])
    assert [withheld.text for withheld in said.withheld] == ([] if reason is None else [generated])


def test_a_box_in_no_one_zone_has_a_sentence_without_one() -> None:
    said = settle(
        decided(FindingState.PRESENT, FindingState.ABSENT, zone=None), {0: "No effusion."}, lambda _: ["No effusion."]
    )

    assert said.texts == {0: "There is a right pleural effusion."}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("There is a right pleural effusion in the lower zone.", None),
        ("There is a right pleural effusion at the base.", None),
        ("There is a right pleural effusion.", None),
        ("There is a right pleural effusion in the mid zone.", "wrong_zone"),
    ],
)
def test_no_sentence_names_other_zones_than_the_impression(text: str, reason: str | None) -> None:
    assert decided(FindingState.PRESENT, FindingState.ABSENT).fault(0, text) == reason


WORDS = ["There is severe edema.", "No fracture.", "The left lung is clear."]


@pytest.mark.parametrize("checked", [True, False])
def test_raw_sentences_leave_as_they_were_generated(checked: bool) -> None:
    engine = ScriptedEngine([0.55, 0.3, 0.79], WORDS, likeness=dict(zip(WORDS, (2, 3, 4), strict=True)))
    manifest = reader_of(engine).manifest
    reader = ChexReader(manifest, engine, PROMPTS, SENTENCES, trusted="any", checked=checked)
    look = reader.look(np.zeros((300, 300), dtype=np.float32))

    reading = reader.report(look, [EDEMA, FRACTURE, LEFT])
    (asked,) = reader.ask(look, [Question(prompt="Edema")], reference=[EDEMA, FRACTURE, LEFT])

    said = {sentence.prompt: sentence.text for sentence in reading.sentences}
    made = "Edema is possible; please review."
    expected = {"edema": made} if checked else dict(zip(("edema", "fracture", "left_lung"), WORDS, strict=True))
    assert said == expected
    assert asked.sentence == (made if checked else WORDS[0])


@pytest.mark.parametrize(
    ("text", "prompt", "state", "said"),
    [
        ("There is a nodule.", "Nodule", "present", "There is a nodule."),
        ("There is a nodule.", "Nodule", "indeterminate", "To be reviewed: There is a nodule."),
        ("There is a large nodule.", "Nodule", "present", "There is a nodule."),
        ("No nodule.", "Nodule", "absent", ""),
        ("There is a nodule.", None, "uncalibrated", "To be reviewed: There is a nodule."),
        ("There is a small nodule.", None, "uncalibrated", ""),
        ("No nodule.", None, "present", ""),
        ("The lungs are clear.", None, "uncalibrated", ""),
        (
            "There is an effusion.",
            "large effusion",
            "uncalibrated",
            "To be reviewed: There is an effusion.",
        ),
        (
            "There is a tube.",
            "where is the tip of the tube?",
            "uncalibrated",
            "To be reviewed: There is a tube.",
        ),
        ("There is a new nodule.", "new nodule", "present", "What was asked for is above the threshold."),
    ],
)
def test_an_answer_says_no_more_than_a_report(text: str, prompt: str | None, state: str, said: str) -> None:
    assert answer_in_words(text, prompt=prompt, state=FindingState(state))[0] == said


DECISIONS = Decisions(
    temperature=1.0,
    default_threshold=0.6,
    thresholds={"edema": 0.7, "fracture": 1.0},
    measurements={
        "edema": Measurement(
            measured_on="films",
            positives=1,
            negatives=1,
            band=Band(lower=0.4, below=1, missed=0, within=1, shown=0),
        )
    },
    review_band=0.1,
    box_threshold=0.5,
    region_threshold=0.5,
)


@pytest.mark.parametrize(
    ("key", "probability", "is_so"),
    [
        ("edema", 0.351, True),
        ("edema", 0.349, False),
        ("pneumonia", 0.499, True),
        ("pneumonia", 0.451, True),
        ("pneumonia", 0.449, False),
        ("fracture", 0.99, False),
    ],
)
def test_near_is_less_than_five_hundredths_below(key: str, probability: float, is_so: bool) -> None:
    assert is_near(DECISIONS, key, probability) is is_so


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
def test_nothing_came_near_is_said_only_where_it_is_true(findings: tuple[Finding, ...], words: str) -> None:
    film = samples.film(findings=findings)

    assert impression.of_film(film)[0] == f"{words} This is not a report of a normal film."
    is_near = "No prompted finding came near its threshold" not in words
    for name, text in everything_said(film).items():
        assert ("No prompted finding came near" in text or "No prompted finding near" in text) is not is_near, name
        assert ("No prompted finding is reported" in text or "No prompted finding reported" in text) is is_near, name


def everything_said(film: Film) -> dict[str, str]:
    """All texts about a film, by what says them."""
    made, header = report(film), cr()
    [state] = samples.datasets(gsps.write, made, received(header), BERLIN)
    _, message = oru.write(made, sources(header), BERLIN, order=None, documents=[])
    fields = [line.split("|") for line in message.decode().split("\r")]
    page = shown.show(film)
    texts = {
        "report.json": json.dumps(report_json.film_for_programs(film)),
        "report.txt": report_txt.render(made),
        "sr": "\n".join(map(said_in, samples.datasets(sr.write, made, sources(header), BERLIN))),
        "text": "\n".join(map(said_in, samples.datasets(sr.write_text, made, sources(header), BERLIN))),
        "gsps": " ".join(str(item.value) for item in state.iterall() if item.keyword == "UnformattedTextValue"),
        "oru": " ".join(parts[5] for parts in fields if parts[:1] == ["OBX"] and parts[2] == "TX"),
        "page": " ".join((*page.impression, *page.about, *(found.sentence for found in page.findings))),
    }
    return {name: " ".join(text.split()) for name, text in texts.items()}


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
    hundredths: int, objection: Incomparable | None, is_said: bool
) -> None:
    film = replace(samples.film(findings=(absent(),)), ratio=ratio_of(hundredths, objection))

    lines = impression.of_film(film)

    said = f"Wide heart: cardiothoracic ratio 0.{hundredths} (PA, adult), off by"
    assert lines[0].startswith(said) is is_said
    told = {name for name, text in everything_said(film).items() if "Wide heart" in text}
    assert told == ({"report.json", "report.txt", "sr", "text", "oru", "page"} if is_said else set())
    assert [found.state for found in film.findings] == [FindingState.ABSENT]


def test_after_cardiomegaly_is_rejected_no_heart_is_wide() -> None:
    heart = replace(rejected(), prompt="cardiomegaly", site=samples.HEART)
    film = replace(samples.film(findings=(heart,)), ratio=ratio_of(67, None))

    assert not any("Wide heart" in line for line in impression.of_film(film))


REVIEWED = "To be reviewed: There is a right pleural effusion."


def reviewed(text: str = REVIEWED) -> Film:
    """An effusion to be reviewed, with a sentence of the network."""
    found = finding(state=FindingState.INDETERMINATE, sentence=0)
    sentence = GroundedSentence(text=text, prompt="pleural_effusion", score=0.5, boxes=())
    return replace(samples.film(findings=(found,)), sentences=(sentence,))


def test_the_state_stands_before_the_words_in_every_output() -> None:
    texts = {name: text for name, text in everything_said(reviewed()).items() if "There is a right" in text}

    assert texts.keys() == {"report.json", "report.txt", "sr", "text", "oru", "page"}
    assert all(text.count("There is a right") == text.count(REVIEWED) for text in texts.values())


def test_the_reader_rewords_the_words_without_the_state() -> None:
    [found] = shown.show(reviewed()).findings

    assert (found.sentence, found.text) == (REVIEWED, "There is a right pleural effusion.")


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (CorrectionKind.ACCEPT, REVIEWED, "There is a right pleural effusion."),
        (
            CorrectionKind.ACCEPT,
            "To be reviewed (pleural effusion): There is a right pleural effusion.",
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
