"""The FHIR bundle of a report: what it says, beside the structured report, and what a later one takes back."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydicom.dataset import Dataset

from models.contract import Side
from node.cardiothoracic_ratio import Incomparable
from node.domain import Assessment, Film, ReaderMark, Report
from node.hl7.order import Order
from node.outputs import fhir, report_txt
from tests.node.hl7.test_hl7_message import ORDER, SR
from tests.node.outputs.test_identity import Node, X
from tests.support import recorded, samples
from tests.support.lasting import lasting


def written(
    *films: Film, header: Dataset | None = None, report: Report | None = None, order: Order | None = None
) -> bytes:
    report = report or samples.report(*(films or (samples.several(),)))
    sources = {film.source: samples.cr(number) for number, film in enumerate(report.films, 1)}
    if header is not None:
        sources[report.films[0].source] = header
    return fhir.write(report, sources, samples.BERLIN, order=order, documents=[SR])[1]


def of(content: bytes, kind: str) -> list[dict[str, Any]]:
    resources = [entry["resource"] for entry in json.loads(content)["entry"]]
    return [resource for resource in resources if resource["resourceType"] == kind]


def observed(content: bytes) -> Mapping[str, dict[str, Any]]:
    """Observations by the code of their finding."""
    return {resource["code"]["coding"][0]["code"]: resource for resource in of(content, "Observation")}


def test_a_bundle_is_as_recorded() -> None:
    marks = {
        what: ReaderMark(what=what, by=f"Dr. {what}", at=datetime(2024, 2, day, 12, 30, tzinfo=UTC))
        for day, what in enumerate(Assessment, 1)
    }
    film, rejected = samples.several(), replace(samples.absent(), reader=marks[Assessment.REJECTED])
    effusion, edema, devices, _ = film.findings
    moved = replace(edema.boxes[0], reader=marks[Assessment.MOVED])
    findings = (effusion, replace(edema, boxes=(moved, edema.boxes[1])), devices, rejected)
    added = replace(samples.finding(samples.PNEUMOTHORAX, side=Side.LEFT), reader=marks[Assessment.ADDED])
    others = (added, samples.uncalibrated(), samples.left_out(samples.DEVICES))
    films = (
        replace(film, findings=findings, ratio=samples.ratio()),
        samples.unread(2),
        replace(samples.film(3, findings=others), ratio=samples.ratio(objection=Incomparable.CHILD)),
    )
    content = written(*films, order=ORDER)
    left = fhir.WRITER.withdrawn(content, "2.25.1", datetime(2024, 3, 1, tzinfo=UTC), [written(film)])

    assert left is not None
    said, left_over = (
        json.loads(lasting(each.decode()), object_pairs_hook=briefly)["entry"] for each in (content, left)
    )
    taken_back = [(entry["request"], entry["resource"]["status"], len(entry["resource"])) for entry in left_over]
    recorded.check("fhir", {"said": said, "taken back": taken_back})


def briefly(pairs: list[tuple[str, Any]]) -> dict[str, Any] | str:
    """Return an object without prose; one that holds texts alone, as a code does, on one line."""
    kept = {key: value for key, value in pairs if key not in ("text", "div", "conclusion", "data")}
    are_texts = kept and all(isinstance(value, str) for value in kept.values())
    return " ".join(f"{key}={value}" for key, value in kept.items()) if are_texts else kept


def test_boxes_in_several_zones_have_the_organ_as_their_site() -> None:
    whole = samples.finding()
    [lower] = whole.boxes
    middle = replace(samples.LOWER_ZONE, zone="right_mid_lung_zone", extent=0.1)
    several = replace(whole, boxes=(lower, replace(lower, tracking_uid="2.25.1", evidence=middle)))

    sites = [
        observed(written(samples.film(findings=(finding,))))[samples.EFFUSION.value]["bodySite"]["text"]
        for finding in (whole, several)
    ]

    assert sites == ["lower zone of the right lung", "right pleura"]


def test_a_bundle_refers_to_what_it_has_and_has_the_text_report() -> None:
    of_report = samples.report(samples.several(), samples.unread(2))

    content = written(report=of_report)

    (report,) = of(content, "DiagnosticReport")
    references = {text for text in json.dumps(json.loads(content)).split('"') if text.startswith("urn:uuid:")}
    assert references == {entry["fullUrl"] for entry in json.loads(content)["entry"]}
    assert "NOT FOR DIAGNOSIS" in report["text"]["div"] and report["conclusion"].startswith("AI RESEARCH")
    assert base64.b64decode(report["presentedForm"][0]["data"]).decode() == report_txt.render(of_report)


def test_each_resource_of_two_films_that_say_the_same_is_stored_apart_and_has_its_name_at_any_time() -> None:
    mark = ReaderMark(what=Assessment.ACCEPTED, by="Dr. Roe", at=datetime(2024, 2, 1, tzinfo=UTC))
    finding = replace(samples.finding(), reader=mark)
    films = [replace(samples.film(number, findings=(finding,)), ratio=samples.ratio()) for number in (1, 2)]

    content = written(*films)

    entries = json.loads(content)["entry"]
    places = {(entry["fullUrl"], entry["request"]["url"]) for entry in entries}
    assert len({url for url, _ in places}) == len({place for _, place in places}) == len(entries) == 12
    first = samples.report(*films)
    later = replace(first, created_at=first.created_at + timedelta(hours=1))
    sources = {film.source: samples.cr(number) for number, film in enumerate(films, 1)}
    outputs = [fhir.write(each, sources, samples.BERLIN, order=None, documents=[SR]) for each in (first, later)]
    assert outputs[0][0] == outputs[1][0], "the same output"
    assert content == outputs[0][1] != outputs[1][1], "but for its time"


def test_no_value_is_invented_for_a_film_that_does_not_say_it() -> None:
    header = samples.cr()
    for keyword in ("PatientID", "IssuerOfPatientID", "AccessionNumber", "StudyDate", "StudyTime"):
        setattr(header, keyword, "")

    content = written(header=header)

    for resource in (*of(content, "DiagnosticReport"), *of(content, "Observation")):
        assert not resource.keys() & {"subject", "basedOn", "effectiveDateTime"}


@pytest.mark.parametrize(("of_finding", "of_box", "last"), [(2, 1, 2), (1, 2, 2), (None, 1, 1)])
def test_the_last_of_several_corrections_is_named(of_finding: int | None, of_box: int, last: int) -> None:
    marks = {
        day: ReaderMark(what=Assessment.MOVED, by=f"Dr. {day}", at=datetime(2024, 2, day, tzinfo=UTC)) for day in (1, 2)
    }
    [box] = (finding := samples.finding()).boxes
    mark = None if of_finding is None else marks[of_finding]
    moved = replace(finding, reader=mark, boxes=(replace(box, reader=marks[of_box]),))

    content = written(samples.film(findings=(moved,)))
    [provenance] = of(content, "Provenance")

    assert provenance["agent"][0]["who"]["display"] == f"Dr. {last}"
    assert provenance["recorded"] == f"2024-02-0{last}T00:00:00Z"
    withdrawn = fhir.WRITER.withdrawn(content, "2.25.1", datetime.now(UTC), [])
    assert withdrawn is not None
    assert of(withdrawn, "Provenance") == of(withdrawn, "Device") == [], "neither was wrong"


def test_a_film_more_takes_nothing_back_and_another_patient_gets_new_resources(tmp_path: Path) -> None:
    node = Node(tmp_path, "fhir")
    contents: list[list[bytes]] = []
    for received in ({"film": "P-1"}, {"another": "P-1"}, {"film": "P-2", "another": "P-2"}):
        for name, patient in received.items():
            node.receive(name, **{**X, "PatientID": patient})
        contents.append([node.content(output) for output in node.round()])

    [first], [second], [withdrawn, new] = contents
    places = [{entry["request"]["url"] for entry in json.loads(content)["entry"]} for content in (first, second)]
    assert places[0] < places[1]
    for kind in ("DiagnosticReport", "Observation", "ImagingSelection"):
        old = {resource["identifier"][0]["value"] for resource in of(second, kind)}
        assert {resource["identifier"][0]["value"] for resource in of(withdrawn, kind)} == old
        assert {resource["status"] for resource in of(withdrawn, kind)} == {"entered-in-error"}
        assert old.isdisjoint(resource["identifier"][0]["value"] for resource in of(new, kind))
    subjects = [of(content, "DiagnosticReport")[0]["subject"]["identifier"]["value"] for content in (withdrawn, new)]
    assert subjects == ["P-1", "P-2"]


def test_what_a_new_version_does_not_have_is_entered_in_error() -> None:
    film = samples.several()
    unplaced = replace(film, findings=(replace(film.findings[0], boxes=()), *film.findings[1:]))
    old, new = written(film), written(unplaced)

    left = fhir.WRITER.withdrawn(old, "2.25.1", datetime.now(UTC), [new])

    assert left is not None
    (selection,) = [entry["resource"] for entry in json.loads(left)["entry"]]
    assert selection["resourceType"] == "ImagingSelection" and selection["status"] == "entered-in-error"
    assert selection["code"]["coding"][0]["code"] == samples.EFFUSION.value
    assert fhir.WRITER.withdrawn(old, "2.25.1", datetime.now(UTC), [old]) is None
    assert fhir.WRITER.read(left) is None
