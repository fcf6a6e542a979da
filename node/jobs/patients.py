"""The patients of studies, for the worklist, and a patient's earlier films, found among all films and compared.

Two films are of one patient if both have the same patient ID and the same issuer, or no issuer (PS3.3 C.7.1.1), unless
their birth dates or sexes differ, or the ID is a known placeholder. The cache has hashes of these and the time in the
header, never a name, a number or a birth date of a patient.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, cast

from models.contract import ChangeError, Trusted
from node.answers.comparison import (
    FilmComparison,
    Obstacle,
    ReadFilm,
    compare,
    not_compared,
    without_measure,
)
from node.dicom import header_reading
from node.dicom.header_reading import header_of
from node.domain import ModelIdentity, is_nobodys
from node.errors import OtherForm, Undecodable
from node.jobs.answered_film import AnsweredFilm, as_corrected, newest_reading
from node.outputs.patient import TRAITS, comparable, read_text, said, whole_of_request, whole_text
from node.prompt_set import PromptSet
from node.store import questions
from node.store.ledger import Ledger
from node.store.received import Instance
from node.store.spool import Spool
from node.store.study_facts import rejections_of
from node.store.worklist import PatientRow, folded, set_patients

_TIMES: Final = (("AcquisitionDate", "AcquisitionTime"), ("ContentDate", "ContentTime"), ("StudyDate", "StudyTime"))
NOT_IN_ORDER: Final = (
    "by patient ID, issuer and time in their headers, these films are not an earlier and a later one of one patient"
)
_ORIGIN: Final = ("weights_sha256", "manifest_sha256", "trusted", "prompts_sha256")
_NAMED: Final = {
    "name": "PatientName",
    "patient_id": "PatientID",
    "issuer": "IssuerOfPatientID",
    "study_date": "StudyDate",
    "modality": "Modality",
    "station": "StationName",
}
_IDENTITY: Final = ("name", "patient_id", "issuer", "accession")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFilm:
    """A film that was read, and the time in its header, local to the site."""

    instance: Instance
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """A film's patient and acquisition time; None for what its header does not have.

    patient: a hash of number and issuer; traits: hashes of birth date and sex
    """

    patient: bytes | None
    traits: tuple[bytes | None, ...]
    at: datetime | None


class Patients:
    """Finds the received films of one patient. The first search reads the header of every film. Thread-safe.

    character_set: see `header_reading.read_header`; nobodys: see `SiteSettings`
    """

    def __init__(self, *, character_set: str = "", nobodys: Collection[str] = ()) -> None:
        self._known: dict[Path, _Taken] = {}
        self._character_set, self._nobodys = character_set, nobodys
        self._searching = threading.Lock()

    def are_in_order(self, earlier: Instance, later: Instance) -> bool:
        """Whether two films are of one patient, and the first was taken before the second."""
        return _are_in_order(self._taken(earlier), self._taken(later))

    def earlier_among(self, studies: Iterable[str], film: Instance, spool: Spool) -> list[EarlierFilm]:
        """Return the same as `earlier`, but from some studies only."""
        everything = [instance for study in studies for instance in spool.instances(study)]
        return self._earlier(film, {instance: self._taken(instance) for instance in everything}, spool)

    def earlier(self, film: Instance, spool: Spool) -> list[EarlierFilm]:
        """Return the patient's read films that were taken before a film, last one first; without rejected films."""
        with self._searching:
            everything = [instance for study in spool.studies() for instance in spool.instances(study)]
            known = {instance: self._taken(instance) for instance in everything}
            self._known = {instance.path: taken for instance, taken in known.items()}
        return self._earlier(film, known, spool)

    def _earlier(self, film: Instance, known: Mapping[Instance, _Taken], spool: Spool) -> list[EarlierFilm]:
        own = self._taken(film)
        found = [
            EarlierFilm(instance=instance, at=taken.at)
            for instance, taken in known.items()
            if taken.at is not None and _are_in_order(taken, own)
        ]
        kept = [each for each in found if _is_read(each.instance, spool)]
        return sorted(kept, key=lambda each: (each.at, each.instance.sop_instance_uid), reverse=True)

    def time_of(self, film: Instance) -> datetime | None:
        """Return the time in the header of a film, local to the site."""
        return self._taken(film).at

    def _taken(self, film: Instance) -> _Taken:
        return self._known.get(film.path) or _look_at(
            film.path, character_set=self._character_set, nobodys=self._nobodys
        )


def _is_read(film: Instance, spool: Spool) -> bool:
    """Whether a film has a valid answer."""
    instances = spool.instances(film.study_uid)
    try:
        is_answered = newest_reading(spool.readings(film.study_uid), film) is not None
    except OtherForm:
        return False
    return is_answered and film.sop_instance_uid not in rejections_of(instances)


