"""One report as an HL7 message, ORU^R01 of version 2.5.1 (HL7 2.5.1 chapters 2, 3, 4 and 7).

    MSH  who speaks: filled in per destination        OBR  the imaging procedure, status preliminary
    SFT  this program                                 OBX  research label, study, per film what was looked at and the
    PID  patient of the films                              findings, the whole report as text, the structured report
    ORC  order numbers, accession number

The observation sub-id is the film's number. Every observation is preliminary (P), none carries an abnormal flag: an
absent finding must not read as normal. The UID, and with it the control id, is derived from all that is said, times
excepted (DESIGN.md 5): a repetition is the very same message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Final
from zoneinfo import ZoneInfo

from hl7apy.core import Message, Segment
from pydicom.dataset import Dataset

from node import attributes, identity
from node.domain import MESSAGE_KIND, Finding, FindingState, Order, OutputObject, Report, derive_uid
from node.hl7.text import SEGMENT_END, escape, printable
from node.outputs import text, words
from node.outputs.patient import best_described, read_text
from node.outputs.sr_findings import NO_UNITS, STATES, probability_name

_VERSION: Final = "2.5.1"

Components = tuple[str, ...]

_COMMENT: Final = ("121106", "Comment", "DCM")
_REPORT: Final = ("18748-4", "Diagnostic imaging study", "LN")
_STUDY: Final = ("113014", "DICOM Study", "DCM")  # as IHE RAD TF-2 names it
_STRUCTURED_REPORT: Final = ("", "SR Instance UID")  # IHE RAD TF-2 4.28, with its value type
_WIDTH: Final = 90
_PRELIMINARY: Final = "P"  # tables 0085 and 0123


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observation:
    """One OBX segment; several values are lines of one text (2.A, TX)."""

    value_type: str
    name: Components
    values: tuple[Components, ...]
    film: str = ""
    units: Components = ()


def write(
    report: Report,
    sources: Mapping[str, Dataset],
    zone: ZoneInfo,
    *,
    order: Order | None,
    documents: list[OutputObject],
) -> tuple[OutputObject, bytes]:
    """Write the message of one report.

    order: what an information system said of this study, if it did
    documents: what was written beside it; the structured report is named
    """
    described = best_described(sources.values())
    message = Message("ORU_R01", version=_VERSION)
    message.add(
        _segment("SFT", {1: identity.MANUFACTURER, 2: identity.VERSION, 3: identity.PROGRAM, 4: _model(report)})
    )
    result = message.add_group("ORU_R01_PATIENT_RESULT")
    result.add_group("ORU_R01_PATIENT").add(_patient(described))
    observations = result.add_group("ORU_R01_ORDER_OBSERVATION")
    accession = _requested(described, "AccessionNumber") or (order.accession if order else "")
    numbers = _numbers(described, order, accession)
    observations.add(_segment("ORC", {1: "RE", 2: numbers[0], 3: numbers[1]}))
    observations.add(_request(described, numbers, accession))
    for number, one in enumerate(_observations(report, documents), 1):
        observations.add_group("ORU_R01_OBSERVATION").add(_observation(one, number, report))
    said = message.to_er7().split(SEGMENT_END, 1)[1]  # without the header, which has the time it was made
    digest = hashlib.sha256(said.encode()).hexdigest()
    uid = report.object_uid(derive_uid("message", report.study_uid, digest, str(zone)))
    moment = f"{report.created_at.astimezone(zone):%Y%m%d%H%M%S%z}"
    kind = ("ORU", "R01", "ORU_R01")
    _fill(message.msh, {7: moment, 9: kind, 10: _control_id(uid), 11: "P", 12: _VERSION, 18: "UNICODE UTF-8"})
    _fill(observations.obr, {22: moment})
    output = OutputObject(
        kind=MESSAGE_KIND, study_uid=report.study_uid, sop_class_uid="", sop_instance_uid=uid, series_instance_uid=""
    )
    return output, (message.to_er7().rstrip(SEGMENT_END) + SEGMENT_END).encode()


def accession_of(sources: Iterable[Dataset]) -> str:
    """The accession number of a study, by which an order knows it; "" when no film has one."""
    return _requested(best_described(sources), "AccessionNumber")


def _control_id(uid: str) -> str:
    """MSH-10 has 20 characters (2.15.9.10), fewer than a UID."""
    return hashlib.sha256(uid.encode()).hexdigest()[:20].upper()


def _model(report: Report) -> str:
    return f"{report.model.name} {report.model.version} {report.model.weights_sha256[:16]}"


def _patient(source: Dataset) -> Segment:
    """Say whose films these are (PID); what a film does not say stays empty."""
    issuer = read_text(source, "IssuerOfPatientID")
    number = read_text(source, "PatientID")
    return _segment(
        "PID",
        {
            1: "1",
            3: (number, "", "", issuer, "PI") if number else "",
            5: list(_names(read_text(source, "PatientName"))),
            7: read_text(source, "PatientBirthDate"),
            8: sex if (sex := read_text(source, "PatientSex")) in ("M", "F", "O") else "",
        },
    )


def _names(name: str) -> Iterator[Components]:
    """Turn the groups of a PN into repetitions of an XPN: alphabetic, ideographic, phonetic (2.A, XPN; table 0465).

    DICOM has the prefix before the suffix (PS3.5 6.2.1), HL7 after it.
    """
    groups = [group.split("^") for group in name.split("=")]
    if not any(any(group) for group in groups):
        yield ("", "", "", "", "", "", "U")
    for representation, group in zip("AIP", groups, strict=False):
        if any(group):
            family, given, middle, prefix, suffix = (part.strip() for part in (*group, "", "", "", "")[:5])
            yield (family, given, middle, suffix, prefix, "", "L", representation)


def _numbers(source: Dataset, order: Order | None, accession: str) -> tuple[Components, Components]:
    """Placer's and filler's order number: from the order where there is one, else from the films.

    Where no filler number is known, the accession number stands for it, as in most departments.
    """
    placer = (_requested(source, "PlacerOrderNumberImagingServiceRequest"),)
    filler = (_requested(source, "FillerOrderNumberImagingServiceRequest") or accession,)
    return (order.placer_number or placer, order.filler_number or filler) if order else (placer, filler)


def _request(source: Dataset, numbers: tuple[Components, Components], accession: str) -> Segment:
    """Name what was asked for (OBR); fields 18 and 19 as IHE RAD TF-2 4.4 has them."""
    return _segment(
        "OBR",
        {
            1: "1",
            2: numbers[0],
            3: numbers[1],
            4: _procedure(source),
            7: _study_time(source),
            18: accession,
            19: _requested(source, "RequestedProcedureID") or read_text(source, "StudyID"),
            24: "RAD",
            25: _PRELIMINARY,
        },
    )


def _procedure(source: Dataset) -> Components:
    """Code the procedure as the films do, or as a diagnostic imaging study."""
    for holder in (*attributes.items(source, "RequestAttributesSequence"), source):
        for keyword in ("RequestedProcedureCodeSequence", "ProcedureCodeSequence"):
            for code in attributes.items(holder, keyword):
                if read_text(code, "CodeValue"):
                    return tuple(
                        read_text(code, part) for part in ("CodeValue", "CodeMeaning", "CodingSchemeDesignator")
                    )
    return _REPORT


def _study_time(source: Dataset) -> str:
    """When the films were made, as precisely as they say it: local time of the modality, hence without an offset."""
    date, time = read_text(source, "StudyDate"), read_text(source, "StudyTime").split(".")[0]
    return date + (time if date and len(time) in (4, 6) else "")


def _requested(source: Dataset, keyword: str) -> str:
    """What a film says of its request, in the attribute itself or in its first request that says it."""
    holders = (source, *attributes.items(source, "RequestAttributesSequence"))
    return next(filter(None, (read_text(holder, keyword) for holder in holders)), "")


def _observations(report: Report, documents: Iterable[OutputObject]) -> Iterator[_Observation]:
    """All that is said, the research label first."""
    yield _text(_COMMENT, [words.intended_use(report)])
    yield _Observation(value_type="ST", name=_STUDY, values=((report.study_uid,),))
    for number, film in enumerate(report.films, 1):
        yield _text(_COMMENT, [words.film_name(report, film), *words.about(film)], film=str(number))
        for finding in film.findings:
            yield from _finding(finding, film=str(number))
    yield _text(_REPORT, text.render(report).splitlines())
    for document in documents:
        if document.kind == "sr":
            yield _Observation(value_type="HD", name=_STRUCTURED_REPORT, values=((document.sop_instance_uid,),))


def _finding(finding: Finding, *, film: str) -> Iterator[_Observation]:
    """Code a finding with its state, in words too (CWE-9), and its probability."""
    name = (finding.code.value, finding.code.meaning, finding.code.scheme)
    state = STATES[finding.state]
    side = f", {finding.side}" if finding.side and finding.state is not FindingState.ABSENT else ""
    said = f"{words.HEADINGS[finding.state]}{side}"
    coded = (state.value, state.meaning, state.scheme_designator, "", "", "", "", "", said)
    yield _Observation(value_type="CWE", name=name, values=(coded,), film=film)
    number = probability_name(finding)
    yield _Observation(
        value_type="NM",
        name=(number.value, number.meaning, number.scheme_designator),
        values=((f"{finding.probability:.4f}",),),
        film=film,
        units=(NO_UNITS.value, NO_UNITS.meaning, NO_UNITS.scheme_designator),
    )


def _text(name: Components, lines: Iterable[str], *, film: str = "") -> _Observation:
    """Break lines for those who show them as they come; continuations are indented."""
    return _Observation(
        value_type="TX", name=name, values=tuple((part,) for line in lines for part in _broken(line)), film=film
    )


def _broken(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return wrap(line, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _observation(one: _Observation, number: int, report: Report) -> Segment:
    device = ("", "", identity.device_uid(report.model), "ISO")
    return _segment(
        "OBX",
        {
            1: str(number),
            2: one.value_type,
            3: one.name,
            4: one.film,
            5: list(one.values),
            6: one.units,
            11: _PRELIMINARY,
            18: device,
        },
    )


_Field = str | Components | list[Components]


def _segment(name: str, fields: Mapping[int, _Field]) -> Segment:
    segment = Segment(name, version=_VERSION)
    _fill(segment, fields)
    return segment


def _fill(segment: Segment, fields: Mapping[int, _Field]) -> None:
    """Set fields of a segment, in the order of their numbers; several values are repetitions. Empty ones stay out."""
    for number, content in fields.items():
        field = f"{segment.name}_{number}"
        values = [_encoded(value) for value in (content if isinstance(content, list) else [content])]
        first, *others = list(filter(None, values)) or [""]
        if first:
            setattr(segment, field.lower(), first)
        for other in others:
            segment.add_field(field).value = other


def _encoded(value: str | Components) -> str:
    components = (value,) if isinstance(value, str) else value
    return "^".join(escape(printable(one)) for one in components).rstrip("^")
