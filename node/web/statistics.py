"""Statistics of the films that this node still has: by day, finding, scanner and station; nothing by patient."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import date, datetime, timedelta
from typing import Final, Literal

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from models.contract import FindingState
from node import csv_table
from node.domain import Assessment
from node.outputs import vocabulary
from node.outputs.ledger_rows import station_label
from node.store.statistics import Counts, FilmCount, FindingCount, Turnaround, counts, station_names
from node.web import page
from node.web.dependencies import Parts, WebParts
from node.web.patients import sees_patients

Group = Literal["day", "scanner", "station"]

_GROUPS: Final[dict[Group, str]] = {"day": "Day", "scanner": "Scanner", "station": "Station"}
_DAYS: Final = 30
_FOUND: Final = "found"

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmLine:
    """The films of a day, a scanner or a station.

    present, to_review: how many have a finding that is present; that waits for a reader
    median_seconds, p95_seconds: from arrival to the first delivered result; None if nothing was delivered
    """

    name: str
    films: int
    read: int
    not_read: int
    present: int
    to_review: int
    median_seconds: float | None
    p95_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingLine:
    """A finding: numbers of films with it present or to be reviewed, and of radiologists' assessments.

    accepted: with or without a box that was drawn for it
    agreed: the share of the network's findings with which readers agreed, of those that they judged; a box that was
        moved agrees that the finding is there; None if none was judged
    """

    name: str
    present: int
    to_review: int
    accepted: int
    moved: int
    rejected: int
    added: int
    agreed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Some days, both included; refused: why they differ from the requested ones."""

    first: date
    last: date
    refused: str = ""


@router.get("/statistics")
def show_statistics(parts: Parts, request: Request) -> Response:
    """Show the statistics of some days; without any in the query of the last 30."""
    period = _period(request, today=_today(parts))
    found = _counted(parts, request, period)
    about = {
        "period": period,
        "total": film_line("All", found.films, found.turnarounds),
        "groups": [(title, film_lines(found, group)) for group, title in _GROUPS.items()],
        "findings": finding_lines(found.findings, vocabulary.names(parts.prompts())),
        "outcomes": sorted(_outcomes(found.films).items(), key=lambda item: (-item[1], item[0])),
        "keep_days": parts.settings.storage.keep_days,
    }
    return page.render(parts, request, "statistics.html", about)


@router.get("/statistics.csv")
def download_statistics(parts: Parts, request: Request) -> Response:
    """Return the same as one table: a line for each day, scanner, station and finding."""
    period = _period(request, today=_today(parts))
    if period.refused:
        return page.refuse(parts, request, 422, period.refused, back="/statistics")
    found = _counted(parts, request, period)
    name = f"statistics-{period.first}-{period.last}.csv"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(
        as_csv(found, vocabulary.names(parts.prompts())), media_type="text/csv; charset=utf-8", headers=headers
    )


def film_lines(found: Counts, group: Group) -> list[FilmLine]:
    """Return the films of each day, the newest first, or of each scanner or station, that with most films first."""
    films: dict[str, list[FilmCount]] = defaultdict(list)
    times: dict[str, list[Turnaround]] = defaultdict(list)
    for count in found.films:
        films[getattr(count, group)].append(count)
    for turnaround in found.turnarounds:
        times[getattr(turnaround, group)].append(turnaround)
    lines = [film_line(name, films[name], times[name]) for name in sorted(films, reverse=group == "day")]
    return lines if group == "day" else sorted(lines, key=lambda line: -line.films)


