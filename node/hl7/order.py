"""An order: an information system's announcement of a study before its films (HL7 2.5.1, ORM and OMG)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from node.hl7.text import Segment

Patient = tuple[str, str]
"""PatientID and IssuerOfPatientID of films; the issuer is "" if missing."""


class Priority(StrEnum):
    """The priority of an order (HL7 table 0485)."""

    STAT = "stat"
    ASAP = "asap"
    ROUTINE = "routine"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientNumber:
    """An identifier of a patient (CX): its number, and the names of who assigned it; none if unknown."""

    number: str
    issuers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedNumber:
    """An identifier of a patient of which no number is kept: its hash, and the names of who assigned it."""

    sha256: str
    issuers: tuple[str, ...] = ()

    def is_of(self, number: str, issuer: str) -> bool:
        """Return whether a film with this PatientID and IssuerOfPatientID is this patient's; no issuer fits any."""
        return self.sha256 == _hash(number) and _agree(self.issuers, (issuer,))

    def is_same(self, other: HashedNumber) -> bool:
        """Return whether another identifier is of the same patient; no issuer fits any."""
        return self.sha256 == other.sha256 and _agree(self.issuers, other.issuers)


def hashed(number: PatientNumber) -> HashedNumber:
    """Return an identifier without its number, to compare it with others."""
    return HashedNumber(sha256=_hash(number.number), issuers=number.issuers)


def numbers_in(segment: Segment, field: int) -> tuple[PatientNumber, ...]:
    """Return the identifiers of a field (CX): of the authority (CX-4) its name and its universal id."""
    return tuple(
        PatientNumber(number=number, issuers=tuple(filter(None, (alone.text(field, 4), alone.text(field, 4, 2)))))
        for alone in segment.repetitions(field)
        if (number := alone.text(field))
    )


def _hash(number: str) -> str:
    return hashlib.sha256(number.encode()).hexdigest()


def _agree(issuers: Iterable[str], others: Iterable[str]) -> bool:
    some, more = ({name.casefold() for name in names if name} for names in (issuers, others))
    return not (some and more) or not some.isdisjoint(more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The information system's order for a study. Never a patient's name or number.

    patient: hashes of the identifiers of the patient
    placer_number, filler_number: the components of an HL7 entity identifier (EI); empty when unknown
    """

    accession: str = ""
    study_uid: str = ""
    placer_number: tuple[str, ...] = ()
    filler_number: tuple[str, ...] = ()
    priority: Priority = Priority.ROUTINE
    patient: tuple[HashedNumber, ...] = ()

    def __post_init__(self) -> None:
        if not (self.accession or self.study_uid):
            raise ValueError("an order names a study by its accession number or its UID")

    def is_for(self, patients: Iterable[Patient]) -> bool:
        """Return whether it is for one of some patients, as films name them."""
        return any(number.is_of(*patient) for number in self.patient for patient in patients)

    def is_form_of(self, other: Order) -> bool:
        """Return whether another order is an earlier or later form of this one.

        It is for the same patient, or has the same order number: then it was moved to another patient. One accession
        number may belong to several studies, so an order for another study is another order.
        """
        if self.study_uid and other.study_uid and self.study_uid != other.study_uid:
            return False
        is_same_patient = any(number.is_same(others) for number in self.patient for others in other.patient)
        return is_same_patient or self.has_number_of(other)

    def has_number_of(self, other: Order) -> bool:
        """Return whether it has the placer's or the filler's order number of another order."""
        both = ((self.placer_number, other.placer_number), (self.filler_number, other.filler_number))
        return any(number and number == others for number, others in both)
