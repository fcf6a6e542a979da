"""Where a patient's values would show: a mark in every value of a film, and the search for it in all that a node wrote.

Every text that could identify a patient holds `MARK`, every date is `BIRTH_DATE`; nothing else in the world does. So
one short word is looked for, in every form that a program might write it in.
"""

from __future__ import annotations

import base64
import re
from datetime import date

from pydicom.dataset import Dataset

from tests.support import films

MARK = "Qzvxwkjp"
BIRTH_DATE = date(1943, 2, 17)

_NAMES = """PatientName OtherPatientNames PatientBirthName PatientMotherBirthName ReferringPhysicianName
    ConsultingPhysicianName PerformingPhysicianName NameOfPhysiciansReadingStudy OperatorsName RequestingPhysician
    PhysiciansOfRecord ResponsiblePerson""".split()
_TEXTS = """PatientID IssuerOfPatientID OtherPatientIDs AccessionNumber StudyID InstitutionName InstitutionAddress
    InstitutionalDepartmentName StationName DeviceSerialNumber MedicalRecordLocator CurrentPatientLocation AdmissionID
    ServiceEpisodeID Occupation EthnicGroup MilitaryRank BranchOfService RegionOfResidence CountryOfResidence
    PatientReligiousPreference PatientTelephoneNumbers PatientAddress PatientComments AdditionalPatientHistory
    MedicalAlerts Allergies ImageComments StudyComments VisitComments StudyDescription SeriesDescription ProtocolName
    RequestedProcedureDescription RequestedProcedureID ReasonForStudy PerformedProcedureStepDescription
    AcquisitionDeviceProcessingDescription""".split()
_DATES = "PatientBirthDate StudyDate SeriesDate ContentDate AcquisitionDate AdmittingDate LastMenstrualDate".split()


def marked(film: Dataset) -> Dataset:
    """Give a film a distinctive value in everything that tells of a patient, private text included, in place."""
    film.SpecificCharacterSet = "ISO_IR 192"
    names = dict.fromkeys(_NAMES, f"{MARK}ö^{MARK}Ute^{MARK}M")
    texts = {keyword: f"{MARK}{number} ß" for number, keyword in enumerate(_TEXTS)}
    films.changed(film, names | texts | dict.fromkeys(_DATES, f"{BIRTH_DATE:%Y%m%d}"))
    block = film.private_block(0x0011, f"{MARK} CREATOR", create=True)
    block.add_new(0x01, "LO", f"{MARK} private")
    block.add_new(0x02, "PN", f"{MARK}^Private")
    return film


def found_in(content: bytes) -> list[str]:
    """Return what stands around every trace of a patient, for a person to see where it came from."""
    lowered = content.lower()
    hits = [match for pattern in _PATTERNS for match in pattern.finditer(lowered)]
    return [repr(content[max(match.start() - 60, 0) : match.end() + 20]) for match in hits]


def _forms() -> list[bytes]:
    """The mark as text of any width, as hexadecimal digits, and in the middle of base64."""
    texts = [MARK.encode(encoding) for encoding in ("ascii", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")]
    digits = [text.hex().encode() for encoded in texts for text in (encoded, encoded.lower(), encoded.upper())]
    return [*texts, *digits, *(part for text in texts[:2] for part in _inside_base64(text))]


def _inside_base64(text: bytes) -> list[bytes]:
    """The characters of base64 that are the same whatever stands around the text, for each of its three places."""
    parts = []
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + text)
        parts.append(encoded[-(-before * 8 // 6) : (before + len(text)) * 8 // 6])
    return parts


def _dates() -> list[bytes]:
    """The date of birth as programs write dates; alone, for a long number may hold eight digits by chance."""
    written = [f"{BIRTH_DATE:{form}}" for form in ("%Y%m%d", "%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y")]
    return [rb"(?<![0-9a-f.])" + re.escape(day).encode() + rb"(?![0-9a-f])" for day in written]


_PATTERNS = [re.compile(pattern) for pattern in (*(re.escape(form.lower()) for form in _forms()), *_dates())]
