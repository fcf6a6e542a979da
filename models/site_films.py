"""The films of a site: DICOM files and pictures that a CSV lists with their labels, decoded as the node decodes them.

The columns of the CSV: `file`, a path relative to the CSV; `patient`; `age`, in completed years;
`cardiothoracic_ratio`; `unchanged_since`, the file of an earlier film of the patient since which nothing changed; and
one for each finding, by its key or CheXpert's name: 1 or true, 0 or false, anything else unknown (empty, -1, u).
Patient and age of a DICOM file are those of its header unless a column has them.

It stands above `node.read`, whose code reads the films, so that what is calibrated is what is read.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from models.contract import ChangeError, ComparedModel, PromptKind
from models.decisions import PHANTOMS
from models.errors import ModelError
from models.lab.evaluation.cases import EvaluationCase, Truth
from models.lab.evaluation.model_comparison import FilmsByModel, SiteAnswer
from models.lab.tasks.labels import CHEXPERT
from models.manifest import Manifest
from models.progress import ProgressReport
from models.reading.preprocess import square
from node.answers.comparison import extents
from node.dicom import attributes, header_reading
from node.dicom.film_header import parse_header
from node.domain import Film
from node.errors import InputError, NodeError, Undecodable
from node.prompt_set import PromptSet
from node.read import open_film, prompts, routing
from node.read.film import answer_film, answer_picture, film_of
from node.read.manifest import FilmRule, read_film_rule
from node.read.model import RadiographReader, open_reader

LEAST_PAIRS: Final = 30
"""Pairs of films between which nothing changed before an error of change is stated."""
_SHARE: Final = 95
_OTHER_COLUMNS: Final = ("file", "patient", "age", "cardiothoracic_ratio", "unchanged_since")
_LABELS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("1", "1.0", "true", "yes"), True),
    **dict.fromkeys(("0", "0.0", "false", "no"), False),
    **dict.fromkeys(("", "-1", "-1.0", "u", "unknown"), None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFilm:
    """A film of the list; name: as in the list; unchanged_since: the path of an unchanged earlier film, or None."""

    name: str
    path: Path
    truth: Truth
    unchanged_since: Path | None


class SiteFilms:
    """The films of a CSV, decoded when they are requested; skipped: films that a node does not read, by its reason."""

    def __init__(self, films: Sequence[SiteFilm], manifest: Manifest, skipped: Mapping[str, int]) -> None:
        self._films, self.skipped = films, skipped
        self._rule = FilmRule(gray=manifest.gray, square=partial(square, rule=manifest.input))

    def __len__(self) -> int:
        return len(self._films)

    def load(self, index: int) -> EvaluationCase:
        """Decode a film. Raises ModelError if it cannot be decoded."""
        film = self._films[index]
        try:
            gray = open_film.load(film.path, self._rule).gray
        except InputError as error:
            raise ModelError(f"{error}, or remove its line") from error
        return EvaluationCase(name=film.name, gray=gray, truth=film.truth)

    @property
    def pairs(self) -> list[tuple[Path, Path]]:
        """The films between which nothing changed, the earlier one first."""
        return [(film.unchanged_since, film.path) for film in self._films if film.unchanged_since is not None]


def read_list(path: Path, manifest: Manifest) -> SiteFilms:
    """Read a CSV of films with labels. Raises ModelError as `list_films`, and without a column of labels."""
    films, skipped = list_films(path, needs=CHEXPERT)
    return SiteFilms(films, manifest, skipped)


def films_to_compare(data: str) -> list[SiteFilm]:
    """Read a list of films for a comparison; one that stands there twice counts once.

    Raises ModelError as `list_films`, and for drawn films.
    """
    path = Path(data)
    if path.suffix != ".csv" or path.stem == PHANTOMS:
        raise ModelError(f"--data {data}: --against needs films of your site, FILMS.csv; phantoms do not count")
    return list({film.path.resolve(): film for film in list_films(path)[0]}.values())


def list_films(path: Path, *, needs: Collection[str] = ()) -> tuple[list[SiteFilm], Counter[str]]:
    """Read a CSV of films; returns how many it lists that a node does not read, too, by the reason.

    needs: columns of which there must be one
    Raises ModelError that names the line and its mistake.
    """
    films, skipped = [], Counter[str]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            columns = _columns(path, rows.fieldnames or (), needs)
            for row in rows:
                where = f"{path}, line {rows.line_num}"
                film = _film(
                    {columns[name]: value or "" for name, value in row.items() if name in columns}, path, where
                )
                if isinstance(film, str):
                    skipped[film] += 1
                else:
                    films.append(film)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ModelError(f"{path} cannot be read ({error}); name a CSV of films with a header") from error
    if not films:
        raise ModelError(f"{path} lists no film that a node reads; correct it")
    return films, skipped


def _columns(path: Path, names: Sequence[str], needs: Collection[str]) -> dict[str, str]:
    columns = {name: "_".join(name.lower().split()) for name in names}
    if unknown := [name for name, key in columns.items() if key not in (*_OTHER_COLUMNS, *CHEXPERT)]:
        raise ModelError(
            f"{path}: the column {unknown[0]!r} is unknown; remove it. Columns are {', '.join(_OTHER_COLUMNS)} and "
            f"the findings {', '.join(sorted(CHEXPERT))}"
        )
    if "file" not in columns.values() or (needs and not set(columns.values()) & set(needs)):
        raise ModelError(f"{path} needs the column file and one for each labelled finding; add them")
    return columns


def _film(row: Mapping[str, str], path: Path, where: str) -> SiteFilm | str:
    """Read a line; returns the node's reason for a film that it does not read."""
    labels = {}
    for key in CHEXPERT:
        said = row.get(key, "").strip().lower()
        if said not in _LABELS:
            raise ModelError(f"{where}: {key} is {said!r}; write 1, 0, or nothing if it is not known")
        if (label := _LABELS[said]) is not None:
            labels[key] = label
    try:
        age = int(text) if (text := row.get("age", "").strip()) else None
        ratio = float(text) if (text := row.get("cardiothoracic_ratio", "").strip()) else None
    except ValueError as error:
        raise ModelError(f"{where}: age must be a whole number, cardiothoracic_ratio a number ({error})") from error
    if ratio is not None and not 0 < ratio < 1:
        raise ModelError(f"{where}: cardiothoracic_ratio must lie between 0 and 1")
    film = path.parent / row["file"].strip()
    patient, own_age, reason = _header(film, where)
    if reason:
        return reason
    truth = Truth(
        labels=labels,
        patient=row.get("patient", "").strip() or patient,
        age=own_age if age is None else age,
        cardiothoracic_ratio=ratio,
    )
    earlier = row.get("unchanged_since", "").strip()
    return SiteFilm(
        name=row["file"].strip(),
        path=film,
        truth=truth,
        unchanged_since=path.parent / earlier if earlier else None,
    )


