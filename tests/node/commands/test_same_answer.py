"""One question in five ways: the answer is the same, and so is what the structured reports of it say.

The page and a program ask over HTTP, the command asks a model, and a workstation stores a structured report or a
presentation state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset

from language.sentences import unstated
from models.contract import FindingState
from node.__main__ import main
from node.outputs import vocabulary
from node.outputs.answers import ASKED_FOR, QUESTION
from node.outputs.sr.findings import STATES
from tests.node.web.test_web_questions import Asked, Content, asking, bare
from tests.support import peers, workstation
from tests.support.documents import contents, everything, groups, numbers, said

Edges = tuple[float, float, float, float]

IMAGE_REGION: Final = "111030"


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about the film; state: of its answer."""

    prompt: str | None
    box: Edges | None
    state: FindingState

    @property
    def content(self) -> Content:
        return {"prompt": self.prompt, "box": self.box}

    @property
    def options(self) -> list[str]:
        """The same for the command."""
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
    "a name as it is printed": Question(prompt="Opacity", box=None, state=FindingState.PRESENT),
    "a box": Question(prompt=None, box=OPACITY, state=FindingState.ABSENT),
    "a text in a box": Question(prompt="Lung opacity", box=OPACITY, state=FindingState.UNCALIBRATED),
}


def corners(box: Edges) -> list[float]:
    left, top, right, bottom = box
    return [left, top, right, top, right, bottom, left, bottom, left, top]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, opacity_film: Path) -> Iterator[Asked]:
    with asking(tmp_path_factory.mktemp("same"), model=phantom_model, film=opacity_film) as opened:
        yield opened


def by_page(node: Asked, question: Question) -> Content:
    """Ask as `ask.js` does: a text may be a question in words; what is in a box alone is told from the report."""
    page = {"X-Requested-From": "page"}
    if question.prompt is None:
        return only(node.questions(question.content, **page)[1])
    words = {"text": question.prompt, "box": question.box}
    return only(node.ask("POST", f"/api/v1/films/{node.uid}/replies", words, **page)[1])


def by_stored(node: Asked, stored: Dataset) -> tuple[Content, Dataset]:
    """Store an object as a workstation does, and return the answer that the node lists and the report of it."""
    known = [entry["id"] for entry in listed(node)]

    report = report_of(node, lambda: peers.send(stored, port=node.service.dicom_port) == 0)

    (answer,) = [entry for entry in listed(node) if entry["id"] not in known]
    return answer, report


def sent(node: Asked, answer: Content) -> Dataset:
    """Send an answer to the archive, and return the report that arrives."""
    return report_of(node, lambda: node.ask("POST", f"/api/v1/questions/{answer['id']}/send")[0] == 202)


def report_of(node: Asked, do: Callable[[], bool]) -> Dataset:
    """Do what makes the node send an answer, and return its structured report."""
    before = len(reports(node))
    assert do()
    node.archive.wait_until(lambda: len(reports(node)) > before)
    return reports(node)[-1]


def reports(node: Asked) -> list[Dataset]:
    """The reports on answers that have reached the archive, in their order."""
    kept = [received.dataset for received in node.archive.kept]
    return [found for found in kept if found.Modality == "SR" and "answer" in found.SeriesDescription]


def listed(node: Asked) -> list[Content]:
    return cast(list[Content], node.ask("GET", f"/api/v1/films/{node.uid}/questions")[1]["questions"])


def only(content: Content) -> Content:
    (answer,) = cast(list[Content], content["questions"])
    return answer


@pytest.mark.drill(part="peers")
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_way_of_asking_gets_the_same_answer(node: Asked, capsys: pytest.CaptureFixture[str], name: str) -> None:
    question, film = QUESTIONS[name], dcmread(node.path)

    assert main(["ask", str(node.path), "--json", "--model", str(node.model), *question.options]) == 0
    at_model = only(json.loads(capsys.readouterr().out))
    asked = [by_page(node, question), only(node.questions(question.content)[1])]
    stored = [by_stored(node, question.as_report(film)), by_stored(node, question.as_state(film))]

    answers = [*asked, *(answer for answer, _ in stored)]
    assert at_model["state"] == question.state
    assert [bare(answer) for answer in answers] == [at_model] * 4
    assert [answer["source"] for answer in answers] == ["page", "api", "dicom", "dicom"]
    for report in (*(sent(node, answer) for answer in asked), *(report for _, report in stored)):
        assert_says(report, at_model, question)


@pytest.mark.drill(part="runtimes")
def test_what_denies_is_asked_in_no_way(node: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    question, film = Question(prompt="no opacity", box=OPACITY, state=FindingState.ABSENT), dcmread(node.path)
    before = listed(node)

    told = [str(node.questions(question.content)[1]["detail"])]
    reply = node.ask("POST", f"/api/v1/films/{node.uid}/replies", {"text": "no opacity", "box": OPACITY})[1]
    assert main(["ask", str(node.path), "--model", str(node.model), *question.options]) == 2
    told.append(capsys.readouterr().err)
    assert peers.send(question.as_report(film), port=node.service.dicom_port) == 0
    told.append(str(node.service.wait_for("question.refused")["reason"]))

    assert all('because of "no": ' in text and "ask for the finding or the region itself" in text for text in told), (
        told
    )
    assert (reply["questions"], len(cast(list[Content], reply["corrections"]))) == ([], 1), "a person may confirm it"
    assert listed(node) == before


def assert_says(report: Dataset, answer: Content, question: Question) -> None:
    """Compare sentence, state, probability and boxes of a report with an answer; a report has whole percents."""
    text, state = said(report), question.state
    percent, sentence = round(100 * cast(float, answer["score"])), str(answer["sentence"])
    measured = [] if state is FindingState.ABSENT else groups(report)  # what is not reported is located nowhere

    assert vocabulary.STATES[state].capitalize() in text
    assert unstated(sentence) in text if sentence else "In words" not in text
    assert set(re.findall(r"AI probability (\d+) %", text)) == {str(percent)}
    assert [number_of(group) for group in measured] == [percent] * len(measured)
    assert [state_of(group) for group in measured] == [STATES[state].meaning] * len(measured)
    located = [] if state is FindingState.ABSENT else cast(list[Content], answer["boxes"])
    assert [region_of(group) for group in measured] == [pytest.approx(found["box"]) for found in located]
    (asked_about,) = [item for item in everything(report) if is_named(item, QUESTION.value)]
    regions = [item for item in asked_about.ContentSequence if item.ValueType == "SCOORD"]
    assert [edges(item) for item in regions] == ([] if question.box is None else [pytest.approx(question.box)])


def number_of(group: Dataset) -> float:
    (number,) = numbers(group)
    return float(number.MeasuredValueSequence[0].NumericValue)


def state_of(group: Dataset) -> str:
    (state,) = contents(group, ASKED_FOR.value)
    return str(state.ConceptCodeSequence[0].CodeMeaning)


def region_of(group: Dataset) -> list[float]:
    (region,) = contents(group, IMAGE_REGION)
    return edges(region)


def edges(region: Dataset) -> list[float]:
    columns, rows = region.GraphicData[::2], region.GraphicData[1::2]
    return [min(columns), min(rows), max(columns), max(rows)]


def is_named(item: Dataset, code: str) -> bool:
    return bool(item.ConceptNameCodeSequence[0].CodeValue == code)
