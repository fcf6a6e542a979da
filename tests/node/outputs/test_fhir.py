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
from highdicom.sr import Comprehensive3DSR, MeasurementReport
from pydicom.dataset import Dataset

from models.contract import Side
from node.cardiothoracic_ratio import Incomparable
from node.domain import Assessment, Film, ReaderMark, Report
from node.hl7.order import Order
from node.outputs import fhir, report_txt
from node.outputs.sr import report as sr
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


def test_codes_percents_and_boxes_are_those_of_the_structured_report() -> None:
    film = samples.several()
    (document,) = samples.datasets(sr.write_3d, samples.report(film), samples.sources(samples.cr()), samples.BERLIN)
    content = written(film)

    content_of_sr = Comprehensive3DSR.from_dataset(document).content
    assert isinstance(content_of_sr, MeasurementReport)
    groups = content_of_sr.get_planar_roi_measurement_groups()
    in_sr = {
        (
            str(group.tracking_uid),
            group.finding_type.value,
            tuple(map(float, group.roi.value.flat)),
            int(group.get_measurements()[0].value),
        )
        for group in groups
        if group.finding_type is not None and group.roi is not None
    }
    in_fhir = set()
    for selection in of(content, "ImagingSelection"):
        finding = observed(content).get(selection["code"]["coding"][0]["code"])
        regions = selection["instance"][0].get("imageRegion2D", [])
        for identifier, region in zip(selection["identifier"][1:], regions, strict=True):
            assert finding is not None
            percent = finding["component"][0]["valueQuantity"]["value"]
            tracked = identifier["value"].removeprefix("urn:oid:")
            in_fhir.add((tracked, selection["code"]["coding"][0]["code"], tuple(region["coordinate"]), percent))

    assert in_fhir == in_sr and len(in_sr) == 4
    found = observed(content)
    systems = {code: each["code"]["coding"][0]["system"] for code, each in found.items()}
    assert systems[samples.EFFUSION.value] == "http://snomed.info/sct"
    assert systems[samples.DEVICES.value].startswith("urn:oid:2.25.")
    flagged = [code for code, each in found.items() if "interpretation" in each]
    assert flagged == [samples.EFFUSION.value]
    assert found[samples.EFFUSION.value]["interpretation"][0]["coding"][0]["code"] == "A"
    states = {code: each["valueCodeableConcept"]["coding"][0]["code"] for code, each in found.items()}
    assert states[samples.EFFUSION.value] == "52101004" and states[samples.EDEMA.value] == "82334004"
    assert states[samples.PNEUMOTHORAX.value] == "NOTREPORTED"


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


def test_all_is_preliminary_research_and_refers_to_what_the_bundle_has() -> None:
    content = written(samples.several(), samples.unread(2))
    (report,) = of(content, "DiagnosticReport")
    urls = {entry["fullUrl"] for entry in json.loads(content)["entry"]}

    assert {resource["status"] for resource in (report, *of(content, "Observation"))} == {"preliminary"}
    assert {resource["meta"]["tag"][0]["code"] for resource in (report, *of(content, "Observation"))} == {"RESEARCH"}
    assert "NOT FOR DIAGNOSIS" in report["text"]["div"] and report["conclusion"].startswith("AI RESEARCH")
    assert len(report["result"]) == len(of(content, "Observation")) == 4
    references = [match for match in json.dumps(json.loads(content)).split('"') if match.startswith("urn:uuid:")]
    assert set(references) == urls, "every reference is to a resource of the bundle"
    text, document = report["presentedForm"]
    assert base64.b64decode(text["data"]).decode() == report_txt.render(
        samples.report(samples.several(), samples.unread(2))
    )
    assert document["url"] == "urn:oid:2.25.77"
    assert report["code"]["coding"][0] == {
        "system": "http://loinc.org",
        "code": "18748-4",
        "display": "Diagnostic imaging study",
    }
    assert {each["effectiveDateTime"] for each in (report, *of(content, "Observation"))} == {
        "2024-01-31T10:15:30+01:00"
    }
    assert report["subject"]["identifier"]["assigner"] == {"display": "CLINIC"}


def test_each_resource_of_two_films_that_say_the_same_is_stored_apart() -> None:
    mark = ReaderMark(what=Assessment.ACCEPTED, by="Dr. Roe", at=datetime(2024, 2, 1, tzinfo=UTC))
    finding = replace(samples.finding(), reader=mark)
    films = [replace(samples.film(number, findings=(finding,)), ratio=samples.ratio()) for number in (1, 2)]

    content = written(*films)

    entries = json.loads(content)["entry"]
    places = {(entry["fullUrl"], entry["request"]["url"]) for entry in entries}
    assert len({url for url, _ in places}) == len({place for _, place in places}) == len(entries) == 12
    ratio = observed(content)["CTRATIO"]
    assert (ratio["valueQuantity"]["value"], ratio["valueQuantity"]["code"]) == (0.48, "1")
    assert ratio["note"] == [{"text": "below 0.50 (PA, adult)"}]


