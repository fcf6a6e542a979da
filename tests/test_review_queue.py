"""The films to review of one study, as its rounds find them: which wait, and for which reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.config import Settings
from node.domain import FindingState
from node.prompt_set import PromptSet
from node.read.decoding import Radiograph
from node.read.model import Reading
from node.web import review
from node.web.review import ReviewQueue
from tests.damage import FILM, STUDY, Bench, benches
from tests.fakes import ScriptedReader
from tests.service import settings_for

KEY = "edema"


class Doubtful(ScriptedReader):
    """Answers everything but one prompt with "absent"."""

    def __init__(self, state: FindingState, contradiction: str | None) -> None:
        super().__init__()
        self._state, self._contradiction = state, contradiction

    def read(self, image: Radiograph, prompts: PromptSet) -> Reading:
        reading = super().read(image, prompts)
        answers = []
        for answer in reading.pathologies:
            is_doubtful = answer.prompt == KEY
            state = self._state if is_doubtful else FindingState.ABSENT
            against = self._contradiction if is_doubtful else None
            answers.append(replace(answer, state=state, contradiction=against))
        return replace(reading, pathologies=tuple(answers))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with benches(tmp_path) as made:
        yield made


def read(bench: Bench, state: FindingState, contradiction: str | None = None) -> None:
    """Read the film with a network that is in doubt about one finding."""
    pipeline = replace(bench.steps.pipeline, reader=Doubtful(state, contradiction))
    bench.steps = replace(bench.steps, pipeline=pipeline)
    bench.keep(FILM)
    bench.round()


def settings_of(bench: Bench) -> Settings:
    return settings_for(bench.folder, archive_port=104)


def queue_of(bench: Bench, *, limit: int = 50) -> ReviewQueue:
    return review.queue(settings_of(bench), bench.spool, limit=limit)


@pytest.mark.parametrize(
    ("state", "contradiction", "reasons"),
    [
        (FindingState.INDETERMINATE, None, ["The probability is near the threshold."]),
        (FindingState.INDETERMINATE, "film_normal", ["The network also calls the whole film normal."]),
        (FindingState.UNCALIBRATED, None, ["The threshold was not measured on such films."]),
        (
            FindingState.UNCALIBRATED,
            "other_side",
            [
                "Asked about the side of its box, the network finds it on the other side.",
                "The threshold was not measured on such films.",
            ],
        ),
    ],
)
def test_a_doubtful_finding_is_in_the_queue_with_its_reasons(
    bench: Bench, state: FindingState, contradiction: str | None, reasons: list[str]
) -> None:
    read(bench, state, contradiction)

    (film,) = queue_of(bench).films
    (finding,) = film.findings

    assert (film.study, film.film) == (STUDY, FILM.SOPInstanceUID)
    assert (finding.prompt, finding.state) == (KEY, state)
    assert list(finding.reasons) == reasons


@pytest.mark.parametrize("state", [FindingState.PRESENT, FindingState.ABSENT])
def test_a_film_without_a_doubtful_finding_is_not_in_the_queue(bench: Bench, state: FindingState) -> None:
    read(bench, state)

    assert queue_of(bench).films == ()
