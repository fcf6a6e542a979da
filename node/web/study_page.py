"""The page of a study with its films. A film in no study has its own page, `looks`.

A patient stands on it only for who may see one (`patients.sees_patients`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter
from pydicom.dataset import Dataset
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from node.dicom.film_header import parse_header, pixel_shape, place_in_study
from node.domain import About, Film, is_uid
from node.errors import InputError
from node.health import notices
from node.jobs import answered_film
from node.jobs.patients import EarlierFilm, obstacle_of
from node.outputs import ledger_rows, patient
from node.read.manifest import read_change_error
from node.store.ledger_queries import DeliveryRow
from node.store.received import Instance
from node.store.spool import Spool
from node.store.worklist import studies_of_patient
from node.web import shown_film, studies, words
from node.web.dependencies import Parts, WebParts
from node.web.page import refuse, render
from node.web.patients import readable, sees_patients
from node.web.review_queue import next_film
from node.web.studies import ReceivedFilm, StudyDetail, StudyFilm, header_of
from node.web.study_outputs import StudyOutput
from node.web.users import audit

_PATIENT: Final = {
    "PatientName": "Name",
    "PatientID": "Patient ID",
    "PatientBirthDate": "Born",
    "StudyDate": "Study date",
}
_MOST_EARLIER: Final = 20
_OPPOSITE: Final = {"R": "L", "L": "R", "A": "P", "P": "A", "H": "F", "F": "H"}

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """An output on the page of its study; about: its subject; file: None for an unknown output."""

    kind: str
    about: str
    uid: str
    file: StudyOutput | None
    deliveries: tuple[DeliveryRow, ...]


@router.get("/notices/{notice_id}")
def show_notice(parts: Parts, request: Request, notice_id: str) -> Response:
    """Redirect from the link in a notice to the study of its critical finding."""
    found = notices.study_of(parts.settings.storage.directory, notice_id)
    if found is None:
        return refuse(parts, request, 404, "This node knows no such notice. Its study may have been removed.")
    return RedirectResponse(f"/studies/{found}", status_code=303)


@router.get("/studies/{uid}")
def show_study(parts: Parts, request: Request, uid: str) -> Response:
    """Show a study and one of its films, which the query may name."""
    known = studies.study(parts, uid) if is_uid(uid) else None
    if known is None:
        return refuse(parts, request, 404, "This node knows no such study. It may have been removed; see keep_days.")
    found, seen = known
    sees = sees_patients(request, parts.settings.http)
    audit(request, "study.viewed", study=uid)
    wanted = request.query_params.get("film")
    pairs = _in_series(found.films, seen)
    film, own = next(((film, own) for film, own in pairs if wanted in (None, film.uid)), (None, None))
    if film is None and wanted is not None:
        return refuse(
            parts, request, 404, "This study has no such film, or the film was removed.", back=f"/studies/{uid}"
        )
    header = None if own is None else header_of(own.instance.path, character_set=parts.spool.character_set)
    corrections = None
    if own is not None and own.film is not None and own.status == "read":
        made = answered_film.corrections_of(parts.spool, own.instance)
        corrections = shown_film.show_corrections(
            own.film, made, parts.spool.rounds(uid), waiting=found.waiting, now=datetime.now(UTC)
        )
    earlier = _earlier(parts, own.instance, header) if sees and own is not None and header is not None else None
    about = {
        "study": found.line,
        "films": [each for each, _ in pairs],
        "numbers": {each.uid: number for number, each in enumerate(found.films, 1)},
        "parts": found.parts,
        "film": film,
        "fault": "" if own is None else own.fault,
        "path": "" if film is None else f"/api/v1/studies/{uid}/films/{film.uid}",
        "corrections": corrections,
        "round_deliveries": {} if corrections is None else _of_round(found, corrections.round),
        "shown": {each.instance.sop_instance_uid: shown_film.show(each.film) for each in seen if each.film is not None},
        "results": _results(found),
        "words": words,
        "caution": shown_film.glossary().caution,
        "another_waits": film is not None and _another_waits(parts, (uid, film.uid)),
        "marks": {each.instance.sop_instance_uid: _review_mark(each.film) for each in seen if each.film is not None},
        "forms": words.FORMS if _compares(parts) else words.LOOK_FORMS,
        "earlier": earlier,
        "earlier_sides": None if earlier is None else _sides(header_of(earlier.instance.path)),
        "patient": _patient(header) if sees and header is not None else {},
        "earlier_patient": "" if earlier is None else _named(earlier.instance, parts.spool),
        **about_header(header),
    }
    # A study whose films were removed has no pictures; the rest of the page shows its history.
    return render(parts, request, "study.html", about, status=200 if found.films else 410)


def about_header(header: Dataset | None) -> dict[str, object]:
    """Return a film's display attributes: the sides of the patient, and the shape of a pixel.

    aspect: height of a pixel over its width (PS3.3 C.7.6.3.1.7)
    """
    if header is None:
        return {"sides": None, "aspect": 1.0}
    height, width = pixel_shape(header)
    return {"sides": _sides(header), "aspect": round(height / width, 4)}


def _patient(header: Dataset) -> dict[str, str]:
    return {name: readable(patient.whole_text(header, keyword), keyword) for keyword, name in _PATIENT.items()}


def _named(film: Instance, spool: Spool) -> str:
    """Return name and birth date of a film's patient, as its header has them."""
    header = header_of(film.path, character_set=spool.character_set)
    said = {} if header is None else _patient(header)
    return f"{said.get('Name') or 'name not stated'}, born {said.get('Born') or 'on a day that is not stated'}"


