"""Readers accept, reject, modify and supplement findings at a workstation: a new report follows, once, or a reason.

They say so in a structured report, or in a presentation state.
"""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from pydicom.dataset import Dataset

from node.config import QuestionsSettings, Settings
from node.store import question_objects
from node.store.spool import Spool
from tests import films, peers
from tests.documents import contents, groups
from tests.service import Service, read_and_stop, run_command, settings_for
from tests.test_rounds import predecessor
from tests.workstation import TRACKING, assessment, decision, finding, group, note, rectangle, region, state

Content = dict[str, object]

FILM = films.thumbnail()
STUDY = str(FILM.StudyInstanceUID)
SQUARE = [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]
PLACE = (2, 3, 20, 30)
PRESENT, ABSENT = "atelectasis", "cardiomegaly"  # what the scripted reader says of them
# look, and those of the two rounds that the object and its correction cause at most
STEPS = range(1, 9)


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """A stopped node that has read a film, and its archive, with what a workstation would find there."""

    settings: Settings
    archive: peers.ReceivingArchive

    @property
    def reports(self) -> list[Dataset]:
        return [kept.dataset for kept in self.archive.kept if kept.dataset.Modality == "SR"]

    def assessment(self, *content: Dataset, name: str = "assessment") -> Dataset:
        return assessment(FILM, *content, of=self.reports[0], name=name)

    def drawn_anew(self, moved: Mapping[str, Sequence[float]], *texts: Dataset, name: str) -> Dataset:
        """The node's newest presentation state as a workstation saves it: boxes moved, and texts of a reader added.

        moved: left, top, right and bottom by tracking UID
        """
        shown = [kept.dataset for kept in self.archive.kept if kept.dataset.Modality == "PR"][-1]
        saved = state(FILM, name=name)
        saved.GraphicLayerSequence = shown.GraphicLayerSequence
        saved.GraphicAnnotationSequence = copy.deepcopy(shown.GraphicAnnotationSequence)
        for annotation in saved.GraphicAnnotationSequence:
            for graphic in annotation.get("GraphicObjectSequence", ()):
                if graphic.get("TrackingUID") in moved:
                    graphic.GraphicData = outline(*moved[graphic.TrackingUID])
                    graphic.NumberOfGraphicPoints = 5
        drawn = state(FILM, texts=texts).GraphicAnnotationSequence if texts else []
        saved.GraphicAnnotationSequence = [*saved.GraphicAnnotationSequence, *drawn]
        return saved

    def tracking(self, meaning: str) -> list[str]:
        """The tracking UIDs of a finding's boxes, as a workstation finds them in the newest report."""
        return [
            str(contents(found, "112040")[0].UID)
            for found in groups(self.reports[-1])
            if contents(found, "121071")[0].ConceptCodeSequence[0].CodeMeaning == meaning
        ]

    def decided(self, meaning: str) -> list[Dataset]:
        """A decision on each box of the finding that is present."""
        return [group(decision(meaning), tracking=uid) for uid in self.tracking("Atelectasis")]

    def correct(self, asking: Dataset, *, corrections: int = 1) -> tuple[Dataset, dict[str, Content]]:
        """Send an assessment; the new report, and the finding of each prompt."""
        with Service(self.settings) as service:
            assert peers.send(asking, port=service.dicom_port) == 0
            received = service.wait_for("correction.received")
            self.archive.wait_for_kept(4)
            service.wait_for("study.finished")
            findings = findings_of(service)
            assert service.stop() == 0
        assert (received["corrections"], received["calling_aet"]) == (corrections, "TESTER")
        return self.reports[-1], findings

    def refusals(self, *asking: Dataset) -> list[str]:
        """Send objects that have no effect, one after the other; why."""
        with Service(self.settings) as service:
            refused = []
            for count, dataset in enumerate(asking, 1):
                assert peers.send(dataset, port=service.dicom_port) == 0
                refused.append(str(service.wait_for("question.refused", count=count)["reason"]))
            assert service.stop() == 0
        assert len(self.archive.kept) == 2
        return refused

    def refusal(self, asking: Dataset, settings: Settings | None = None) -> str:
        """Send an assessment that has no effect; why."""
        with Service(settings or self.settings) as service:
            assert peers.send(asking, port=service.dicom_port) == 0
            refused = service.wait_for("question.refused")
            service.wait_for("study.finished")
            explained = run_command("explain", asking.SOPInstanceUID, service.settings_path).stdout
            assert service.stop() == 0
        assert len(self.archive.kept) == 2
        assert str(refused["reason"]) in explained
        return str(refused["reason"])