def film_line(name: str, films: Iterable[FilmCount], times: Iterable[Turnaround]) -> FilmLine:
    """Add films up."""
    of_these, seconds = list(films), sorted(turnaround.seconds for turnaround in times)
    total = sum(count.films for count in of_these)
    read = sum(count.films for count in of_these if count.outcome == "read")
    return FilmLine(
        name=name,
        films=total,
        read=read,
        not_read=total - read,
        present=sum(count.present for count in of_these),
        to_review=sum(count.open for count in of_these),
        median_seconds=round(statistics.median(seconds), 1) if seconds else None,
        p95_seconds=round(seconds[(len(seconds) * 95 - 1) // 100], 1) if seconds else None,
    )


def finding_lines(found: Iterable[FindingCount], names: Mapping[str, str]) -> list[FindingLine]:
    """Return a line per finding, the most frequent first; names: by key of the prompt; a missing one is its key."""
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for count in found:
        said[count.prompt][count.reader] += count.films
        said[count.prompt][_FOUND] += count.films * (count.state == FindingState.PRESENT)
        said[count.prompt]["open"] += count.films * (
            count.state in (FindingState.INDETERMINATE, FindingState.UNCALIBRATED) and not count.reader
        )
    lines = [
        _finding_line(names.get(prompt, prompt.replace("_", " ")), counter) for prompt, counter in sorted(said.items())
    ]
    return sorted(lines, key=lambda line: -line.present)


def _finding_line(name: str, said: Counter[str]) -> FindingLine:
    confirmed = said[Assessment.ACCEPTED] + said[Assessment.DRAWN]
    agreed, rejected = confirmed + said[Assessment.MOVED], said[Assessment.REJECTED]
    return FindingLine(
        name=name,
        present=said[_FOUND],
        to_review=said["open"],
        accepted=confirmed,
        moved=said[Assessment.MOVED],
        rejected=rejected,
        added=said[Assessment.ADDED],
        agreed=agreed / (agreed + rejected) if agreed + rejected else None,
    )


def as_csv(found: Counts, names: Mapping[str, str]) -> str:
    """Write all lines as one table, whose first columns name the subject of a line; names: see `finding_lines`."""
    columns = dict.fromkeys(("by", *(field.name for kind in (FilmLine, FindingLine) for field in fields(kind))))
    lines: list[tuple[str, FilmLine | FindingLine]] = []
    lines += [(group, line) for group in _GROUPS for line in film_lines(found, group)]
    lines += [("finding", line) for line in finding_lines(found.findings, names)]
    return csv_table.write(columns, ({"by": by, **asdict(line)} for by, line in lines))


def _outcomes(films: Iterable[FilmCount]) -> Counter[str]:
    counter: Counter[str] = Counter()
    for count in films:
        counter[count.outcome.replace("_", " ")] += count.films
    return counter


def _counted(parts: WebParts, request: Request, period: Period) -> Counts:
    """Count the films of a period; who may see patients sees the names of stations, which may name a person."""
    storage = parts.settings.storage
    found = counts(storage, first=period.first.isoformat(), last=period.last.isoformat())
    if not sees_patients(request, parts.settings.http):
        return found
    names = {station_label(name): name for name in station_names(storage)}
    return replace(
        found,
        films=tuple(replace(count, station=names.get(count.station, count.station)) for count in found.films),
        turnarounds=tuple(replace(each, station=names.get(each.station, each.station)) for each in found.turnarounds),
    )


def _today(parts: WebParts) -> date:
    return datetime.now(parts.settings.site.zone).date()


def _period(request: Request, *, today: date) -> Period:
    """Return the days of a query; for an invalid period, the last 30 with a refusal in words."""
    usual = Period(first=today - timedelta(days=_DAYS - 1), last=today)
    try:
        first, last = _asked(request, "from") or usual.first, _asked(request, "to") or usual.last
    except ValueError:
        return Period(first=usual.first, last=usual.last, refused="A day is written as 2026-11-27.")
    if first > last:
        return Period(first=usual.first, last=usual.last, refused="The first day must not be after the last one.")
    return Period(first=first, last=last)


def _asked(request: Request, name: str) -> date | None:
    text = request.query_params.get(name, "")
    return date.fromisoformat(text) if text else None
