"""One question in five ways gets one answer, which the archive gets with its probability and its region.

The page and a program ask over HTTP, the command asks a model, and a workstation stores a structured report or a
presentation state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from models.contract import FindingState
from node.__main__ import main
from node.config import ModelSettings, QuestionsSettings
from node.outputs.answers import QUESTION
from tests.support import peers, workstation
from tests.support.archived import ArchivedNode, StartNode
from tests.support.documents import everything, said

pytestmark = pytest.mark.drill(part="peers")

Content = dict[str, object]
Edges = tuple[float, float, float, float]
FACTS: Final = ("id", "asked_at", "asked_by", "source", "model", "engine", "prompts", "sent")
PAGE: Final = {"X-Requested-From": "page"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about the film, and the state of its answer."""

    prompt: str | None
    box: Edges | None
    state: FindingState

    @property
    def options(self) -> list[str]:
        """The question for the command."""
        box = [] if self.box is None else ["--box", ",".join(map(str, self.box))]
        return box if self.prompt is None else [*box, "--prompt", self.prompt]

    def as_report(self, film: Dataset) -> Dataset:
        content = [] if self.prompt is None else [workstation.finding(self.prompt)]
        if self.box is not None:
            content.append(workstation.region(film, "POLYLINE", corners(self.box)))
        return workstation.report(film, workstation.group(*content), name=f"report {self}")

    def as_state(self, film: Dataset) -> Dataset:
        texts = [] if self.prompt is None else [workstation.note(self.prompt, 100, 250)]
        graphics = [] if self.box is None else [workstation.graphic("POLYLINE", corners(self.box))]
        return workstation.state(film, graphics=graphics, texts=texts, name=f"state {self}")


OPACITY: Final = (100.0, 260.0, 250.0, 430.0)
QUESTIONS: Final = {
    "a text": Question(prompt="Lung opacity", box=None, state=FindingState.PRESENT),
    "a box": Question(prompt=None, box=OPACITY, state=FindingState.ABSENT),
    "a text in a box": Question(prompt="Lung opacity", box=OPACITY, state=FindingState.UNCALIBRATED),
}


def corners(box: Edges) -> list[float]:
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom, left, bottom, left, top]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with the shipped model that has read a film, and answers what workstations ask about it."""

    started: ArchivedNode
    film: Dataset
    path: Path
    model: Path

    def ask(self, what: str, body: object = None, **headers: str) -> list[Content]:
        """The answers of the interface to a request about the film."""
        path = f"/api/v1/films/{self.film.SOPInstanceUID}/{what}"
        _, content = self.started.service.ask("GET" if body is None else "POST", path, body, **headers)
        return cast(list[Content], content["questions"])

    def have_sent(self, answer_id: object) -> int:
        """Have the node send an answer; returns the status."""
        status, _ = self.started.service.ask("POST", f"/api/v1/questions/{answer_id}/send")
        return status

    def report_after(self, send: Callable[[], int | None], *, status: int) -> Dataset:
        """Send what makes the node send an answer, and return the structured report of the answer."""

        def reports() -> list[Dataset]:
            found = self.started.objects(str(self.film.StudyInstanceUID), "SR")
            return [report for report in found if "answer" in report.SeriesDescription]

        before = len(reports())
        assert send() == status
        self.started.archive.wait_until(lambda: len(reports()) > before)
        return reports()[-1]


@pytest.fixture(scope="module")
def node(start_node: StartNode, phantom_model: Path, opacity_film: Path) -> Node:
    asks = QuestionsSettings(ae_titles=("TESTER",))
    started = start_node(
        model=ModelSettings(directory=phantom_model), change=lambda settings: replace(settings, questions=asks)
    )
    started.service.read(opacity_film)
    return Node(started=started, film=dcmread(opacity_film), path=opacity_film, model=phantom_model)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_way_of_asking_gets_the_same_answer(node: Node, capsys: pytest.CaptureFixture[str], name: str) -> None:
    question, port = QUESTIONS[name], node.started.service.dicom_port
    assert main(["ask", str(node.path), "--json", "--model", str(node.model), *question.options]) == 0
    (at_model,) = json.loads(capsys.readouterr().out)["questions"]
    # As `ask.js` does: a text may be a question in words; what is in a box alone is told from the report.
    words = {"text": question.prompt, "box": question.box}
    one = {"questions": [{"prompt": question.prompt, "box": question.box}]}
    asked = [
        *(node.ask("replies", words, **PAGE) if question.prompt else node.ask("questions", one, **PAGE)),
        *node.ask("questions", one),
    ]
    known = [entry["id"] for entry in node.ask("questions")]
    reports = [
        node.report_after(partial(peers.send, stored, port=port), status=0)
        for stored in (question.as_report(node.film), question.as_state(node.film))
    ]
    answers = [*asked, *(entry for entry in node.ask("questions") if entry["id"] not in known)]
    assert at_model["state"] == question.state
    for answer in answers:
        assert {key: value for key, value in answer.items() if key not in FACTS} == at_model
    assert sorted(str(answer["source"]) for answer in answers) == ["api", "dicom", "dicom", "page"]

    for answer in asked:
        reports.append(node.report_after(partial(node.have_sent, answer["id"]), status=202))
    percent = str(round(100 * at_model["score"]))
    for report in reports:
        assert set(re.findall(r"AI probability (\d+) %", said(report))) == {percent}
        (about,) = (item for item in everything(report) if item.ConceptNameCodeSequence[0].CodeValue == QUESTION.value)
        regions = [edges(item) for item in about.ContentSequence if item.ValueType == "SCOORD"]
        assert regions == ([] if question.box is None else [pytest.approx(question.box)])


def edges(region: Dataset) -> list[float]:
    columns, rows = region.GraphicData[::2], region.GraphicData[1::2]
    return [min(columns), min(rows), max(columns), max(rows)]