def findings_of(service: Service) -> dict[str, Content]:
    connection = http.client.HTTPConnection(peers.LOOPBACK, service.http_port, timeout=30)
    connection.request("GET", f"/api/v1/studies/{STUDY}")
    study = json.loads(connection.getresponse().read())
    connection.close()
    (film,) = study["films"]
    return {finding["prompt"]: finding for finding in film["film"]["findings"]}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    with peers.ReceivingArchive() as archive:
        settings = settings_for(tmp_path / "node", archive_port=archive.port)
        settings = replace(settings, questions=QuestionsSettings(ae_titles=("TESTER",), corrections=True))
        read_and_stop(settings, FILM)
        yield Workplace(settings=settings, archive=archive)


def test_a_rejected_finding_is_gone_from_the_next_report(place: Workplace) -> None:
    before = place.reports[0]

    after, findings = place.correct(place.assessment(*place.decided("AI Result Rejected")))

    assert predecessor(after) == before.SOPInstanceUID
    assert place.tracking("Atelectasis") == []
    assert findings[PRESENT]["state"] == "absent"
    assert findings[PRESENT]["reader"]["by"] == "Reader Rita"  # type: ignore[index]
    assert "Reader Rita^" in {str(said.value) for said in after.iterall() if said.keyword == "PersonName"}


def test_an_accepted_finding_is_confirmed(place: Workplace) -> None:
    after, findings = place.correct(place.assessment(*place.decided("Accepted")[:1]))

    assert findings[PRESENT]["reader"]["what"] == "accepted"  # type: ignore[index]
    assert after.VerificationFlag == "UNVERIFIED"


def test_a_whole_report_is_accepted(place: Workplace) -> None:
    reported = [found for found in groups(place.reports[-1])]
    codes = {str(contents(found, "121071")[0].ConceptCodeSequence[0].CodeMeaning) for found in reported}

    _, findings = place.correct(place.assessment(decision("AI Result Accepted")), corrections=len(codes))

    assert sum(found.get("reader") is not None for found in findings.values()) == len(codes) > 1


def test_a_modified_box_lies_where_the_reader_drew_it(place: Workplace) -> None:
    uid, *others = place.tracking("Atelectasis")
    moved = group(decision("Modified"), region(FILM, "POLYLINE", SQUARE), tracking=uid)

    _, findings = place.correct(place.assessment(moved))

    assert set(place.tracking("Atelectasis")) == {uid, *others}
    boxes = {box["tracking_uid"]: box["box"] for box in cast(list[Content], findings[PRESENT]["boxes"])}
    assert boxes[uid] == [2, 3, 20, 30]


def test_a_supplemented_finding_is_reported(place: Workplace) -> None:
    missed = group(finding("Cardiomegaly"), decision("Supplemented"), region(FILM, "POLYLINE", SQUARE))

    _, findings = place.correct(place.assessment(missed))

    assert findings[ABSENT]["state"] == "present"
    assert len(place.tracking("Cardiomegaly")) == 1


def outline(left: float, top: float, right: float, bottom: float) -> list[float]:
    return [left, top, right, top, right, bottom, left, bottom, left, top]


def on(tracking: str, verdict: str) -> Dataset:
    """A text that belongs to a box by its tracking UID."""
    text = note(verdict, 5, 5)
    text.TrackingID, text.TrackingUID = "place 1", tracking
    return text


def test_a_state_moves_a_box_of_the_node(place: Workplace) -> None:
    uid, *others = place.tracking("Atelectasis")
    before = place.reports[-1].SOPInstanceUID

    after, findings = place.correct(place.drawn_anew({uid: PLACE}, name="moved"))

    boxes = {box["tracking_uid"]: box["box"] for box in cast(list[Content], findings[PRESENT]["boxes"])}
    assert boxes[uid] == list(PLACE)
    assert set(place.tracking("Atelectasis")) == {uid, *others}
    assert predecessor(after) == before
    assert findings[PRESENT]["reader"]["by"] == "Reader Rita"  # type: ignore[index]


def test_a_state_rejects_one_finding_and_adds_another(place: Workplace) -> None:
    rejected = [on(uid, "AI result rejected") for uid in place.tracking("Atelectasis")]
    missed = state(FILM, graphics=[rectangle(*PLACE)], texts=[*rejected, note("cardiomegaly missed", 3, 4)])

    _, findings = place.correct(missed, corrections=2)

    assert (findings[PRESENT]["state"], findings[ABSENT]["state"]) == ("absent", "present")
    assert [box["box"] for box in cast(list[Content], findings[ABSENT]["boxes"])] == [list(PLACE)]


def test_a_state_of_an_older_report_moves_nothing_back(place: Workplace) -> None:
    uid, *_ = place.tracking("Atelectasis")
    older = place.drawn_anew({}, on(uid, "accept"), name="older")
    place.correct(place.drawn_anew({uid: PLACE}, name="moved"))

    with Service(place.settings) as service:
        assert peers.send(older, port=service.dicom_port) == 0
        service.wait_for("correction.received")
        place.archive.wait_for_kept(6)
        service.wait_for("study.finished")
        findings = findings_of(service)
        assert service.stop() == 0

    assert findings[PRESENT]["reader"]["what"] == "accepted"  # type: ignore[index]
    boxes = {box["tracking_uid"]: box["box"] for box in cast(list[Content], findings[PRESENT]["boxes"])}
    assert boxes[uid] == list(PLACE)


