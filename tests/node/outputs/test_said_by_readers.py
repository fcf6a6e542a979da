"""Numbers in every output: none of the network for what a reader said, none at all for what the model leaves out.

OHIF 3.13.2 labels a box with name and value of the number in its group, so a finding that a reader had added read
"Pneumothorax, AI: 11.00 %".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import BytesIO

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, PromptKind
from node.answers.questions import understand
from node.answers.replies import answer
from node.domain import Code, Film, Finding
from node.outputs import impression, report_json, vocabulary, wording
from node.outputs.corrected_film import correct
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.read import prompts
from node.store.correction import Correction, CorrectionKind
from tests.node.outputs.test_corrections import made
from tests.support import samples, validators
from tests.support.documents import contents, groups
from tests.support.output_texts import hl7_lines, texts_of
from tests.support.samples import BERLIN, EDEMA, absent, cr, finding, report, sources
from tests.support.spoken import PROMPTS

SET = prompts.load("chexpert14")
EFFUSION, PNEUMOTHORAX, LUNGS, NO_BOX = "pleural_effusion", "pneumothorax", "pulmonary_edema", "cardiomegaly"
HEART = Code(value="8186001", scheme="SCT", meaning="Cardiomegaly")
DRAWN = Box(left=300, top=200, right=800, bottom=700)
TWO = (Box(left=130, top=60, right=900, bottom=1500), Box(left=1000, top=0, right=1900, bottom=1700))
FILM = samples.film(
    findings=(
        finding(probability=0.83),
        replace(finding(EDEMA, state=FindingState.INDETERMINATE, probability=0.41, boxes=TWO, side=None)),
        replace(absent(), probability=0.38),
        finding(HEART, state=FindingState.INDETERMINATE, probability=0.57, boxes=(), sentence=None, side=None),
    )
)
AI, CONFIRMED, DRAWN_FOR = "AI", "confirmed, AI", "drawn by reader, AI"
MOVED, ADDED = "drawn by reader", "added by reader"
BESIDE_MOVED = "drawn by reader, beside one that was moved"
LABELS = {
    CONFIRMED: "confirmed by a reader",
    DRAWN_FOR: "confirmed, box drawn by a reader",
    BESIDE_MOVED: "confirmed, box drawn by a reader",
    MOVED: "box drawn by a reader",
    ADDED: "added by a reader",
}

ACCEPT, REJECT, ADD, MOVE, REWORD, WITHDRAW = (
    *(CorrectionKind.ACCEPT, CorrectionKind.REJECT, CorrectionKind.ADD),
    *(CorrectionKind.MOVE, CorrectionKind.REWORD, CorrectionKind.WITHDRAW),
)
BOTH_DRAWN = ((MOVED, None), (BESIDE_MOVED, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a reader does in turn, and what the boxes of the finding are then called, with the percents of the network.

    of: the finding, by its prompt
    number: the probability of the finding in `report.json` and in HL7
    """

    of: str
    done: tuple[CorrectionKind, ...]
    boxes: tuple[tuple[str, int | None], ...] = ()
    number: float | None = None


CASES = {
    "added": Case(of=PNEUMOTHORAX, done=(ADD,), boxes=((ADDED, None),)),
    "moved": Case(of=EFFUSION, done=(MOVE,), boxes=((MOVED, None),)),
    "one of two moved": Case(of=LUNGS, done=(MOVE,), boxes=((MOVED, None), (AI, 41))),
    "one of two moved, a third box": Case(
        of=LUNGS, done=(MOVE, ADD), boxes=((MOVED, None), (AI, 41), (DRAWN_FOR, 41)), number=0.41
    ),
    "a second box": Case(of=EFFUSION, done=(ADD,), boxes=((AI, 83), (DRAWN_FOR, 83)), number=0.83),
    "moved, a second box": Case(of=EFFUSION, done=(MOVE, ADD), boxes=BOTH_DRAWN),
    "a box for one without": Case(of=NO_BOX, done=(ADD,), boxes=((DRAWN_FOR, 57),), number=0.57),
    "a box for one without, moved": Case(of=NO_BOX, done=(ADD, MOVE), boxes=((DRAWN_FOR, 57),), number=0.57),
    "confirmed without a box": Case(of=NO_BOX, done=(ACCEPT,), number=0.57),
    "confirmed": Case(of=EFFUSION, done=(ACCEPT,), boxes=((CONFIRMED, 83),), number=0.83),
    "confirmed, was to be reviewed": Case(of=LUNGS, done=(ACCEPT,), boxes=((CONFIRMED, 41),) * 2, number=0.41),
    "added, confirmed": Case(of=PNEUMOTHORAX, done=(ADD, ACCEPT), boxes=((ADDED, None),)),
    "added, moved": Case(of=PNEUMOTHORAX, done=(ADD, MOVE), boxes=((ADDED, None),)),
    "a second box, confirmed": Case(
        of=EFFUSION, done=(ADD, ACCEPT), boxes=((CONFIRMED, 83), (DRAWN_FOR, 83)), number=0.83
    ),
    "reworded": Case(of=EFFUSION, done=(REWORD,), boxes=((AI, 83),), number=0.83),
    "rejected": Case(of=EFFUSION, done=(REJECT,), number=0.83),
    "added, rejected": Case(of=PNEUMOTHORAX, done=(ADD, REJECT), number=0.38),
}


