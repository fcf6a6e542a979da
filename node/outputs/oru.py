"""One report as an HL7 message, ORU^R01 of version 2.5.1 (HL7 2.5.1 chapters 2, 3, 4 and 7).

    MSH  sender: filled in for each destination       OBR  the imaging procedure, status preliminary
    SFT  this program                                 OBX  impression; findings of each film; the whole report as text;
    PID  patient of the films                              study, films, structured reports
    ORC  order numbers, accession number

The observation sub-id is the number of the film, or of the line in a text: each line of a text is an OBX of its own,
because some receivers show the first repetition only. A quantity has one code (OBX-3) whatever the finding's state.
Every observation is preliminary (P). Only a present finding has an abnormal flag (OBX-8, table 0078): a finding to be
reviewed is undecided, and one that is not reported must not be taken for normal. The UID, and from it the control id,
is derived from the whole content without its times (design §5): repeating a reading gives the same message.
"""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from hl7apy.core import Message, Segment
from pydicom.dataset import Dataset
from pydicom.sr.coding import Code as Concept

from models.contract import FindingState
from node.cardiothoracic_ratio import CardiothoracicRatio
from node.character_sets import visible
from node.dicom import attributes, identity
from node.dicom.dates import offset_of
from node.domain import Finding, OutputObject, Report, derive_uid
from node.hl7.order import Order
from node.hl7.text import SEGMENT_END, escape, printable, read
from node.outputs import impression, ratio_text, report_txt, vocabulary, wording
from node.outputs.messages import (
    MessageWriter,
    SentMessage,
    accession_of,
    as_output,
    order_numbers,
    state_in_words,
    zone_of,
)
from node.outputs.patient import best_described, made_at, read_text, whole_of_request, whole_text
from node.outputs.sr.findings import PERCENT, quantity_name, state_of
from node.outputs.sr.items import FORMS
from node.outputs.sr.ratio import BAND, NO_UNITS, RATIO

KIND: Final = "oru"
_VERSION: Final = "2.5.1"

Components = tuple[str, ...]
_Field = str | Components | list[Components]
_Fields = Mapping[int, _Field]
"""The fields of a segment by their numbers."""

_IMPRESSION: Final = ("19005-8", "Impressions", "LN")
_REPORT: Final = ("18748-4", "Diagnostic imaging study", "LN")
_STUDY: Final = ("113014", "DICOM Study", "DCM")  # as IHE RAD TF-2 names it
_STRUCTURED_REPORT: Final = ("", "SR Instance UID")  # IHE RAD TF-2 4.28, with its value type
FILM: Final = ("", "Film SOP Instance UID")
_PRELIMINARY: Final = "P"  # tables 0085 and 0123
_NOT_ABNORMAL: Final = frozenset(("SUPPORT_DEVICES",))
_WITHDRAWN, _WRONG = "X", "W"
_TIME_OF_MESSAGE, _CONTROL_ID = 6, 9  # MSH counts its delimiter as a field
_TIME_OF_STATUS, _STATUS, _OBSERVATION_STATUS = 22, 25, 11
_FIELD: Final = "|"
_NULL: Final = '""'
"""HL7's value for "delete the stored value" (2.5.3), which the node never sends on purpose."""


def write(
    report: Report,
    sources: Mapping[str, Dataset],
    zone: ZoneInfo,
    order: Order | None,
    documents: Sequence[OutputObject],
) -> tuple[OutputObject, bytes]:
    """Write the message of one report; see `messages.Write`."""
    described = best_described(sources.values())
    message = Message("ORU_R01", version=_VERSION)
    message.add(
        _segment("SFT", {1: identity.MANUFACTURER, 2: identity.VERSION, 3: identity.PROGRAM, 4: _model(report)})
    )
    result = message.add_group("ORU_R01_PATIENT_RESULT")
    result.add_group("ORU_R01_PATIENT").add(_patient(described, f"{report.study_uid}{report.part}"))
    observations = result.add_group("ORU_R01_ORDER_OBSERVATION")
    accession = accession_of(described, order)
    placer, filler = order_numbers(described, order)
    # If no filler number is known, the accession number replaces it, as in most departments.
    numbers = placer, filler if any(filler) else (accession,)
    at = _study_time(described, zone)  # the time to which the observations belong, too (7.4.2.14)
    observations.add(_segment("ORC", {1: "RE", 2: numbers[0], 3: numbers[1]}))
    observations.add(_request(described, numbers, accession, at=at))
    device = ("", "", identity.device_uid(report.model), "ISO")
    for number, said in enumerate(_observations(report, documents), 1):
        segment = _segment("OBX", {1: str(number), **said, 11: _PRELIMINARY, 14: at, 18: device})
        observations.add_group("ORU_R01_OBSERVATION").add(segment)
    content = message.to_er7().split(SEGMENT_END, 1)[1]  # without MSH, which has the time of the message
    digest = hashlib.sha256(content.encode()).hexdigest()
    uid = report.object_uid(derive_uid("message", report.study_uid, digest, str(zone)))
    moment = f"{report.created_at.astimezone(zone):%Y%m%d%H%M%S%z}"
    kind = ("ORU", "R01", "ORU_R01")
    _fill(message.msh, {7: moment, 9: kind, 10: control_id(uid), 11: "P", 12: _VERSION, 18: "UNICODE UTF-8"})
    _fill(observations.obr, {22: moment})
    return as_output(KIND, report, uid), (message.to_er7().rstrip(SEGMENT_END) + SEGMENT_END).encode()


