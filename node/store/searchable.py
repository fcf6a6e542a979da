"""The patients that the films of studies name, by whom studies are found.

They stand here only where the settings let somebody see them (`HttpSettings.shows_patients`), and as long as their
study does. A ledger that was lost has none, and the node's start fills them in.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Final

import sqlalchemy as sa

from node.store.database import Database
from node.store.tables import PATIENTS, STUDIES

_BETWEEN_WORDS: Final = re.compile(r"[\^=,;\\\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientRow:
    """A patient and request that films of a study name, as valid values of DICOM or "".

    number: 0 for those of its newest film
    study_date: YYYYMMDD
    search: every value, `folded`; it begins with the name
    """

    study_uid: str
    number: int
    name: str
    patient_id: str
    issuer: str
    accession: str
    study_date: str
    modality: str
    station: str
    search: str


class Searchable:
    """The rows of all studies. Every method raises SQLAlchemyError if the database does not answer."""

    def __init__(self, tables: Callable[[], Database]) -> None:
        """Use a database; tables: opens it with its tables."""
        self._tables = tables

    def set_patients(self, study_uid: str, rows: Iterable[PatientRow]) -> None:
        """Record whom a study names, instead of what was recorded before; does nothing for an unknown study."""
        is_of = STUDIES.c.uid == study_uid
        with self._tables().begin() as connection:
            if connection.execute(sa.select(STUDIES.c.uid).where(is_of).with_for_update()).first() is None:
                return
            connection.execute(sa.delete(PATIENTS).where(PATIENTS.c.study_uid == study_uid))
            if values := [asdict(row) for row in rows]:
                connection.execute(sa.insert(PATIENTS), values)

    def has_patient(self, study_uid: str) -> bool:
        """Whether it is recorded whom a study names."""
        query = sa.select(PATIENTS.c.number).where(PATIENTS.c.study_uid == study_uid)
        with self._tables().connect() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def unnamed(self) -> list[str]:
        """Return the studies of which it is not recorded whom they name, the newest first."""
        is_unnamed = ~sa.select(PATIENTS.c.number).where(PATIENTS.c.study_uid == STUDIES.c.uid).exists()
        query = sa.select(STUDIES.c.uid).where(is_unnamed).order_by(STUDIES.c.changed_at.desc())
        with self._tables().connect() as connection:
            return list(connection.execute(query).scalars())

    def forget_patients(self) -> int:
        """Delete whom studies name, since nobody may see it by the settings now; returns the number of rows."""
        with self._tables().begin() as connection:
            return connection.execute(sa.delete(PATIENTS)).rowcount


def folded(text: str) -> str:
    """Return a text as it is searched: small letters without accents, its words parted by one blank."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(character for character in plain if not unicodedata.combining(character))
    return _BETWEEN_WORDS.sub(" ", bare).strip()
