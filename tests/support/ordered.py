"""Orders for the patient of the sample messages, and the search for them."""

from __future__ import annotations

from functools import partial
from typing import Final

from node.hl7.order import Order, PatientNumber, hashed
from node.orders.store import OrderStore

PATIENT: Final = PatientNumber(number="PID-7788", issuers=("CLINIC",))
PATIENTS: Final = frozenset({(PATIENT.number, "CLINIC")})

ordered = partial(Order, patient=(hashed(PATIENT),))
"""Make an order for the patient."""


def find(store: OrderStore, *, study_uid: str, accession: str) -> Order | None:
    """Find the order of a study with films of the patient."""
    return store.find(study_uid=study_uid, accession=accession, patients=PATIENTS)
