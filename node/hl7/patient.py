"""A change of a patient's identity: what an information system says by ADT^A08 or ADT^A40 (HL7 2.5.1 chapter 3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientNumber:
    """An identifier of a patient (CX): its number, and the names of who assigned it; none if unknown."""

    number: str
    issuers: tuple[str, ...] = ()

    def is_of(self, number: str, issuer: str) -> bool:
        """Say whether a film with this PatientID and IssuerOfPatientID is this patient's; no issuer fits any."""
        is_same_issuer = not issuer or not self.issuers or issuer.casefold() in map(str.casefold, self.issuers)
        return self.number == number and is_same_issuer


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