def test_the_same_content_at_another_time_is_the_same_bundle_but_for_its_time() -> None:
    first = samples.report(samples.several())
    later = replace(first, created_at=first.created_at + timedelta(hours=1))
    sources = samples.sources(samples.cr())

    outputs = [fhir.write(each, sources, samples.BERLIN, order=None, documents=[]) for each in (first, later, first)]

    assert outputs[0] == outputs[2]
    assert outputs[0][0] == outputs[1][0] and outputs[0][1] != outputs[1][1]


def test_no_value_is_invented_for_a_film_that_does_not_say_it() -> None:
    header = samples.cr()
    for keyword in ("PatientID", "IssuerOfPatientID", "AccessionNumber", "StudyDate", "StudyTime"):
        setattr(header, keyword, "")

    content = written(header=header)

    for resource in (*of(content, "DiagnosticReport"), *of(content, "Observation")):
        assert not resource.keys() & {"subject", "basedOn", "effectiveDateTime"}


@pytest.mark.parametrize(("order", "placer", "filler"), [(None, "P-8", "F-8"), (ORDER, "P|1", "F-9")])
def test_each_number_of_the_request_has_its_own_type(order: Order | None, placer: str, filler: str) -> None:
    header = samples.cr()
    header.PlacerOrderNumberImagingServiceRequest, header.FillerOrderNumberImagingServiceRequest = "P-8", "F-8"

    [report] = of(written(header=header, order=order), "DiagnosticReport")

    identifiers = [request["identifier"] for request in report["basedOn"]]
    found = {each["type"]["coding"][0]["code"]: each["value"] for each in identifiers}
    assert found == {"ACSN": "A-17", "PLAC": placer, "FILL": filler}


def test_a_rejected_finding_is_entered_in_error_and_the_reader_is_named() -> None:
    mark = ReaderMark(what=Assessment.REJECTED, by="Dr. Roe", at=datetime(2024, 2, 1, tzinfo=UTC))
    film = samples.several()
    effusion, *others = film.findings
    rejected = replace(effusion, state=others[-1].state, boxes=(), side=None, sentence=None, reader=mark)
    content = written(replace(film, findings=(rejected, *others)))

    finding = observed(content)[samples.EFFUSION.value]
    (provenance,) = of(content, "Provenance")

    assert finding["status"] == "entered-in-error"
    assert finding["valueCodeableConcept"]["coding"][0]["code"] == "REJECTED"
    assert provenance["agent"][0]["who"]["display"] == "Dr. Roe"
    url = next(each["fullUrl"] for each in json.loads(content)["entry"] if each["resource"] == finding)
    assert provenance["target"] == [{"reference": url}]


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


def bundles(node: Node) -> list[bytes]:
    return [node.content(output) for output in node.round()]


def test_a_corrected_patient_gets_new_resources_and_the_old_ones_are_entered_in_error(tmp_path: Path) -> None:
    node = Node(tmp_path, "fhir")
    node.receive("film", **X)
    (first,) = bundles(node)
    node.receive("film", **{**X, "PatientID": "P-2"})

    withdrawn, new = bundles(node)

    for kind in ("DiagnosticReport", "Observation", "ImagingSelection"):
        old = {resource["identifier"][0]["value"] for resource in of(first, kind)}
        assert {resource["identifier"][0]["value"] for resource in of(withdrawn, kind)} == old
        assert {resource["status"] for resource in of(withdrawn, kind)} == {"entered-in-error"}
        assert old.isdisjoint(resource["identifier"][0]["value"] for resource in of(new, kind))
    assert of(withdrawn, "DiagnosticReport")[0]["subject"]["identifier"]["value"] == "P-1"
    assert of(new, "DiagnosticReport")[0]["subject"]["identifier"]["value"] == "P-2"


def test_a_film_more_replaces_the_report_and_takes_nothing_back(tmp_path: Path) -> None:
    node = Node(tmp_path, "fhir")
    node.receive("film", **X)
    (first,) = bundles(node)
    node.receive("another", **X)

    (second,) = bundles(node)

    def named(content: bytes) -> set[str]:
        return {entry["request"]["url"] for entry in json.loads(content)["entry"]}

    assert named(first) < named(second)


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
