"""What studies are found by: the patients that their films name, and the findings that are reported on them.

Patients stand here only where the settings let somebody see them (`HttpSettings.shows_patients`), and as long as their
study does. `studies.is_searchable` says that the findings of a study are there: an older or a lost ledger has none, and
the node's start fills them in.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import sqlalchemy as sa

from node.store.database import Database
from node.store.tables import FINDINGS, PATIENTS, STUDIES

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
        self._replace(PATIENTS, study_uid, [asdict(row) for row in rows], {"uid": study_uid})

    def set_findings(self, study_uid: str, prompts: Collection[str]) -> None:
        """Record by their prompts which findings are reported on a study; does nothing for an unknown study."""
        rows = [{"study_uid": study_uid, "prompt": prompt} for prompt in sorted(prompts)]
        self._replace(FINDINGS, study_uid, rows, {"is_searchable": True})

    def has_patient(self, study_uid: str) -> bool:
        """Whether it is recorded whom a study names."""
        query = sa.select(PATIENTS.c.number).where(PATIENTS.c.study_uid == study_uid)
        with self._tables().connect() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def missing(self, *, with_patients: bool) -> list[str]:
        """Return the studies whose rows are not there yet, the newest first; with_patients: also whom they name."""
        is_unnamed = ~sa.select(PATIENTS.c.number).where(PATIENTS.c.study_uid == STUDIES.c.uid).exists()
        is_missing = ~STUDIES.c.is_searchable | is_unnamed if with_patients else ~STUDIES.c.is_searchable
        query = sa.select(STUDIES.c.uid).where(is_missing).order_by(STUDIES.c.changed_at.desc())
        with self._tables().connect() as connection:
            return list(connection.execute(query).scalars())

    def forget_patients(self) -> int:
        """Delete whom studies name, since nobody may see it by the settings now; returns the number of rows."""
        with self._tables().begin() as connection:
            return connection.execute(sa.delete(PATIENTS)).rowcount

    def forget_strays(self) -> None:
        """Delete the rows of studies that a program forgot which did not know these tables."""
        known = sa.select(STUDIES.c.uid)
        with self._tables().begin() as connection:
            for table in (PATIENTS, FINDINGS):
                connection.execute(sa.delete(table).where(table.c.study_uid.not_in(known)))

    def _replace(
        self, table: sa.Table, study_uid: str, rows: Sequence[Mapping[str, object]], of_study: Mapping[str, object]
    ) -> None:
        """Replace the rows of a study; of_study: what to set in the study's own row, which is locked meanwhile."""
        with self._tables().begin() as connection:
            if not connection.execute(sa.update(STUDIES).where(STUDIES.c.uid == study_uid).values(**of_study)).rowcount:
                return
            connection.execute(sa.delete(table).where(table.c.study_uid == study_uid))
            if rows:
                connection.execute(sa.insert(table), rows)


def folded(text: str) -> str:
    """Return a text as it is searched: small letters without accents, its words parted by one blank."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    bare = "".join(character for character in plain if not unicodedata.combining(character))
    return _BETWEEN_WORDS.sub(" ", bare).strip()
