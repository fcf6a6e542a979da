"""What is reported is located, and nothing that is absent: in readings of the shipped model, answers and outputs."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import Box, FindingState, PromptKind, Question
from models.documents import decode, encode
from models.lab.phantoms import phantom
from node.domain import Film, GroundedSentence
from node.outputs import gsps, report_txt
from node.outputs.asked_question import answer_to_json
from node.outputs.document import save_bytes
from node.outputs.report_json import report_to_json
from node.outputs.sr import report as sr
from node.read import findings, open_film, prompts
from node.read.decoding import Radiograph
from node.read.framing import Framing
from node.read.model import open_reader
from tests.support import samples, validators
from tests.support.samples import BERLIN, absent, cr, film, finding, received, report, sources

PROMPTS = prompts.load("chexpert14")
PHANTOM = 1_000_004
"""One with findings."""
DENIAL = GroundedSentence(text="No pneumothorax.", prompt="pneumothorax", score=0.2, boxes=())


def denying() -> Film:
    """A film with a finding, and with another one that is absent and has a sentence."""
    shown = film(findings=(finding(), absent()))
    return Film(
        source=shown.source,
        columns=shown.columns,
        rows=shown.rows,
        analyzed=shown.analyzed,
        sentences=(*shown.sentences, DENIAL),
        findings=shown.findings,
    )


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("film") / "film.png"
    Image.fromarray(phantom(PHANTOM, side=224).pixels).resize((260, 300)).save(path)
    return path


def test_an_answer_locates_only_what_is_not_absent(phantom_model: Path, picture: Path) -> None:
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted="phantoms")
    questions = [Question(prompt=prompt.phrases[0]) for prompt in PROMPTS.prompts]
    questions.append(Question(prompt="Small pneumothorax in the left lung"))

    answers = open_film.ask(picture, questions, reader=reader, prompts=PROMPTS)

    states = {answer.state for answer in answers}
    assert {FindingState.ABSENT, FindingState.PRESENT, None} <= states
    for answer in answers:
        assert bool(answer.boxes) == (answer.state is None or answer.state.is_reported)
        assert bool(answer_to_json(answer)["boxes"]) == (answer.state is None or answer.state.is_reported)


def test_the_network_says_where_what_it_reports_lies(phantom_model: Path, picture: Path) -> None:
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1, trusted="phantoms")
    framing = Framing(columns=260, rows=300, square=Box(left=0, top=20, right=260, bottom=280))
    pixels = np.asarray(Image.open(picture))
    image = Radiograph(gray=pixels.astype(np.float32) / np.float32(255), framing=framing)

    reading = reader.read(image, PROMPTS)
    found = findings.find(reading, PROMPTS, source="1.2.3", framing=framing, model=reader.identity, sides_known=False)

    assert set(reading.regions) == {prompt.key for prompt in PROMPTS.prompts if prompt.kind is PromptKind.REGION}
    assert {coded.evidence is None for coded in found} == {True, False}
    for coded in found:
        assert (coded.evidence is None) == (not coded.state.is_reported)
        if coded.evidence is not None and coded.evidence.zone is not None:
            assert 0 < coded.evidence.extent <= 1
            assert coded.evidence.zone in reading.regions


def test_the_box_of_a_question_stays_in_its_answer(phantom_model: Path, picture: Path) -> None:
    reader = open_reader(phantom_model, prompts=PROMPTS, engine="onnx", threads=1)
    box = Box(left=20, top=60, right=90, bottom=200)
    questions = [Question(box=box, prompt=prompt) for prompt in (None, "Edema", "Pneumothorax", "Fracture")]

    answers = open_film.ask(picture, questions, reader=reader, prompts=PROMPTS)

    assert FindingState.ABSENT in {answer.state for answer in answers}
    for answer in answers:
        assert [scored.box.edges for scored in answer.boxes] == [pytest.approx(box.edges, abs=1e-3)]


def test_the_report_of_an_absent_finding_refers_to_the_film() -> None:
    [document] = samples.datasets(sr.write, report(denying()), sources(cr(1)), BERLIN)
    document = dcmread(BytesIO(save_bytes(document)))

    [denial] = [item for item in _everything(document) if item.get("TextValue", "").endswith(f'"{DENIAL.text}"')]
    [ground] = denial.ContentSequence

    assert (ground.RelationshipType, ground.ValueType) == ("INFERRED FROM", "IMAGE")
    assert ground.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == samples.film_uid(1)
    assert validators.dciodvfy(document) == []
    assert validators.dsrdump(document) == []


def test_every_other_output_stands_what_has_no_box() -> None:
    of = report(denying())

    [state] = samples.datasets(gsps.write, of, received(cr(1)), BERLIN)
    text = report_txt.render(of)
    found = json.loads(json.dumps(report_to_json(of, [])))["films"][0]

    [boxes] = [item for item in state.GraphicAnnotationSequence if item.GraphicLayer == gsps.BOXES]
    assert len(boxes.GraphicObjectSequence) == 1
    assert 'pneumothorax: "No pneumothorax."' in text
    assert [len(entry["boxes"]) for entry in found["findings"]] == [1, 0]
    assert [len(entry["boxes"]) for entry in found["sentences"]] == [1, 1, 0]
    assert decode(Film, encode(denying())) == denying()


def _everything(item: Dataset) -> list[Dataset]:
    """Return all content items below one."""
    children = list(item.get("ContentSequence", ()))
    return [*children, *(below for child in children for below in _everything(child))]
