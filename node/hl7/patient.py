"""A change of a patient's identity: what an information system says by ADT^A08 or ADT^A40 (HL7 2.5.1 chapter 3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from node.hl7.text import Segment

Patient = tuple[str, str]
"""PatientID and IssuerOfPatientID of films; the issuer is "" if they do not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientNumber:
    """An identifier of a patient (CX): its number, and the names of who assigned it; none if unknown."""

    number: str
    issuers: tuple[str, ...] = ()

    def is_of(self, number: str, issuer: str) -> bool:
        """Say whether a film with this PatientID and IssuerOfPatientID is this patient's; no issuer fits any."""
        return self.number == number and _agree(self.issuers, (issuer,))


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedNumber:
    """An identifier of a patient of which no number is kept: its hash, and the names of who assigned it."""

    sha256: str
    issuers: tuple[str, ...] = ()

    def is_of(self, number: str, issuer: str) -> bool:
        """Say what `PatientNumber.is_of` says."""
        return self.sha256 == _hash(number) and _agree(self.issuers, (issuer,))

    def is_same(self, other: HashedNumber) -> bool:
        """Say whether another identifier is of the same patient; no issuer fits any."""
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
class PatientUpdate:
    """The identity of a patient from now on. Empty values say nothing, so they change nothing.

    event: `A08` or `A40`
    prior: the identifiers by which the patient's films are found
    merged_into: the identifier that replaces them; None if they stay
    name: as PN (PS3.5 6.2), a group for each representation; birth_date: as DA; sex: M, F or O
    has_groups: whether the message says which groups of the name it has (XPN-8); else it has one, alphabetic or not
    """

    event: str
    prior: tuple[PatientNumber, ...]
    merged_into: PatientNumber | None = None
    name: str = ""
    birth_date: str = ""
    sex: str = ""
    has_groups: bool = False