def _read(content: bytes) -> SentMessage | None:
    message = read(content)
    patient, request = next(message.named("PID")), next(message.named("OBR"))
    return SentMessage(
        films=frozenset(part.text(5) for part in message.named("OBX") if part.text(3, 2) == FILM[1]),
        place=(patient.text(3), patient.text(3, 4), request.text(18)),
        is_withdrawal=request.text(_STATUS) == _WITHDRAWN,
    )


def _withdrawn(content: bytes, uid: str, at: datetime, instead: Sequence[bytes]) -> bytes | None:
    """Return the message that withdraws a message, unless another replaces it.

    OBR-25 is X (no result available, order cancelled; table 0123), OBX-11 of each observation is W (posted as wrong,
    for example for a wrong patient; table 0085). Patient, order numbers and identifiers of the observations are those
    of the withdrawn message.
    """
    if instead:
        return None
    moment = f"{at:%Y%m%d%H%M%S%z}"
    changes = {
        "MSH": {_TIME_OF_MESSAGE: moment, _CONTROL_ID: control_id(uid)},
        "OBR": {_TIME_OF_STATUS: moment, _STATUS: _WITHDRAWN},
        "OBX": {_OBSERVATION_STATUS: _WRONG},
    }
    lines = [line.split(_FIELD) for line in content.decode().split(SEGMENT_END)]
    for fields in lines:
        for place, value in changes.get(fields[0], {}).items():
            fields[place] = value
    return SEGMENT_END.join(map(_FIELD.join, lines)).encode()


WRITER: Final = MessageWriter(write=write, read=_read, withdrawn=_withdrawn)


def control_id(uid: str) -> str:
    """Return MSH-10, which has 20 characters (2.15.9.10), too few for a UID."""
    return hashlib.sha256(uid.encode()).hexdigest()[:20].upper()


def _model(report: Report) -> str:
    return f"{report.model.name} {report.model.version} {report.model.weights_sha256[:16]}"


def _patient(source: Dataset, about: str) -> Segment:
    """Identify the patient (PID); attributes that the film does not have stay empty, except the identifier.

    about: names the films that the message is about, among all studies
    """
    number, issuer = whole_text(source, "PatientID"), whole_text(source, "IssuerOfPatientID")
    return _segment(
        "PID",
        {
            1: "1",
            3: (number, "", "", issuer, "PI") if number else (_placeholder(about), "", "", identity.PROGRAM, "U"),
            5: list(_names(whole_text(source, "PatientName"))),
            7: read_text(source, "PatientBirthDate"),
            8: sex if (sex := read_text(source, "PatientSex")) in ("M", "F", "O") else "",
        },
    )


def _placeholder(about: str) -> str:
    """Return an identifier for a patient whose film has none: PID-3 and its CX-1 are required (3.4.2, 2.A).

    It belongs to these films alone, is issued by this program and is of unspecified type (table 0203, U), so it is no
    other patient's number. An accession number might be one, for a receiver that reads CX-1 alone; and the null value
    ("") would make the receiver delete its numbers.
    """
    return f"S{hashlib.sha256(about.encode()).hexdigest()[:14].upper()}"  # CX-1 has 15 characters


def _names(name: str) -> Iterator[Components]:
    """Turn the groups of a PN into repetitions of an XPN: alphabetic, ideographic, phonetic (2.A, XPN; table 0465).

    DICOM has the prefix before the suffix (PS3.5 6.2.1), HL7 has it after the suffix.
    """
    groups = [group.split("^") for group in name.split("=")]
    if not any(any(group) for group in groups):
        yield ("", "", "", "", "", "", "U")
    for representation, group in zip("AIP", groups, strict=False):
        if any(group):
            family, given, middle, prefix, suffix = (part.strip() for part in (*group, "", "", "", "")[:5])
            yield (family, given, middle, suffix, prefix, "", "L", representation)


def _request(source: Dataset, numbers: tuple[Components, Components], accession: str, *, at: str) -> Segment:
    """Describe the requested procedure (OBR); fields 18 and 19 follow IHE RAD TF-2 4.4; at: when the film was taken."""
    return _segment(
        "OBR",
        {
            1: "1",
            2: numbers[0],
            3: numbers[1],
            4: _procedure(source),
            7: at,
            18: accession,
            19: whole_of_request(source, "RequestedProcedureID") or whole_text(source, "StudyID"),
            24: "RAD",
            25: _PRELIMINARY,
        },
    )


def _procedure(source: Dataset) -> Components:
    """Return the procedure code of the films, or that of a diagnostic imaging study."""
    for holder in (*attributes.items(source, "RequestAttributesSequence"), source):
        for keyword in ("RequestedProcedureCodeSequence", "ProcedureCodeSequence"):
            for code in attributes.items(holder, keyword):
                if whole_text(code, "CodeValue"):
                    return tuple(
                        whole_text(code, part) for part in ("CodeValue", "CodeMeaning", "CodingSchemeDesignator")
                    )
    return _REPORT


