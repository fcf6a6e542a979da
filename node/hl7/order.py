"""An order: what an information system says of a study before its films come (HL7 2.5.1, ORM and OMG)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from node.hl7.patient import HashedNumber, Patient


class Priority(StrEnum):
    """The priority of an order (HL7 table 0485)."""

    STAT = "stat"
    ASAP = "asap"
    ROUTINE = "routine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the information system announced about a study. Never a patient's name or number.

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
        """Say whether it is for one of some patients, as films name them."""
        return any(number.is_of(*patient) for number in self.patient for patient in patients)

    def is_form_of(self, other: Order) -> bool:
        """Say whether another order is an earlier or later form of this one.

        It is for the same patient, or has the same order number: then it was moved to another patient. One accession
        number may belong to several studies, so an order for another study is another order.
        """
        if self.study_uid and other.study_uid and self.study_uid != other.study_uid:
            return False
        is_same_patient = any(number.is_same(others) for number in self.patient for others in other.patient)
        return is_same_patient or self.has_number_of(other)

    def has_number_of(self, other: Order) -> bool:
        """Say whether it has the placer's or the filler's order number of another order."""
        both = ((self.placer_number, other.placer_number), (self.filler_number, other.filler_number))
        return any(number and number == others for number, others in both)
