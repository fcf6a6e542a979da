"""What a reader said carries no probability of the network: names by who said it, in every output.

OHIF 3.13.2 labels a box with name and value of the number in its group, so a finding that a reader had added read
"Pneumothorax, AI: 11.00 %".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import BytesIO

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, PromptKind
from node.answers.questions import understand
from node.answers.replies import answer
from node.domain import Code, Film, Finding
from node.outputs import gsps, report_json, report_txt, vocabulary, wording
from node.outputs.corrected_film import correct
from node.outputs.document import save_bytes
from node.outputs.sr import report as sr
from node.read import prompts
from node.store.correction import Correction, CorrectionKind
from tests.support import samples, validators
from tests.support.documents import contents, groups
from tests.support.output_texts import hl7_lines, texts_of
from tests.support.samples import BERLIN, EDEMA, absent, cr, finding, received, report, sources
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
NAMES = {BESIDE_MOVED: MOVED}
LABELS = {
    CONFIRMED: "confirmed by a reader",
    DRAWN_FOR: "confirmed, box drawn by a reader",
    BESIDE_MOVED: "confirmed, box drawn by a reader",
    MOVED: "box drawn by a reader",
    ADDED: "added by a reader",
}

Said = tuple[CorrectionKind, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a reader does in turn, and what the boxes of the finding are then called, with the percents of the network.

    number: the probability of the finding in `report.json` and in HL7
    """

    said: tuple[Said, ...]
    boxes: tuple[tuple[str, int | None], ...]
    number: float | None


CASES = {
    "added": Case(said=((CorrectionKind.ADD, PNEUMOTHORAX),), boxes=((ADDED, None),), number=None),
    "moved": Case(said=((CorrectionKind.MOVE, EFFUSION),), boxes=((MOVED, None),), number=None),
    "one of two moved": Case(said=((CorrectionKind.MOVE, LUNGS),), boxes=((MOVED, None), (AI, 41)), number=None),
    "a second box": Case(said=((CorrectionKind.ADD, EFFUSION),), boxes=((AI, 83), (DRAWN_FOR, 83)), number=0.83),
    "a second box, the first moved": Case(
        said=((CorrectionKind.ADD, EFFUSION), (CorrectionKind.MOVE, EFFUSION)),
        boxes=((MOVED, None), (BESIDE_MOVED, None)),
        number=None,
    ),
    "moved, a second box": Case(
        said=((CorrectionKind.MOVE, EFFUSION), (CorrectionKind.ADD, EFFUSION)),
        boxes=((MOVED, None), (BESIDE_MOVED, None)),
        number=None,
    ),
    "a box for one without": Case(said=((CorrectionKind.ADD, NO_BOX),), boxes=((DRAWN_FOR, 57),), number=0.57),
    "a box for one without, moved": Case(
        said=((CorrectionKind.ADD, NO_BOX), (CorrectionKind.MOVE, NO_BOX)), boxes=((DRAWN_FOR, 57),), number=0.57
    ),
    "a box for one without, confirmed": Case(
        said=((CorrectionKind.ADD, NO_BOX), (CorrectionKind.ACCEPT, NO_BOX)), boxes=((DRAWN_FOR, 57),), number=0.57
    ),
    "confirmed without a box": Case(said=((CorrectionKind.ACCEPT, NO_BOX),), boxes=(), number=0.57),
    "confirmed": Case(said=((CorrectionKind.ACCEPT, EFFUSION),), boxes=((CONFIRMED, 83),), number=0.83),
    "confirmed, was to be reviewed": Case(
        said=((CorrectionKind.ACCEPT, LUNGS),), boxes=((CONFIRMED, 41), (CONFIRMED, 41)), number=0.41
    ),
    "added, confirmed": Case(
        said=((CorrectionKind.ADD, PNEUMOTHORAX), (CorrectionKind.ACCEPT, PNEUMOTHORAX)),
        boxes=((ADDED, None),),
        number=None,
    ),
    "moved, confirmed": Case(
        said=((CorrectionKind.MOVE, EFFUSION), (CorrectionKind.ACCEPT, EFFUSION)), boxes=((MOVED, None),), number=None
    ),
    "added, moved": Case(
        said=((CorrectionKind.ADD, PNEUMOTHORAX), (CorrectionKind.MOVE, PNEUMOTHORAX)),
        boxes=((ADDED, None),),
        number=None,
    ),
    "a second box, confirmed": Case(
        said=((CorrectionKind.ADD, EFFUSION), (CorrectionKind.ACCEPT, EFFUSION)),
        boxes=((CONFIRMED, 83), (DRAWN_FOR, 83)),
        number=0.83,
    ),
    "reworded": Case(said=((CorrectionKind.REWORD, EFFUSION),), boxes=((AI, 83),), number=0.83),
    "rejected": Case(said=((CorrectionKind.REJECT, EFFUSION),), boxes=(), number=0.83),
    "added, rejected": Case(
        said=((CorrectionKind.ADD, PNEUMOTHORAX), (CorrectionKind.REJECT, PNEUMOTHORAX)), boxes=(), number=0.38
    ),
    "added, taken back": Case(
        said=((CorrectionKind.ADD, PNEUMOTHORAX), (CorrectionKind.WITHDRAW, PNEUMOTHORAX)), boxes=(), number=0.38
    ),
}


