"""What a reader decided about a report at a workstation: read from the object alone."""

from __future__ import annotations

import pytest
from pydicom.dataset import Dataset
from pydicom.uid import ComprehensiveSRStorage

from node.dicom import assessments
from node.dicom.assessments import ReaderDecision, Verdict
from tests import films
from tests.workstation import TRACKING, assessment, decision, finding, group, region, report

FILM = films.thumbnail()
RESULT = films.of_class(films.non_image("SR"), ComprehensiveSRStorage)
SQUARE = [2, 3, 20, 3, 20, 30, 2, 30, 2, 3]


def decided(*content: Dataset) -> tuple[ReaderDecision, ...]:
    found = assessments.read(assessment(FILM, *content, of=RESULT, name="assessment"))
    assert found is not None
    return found.decisions


@pytest.mark.parametrize(
    ("meaning", "expected"),
    [
        ("Accepted", Verdict.ACCEPTED),
        ("AI Result Rejected", Verdict.REJECTED),
        ("false  positive", Verdict.REJECTED),
        ("Modified", Verdict.MODIFIED),
        ("missed", Verdict.SUPPLEMENTED),
    ],
)
def test_a_decision_is_known_by_its_meaning(meaning: str, expected: Verdict) -> None:
    assert decided(group(decision(meaning), tracking=TRACKING)) == (
        ReaderDecision(verdict=expected, tracking_uid=TRACKING),
    )


@pytest.mark.parametrize(("value", "expected"), [("122775", Verdict.ACCEPTED), ("122776", Verdict.REJECTED)])
def test_agreement_with_prior_findings_is_a_decision(value: str, expected: Verdict) -> None:
    (found,) = decided(group(finding("whatever", value=value, scheme="DCM", site=True), tracking=TRACKING))

    assert found.verdict is expected


def test_a_decision_outside_a_group_is_about_the_whole_report() -> None:
    found = assessments.read(assessment(FILM, decision("Accepted"), of=RESULT, name="assessment"))

    assert found is not None
    assert found.decisions == (ReaderDecision(verdict=Verdict.ACCEPTED),)
    assert str(RESULT.SOPInstanceUID) in found.assessed


def test_a_decision_below_a_group_is_about_its_finding() -> None:
    inner = group(decision("Rejected"))

    assert [found.tracking_uid for found in decided(group(inner, tracking=TRACKING))] == [TRACKING]


def test_a_supplement_has_a_finding_and_a_place() -> None:
    (found,) = decided(group(finding("Edema"), decision("Supplemented"), region(FILM, "POLYLINE", SQUARE)))

    assert found.verdict is Verdict.SUPPLEMENTED
    assert (found.names, found.films) == (("1", "Edema"), (str(FILM.SOPInstanceUID),))
    assert found.box is not None
    assert found.box.edges == (2, 3, 20, 30)


def test_what_decides_nothing_known_is_said() -> None:
    found = assessments.read(
        assessment(FILM, group(decision("perhaps"), tracking=TRACKING), of=RESULT, name="assessment")
    )

    assert found is not None
    assert found.decisions == ()
    assert "neither accepted" in found.left_out[0]


def test_a_report_without_a_decision_is_none() -> None:
    assert assessments.read(report(FILM, group(finding("Edema"), region(FILM, "POLYLINE", SQUARE)))) is None
