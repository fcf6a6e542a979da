"""An order: what an information system says of a study before its films come (HL7 2.5.1, ORM and OMG)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Priority(StrEnum):
    """The priority of an order (HL7 table 0485)."""

    STAT = "stat"
    ASAP = "asap"
    ROUTINE = "routine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the information system announced about a study. Never a patient's name or number.

    placer_number, filler_number: the components of an HL7 entity identifier (EI); empty when unknown
    """

    accession: str = ""
    study_uid: str = ""
    placer_number: tuple[str, ...] = ()
    filler_number: tuple[str, ...] = ()
    priority: Priority = Priority.ROUTINE

    def __post_init__(self) -> None:
        if not (self.accession or self.study_uid):
            raise ValueError("an order names a study by its accession number or its UID")
