"""Questions that a reader draws at a workstation: routed by an Orthanc or sent, and answered once in their study."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from pydicom.dataset import Dataset
from pydicom.uid import EnhancedSRStorage

from node.config import QuestionsSettings
from node.dicom import question_object
from tests.drills.conformance import cases, dicomscope, pictures
from tests.drills.conformance.ohif import beside
from tests.node.jobs.test_rounds import predecessor
from tests.support import films, peers, workstation
from tests.support.orthanc import Orthanc, beside_node, routing_questions
from tests.support.service import Service, settings_for
from tests.support.workstation import TRACKING, finding, group, region

FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
SECONDS = 10.0
"""How long a reader waits for an answer at most."""
SQUARE = [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]


@pytest.fixture
def orthanc(tmp_path: Path) -> Iterator[Orthanc]:
    """An Orthanc that routes questions, and a node that answers those of any reader; the film was read."""
    with beside_node(tmp_path, changes=routing_questions(tmp_path)) as (archive, settings):
        questions = QuestionsSettings(ae_titles=(archive.ae_title,))
        with Service(replace(settings, questions=questions)):
            archive.upload(FILM)
            archive.wait_for_count(3)
            yield archive


@pytest.mark.drill(part="peers")
def test_a_report_with_a_region_is_answered_in_its_study(orthanc: Orthanc) -> None:
    asked = workstation.report(FILM, group(finding("edema"), region(FILM, "POLYLINE", SQUARE), tracking=TRACKING))
    before = {str(found.SOPInstanceUID) for found in orthanc.instances(STUDY)} | {str(asked.SOPInstanceUID)}

    began = time.monotonic()
    orthanc.upload(asked)
    orthanc.wait_for_count(6, study_uid=STUDY)
    assert time.monotonic() - began < SECONDS

    answer = [found for found in orthanc.instances(STUDY) if str(found.SOPInstanceUID) not in before]
    assert sorted(found.Modality for found in answer) == ["PR", "SR"]
    (report,) = [found for found in answer if found.Modality == "SR"]
    assert predecessor(report) == str(asked.SOPInstanceUID)
    orthanc.upload(asked)
    orthanc.wait_until_idle()
    time.sleep(2)
    assert orthanc.count(STUDY) == 6, "the film, its report and state, the question, and its answer once"


@pytest.mark.drill(part="pages")
def test_a_rectangle_drawn_in_ohif_is_answered(orthanc: Orthanc, browser: Browser, tmp_path: Path) -> None:
    film = films.as_another(cases.chest(), "drawn on", study="drawn on")
    film.SeriesDescription = "Film 1"  # by which the viewer finds it, where it opens a report a second time
    uid = str(film.StudyInstanceUID)
    orthanc.upload(film)
    orthanc.wait_for_count(3, study_uid=uid)
    with beside(browser, orthanc, tracks=True) as viewer, viewer.show(uid, count=1) as seen:
        seen.ask("edema", (0.42, 0.55), (0.5, 0.7))
        began = time.monotonic()
        orthanc.wait_for_count(6, study_uid=uid)
        assert time.monotonic() - began < SECONDS
        assert seen.faults == []
    found = orthanc.instances(uid)
    (asked,) = [each for each in found if each.SOPClassUID == EnhancedSRStorage]
    said = question_object.read(asked)
    assert (said.labels, said.creators, said.asked_by) == ({"create report"}, {"unspecified"}, ""), "as documented"
    (answer,) = [each for each in found if predecessor_of(each) == asked.SOPInstanceUID]
    assert answer.Modality == "SR"
    with beside(browser, orthanc) as viewer, viewer.show(uid, count=1) as seen:
        labels = [label for report in seen.reports() for label in report.labels]
    assert any(label.startswith("edema, AI: ") for label in labels), "OHIF draws the answer's box"


def predecessor_of(found: Dataset) -> str:
    return predecessor(found) if "PredecessorDocumentsSequence" in found else ""


CORNERS = (20, 30, 120, 30, 120, 160, 20, 160, 20, 30)
OVAL = (0.1, 0.5, 0.4, 0.5, 0.25, 0.3, 0.25, 0.7)


@pytest.mark.drill(part="peers")
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
