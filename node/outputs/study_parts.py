"""Divides the films of a study into parts: those of one patient and one accession number. Pure.

A Study Instance UID should belong to one patient and one request, but modalities give it to the next patient too, and
one examination may answer two requests. Each part gets a report and a message of its own; most studies have one part.

- A patient is identified by Patient ID and issuer, compared literally. A film without an issuer fits the only issuer of
  its number. Names do not count: one patient's are spelled in many ways.
- A placeholder as Patient ID, such as UNKNOWN, counts as none.
- A film without a Patient ID is the study's only patient's, unless its name, date of birth or accession number differs.
  If no film of the study has one, names and dates of birth identify the patients.
- A film without an accession number goes with the only number of its patient; if there are several, with none.

A film that these rules do not assign belongs to no part: a person has to look.
"""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydicom.dataset import Dataset

from node.domain import Identity, is_nobodys
from node.hl7.order import Patient
from node.outputs.patient import said, said_of_request

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The films of one patient and one accession number, by SOP Instance UID, sorted.

    name: identifies the part in the study, as long as patients and numbers stay; "" if the study has only one
    patient: identifies the patient in the study; never leaves the process
    identity: combined from its films
    """

    name: str
    patient: tuple[str, ...]
    films: tuple[str, ...]
    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The parts of a study, by their first films, and the films that belong to no part.

    identities: the identity of each film: its own, and its part's patient and request
    """

    parts: tuple[Part, ...]
    unclear: frozenset[str]
    identities: Mapping[str, Identity]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """A film's patient and request; "" for a missing value."""

    number: str
    issuer: str
    name: str
    born: str
    accession: str


def divide(study_uid: str, headers: Mapping[str, Dataset], *, nobodys: Collection[str]) -> Division:
    """Divide the films of a study into parts of one patient and one accession number.

    headers: the header of each film, by SOP Instance UID
    nobodys: placeholder Patient IDs, see `SiteSettings.no_patient_ids`; a film with one counts as without Patient ID
    """
    films = {uid: _read(header, nobodys) for uid, header in headers.items()}
    patients = _patients(films)
    by_patient: dict[_Key, list[_Said]] = defaultdict(list)
    for uid, patient in patients.items():
        by_patient[patient].append(films[uid])
    numbers = {patient: {film.accession for film in own} - {""} for patient, own in by_patient.items()}
    keys = {uid: _key(film, patients.get(uid), by_patient, numbers) for uid, film in films.items()}
    has_numbers = any(film.number for film in films.values())
    by_key: dict[_Key, list[str]] = defaultdict(list)
    for uid, key in keys.items():
        if key is not None:
            by_key[key].append(uid)
    parts = [
        Part(
            name=_hash(study_uid, *key)[:8] if len(by_key) > 1 else "",
            patient=key[:-1],
            films=tuple(sorted(uids)),
            identity=_identity(study_uid, [films[uid] for uid in uids], key, has_numbers),
        )
        for key, uids in by_key.items()
    ]
    return Division(
        parts=tuple(sorted(parts, key=lambda part: part.films)),
        unclear=frozenset(uid for uid, key in keys.items() if key is None),
        identities={uid: _identity(study_uid, [film], keys[uid], has_numbers) for uid, film in films.items()},
    )


def related(division: Division, films: Collection[str]) -> frozenset[str]:
    """Return some films and the other films of their parts, in a division of more films than these."""
    return frozenset(films).union(*(part.films for part in division.parts if not set(films).isdisjoint(part.films)))


def patients_of(headers: Iterable[Dataset]) -> frozenset[Patient]:
    """Return the patients in the headers of one part, by their numbers."""
    issuers: dict[str, set[str]] = defaultdict(set)
    for header in headers:
        issuers[said(header, "PatientID")].add(said(header, "IssuerOfPatientID"))
    return frozenset(
        (number, issuer) for number, several in issuers.items() for issuer in (several - {""} or {""}) if number
    )


