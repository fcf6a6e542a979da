"""Statistics: what a round counts of its films, the page and its table, and that nothing of them is a patient's."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from contextlib import closing
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo

import pytest
from starlette.testclient import TestClient

from models.contract import Box
from node.config import SiteSettings
from node.jobs.patients import note_patients
from node.outputs import ledger_rows, vocabulary
from node.service.worker import LedgerFiller
from node.store import study_facts
from node.store.correction import CorrectionKind
from node.store.ledger import Ledger
from node.store.received import Instance
from node.store.spool import Spool
from node.store.statistics import Counts, FilmCount, FindingCount, Turnaround, counted_studies, counts
from node.web.statistics import FindingLine, Group, film_lines, finding_lines
from tests.support import films, peers, samples
from tests.support.finished import Finished, pages_of, parts_of
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS

KEY, OTHER = "atelectasis", "enlarged_cardiomediastinum"  # present on every film of the scripted reader
DRAWN, MISSED = "consolidation", "cardiomegaly"
NAMES = vocabulary.names(PROMPTS)
BOX = Box(left=2, top=3, right=20, bottom=30)
ROOM = f"station-{hashlib.sha256(b'ROOM 7').hexdigest()[:6]}"
SECRETS = ("Secret", "SECRET", str(films.thumbnail().StudyInstanceUID))


@pytest.fixture
def node(tmp_path: Path) -> Finished:
    """A node that has read a film, which a reader has corrected, and has answered another one."""
    finished = Finished(tmp_path / "node")
    device = {"StationName": "ROOM 7", "ManufacturerModelName": "DigitalDiagnost"}
    first = films.thumbnail({**device, "PatientName": "Zyx^Secret", "PatientID": "SECRET-7"})
    finished.read(first)
    finished.correct(first, CorrectionKind.REJECT, prompt=KEY)
    finished.correct(first, CorrectionKind.ACCEPT, prompt=OTHER)
    finished.correct(first, CorrectionKind.ADD, prompt=DRAWN, box=BOX)
    finished.correct(first, CorrectionKind.ADD, prompt=MISSED, box=BOX)
    lateral = films.thumbnail({"ViewPosition": "LL", "ManufacturerModelName": "=1+1"})
    finished.read(films.as_another(lateral, "lateral"))
    return finished


def table(pages: TestClient, query: str = "") -> dict[tuple[str, str], dict[str, str]]:
    answer = pages.get(f"/statistics.csv{query}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert [secret for secret in SECRETS if secret in answer.text] == []
    return {(line["by"], line["name"]): line for line in csv.DictReader(io.StringIO(answer.text))}


def test_a_round_counts_its_films_and_what_readers_said(node: Finished) -> None:
    lines = table(node.client())

    (named,) = (name for kind, name in lines if kind == "day")
    assert table(node.client(), f"?from={named}&to={named}") == lines, "both days of a period count"
    day = lines["day", named]
    assert [day[name] for name in ("films", "read", "not_read", "present")] == ["2", "1", "1", "1"]
    assert float(day["median_seconds"]) >= 0
    assert lines["scanner", "DigitalDiagnost"]["films"] == lines["station", ROOM]["read"] == "1"
    assert lines["scanner", "'=1+1"]["not_read"] == "1", "a spreadsheet must not take it for a formula"
    said = {
        key: [lines["finding", NAMES[key]][name] for name in ("present", "accepted", "rejected", "added", "agreed")]
        for key in (KEY, OTHER, DRAWN, MISSED)
    }
    assert said == {
        KEY: ["0", "0", "1", "0", "0.0"],
        OTHER: ["1", "1", "0", "0", "1.0"],
        DRAWN: ["1", "1", "0", "0", "1.0"],
        MISSED: ["1", "0", "0", "1", ""],
    }


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])  # 26 hours apart: never the same day
def test_without_a_period_the_last_thirty_days_of_the_site_are_counted(tmp_path: Path, zone: str) -> None:
    settings = replace(settings_for(tmp_path / "node", archive_port=104), site=SiteSettings(timezone=zone))
    today = datetime.now(ZoneInfo(zone)).date()

    named = pages_of(parts_of(settings)).get("/statistics.csv").headers["content-disposition"]

    assert named == f'attachment; filename="statistics-{today - timedelta(days=29)}-{today}.csv"'


def test_films_are_added_up_by_day_scanner_and_station() -> None:
    found = Counts(
        films=(
            FilmCount(day="2026-11-01", scanner="a", station="s", outcome="read", films=4, present=2, open=1),
            FilmCount(day="2026-11-02", scanner="b", station="s", outcome="lateral", films=3, present=0, open=0),
            FilmCount(day="2026-11-02", scanner="b", station="t", outcome="read", films=2, present=1, open=2),
        ),
        turnarounds=tuple(
            Turnaround(day="2026-11-01", scanner="a", station="s", seconds=second) for second in range(100, 0, -1)
        ),
    )
    lines = {group: [astuple(line) for line in film_lines(found, group)] for group in get_args(Group)}
    assert lines == {
        "day": [("2026-11-02", 5, 2, 3, 1, 2, None, None), ("2026-11-01", 4, 4, 0, 2, 1, 50.5, 95.0)],
        "scanner": [("b", 5, 2, 3, 1, 2, None, None), ("a", 4, 4, 0, 2, 1, 50.5, 95.0)],
        "station": [("s", 7, 4, 3, 2, 1, 50.5, 95.0), ("t", 2, 2, 0, 1, 2, None, None)],
    }, "the time to the first result by the middle and by nearly all"


def test_a_finding_is_added_up_by_state_and_by_what_readers_said() -> None:
    said = (
        *(("present", "", 5), ("present", "accepted", 2), ("present", "drawn", 1), ("present", "moved", 3)),
        *(("absent", "rejected", 2), ("present", "added", 4), ("absent", "", 9)),
        *(("indeterminate", "", 6), ("uncalibrated", "", 1), ("indeterminate", "rejected", 1)),
    )
    counted = [FindingCount(prompt=KEY, state=state, reader=reader, films=films) for state, reader, films in said]
    frequent = FindingCount(prompt="wide_hilum", state="present", reader="", films=20)
    own = FindingLine(name=NAMES[KEY], present=15, to_review=7, accepted=3, moved=3, rejected=3, added=4, agreed=6 / 9)
    blank = replace(own, to_review=0, accepted=0, moved=0, rejected=0, added=0, agreed=None)
    assert finding_lines([*counted, frequent], NAMES) == [replace(blank, name="wide hilum", present=20), own]


def test_the_page_shows_the_counts_of_a_period_and_no_patient_and_refuses_what_is_no_period(node: Finished) -> None:
    page = node.client().get("/statistics")
    assert page.status_code == 200
    of_films = ("films", "read", "not_read", "present", "to_review")
    of_findings = ("present", "to_review", "accepted", "moved", "rejected", "added")
    cells = dict(re.findall(r'<tr><th scope="row">([^<]*)</th>(.*?)</tr>', page.text))
    for (kind, name), line in table(node.client()).items():
        row = cells[(name.capitalize() if kind == "finding" else name).lstrip("'")]
        columns = of_findings if kind == "finding" else of_films
        assert re.findall("<td>(.*?)</td>", row)[: len(columns)] == [line[column] for column in columns]
    said = (ROOM, "DigitalDiagnost", NAMES[OTHER], "Readers agreed", "100&nbsp;%", "Lateral: 1", "Read: 1")
    assert [words for words in said if words not in page.text] == []
    assert [secret for secret in SECRETS if secret in page.text] == []
    note_patients(node.spool, node.ledger, str(films.thumbnail().StudyInstanceUID))
    for user, shown, hidden in (("ada", "ROOM 7", ROOM), ("", ROOM, "ROOM 7")):  # who sees patients, and who does not
        pages = node.client(user=user)
        assert table(pages)["station", shown]["read"] == "1"
        text = pages.get("/statistics").text
        assert shown in text and hidden not in text

    empty = pages.get("/statistics?from=2026-03-01&to=2026-03-02").text
    assert "No film of these days is on this node." in empty
    for query, why in (
        ("from=yesterday", "A day is written as 2026-11-27."),
        ("from=2026-03-02&to=2026-03-01", "The first day must not be after the last one."),
    ):
        assert why in pages.get(f"/statistics?{query}").text
        refused = pages.get(f"/statistics.csv?{query}")
        assert (refused.status_code, why in refused.text) == (422, True)


def test_a_film_counts_on_the_day_of_the_site(tmp_path: Path) -> None:
    film = Instance(
        study_uid="1.2.3",
        sop_instance_uid=samples.film_uid(1),
        number=1,
        sha256="0" * 64,
        path=films.saved(tmp_path, films.thumbnail()),
        received_at=datetime(2026, 7, 1, 22, 30, tzinfo=UTC),
    )
    facts = replace(study_facts.load(Spool(tmp_path / "data"), film.study_uid), instances=(film,))

    (row,) = ledger_rows.rows_of(facts, [samples.film()], zone=samples.BERLIN).films

    assert (row.day, row.received_at) == ("2026-07-02", film.received_at.timestamp())


def test_a_ledger_that_was_lost_is_filled_again(node: Finished) -> None:
    study, today = str(films.thumbnail().StudyInstanceUID), datetime.now(UTC).date().isoformat()

    def counted() -> tuple[set[FilmCount], set[FindingCount]]:
        found = counts(node.settings.storage, first=today, last=today)
        return set(found.films), set(found.findings)

    before = counted()
    node.ledger.forget(study)
    assert counted()[0] == set(), "nothing of a removed study is counted"

    with closing(Ledger(node.ledger._sql)) as ledger:
        ledger.add_finished_study(study)
        finder = LedgerFiller(node.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=False)
        peers.wait_until(lambda: study in counted_studies(ledger.tables), what="the study was looked at")
        finder.close()

    assert counted() == before