def corrected(said: tuple[Said, ...], film: Film = FILM) -> Film:
    """The film after what a reader did in turn; what is taken back is what was done before."""
    made: list[Correction] = []
    for number, (kind, key) in enumerate(said):
        now = correct(film, made, prompts=SET, side_of=lambda _box: None)
        boxes = next(found for found in now.findings if found.prompt == key).boxes
        made.append(
            Correction(
                id=f"{number:032x}",
                study_uid=samples.STUDY,
                film=film.source,
                kind=kind,
                at=datetime(2026, 11, 23, 12, 0, number, tzinfo=UTC),
                by="anna",
                source="page",
                prompt="" if kind is CorrectionKind.WITHDRAW else key,
                box=DRAWN if kind in (CorrectionKind.ADD, CorrectionKind.MOVE) else None,
                tracking_uid=boxes[0].tracking_uid if kind is CorrectionKind.MOVE else "",
                text="A small band." if kind is CorrectionKind.REWORD else "",
                withdraws=made[-1].id if kind is CorrectionKind.WITHDRAW else "",
            )
        )
    return correct(film, made, prompts=SET, side_of=lambda _box: None)


def judged(case: Case, film: Film) -> Finding:
    return next(found for found in film.findings if found.prompt == case.said[0][1])


@pytest.mark.parametrize("name", CASES)
def test_every_output_says_who_said_it(name: str) -> None:
    """What a report calls a box's number and who observed it, how a box is labeled, and what programs get."""
    case, film = CASES[name], corrected(CASES[name].said)
    found = judged(case, film)
    named = [
        (NAMES.get(who, who), ("1", "box") if percent is None else (str(percent), "%")) for who, percent in case.boxes
    ]

    for write in (sr.write, sr.write_3d):
        dataset = dcmread(BytesIO(save_bytes(samples.datasets(write, report(film), sources(cr()), BERLIN)[0])))
        own = [group for group in groups(dataset) if finding_of(group) == found.code.value]
        assert [number_of(group) for group in own] == named
        assert ["ObservationDateTime" in group for group in own] == [who != AI for who, _ in case.boxes]
        assert validators.dciodvfy(dataset) == []
        assert validators.dsrdump(dataset) == []

    labels = [wording.label(found, box) for box in found.boxes]
    state = samples.datasets(gsps.write, report(film), received(cr()), BERLIN)[0]
    texts = [
        str(item.UnformattedTextValue)
        for layer in state.GraphicAnnotationSequence
        for item in layer.get("TextObjectSequence", ())
    ]
    assert [ending(label) for label in labels] == [LABELS.get(who, f"{percent} %") for who, percent in case.boxes]
    assert set(labels) <= set(texts)

    written = json.loads(json.dumps(report_json.film_for_programs(film)))
    (entry,) = (item for item in written["findings"] if item["prompt"] == found.prompt)
    drawn = {MOVED: "moved", ADDED: "added", DRAWN_FOR: "drawn", BESIDE_MOVED: "drawn"}
    assert entry["probability"] == case.number
    assert [box.get("reader", {}).get("what") for box in entry["boxes"]] == [drawn.get(who) for who, _ in case.boxes]
    assert all(box["score"] == 1.0 for box in entry["boxes"] if "reader" in box)
    numbers = [line.split("|")[2] for line in hl7_lines(film) if line.startswith(f"NM|P{found.code.value}|")]
    assert numbers == ([] if case.number is None else [str(wording.whole_percent(case.number))])


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


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.number is None])
def test_no_output_has_a_number_of_what_the_network_did_not_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, film = CASES[name], corrected(CASES[name].said)
    percent = wording.whole_percent(judged(case, film).probability or 0.0)
    own = sum(found is not None for _, found in case.boxes)

    for output, text in texts_of(film, monkeypatch).items():
        found = re.findall(rf"(?<![\d.])(?:{percent} %|{percent}(?=\n|\||$)|0\.{percent})(?!\d)", text)
        shown = {"sr": 2, "sr3d": 2, "gsps": 1, "sc": 1, "study page": 1}.get(output, 0)  # of the network's own box
        assert len(found) <= own * shown, (output, found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("added", "Pneumothorax (added by a reader). Box: columns 300 to 800, rows 200 to 700, added by a reader."),
        ("moved", "Pleural effusion (box drawn by a reader)."),
        ("confirmed", "Right pleural effusion, AI 83 % (confirmed by a reader)."),
        ("rejected", "Rejected by a reader: Pleural effusion AI 83 %."),
        ("a box for one without", "Cardiomegaly, AI 57 % (confirmed, box drawn by a reader)."),
        ("confirmed without a box", "Cardiomegaly, AI 57 % (confirmed by a reader)."),
    ],
)
def test_the_text_says_who_said_it(name: str, said: str) -> None:
    assert said in report_txt.render(report(corrected(CASES[name].said)))


