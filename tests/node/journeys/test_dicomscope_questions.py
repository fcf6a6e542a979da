"""A presentation state that DICOMscope wrote is a question, and DICOMscope draws the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.config import QuestionsSettings
from tests.drills.conformance import dicomscope, pictures
from tests.support import films, peers
from tests.support.service import Service, settings_for

pytestmark = pytest.mark.drill(part="peers")

FILM = films.thumbnail()
CORNERS = (20, 30, 120, 30, 120, 160, 20, 160, 20, 30)
OVAL = (0.1, 0.5, 0.4, 0.5, 0.25, 0.3, 0.25, 0.7)


def test_a_state_that_dicomscope_wrote_is_answered(tmp_path: Path) -> None:
    asking = dicomscope.draw(
        tmp_path / "asking",
        FILM,
        ("PIXEL", "POLYLINE", CORNERS),
        ("DISPLAY", "ELLIPSE", OVAL),
        creator="Reader^Rita",
        label="ASK AI",
        text="edema",
    )
    with peers.ReceivingArchive() as archive:
        settings = replace(
            settings_for(tmp_path / "node", archive_port=archive.port), questions=QuestionsSettings(labels=("ASK AI",))
        )
        with Service(settings) as service:
            assert peers.send_all([FILM, asking], port=service.dicom_port) == [0, 0]
            answered = service.wait_for("question.answered")
            archive.wait_for_kept(2 + 4)
            assert service.stop() == 0

    assert (answered["questions"], answered["reason"]) == (2, "")
    answers = [
        kept.dataset
        for kept in archive.kept
        if kept.dataset.Modality == "PR" and "answer" in kept.dataset.SeriesDescription
    ]
    assert len(answers) == 2
    shown, bare = dicomscope.show(
        tmp_path / "shown", [(FILM, answers[0]), (FILM, dicomscope.without_graphics(answers[0]))]
    )
    assert pictures.changed(pictures.read(shown), pictures.read(bare)).any()