def without_nobodys(headers: Mapping[str, Dataset], nobodys: Collection[str]) -> dict[str, Dataset]:
    """Return headers of a study without placeholder Patient IDs, if one of them has a patient's number.

    So the outputs on a patient have the patient's own number.
    """
    if not any(_number(header, nobodys) for header in headers.values()):
        return dict(headers)
    return {name: header if _number(header, nobodys) else _unnumbered(header) for name, header in headers.items()}


def _unnumbered(header: Dataset) -> Dataset:
    if not said(header, "PatientID"):
        return header
    changed = copy.deepcopy(header)  # a shallow copy of a pydicom dataset shares its elements
    del changed.PatientID
    return changed


def _number(header: Dataset, nobodys: Collection[str]) -> str:
    """Return the Patient ID of a header; "" for a placeholder."""
    number = said(header, "PatientID")
    return "" if is_nobodys(number, nobodys) else number


def _read(header: Dataset, nobodys: Collection[str]) -> _Said:
    return _Said(
        number=_number(header, nobodys),
        issuer=said(header, "IssuerOfPatientID"),
        name=said(header, "PatientName").split("=")[0].rstrip("^ ").casefold(),  # films seldom agree on the case
        born="".join(filter(str.isdigit, said(header, "PatientBirthDate"))),
        accession=said_of_request(header, "AccessionNumber"),
    )


def _patients(films: Mapping[str, _Said]) -> dict[str, _Key]:
    """Return a key of the patient for each film that identifies its patient."""
    issuers: dict[str, set[str]] = defaultdict(set)
    for film in films.values():
        if film.number:
            issuers[film.number] |= {film.issuer} - {""}
    if issuers:
        return {
            uid: (film.number, film.issuer or "".join(issuers[film.number]))
            for uid, film in films.items()
            if film.number and (film.issuer or len(issuers[film.number]) < 2)
        }
    named: dict[str, _Key] = {uid: (film.name, film.born) for uid, film in films.items() if film.name or film.born}
    return named or dict.fromkeys(films, ("", ""))


def _key(
    film: _Said,
    patient: _Key | None,
    by_patient: Mapping[_Key, Sequence[_Said]],
    numbers: Mapping[_Key, set[str]],
) -> _Key | None:
    """Return patient and accession number of a film; None if they are not clear.

    patient: None if the film does not identify it
    by_patient: the films of each identified patient; numbers: their accession numbers
    """
    is_named = patient is not None
    if patient is None:
        if len(by_patient) != 1:
            return None
        [patient] = by_patient
    known = numbers[patient]
    accession = film.accession or ("".join(known) if len(known) == 1 else "")
    if not is_named and (accession not in (known or {""}) or _is_another(film, by_patient[patient])):
        return None
    return (*patient, accession)


def _is_another(film: _Said, others: Sequence[_Said]) -> bool:
    """Whether a film's name or date of birth is not among those of a patient."""
    names, born = {other.name for other in others} - {""}, {other.born for other in others} - {""}
    is_other_name = bool(film.name and names) and film.name not in names
    return is_other_name or (bool(film.born and born) and film.born not in born)


def _identity(study_uid: str, films: Sequence[_Said], key: _Key | None, has_numbers: bool) -> Identity:
    """Return patient and request of the films of one part; key: the part's key, None if they belong to none.

    has_numbers: whether the key has the patient's number and issuer, not name and date of birth
    """
    [first, *_] = films
    if key is None:
        number, issuer, accession = first.number, first.issuer, first.accession
    elif has_numbers:
        number, issuer, accession = key
    else:
        number, issuer, accession = "", "", key[-1]

    def hashed(what: str, *values: str) -> tuple[str, ...]:
        return tuple(sorted({_hash(study_uid, what, value) for value in values if value}))

    return Identity(
        number="".join(hashed("number", number)),
        issuer="".join(hashed("issuer", issuer)),
        names=hashed("name", *(film.name for film in films)),
        born=hashed("born", *(film.born for film in films)),
        accession="".join(hashed("accession", accession)),
    )


def _hash(*values: str) -> str:
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:16]