def corrected(done: tuple[tuple[CorrectionKind, str], ...], film: Film = FILM) -> Film:
    """The film after what a reader did in turn to findings; what is taken back is what was done before."""
    corrections: list[Correction] = []
    for number, (kind, key) in enumerate(done):
        now = correct(film, corrections, prompts=SET, side_of=lambda _box: None)
        boxes = next(found for found in now.findings if found.prompt == key).boxes
        correction = made(
            kind,
            number,
            film=film.source,
            prompt="" if kind is WITHDRAW else key,
            box=DRAWN if kind in (ADD, MOVE) else None,
            tracking_uid=boxes[0].tracking_uid if kind is MOVE else "",
            text="A small band." if kind is REWORD else "",
            withdraws=corrections[-1].id if kind is WITHDRAW else "",
        )
        corrections.append(correction)
    return correct(film, corrections, prompts=SET, side_of=lambda _box: None)


def after(name: str) -> Film:
    return corrected(tuple((kind, CASES[name].of) for kind in CASES[name].done))


def judged(case: Case, film: Film) -> Finding:
    return next(found for found in film.findings if found.prompt == case.of)


@pytest.mark.parametrize("name", CASES)
def test_every_output_says_who_said_it(name: str) -> None:
    """What a report calls a box's number and who observed it, how a box is labeled, and what programs get."""
    case, film = CASES[name], after(name)
    found = judged(case, film)
    named = [
        (MOVED if who == BESIDE_MOVED else who, ("1", "box") if percent is None else (str(percent), "%"))
        for who, percent in case.boxes
    ]

    for write in (sr.write, sr.write_3d):
        dataset = dcmread(BytesIO(save_bytes(samples.datasets(write, report(film), sources(cr()), BERLIN)[0])))
        own = [group for group in groups(dataset) if finding_of(group) == found.code.value]
        assert [number_of(group) for group in own] == named
        assert ["ObservationDateTime" in group for group in own] == [who != AI for who, _ in case.boxes]
        assert validators.dciodvfy(dataset) == []

    labels = [wording.label(found, box) for box in found.boxes]
    assert [ending(label) for label in labels] == [LABELS.get(who, f"{percent} %") for who, percent in case.boxes]
    texts = texts_of(film)
    assert set(labels) <= set(texts["gsps"].splitlines())

    written = json.loads(json.dumps(report_json.film_for_programs(film)))
    (entry,) = (item for item in written["findings"] if item["prompt"] == found.prompt)
    drawn = {MOVED: "moved", ADDED: "added", DRAWN_FOR: "drawn", BESIDE_MOVED: "drawn"}
    assert entry["probability"] == case.number
    assert [box.get("reader", {}).get("what") for box in entry["boxes"]] == [drawn.get(who) for who, _ in case.boxes]
    assert all(box["score"] == 1.0 for box in entry["boxes"] if "reader" in box)
    numbers = [line.split("|")[2] for line in hl7_lines(film) if line.startswith(f"NM|P{found.code.value}|")]
    assert numbers == ([] if case.number is None else [str(wording.whole_percent(case.number))])
    if case.number is None:
        check_no_number(case, wording.whole_percent(found.probability or 0.0), texts)
    if case.done[-1] is REJECT:
        check_not_missed(vocabulary.name_of(judged(case, FILM)), texts)


def check_no_number(case: Case, percent: int, texts: Mapping[str, str]) -> None:
    """No output has a number of what the network did not say, but for its own boxes."""
    own = sum(each is not None for _, each in case.boxes)
    for output, text in texts.items():
        found = re.findall(rf"(?<![\d.])(?:{percent} %|{percent}(?=\n|\||$)|0\.{percent})(?!\d)", text)
        shown = {"sr": 2, "sr3d": 2, "gsps": 1, "sc": 1, "study page": 1}.get(output, 0)
        assert len(found) <= own * shown, (output, found)


def check_not_missed(rejected: str, texts: Mapping[str, str]) -> None:
    """No output says of what a reader rejected that it may have been missed."""
    for output, text in texts.items():
        missed = " ".join(text.split()).partition("may have been missed):")[2]
        assert rejected not in re.split(r"Rejected|sentences|Not evaluated|Not looked for", missed)[0], output
    for output in ("sr", "sr3d", "text", "oru", "report.txt"):
        assert "Rejected by a reader" in texts[output], output
    assert '"what": "rejected"' in texts["report.json"]
    assert f"('Rejected by a reader', ['{rejected}" in texts["study page"]


def finding_of(group: Dataset) -> str:
    return str(contents(group, "121071")[0].ConceptCodeSequence[0].CodeValue)