@pytest.mark.parametrize("name", ["rejected", "added, rejected"])
def test_no_output_says_of_what_a_reader_rejected_that_it_may_have_been_missed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    rejected = vocabulary.name_of(judged(case, FILM))

    texts = texts_of(corrected(case.said), monkeypatch)

    for output, text in texts.items():
        missed = " ".join(text.split()).partition("may have been missed):")[2]
        assert rejected not in re.split(r"Rejected|sentences|Not evaluated|Not looked for", missed)[0], output
    for output in ("sr", "sr3d", "text", "oru", "report.txt"):
        assert "Rejected by a reader" in texts[output], output
    assert '"what": "rejected"' in texts["report.json"]
    assert f"('Rejected by a reader', ['{rejected}" in texts["study page"]


def test_a_reply_says_who_said_it() -> None:
    def ask(name: str, text: str) -> str:
        return answer(understand(text, PROMPTS), corrected(CASES[name].said)).text

    assert "38 %" not in ask("added", "pneumothorax?")
    assert "Added by a reader." in ask("added", "pneumothorax?")
    assert "83 %" not in ask("moved", "effusion?")
    assert "Confirmed by a reader. The AI probability is 83 %." in ask("confirmed", "effusion?")
    assert ask("rejected", "effusion?") == "Pleural effusion is rejected by a reader."
    assert "Pleural effusion is rejected by a reader." in ask("rejected", "list the findings")


def test_a_sentence_about_what_was_added_has_no_network_score() -> None:
    film = corrected(CASES["added"].said)

    (own,) = (sentence for sentence in film.sentences if sentence.prompt == PNEUMOTHORAX)

    assert (own.by, own.score) == ("rule", 1.0)


def test_names_by_readers_fit_and_have_codes_of_their_own() -> None:
    """For each finding of the prompt set, side and assessment: 64 characters, and no code with two meanings."""
    meanings: dict[str, str] = {}
    for prompt in SET.prompts:
        if prompt.kind is not PromptKind.PATHOLOGY or prompt.finding is None:
            continue
        found = replace(finding(prompt.finding), prompt=prompt.key)
        film = replace(FILM, findings=(found,))
        for kind in (CorrectionKind.ACCEPT, CorrectionKind.MOVE, CorrectionKind.ADD, CorrectionKind.REWORD):
            dataset = samples.datasets(sr.write, report(corrected(((kind, prompt.key),), film)), sources(cr()), BERLIN)[
                0
            ]
            for group in groups(dcmread(BytesIO(save_bytes(dataset)))):
                (number,) = (item for item in group.ContentSequence if item.ValueType == "NUM")
                name = number.ConceptNameCodeSequence[0]
                code = str(name.get("CodeValue") or name.LongCodeValue)
                assert len(name.CodeMeaning) <= 64
                assert meanings.setdefault(code, name.CodeMeaning) == name.CodeMeaning
                assert number_of(group)[0] in (AI, CONFIRMED, DRAWN_FOR, MOVED), "the name is cut before who said it"