def compare_films(
    earlier: AnsweredFilm,
    later: AnsweredFilm,
    *,
    spool: Spool,
    prompts: PromptSet,
    error: ChangeError | None,
    model: ModelIdentity,
) -> FilmComparison:
    """Compare two films of one patient with their corrections; error: the open model's change error."""
    films = [_read_film(film, spool, prompts) for film in (earlier, later)]
    if films[1].model.manifest_sha256 != model.manifest_sha256:
        return not_compared(Obstacle.OTHER_MODEL)
    return compare(films[0], films[1], error=error)


def obstacle_of(error: ChangeError | None, model: ModelIdentity) -> FilmComparison | None:
    """Return why a model cannot compare films; None if it can."""
    obstacle = without_measure(error, model.trusted)
    if obstacle is None:
        return None
    return FilmComparison(text=f"This model cannot compare films: {obstacle}.", obstacle=obstacle)


def _are_in_order(first: _Taken, second: _Taken) -> bool:
    is_one_patient = first.patient is not None and first.patient == second.patient
    traits = zip(first.traits, second.traits, strict=True)
    if any(one is not None and other is not None and one != other for one, other in traits):
        return False
    return is_one_patient and first.at is not None and second.at is not None and first.at < second.at


def _look_at(path: Path, *, character_set: str = "", nobodys: Collection[str]) -> _Taken:
    try:
        header = header_reading.read_header(path, character_set=character_set)
    except (Undecodable, OSError):
        return _Taken(patient=None, traits=(None,) * len(TRAITS), at=None)
    number, issuer = said(header, "PatientID"), said(header, "IssuerOfPatientID")
    patient = None if is_nobodys(number, nobodys) else _hash(number, issuer)
    traits = tuple(_hash(comparable(header, keyword)) for keyword in TRAITS)
    times = ((read_text(header, day), read_text(header, time)) for day, time in _TIMES)
    return _Taken(patient=patient, traits=traits, at=next((_moment(day, time) for day, time in times if day), None))


def _hash(value: str, *others: str) -> bytes | None:
    return sha256("\0".join((value, *others)).encode()).digest() if value else None


def _moment(day: str, time: str) -> datetime:
    """Return date and time together; each is a valid DICOM value or blank (PS3.5 6.2)."""
    return datetime.strptime(f"{day}{time[:6]:0<6}", "%Y%m%d%H%M%S")


def _read_film(film: AnsweredFilm, spool: Spool, prompts: PromptSet) -> ReadFilm:
    """Return a film with its model's identity."""
    stored = {name: str(film.stored[name]) for name in _ORIGIN}
    model = ModelIdentity(
        name=str(film.stored["model"]),
        version="",
        weights_sha256=stored["weights_sha256"],
        engine=str(film.stored["engine"]),
        manifest_sha256=stored["manifest_sha256"],
        trusted=cast(Trusted, stored["trusted"]),
    )
    return ReadFilm(film=as_corrected(film, spool, prompts), model=model, prompts_sha256=stored["prompts_sha256"])


def note_patients(spool: Spool, ledger: Ledger, study_uid: str) -> None:
    """Record a study's patients. Raises SQLAlchemyError, and OSError when the disk fails."""
    set_patients(ledger.tables, study_uid, patients_of(spool, study_uid))


def patients_of(spool: Spool, study_uid: str) -> list[PatientRow]:
    """Return the distinct patients of a study's films, the newest film's first.

    A study without readable headers gets a blank row, so that it is not read again.
    """
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for values in _named(spool, study_uid):
        found.setdefault(tuple(values[name] for name in _IDENTITY), values)
    blank = dict.fromkeys((*_NAMED, "accession"), "")
    return [_row(study_uid, number, values) for number, values in enumerate(list(found.values()) or [blank])]


def _named(spool: Spool, study_uid: str) -> Iterator[dict[str, str]]:
    asking = {mark.file for mark in questions.objects_of(spool, study_uid)}
    for instance in reversed(spool.instances(study_uid)):
        if instance.path.name in asking:
            continue
        header = header_of(instance.path, character_set=spool.character_set)
        if header is not None and "Rows" in header:  # notes and reports beside the films name patients, too
            values = {name: whole_text(header, keyword) for name, keyword in _NAMED.items()}
            yield {**values, "accession": whole_of_request(header, "AccessionNumber")}


def _row(study_uid: str, number: int, values: dict[str, str]) -> PatientRow:
    date = values["study_date"]
    dashed = f"{date[:4]}-{date[4:6]}-{date[6:]}" if date else ""
    said = (*(values[name] for name in ("name", "patient_id", "accession", "modality", "station")), date, dashed)
    return PatientRow(study_uid=study_uid, number=number, search=folded(" ".join(said)), **values)