def _header(film: Path, where: str) -> tuple[str, int | None, str]:
    """Return patient and age of a DICOM file, "" and None of a picture, and why a node does not read it, or ""."""
    if not film.is_file():
        raise ModelError(f"{where}: {film} does not exist; correct its path, or remove the line")
    if open_film.is_picture(film):
        return "", None, ""
    try:
        dataset = header_reading.read_header(film)
    except Undecodable as error:
        raise ModelError(f"{where}: {film}: {error}; name a DICOM, PNG or JPEG file") from error
    header = parse_header(dataset)
    decision = routing.choose(header, routing.rules_for(None))
    reason = "" if decision.action is routing.Action.READ else str(decision.reason)
    return attributes.text(dataset, "PatientID"), header.age_years, reason


def change_error(
    directory: Path,
    pairs: Sequence[tuple[Path, Path]],
    *,
    population: str,
    engine: str,
    prompt_set: str,
    report: ProgressReport,
) -> ChangeError:
    """Read pairs of films between which nothing changed, as the node does, and return how far the answers differ.

    Raises ModelError if a film cannot be read.
    """
    asked = prompts.load(prompt_set)
    reader = open_reader(directory, prompts=asked, engine=engine)
    read: dict[Path, Film] = {}
    paths = dict.fromkeys(path for pair in pairs for path in pair)
    for number, path in enumerate(paths, 1):
        read[path] = _read(reader, asked, path)
        report("reading unchanged films", number, len(paths))
    return error_of([(read[earlier], read[later]) for earlier, later in pairs], population=population)