def number_of(group: Dataset) -> tuple[str, tuple[str, str]]:
    """Who gave the only number of a group, by the end of its name; its value and unit."""
    (number,) = (item for item in group.ContentSequence if item.ValueType == "NUM")
    (value,) = number.MeasuredValueSequence
    who = number.ConceptNameCodeSequence[0].CodeMeaning.partition(", ")[2]
    return who, (f"{float(value.NumericValue):g}", value.MeasurementUnitsCodeSequence[0].CodeValue)


def ending(label: str) -> str:
    return re.sub(r"^(Right p|P)leural effusion |^(Pneumothorax|Pulmonary edema|Cardiomegaly) ", "", label)


def test_a_reply_says_who_said_it() -> None:
    def ask(name: str, text: str) -> str:
        return answer(understand(text, PROMPTS), after(name)).text

    assert "38 %" not in ask("added", "pneumothorax?")
    assert "Added by a reader." in ask("added", "pneumothorax?")
    assert "83 %" not in ask("moved", "effusion?")
    assert "Confirmed by a reader. The AI probability is 83 %." in ask("confirmed", "effusion?")
    assert ask("rejected", "effusion?") == "Pleural effusion is rejected by a reader."
    assert "Pleural effusion is rejected by a reader." in ask("rejected", "list the findings")


@pytest.mark.parametrize("kind", [ACCEPT, MOVE, ADD, REWORD])
def test_names_by_readers_fit_and_have_codes_of_their_own(kind: CorrectionKind) -> None:
    """For each finding of the prompt set: 64 characters, and no code with two meanings."""
    codes = {prompt.key: prompt.finding for prompt in SET.prompts if prompt.kind is PromptKind.PATHOLOGY}
    asked = {key: code for key, code in codes.items() if code is not None}
    found = tuple(replace(finding(code), prompt=key) for key, code in asked.items())
    film = corrected(tuple((kind, key) for key in asked), replace(FILM, findings=found))

    [dataset] = samples.datasets(sr.write, report(film), sources(cr()), BERLIN)

    meanings: dict[str, str] = {}
    for group in groups(dcmread(BytesIO(save_bytes(dataset)))):
        (number,) = (item for item in group.ContentSequence if item.ValueType == "NUM")
        name = number.ConceptNameCodeSequence[0]
        code = str(name.get("CodeValue") or name.LongCodeValue)
        assert len(name.CodeMeaning) <= 64
        assert meanings.setdefault(code, name.CodeMeaning) == name.CodeMeaning
        assert number_of(group)[0] in (AI, CONFIRMED, DRAWN_FOR, MOVED), "the name is cut before who said it"
    assert len(set(meanings.values())) == len(meanings) >= len(asked)


# What the model leaves out has no number in any output, and each output names it once, as not assessed. What has a
# threshold that was not measured on such films is something else: it is to be reviewed, with its number.

LEFT_OUT = samples.left_out()
NAMING = ("sr", "sr3d", "text", "report.txt", "report.json", "study page")
"""Outputs that list what is not reported, a message by its code; pictures draw what is, the impression counts the rest.
"""


@pytest.mark.parametrize("others", [(finding(), absent(EDEMA)), ()], ids=["beside others", "alone"])
def test_what_is_left_out_is_named_once_and_what_is_uncalibrated_is_reviewed(others: tuple[Finding, ...]) -> None:
    texts = texts_of(samples.film(findings=(*others, LEFT_OUT)))

    assert {output: texts[output].count("Pneumothorax") for output in NAMING} == dict.fromkeys(NAMING, 1)
    assert [output for output in NAMING if "not " not in texts[output].casefold()] == []
    coded = [line.split("|") for line in texts["oru"].splitlines() if LEFT_OUT.code.value in line]
    assert [(kind, value) for kind, _, value, *_ in coded] == [("CWE", "NOTASSESSED")]
    assert sum(line.startswith("TX|") and "Pneumothorax" in line for line in texts["oru"].splitlines()) == 1
    for output, text in texts_of(samples.film(findings=(*others, samples.uncalibrated()))).items():
        assert "91" in text, output
        assert "review" in text.lower() or FindingState.UNCALIBRATED in text, output


@pytest.mark.parametrize(
    ("done", "state"),
    [
        ((), FindingState.LEFT_OUT),
        ((REJECT,), FindingState.ABSENT),
        ((ADD,), FindingState.PRESENT),
        ((ADD, ACCEPT), FindingState.PRESENT),
    ],
)
def test_what_a_reader_says_of_what_is_left_out_counts_and_has_no_number(
    done: tuple[CorrectionKind, ...], state: FindingState
) -> None:
    film = corrected(tuple((kind, PNEUMOTHORAX) for kind in done), samples.film(findings=(finding(), LEFT_OUT)))

    [_, found] = json.loads(json.dumps(report_json.film_for_programs(film)))["findings"]
    assert (found["state"], found["probability"]) == (state, None)
    assert len(found["boxes"]) == (state is FindingState.PRESENT)
    is_named = "not evaluated" in " ".join(impression.of_film(film)).lower()
    assert is_named is (state is FindingState.LEFT_OUT)
