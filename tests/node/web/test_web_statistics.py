"""Statistics: what a round counts of its films, the page and its table, and that nothing of them is a patient's."""

from __future__ import annotations

import csv
import hashlib
import io
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from starlette.testclient import TestClient

from models.contract import Box
from node.jobs.patients import note_patients
from node.outputs import ledger_rows, vocabulary
from node.service.worker import LedgerFiller
from node.store import study_facts
from node.store.correction import CorrectionKind
from node.store.ledger import Ledger
from node.store.received import Instance
from node.store.spool import Spool
from node.store.statistics import FilmCount, counted_studies, counts
from tests.support import films, peers, samples
from tests.support.finished import Finished
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


def table(pages: TestClient) -> dict[tuple[str, str], dict[str, str]]:
    answer = pages.get("/statistics.csv")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert [secret for secret in SECRETS if secret in answer.text] == []
    return {(line["by"], line["name"]): line for line in csv.DictReader(io.StringIO(answer.text))}


def test_a_round_counts_its_films_and_what_readers_said(node: Finished) -> None:
    lines = table(node.client())

    (day,) = (line for (kind, _), line in lines.items() if kind == "day")
    assert [day[name] for name in ("films", "read", "not_read", "present")] == ["2", "1", "1", "1"]
    assert float(day["median_seconds"]) >= 0
    assert lines["scanner", "DigitalDiagnost"]["films"] == lines["station", ROOM]["read"] == "1"
    assert lines["scanner", "'=1+1"]["not_read"] == "1", "a spreadsheet must not take it for a formula"
    rejected, accepted = (lines["finding", NAMES[key]] for key in (KEY, OTHER))
    assert [rejected[name] for name in ("present", "rejected", "agreed")] == ["0", "1", "0.0"]
    assert [accepted[name] for name in ("present", "accepted", "agreed")] == ["1", "1", "1.0"]
    drawn, missed = (lines["finding", NAMES[key]] for key in (DRAWN, MISSED))
    assert [drawn[name] for name in ("accepted", "added", "agreed")] == ["1", "0", "1.0"]
    assert [missed[name] for name in ("accepted", "added", "agreed")] == ["0", "1", ""]


def test_without_a_period_the_last_thirty_days_are_counted(node: Finished) -> None:
    today = datetime.now(node.settings.site.zone).date()
    first = today.fromordinal(today.toordinal() - 29)

    named = node.client().get("/statistics.csv").headers["content-disposition"]

    assert named == f'attachment; filename="statistics-{first}-{today}.csv"'


def test_the_page_shows_the_counts_and_no_patient(node: Finished) -> None:
    page = node.client().get("/statistics")
    assert page.status_code == 200
    said = (ROOM, "DigitalDiagnost", NAMES[OTHER], "Readers agreed", "100&nbsp;%", "Lateral: 1", "Read: 1")
    assert [words for words in said if words not in page.text] == []
    assert [secret for secret in SECRETS if secret in page.text] == []


def test_who_sees_patients_sees_the_names_of_stations(node: Finished) -> None:
    note_patients(node.spool, node.ledger, str(films.thumbnail().StudyInstanceUID))
    for user, shown, hidden in (("ada", "ROOM 7", ROOM), ("", ROOM, "ROOM 7")):
        pages = node.client(user=user)
        assert table(pages)["station", shown]["read"] == "1"
        text = pages.get("/statistics").text
        assert shown in text and hidden not in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("from=yesterday", "A day is written as 2026-11-27."),
        ("from=2026-03-02&to=2026-03-01", "The first day must not be after the last one."),
    ],
)
def test_days_that_are_no_period_are_refused(node: Finished, query: str, said: str) -> None:
    pages = node.client()
    assert said in pages.get(f"/statistics?{query}").text
    refused = pages.get(f"/statistics.csv?{query}")
    assert (refused.status_code, said in refused.text) == (422, True)


def test_other_days_have_no_films(node: Finished) -> None:
    page = node.client().get("/statistics?from=2026-03-01&to=2026-03-02")
    assert "No film of these days is on this node." in page.text


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

    rows = ledger_rows.rows_of(facts, [samples.film()], zone=samples.BERLIN)

    assert [(row.day, row.received_at) for row in rows.films] == [("2026-07-02", film.received_at.timestamp())]


def test_a_ledger_that_was_lost_is_filled_again(node: Finished) -> None:
    storage, study, today = node.settings.storage, str(films.thumbnail().StudyInstanceUID), datetime.now(UTC).date()
    days = {"first": today.isoformat(), "last": today.isoformat()}
    before = counts(storage, **days)
    node.ledger.forget(study)
    assert counts(storage, **days).films == (), "nothing of a removed study is counted"

    with closing(Ledger(node.ledger._sql)) as ledger:
        ledger.add_finished_study(study)
        finder = LedgerFiller(node.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=False)
        peers.wait_until(lambda: study in counted_studies(ledger.tables), what="the study was looked at")
        finder.close()

    def order(count: FilmCount) -> tuple[str, ...]:
        return count.day, count.scanner, count.station, count.outcome

    after = counts(storage, **days)
    assert sorted(after.films, key=order) == sorted(before.films, key=order)
    assert set(after.findings) == set(before.findings)