@pytest.mark.parametrize("die_at", [1, 2, 4])
def test_a_state_that_comes_again_after_a_kill_corrects_once(place: Workplace, die_at: int) -> None:
    uid, *_ = place.tracking("Atelectasis")
    asking = place.drawn_anew({uid: PLACE}, name="moved")
    with Service(place.settings, die_at=die_at) as first:
        assert peers.send(asking, port=first.dicom_port) == 0
        assert first.wait_until_dead() == -9

    with Service(place.settings) as second:
        place.archive.wait_for_kept(4)
        assert peers.send(asking, port=second.dicom_port) == 0
        second.wait_for("study.finished")
        assert second.stop() == 0

    assert len({kept.sop_instance_uid for kept in place.archive.kept}) == 4
    (mark,) = question_objects.all_of(Spool(place.settings.storage.directory), STUDY)
    assert (mark.is_open, len(mark.corrections), mark.questions) == (False, 1, ())


def test_a_state_that_has_no_effect_says_why(place: Workplace) -> None:
    uid, *_ = place.tracking("Atelectasis")
    off = replace(place.settings, questions=replace(place.settings.questions, corrections=False))
    unknown = state(FILM, graphics=[rectangle(*PLACE, tracking=TRACKING)], texts=[note("accept", 3, 4)], name="unknown")

    assert "questions.corrections is off" in place.refusal(place.drawn_anew({uid: PLACE}, name="off"), off)
    assert place.refusals(
        unknown,
        place.drawn_anew({uid: (-30, -30, -2, -2)}, name="off the film"),
        place.drawn_anew({}, on(uid, "accept"), on(uid, "reject"), name="both"),
        place.drawn_anew({}, on(uid, "reject"), name="one of two"),
        state(FILM, graphics=[rectangle(*PLACE)], texts=[note("goiter missed", 3, 4)], name="no such finding"),
    ) == [
        "it names neither a finding nor a report of this node in this study",
        "a graphic lies outside the film",
        "two verdicts or two boxes for one box of the node: decide once",
        "a finding with several boxes is rejected as a whole only: reject each of its boxes",
        "a finding that is added is none that films are read for",
    ]


def test_two_verdicts_of_a_report_have_no_effect(place: Workplace) -> None:
    uid, *_ = place.tracking("Atelectasis")
    both = place.assessment(group(decision("Accepted"), decision("Rejected"), tracking=uid), name="both")

    assert place.refusals(both) == ["two verdicts or two boxes for one box of the node: decide once"]


def test_a_verdict_on_a_finding_stands_above_that_on_its_report(place: Workplace) -> None:
    reported = {contents(found, "121071")[0].ConceptCodeSequence[0].CodeMeaning for found in groups(place.reports[-1])}

    _, findings = place.correct(
        place.assessment(decision("AI Result Accepted"), *place.decided("Rejected")), corrections=len(reported)
    )

    assert findings[PRESENT]["state"] == "absent"


@pytest.mark.parametrize("die_at", STEPS)
def test_a_kill_after_any_step_corrects_once(place: Workplace, die_at: int) -> None:
    asking = place.assessment(*place.decided("Rejected"))
    with Service(place.settings, die_at=die_at) as first:
        assert peers.send(asking, port=first.dicom_port) == 0
        assert first.wait_until_dead() == -9

    with Service(place.settings) as second:
        place.archive.wait_for_kept(4)
        assert peers.send(asking, port=second.dicom_port) == 0  # the archive sends it again
        second.wait_for("study.finished")
        assert second.stop() == 0

    # What another thread was sending at the kill comes again, the same to the byte.
    contents = {(kept.sop_instance_uid, kept.content) for kept in place.archive.kept}
    assert len({kept.sop_instance_uid for kept in place.archive.kept}) == len(contents) == 4
    assert len(place.archive.requests) <= 5
    (mark,) = question_objects.all_of(Spool(place.settings.storage.directory), STUDY)
    assert (mark.is_open, len(mark.corrections)) == (False, 1)


def test_what_has_no_effect_says_why(place: Workplace) -> None:
    unknown = place.assessment(group(decision("Rejected"), tracking=str(FILM.SOPInstanceUID)), name="unknown")
    off = replace(place.settings, questions=replace(place.settings.questions, corrections=False))

    assert "names neither a finding nor a report" in place.refusal(unknown)
    assert "questions.corrections is off" in place.refusal(place.assessment(*place.decided("Rejected")), off)
    one_of_two = place.assessment(*place.decided("Rejected")[:1], name="one of two")
    assert "reject each of its boxes" in place.refusal(one_of_two)