def error_of(pairs: Sequence[tuple[Film, Film]], *, population: str) -> ChangeError:
    """Return the 95th percentile of the differences between films between which nothing changed."""
    grown, probable = differences(pairs)
    if not grown or not probable:
        raise ModelError("no finding is reported on these pairs of films; add pairs that show findings")
    return ChangeError(
        measured_on=population,
        films=len(pairs),
        extent=round(float(np.percentile(grown, _SHARE)), 3),
        probability=round(float(np.percentile(probable, _SHARE)), 3),
    )


def differences(pairs: Sequence[tuple[Film, Film]]) -> tuple[list[float], list[float]]:
    """Return the differences of extents in zones of both films, and of probabilities of what one film reports."""
    grown, probable = [], []
    for earlier_film, later_film in pairs:
        for first, second in zip(earlier_film.findings, later_film.findings, strict=True):
            earlier, later = extents(first), extents(second)
            grown += [abs(later[zone] - earlier[zone]) for zone in earlier.keys() & later.keys()]
            is_reported = first.state.is_reported or second.state.is_reported
            if is_reported and first.probability is not None and second.probability is not None:
                probable.append(abs(second.probability - first.probability))
    return grown, probable


def answer_films(
    directory: Path,
    films: Sequence[SiteFilm],
    *,
    network: str,
    engine: str,
    prompt_set: str,
    report: ProgressReport,
) -> FilmsByModel:
    """Answer films as the node does, also those that this model does not read.

    network: chex, or another by its name (`model.reader`)
    Raises ModelError if the model or the prompts cannot be opened, or a film cannot be read.
    """
    try:
        asked = prompts.load(prompt_set)
        reader = open_reader(directory, prompts=asked, engine=engine, reader=network)
        measured = read_film_rule(directory, reader=network).measured
    except NodeError as error:
        raise ModelError(str(error)) from error
    answers, own = [], reader.identity
    for number, film in enumerate(films, 1):
        answers.append(_answer(reader, asked, film.path))
        report(f"reading with {own.name} {own.version}, prompts {asked.title}", number, len(films))
    return FilmsByModel(
        model=ComparedModel(
            model=f"{own.name} {own.version}",
            weights_sha256=own.weights_sha256,
            manifest_sha256=own.manifest_sha256,
            prompts=asked.title,
            prompts_sha256=asked.sha256,
        ),
        findings=tuple(prompt.key for prompt in asked.prompts if prompt.kind is PromptKind.PATHOLOGY),
        measured=measured,
        answers=tuple(answers),
    )


def _answer(reader: RadiographReader, asked: PromptSet, path: Path) -> SiteAnswer:
    try:
        film = (
            answer_picture(open_film.load(path, reader), reader, asked, source="1.2")
            if open_film.is_picture(path)
            else answer_film(path, reader, asked).film
        )
    except NodeError as error:
        raise ModelError(f"{path}: {error}; remove its line") from error
    if film is None:
        raise ModelError(f"{path}: a node answers no such object; remove its line")
    return SiteAnswer(
        reason=None if film.reason is None else str(film.reason),
        states={finding.prompt: finding.state for finding in film.findings},
    )


def _read(reader: RadiographReader, asked: PromptSet, path: Path) -> Film:
    try:
        image = open_film.load(path, reader)
    except InputError as error:
        raise ModelError(f"{error}, or remove its line") from error
    return film_of(reader.read(image, asked), image, asked, source="1.2", model=reader.identity)