def _sides(header: Dataset | None) -> tuple[str, str] | None:
    """Return the patient's sides at the left and at the right edge of the stored film (PS3.3 C.7.6.1.1.1).

    None if the header lacks it.
    """
    if header is None:
        return None
    end = next(iter(parse_header(header).patient_orientation), "")[:1]
    return (_OPPOSITE[end], end) if end in _OPPOSITE else None


def _in_series(films: Iterable[StudyFilm], seen: Sequence[ReceivedFilm]) -> list[tuple[StudyFilm, ReceivedFilm]]:
    """Put the films of a study in the order of their series (PS3.3 C.7.3.1, C.7.6.1), and others behind them."""

    def place(own: ReceivedFilm) -> tuple[float, ...]:
        header = header_of(own.instance.path) if len(seen) > 1 else None
        return (math.inf, math.inf) if header is None else place_in_study(header)

    return sorted(zip(films, seen, strict=True), key=lambda pair: place(pair[1]))


def _earlier(parts: WebParts, film: Instance, header: Dataset) -> EarlierFilm | None:
    """Return the last film of the same patient before one, among the newest studies of the patient."""
    number, issuer = (patient.whole_text(header, keyword) for keyword in ("PatientID", "IssuerOfPatientID"))
    uids = studies_of_patient(parts.settings.storage, number, issuer, limit=_MOST_EARLIER) if number else []
    return next(iter(parts.patients.earlier_among(uids, film, parts.spool)), None)


def _another_waits(parts: WebParts, film: tuple[str, str]) -> bool:
    """Return whether the review queue has a film after this one, given by its study and UID."""
    try:
        return next_film(parts, after=film) is not None
    except OSError:  # a file of another study of the queue cannot be read: the link leads to it
        return True


def _compares(parts: WebParts) -> bool:
    """Return whether the open model can compare films."""
    if (model := parts.model()) is None:
        return False
    try:
        error = read_change_error(parts.settings.model.directory, reader=parts.settings.model.reader)
    except InputError:  # the manifest is gone
        return False
    return obstacle_of(error, model.reader.identity) is None


def _review_mark(film: Film) -> str:
    """Return whether a film waits for review, or a reader has finished it; blank if neither."""
    if ledger_rows.open_findings(film):
        return "to review"
    return "✓ finished" if any(finding.reader is not None for finding in film.findings) else ""


def _results(found: StudyDetail) -> list[_Result]:
    """Return the outputs with their deliveries, and last the deliveries of outputs that are gone."""
    numbers = {film.uid: f"film {number}" for number, film in enumerate(found.films, 1)}
    outputs = {output.uid: output for output in found.outputs}
    kinds = {output.uid: output.kind for output in found.outputs}
    kinds |= {row.delivery.sop_instance_uid: row.delivery.kind for row in found.deliveries}
    return [
        _Result(
            kind=words.output_kind(kind),
            about=_about(outputs[uid], numbers) if uid in outputs else "",
            uid=uid,
            file=outputs.get(uid),
            deliveries=tuple(row for row in found.deliveries if row.delivery.sop_instance_uid == uid),
        )
        for uid, kind in kinds.items()
    ]


def _of_round(found: StudyDetail, number: int | None) -> dict[str, Counter[str]]:
    """Count the deliveries of a round's outputs by destination and state."""
    uids = {output.uid for output in found.outputs if output.round is not None and output.round == number}
    return studies.count_deliveries(row for row in found.deliveries if row.delivery.sop_instance_uid in uids)


def _about(output: StudyOutput, numbers: Mapping[str, str]) -> str:
    """Return an output's subject in words; numbers: numbers of the stored films, by UID."""
    uid = output.film
    film = numbers.get(uid, "a removed film") if uid else ""
    if output.question:
        return f'the answer to "{output.asked}" on {film}' if output.asked else "the answer to a damaged question"
    if output.films:
        return " and ".join(sorted(numbers.get(film, "a removed film") for film in output.films))
    return f"cardiothoracic ratio of {film}" if output.about is About.RATIO else film
