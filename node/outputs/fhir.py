"""One report as a FHIR transaction bundle (R5), after HL7's guide from DICOM SR TID 1500 to FHIR.

    Device             this program with these weights
    ImagingSelection   of each film, and of the boxes of each finding with boxes
    Observation        of each finding of each film: state, probability, site; preliminary
    Provenance         of each finding that a reader corrected
    DiagnosticReport   of the part of the study: impression, observations, structured reports; preliminary

Every resource is written by a conditional update on an identifier of the node's own, so the same bundle twice changes
nothing, and a new version replaces the earlier one. The identifiers are derived from study, part, patient and accession
number, film and finding. Patient, study and request are references by the identifiers of the film: the node makes no
Patient and no ImagingStudy. Codes, percents and corners of boxes are those of the structured report.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from models.contract import FindingState
from node.character_sets import visible
from node.dicom import identity
from node.domain import Film, Finding, FindingBox, Note, OutputObject, ReaderMark, Report, derive_uid
from node.hl7.order import Order
from node.outputs import impression, ratio_text, report_txt, vocabulary, wording
from node.outputs.messages import (
    MessageWriter,
    Place,
    SentMessage,
    accession_of,
    as_output,
    order_numbers,
    state_in_words,
    zone_of,
)
from node.outputs.oru import abnormal_flag
from node.outputs.patient import best_described, made_at, read_text, whole_text
from node.outputs.sr.findings import PERCENT, PRIVATE_SCHEME, quantity_name, state_of
from node.outputs.sr.items import FORMS, concept, outline
from node.outputs.sr.ratio import NO_UNITS, RATIO
from node.read.findings import is_severity_worded

KIND: Final = "fhir"
UID_SYSTEM: Final = "urn:ietf:rfc:3986"
PATIENT, ACCESSION, PLACER, FILLER = "MR", "ACSN", "PLAC", "FILL"
"""Types of identifiers (HL7 table 0203)."""
_V2: Final = "http://terminology.hl7.org/CodeSystem/v2-0203"
_SYSTEMS: Final = {
    "SCT": "http://snomed.info/sct",
    "DCM": "http://dicom.nema.org/resources/ontology/DCM",
    "LN": "http://loinc.org",
    "UCUM": "http://unitsofmeasure.org",
    "UMLS": "http://www.nlm.nih.gov/research/umls",
}
_INTERPRETATION: Final = "http://terminology.hl7.org/CodeSystem/v3-ObservationInterpretation"
_IMAGING: Final = ("http://terminology.hl7.org/CodeSystem/observation-category", "imaging", "Imaging")
_RADIOLOGY: Final = ("http://terminology.hl7.org/CodeSystem/v2-0074", "RAD", "Radiology")
_REPORT: Final = ("http://loinc.org", "18748-4", "Diagnostic imaging study")
_SOURCE: Final = ("http://dicom.nema.org/resources/ontology/DCM", "121112", "Source of Measurement")
_AUTHOR: Final = ("http://terminology.hl7.org/CodeSystem/provenance-participant-type", "author", "Author")
_ASSEMBLER: Final = ("http://terminology.hl7.org/CodeSystem/provenance-participant-type", "assembler", "Assembler")
_WRONG: Final = "entered-in-error"
_PRELIMINARY: Final = "preliminary"
_XHTML: Final = '<div xmlns="http://www.w3.org/1999/xhtml">{}</div>'

_Resource = dict[str, Any]
_Entry = dict[str, Any]


def write(
    report: Report,
    sources: Mapping[str, Dataset],
    zone: ZoneInfo,
    order: Order | None,
    documents: Sequence[OutputObject],
) -> tuple[OutputObject, bytes]:
    """Write the bundle of one report; see `messages.Write`."""
    described = best_described(sources.values())
    made = _Maker(report, described, zone, order=order)
    entries = [made.device()]
    for film in report.films:
        entries.extend(made.of_film(film, sources[film.source]))
    entries.append(made.report(documents))
    said = json.dumps(entries, sort_keys=True)
    uid = report.object_uid(derive_uid("bundle", report.study_uid, said))
    entries[-1]["resource"]["issued"] = _instant(report.created_at)
    return as_output(KIND, report, uid), _bundle(entries)


class _Maker:
    """Makes the resources of one report; all of them share patient, study, request and device."""

    def __init__(self, report: Report, described: Dataset, zone: ZoneInfo, *, order: Order | None) -> None:
        self._report = report
        self._order = order
        self._described = described
        self._number = whole_text(described, "PatientID")
        self._issuer = whole_text(described, "IssuerOfPatientID")
        self._accession = accession_of(described, order)
        self._uid = partial(
            derive_uid, KIND, report.study_uid, report.part, self._number, self._issuer, self._accession
        )
        self._device_uid = identity.device_uid(report.model)
        self._taken = _taken(described, zone)
        self._results: list[_Resource] = []

    def device(self) -> _Entry:
        """Describe this program with these weights."""
        model = self._report.model
        resource = {
            "resourceType": "Device",
            "status": "active",
            "displayName": identity.PROGRAM,
            "manufacturer": identity.MANUFACTURER,
            "modelNumber": model.name,
            "version": [{"value": identity.VERSION}, {"type": _text("model"), "value": model.version}],
            "property": [{"type": _text("SHA-256 of the weights"), "valueString": model.weights_sha256}],
        }
        return _entry(resource, self._device_uid)

    def of_film(self, film: Film, source: Dataset) -> Iterator[_Entry]:
        """Yield the resources of a film: its selection, then its findings in the order of the report."""
        image = self._selection(film, source, code=_coding(*_SOURCE), uid=self._uid("film", film.source))
        yield image
        for finding in vocabulary.by_urgency(film.findings):
            uid = self._uid("finding", film.source, finding.prompt)
            grounds = [image]
            if finding.boxes:
                boxes = self._selection(
                    film, source, code=_code(concept(finding.code)), regions=finding.boxes, uid=derive_uid("boxes", uid)
                )
                grounds.append(boxes)
                yield boxes
            observed = self._observation(film, finding, grounds, uid)
            yield observed
            marks = [mark for mark in (finding.reader, *(box.reader for box in finding.boxes)) if mark is not None]
            if marks:
                yield self._provenance(observed, max(marks, key=lambda mark: mark.at), derive_uid("reader", uid))
        if (ratio := ratio_text.ratio_of(film)) is not None:
            resource = self._observed(RATIO, [image]) | {
                "valueQuantity": _quantity(float(ratio_text.value(ratio)), NO_UNITS),
                "note": [{"text": ratio_text.comparison(ratio)}],
            }
            yield self._result(_entry(resource, self._uid("ratio", film.source)))

    def report(self, documents: Iterable[OutputObject]) -> _Entry:
        """Write the report of the part of the study, which refers to all that was observed."""
        texts = impression.labeled(impression.of_report(self._report))
        text = report_txt.render(self._report)
        forms = [document for document in documents if document.kind in FORMS]
        resource = {
            "resourceType": "DiagnosticReport",
            "meta": {"tag": [_research()]},
            "text": {"status": "generated", "div": _XHTML.format(identity.RESEARCH_LABEL)},
            "status": _PRELIMINARY,
            "category": [_coding(*_RADIOLOGY)],
            "code": _coding(*_REPORT),
            "study": [self._study()],
            "basedOn": self._requests(),
            "effectiveDateTime": self._taken,
            "result": self._results,
            "conclusion": "\n".join(map(visible, texts)),
            "presentedForm": [
                {"contentType": "text/plain", "data": base64.b64encode(text.encode()).decode(), "title": "Report"},
                *(
                    {"contentType": "application/dicom", "url": _oid(form.sop_instance_uid), "title": form.kind}
                    for form in sorted(forms, key=lambda form: (form.kind, form.sop_instance_uid))
                ),
            ],
        } | self._subject()
        return _entry(resource, self._uid("report"))

    def _observation(self, film: Film, finding: Finding, grounds: Sequence[_Entry], uid: str) -> _Entry:
        state = state_of(finding)
        resource = self._observed(concept(finding.code), grounds) | {
            "valueCodeableConcept": _code(state) | {"text": state_in_words(finding)},
            "bodySite": _site(finding),
            "interpretation": [_coding(_INTERPRETATION, flag, "")] if (flag := abnormal_flag(finding)) else [],
            "note": [{"text": text} for text in _sentences(film, finding)],
        }
        if wording.is_rejected(finding):
            resource["status"] = _WRONG
        if finding.output_probability is not None:
            percent = wording.whole_percent(finding.output_probability)
            resource["component"] = [
                {"code": _code(quantity_name(finding)), "valueQuantity": _quantity(percent, PERCENT)}
            ]
        return self._result(_entry(resource, uid))

    def _result(self, entry: _Entry) -> _Entry:
        """Return an observation that the report will refer to."""
        self._results.append({"reference": entry["fullUrl"]})
        return entry

    def _observed(self, code: Concept, grounds: Sequence[_Entry]) -> _Resource:
        return {
            "resourceType": "Observation",
            "meta": {"tag": [_research()]},
            "status": _PRELIMINARY,
            "category": [_coding(*_IMAGING)],
            "code": _code(code),
            "effectiveDateTime": self._taken,
            "device": {"reference": _full_url(self._device_uid)},
            "derivedFrom": [{"reference": ground["fullUrl"]} for ground in grounds],
        } | self._subject()

    def _selection(
        self, film: Film, source: Dataset, *, code: _Resource, uid: str, regions: Sequence[FindingBox] = ()
    ) -> _Entry:
        """Select a film, or the boxes of a finding on it; corners are columns and rows, as of SCOORD (PS3.3 C.18.6)."""
        instance: _Resource = {
            "uid": film.source,
            "sopClass": {"system": UID_SYSTEM, "code": _oid(str(source.SOPClassUID))},
            "imageRegion2D": [
                {"regionType": "polyline", "coordinate": [float(number) for number in outline(box.box).flat]}
                for box in regions
            ],
        }
        resource = {
            "resourceType": "ImagingSelection",
            "identifier": [_uid_identifier(box.tracking_uid) for box in regions],
            "status": "available",
            "code": code,
            "studyUid": self._report.study_uid,
            "seriesUid": read_text(source, "SeriesInstanceUID"),
            "derivedFrom": [self._study()],
            "instance": [instance],
        } | self._subject()
        return _entry(resource, uid)

    def _provenance(self, observed: _Entry, mark: ReaderMark, uid: str) -> _Entry:
        """Say which reader corrected a finding. A Provenance has no identifier: a tag of its own takes that place."""
        resource = {
            "resourceType": "Provenance",
            "meta": {"tag": [{"system": UID_SYSTEM, "code": _oid(uid)}]},
            "target": [{"reference": observed["fullUrl"]}],
            "recorded": _instant(mark.at),
            "activity": _text(str(mark.what)),
            "agent": [
                {"type": _coding(*_AUTHOR), "who": {"display": visible(mark.by) or "Reader"}},
                {"type": _coding(*_ASSEMBLER), "who": {"reference": _full_url(self._device_uid)}},
            ],
        }
        return _entry(resource, uid, search="_tag")

    def _subject(self) -> _Resource:
        if not self._number:
            return {}
        patient = _identifier(PATIENT, self._number)
        if self._issuer:
            patient["assigner"] = {"display": self._issuer}
        return {"subject": {"type": "Patient", "identifier": patient}}

    def _study(self) -> _Resource:
        return {
            "type": "ImagingStudy",
            "identifier": {"system": "urn:dicom:uid", "value": _oid(self._report.study_uid)},
        }

    def _requests(self) -> list[_Resource]:
        placer, filler = order_numbers(self._described, self._order)
        numbers = ((ACCESSION, self._accession), (PLACER, placer[0]), (FILLER, filler[0]))
        return [
            {"type": "ServiceRequest", "identifier": _identifier(kind, number)} for kind, number in numbers if number
        ]


def _read(content: bytes) -> SentMessage | None:
    entries = json.loads(content)["entry"]
    resources = [entry["resource"] for entry in entries]
    reports = [resource for resource in resources if resource["resourceType"] == "DiagnosticReport"]
    if not reports:  # what took back some resources of an earlier bundle
        return None
    report = reports[-1]
    patient = report.get("subject", {}).get("identifier", {})
    accession = next((number for kind, number in _numbers(report) if kind == ACCESSION), "")
    place: Place = (patient.get("value", ""), patient.get("assigner", {}).get("display", ""), accession)
    films = {
        instance["uid"]
        for resource in resources
        if resource["resourceType"] == "ImagingSelection"
        for instance in resource["instance"]
    }
    return SentMessage(films=frozenset(films), place=place, is_withdrawal=report["status"] == _WRONG)


def _numbers(report: _Resource) -> Iterator[tuple[str, str]]:
    for request in report.get("basedOn", []):
        found = request["identifier"]
        yield found["type"]["coding"][0]["code"], found["value"]


def _withdrawn(content: bytes, _uid: str, _at: datetime, instead: Sequence[bytes]) -> bytes | None:
    """Return a bundle that marks every resource that no new bundle replaces as entered in error."""
    new = {entry["request"]["url"] for other in instead for entry in json.loads(other)["entry"]}
    entries = [
        entry
        for entry in json.loads(content)["entry"]
        if entry["request"]["url"] not in new and entry["resource"]["resourceType"] not in ("Device", "Provenance")
    ]
    if not entries:
        return None
    for entry in entries:
        entry["resource"]["status"] = _WRONG
        if entry["resource"]["resourceType"] == "Observation":
            del entry["resource"]["device"], entry["resource"]["derivedFrom"]  # which this bundle may not have
    return _bundle(entries)


WRITER: Final = MessageWriter(write=write, read=_read, withdrawn=_withdrawn)


def _bundle(entries: Sequence[_Entry]) -> bytes:
    """Return a transaction bundle, validated by the library."""
    from fhir.resources.bundle import Bundle  # takes half a second, which a node without such a destination saves

    document = {"resourceType": "Bundle", "type": "transaction", "entry": entries}
    return Bundle.model_validate(document).model_dump_json(exclude_none=True).encode()


def _entry(resource: _Resource, uid: str, *, search: str = "identifier") -> _Entry:
    """Return the conditional update (or creation) of a resource, without empty elements; search: what finds it."""
    kind = resource["resourceType"]
    if search == "identifier":
        resource["identifier"] = [_uid_identifier(uid), *resource.get("identifier", [])]
    return {
        "fullUrl": _full_url(uid),
        "resource": {name: value for name, value in resource.items() if value not in ("", [], None)},
        "request": {"method": "PUT", "url": f"{kind}?{search}={quote(f'{UID_SYSTEM}|{_oid(uid)}', safe=':')}"},
    }


def _full_url(uid: str) -> str:
    return uuid.UUID(int=int(uid.removeprefix("2.25."))).urn


def _oid(uid: str) -> str:
    return f"urn:oid:{uid}"


def _uid_identifier(uid: str) -> _Resource:
    return {"system": UID_SYSTEM, "value": _oid(uid)}


def _identifier(kind: str, value: str) -> _Resource:
    return {"type": {"coding": [{"system": _V2, "code": kind}]}, "value": value}


def _research() -> _Resource:
    system = _oid(derive_uid("coding scheme", PRIVATE_SCHEME))
    return {"system": system, "code": "RESEARCH", "display": identity.RESEARCH_LABEL}


def _text(text: str) -> _Resource:
    return {"text": text}


def _coding(system: str, code: str, display: str) -> _Resource:
    coding = {"system": system, "code": code}
    return {"coding": [coding | {"display": display} if display else coding]}


def _code(code: Concept) -> _Resource:
    """Convert a code; the system of a private scheme is a UID derived from its name."""
    scheme = code.scheme_designator
    return _coding(_SYSTEMS.get(scheme) or _oid(derive_uid("coding scheme", scheme)), code.value, code.meaning)


def _quantity(value: float, unit: Concept) -> _Resource:
    return {"value": value, "unit": unit.meaning, "system": _SYSTEMS["UCUM"], "code": unit.value}


def _site(finding: Finding) -> _Resource | None:
    """Return the zone that all boxes lie in, else the finding's own site, with the side where that is known."""
    zone = wording.zone_of_all(finding)
    site = finding.site if zone is None or zone.site is None else zone.site
    if site is None or not (finding.state.is_reported or finding.state is FindingState.ABSENT):
        return None
    return _code(concept(site)) | {"text": wording.place_name(site, finding.side)}


def _sentences(film: Film, finding: Finding) -> Iterator[str]:
    """Yield the sentence of a finding as in the report, and that size and severity in it were not measured."""
    if finding.sentence is None or not finding.state.is_reported:
        return
    sentence = film.sentences[finding.sentence]
    yield wording.quoted(sentence)
    if is_severity_worded([sentence]):
        yield wording.noted(Note.SEVERITY_WORDED)


def _instant(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def _taken(described: Dataset, zone: ZoneInfo) -> str:
    """Return date and time of the study; without the time if its offset from UTC is unknown, "" without a date."""
    made = made_at(described)
    if made is None:
        return ""
    offset = zone_of(described, zone)
    if offset is None or not read_text(described, "StudyTime"):
        return f"{made:%Y-%m-%d}"
    return made.replace(tzinfo=offset).isoformat()