def _study_time(source: Dataset, zone: ZoneInfo) -> str:
    """Return the study date and time, as precise as in the film, and with a time its offset from UTC (2.A, TS).

    The offset is the film's, else the site's at this time. A site's zone that was left at its default is not used.
    """
    date, time = read_text(source, "StudyDate"), read_text(source, "StudyTime").split(".")[0]
    made = made_at(source)
    if made is None or len(time) not in (4, 6):
        return date
    return f"{date}{time}{offset_of(made.replace(tzinfo=zone_of(source, zone)))}"


def _observation(
    value_type: str, name: Components, value: Components, *, sub_id: str = "", units: Components = (), flag: str = ""
) -> _Fields:
    """Say one thing; sub_id: the number of the film, or of the line in a text; flag: of table 0078."""
    return {2: value_type, 3: name, 4: sub_id, 5: value, 6: units, 8: flag}


def _observations(report: Report, documents: Iterable[OutputObject]) -> Iterator[_Fields]:
    """Yield all observations, the impression first."""
    first, *others = impression.of_report(report)
    yield from _text(_IMPRESSION, [f"{identity.RESEARCH_LABEL}: {first}", *others])
    for number, film in enumerate(report.films, 1):
        for finding in vocabulary.by_urgency(film.findings):
            yield from _finding(finding, film=str(number))
        if (ratio := ratio_text.ratio_of(film)) is not None:
            yield from _ratio(ratio, film=str(number))
    yield from _text(_REPORT, report_txt.render(report).splitlines())
    yield _observation("ST", _STUDY, (report.study_uid,))
    numbers = {film.source: str(number) for number, film in enumerate(report.films, 1)}
    for source, number_of_film in numbers.items():
        yield _observation("ST", FILM, (source,), sub_id=number_of_film)
    for document in sorted(documents, key=lambda document: document.kind):  # independent of the order of writing
        if document.kind in FORMS:
            uid, sub_id = document.sop_instance_uid, numbers.get(document.subject.film, "")
            yield _observation("HD", _STRUCTURED_REPORT, (uid,), sub_id=sub_id)


def _finding(finding: Finding, *, film: str) -> Iterator[_Fields]:
    """Yield a finding's coded state, also in words (CWE-9), and its probability if it has one."""
    name = (finding.code.value, finding.code.meaning, finding.code.scheme)
    coded = (*_coded(state_of(finding)), "", "", "", "", "", state_in_words(finding))
    yield _observation("CWE", name, coded, sub_id=film, flag=abnormal_flag(finding))
    if finding.output_probability is None:
        return
    percent = str(wording.whole_percent(finding.output_probability))
    yield _observation("NM", _coded(quantity_name(finding)), (percent,), sub_id=film, units=_coded(PERCENT))


def abnormal_flag(finding: Finding) -> str:
    """Return OBX-8 of a finding's state: AA (very abnormal) if it is critical, A if present, else empty, never N.

    A device in place is no abnormality. A probability gets no flag: table 0078 has A and AA for results without a
    number, and its flags for numbers compare with a range of normal values.
    """
    if finding.state is not FindingState.PRESENT or finding.code.value in _NOT_ABNORMAL:
        return ""
    return "AA" if vocabulary.is_critical(finding) else "A"


def _ratio(ratio: CardiothoracicRatio, *, film: str) -> Iterator[_Fields]:
    """Yield a cardiothoracic ratio, and in words its band, or why it cannot be compared."""
    yield _observation("NM", _coded(RATIO), (ratio_text.value(ratio),), sub_id=film, units=_coded(NO_UNITS))
    yield _observation("ST", _coded(BAND), (ratio_text.comparison(ratio),), sub_id=film)


def _coded(code: Concept) -> Components:
    return code.value, code.meaning, code.scheme_designator


def _text(name: Components, lines: Iterable[str]) -> Iterator[_Fields]:
    """Yield a text line by line, broken for receivers that do not wrap; empty lines are left out."""
    parts = [part for line in lines for part in broken(line)]
    for number, part in enumerate(parts, 1):
        yield _observation("TX", name, (visible(part),), sub_id=str(number))


def broken(line: str, *, width: int = 90) -> list[str]:
    """Break a line; continuation lines are indented by 2 more than it. A percent sign stays with its number."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = textwrap.wrap(line.replace(" %", "\xa0%"), width, subsequent_indent=indent, break_on_hyphens=False)
    return [part.replace("\xa0%", " %") for part in lines]


def _segment(name: str, fields: _Fields) -> Segment:
    segment = Segment(name, version=_VERSION)
    _fill(segment, fields)
    return segment


def _fill(segment: Segment, fields: _Fields) -> None:
    """Set fields of a segment, in the order of their numbers; a list becomes repetitions; empty values are left out."""
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
    return "^".join("" if part == _NULL else escape(printable(part)) for part in components).rstrip("^")
