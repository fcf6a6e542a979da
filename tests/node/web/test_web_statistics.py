"""Statistics: what a round counts of its films, the page and its table, and that nothing of them is a patient's."""

from __future__ import annotations

import csv
import hashlib
import io
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from starlette.testclient import TestClient

from models.contract import Box
from node.jobs.patients import note_patients
from node.outputs import vocabulary
from node.read import prompts
from node.service.worker import LedgerFiller
from node.store.correction import CorrectionKind
from node.store.ledger import Ledger, open_ledger
from node.store.statistics import FilmCount, counts
from tests.node.jobs.test_corrected_rounds import KEY, correct
from tests.node.jobs.test_rounds import STUDY, Bench, film
from tests.node.web.test_web_states import client
from tests.support import films, peers
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS

OTHER = "enlarged_cardiomediastinum"  # present on every film of the scripted reader, too
DRAWN, MISSED = "consolidation", "cardiomegaly"
NAMES = vocabulary.names(prompts.load("chexpert14"))
BOX = Box(left=2, top=3, right=20, bottom=30)
STATION = {"StationName": "ROOM 7", "ManufacturerModelName": "DigitalDiagnost"}
ROOM = f"station-{hashlib.sha256(b'ROOM 7').hexdigest()[:6]}"
PATIENT = {"PatientName": "Zyx^Secret", "PatientID": "SECRET-7"}


def today() -> str:
    return datetime.now(UTC).date().isoformat()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A node that has read a film, which a reader has corrected, and has answered another one."""
    bench = Bench(tmp_path / "node")
    first = film("first")
    for name, value in {**STATION, **PATIENT}.items():
        setattr(first, name, value)
    bench.receive(first)
    bench.round()
    bench.receive(films.as_another(films.thumbnail({"ViewPosition": "LL", "ManufacturerModelName": "=1+1"}), "lateral"))
    correct(bench, 1, CorrectionKind.REJECT, prompt=KEY)
    correct(bench, 2, CorrectionKind.ACCEPT, prompt=OTHER)
    correct(bench, 3, CorrectionKind.ADD, prompt=DRAWN, box=BOX)
    correct(bench, 4, CorrectionKind.ADD, prompt=MISSED, box=BOX)
    bench.round()
    return bench


def shown(bench: Bench, tmp_path: Path) -> TestClient:
    return client(settings_for(tmp_path / "node", archive_port=104), bench.spool)


def table(pages: TestClient) -> dict[tuple[str, str], dict[str, str]]:
    answer = pages.get("/statistics.csv")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
    assert all(secret not in answer.text for secret in ("Secret", "SECRET", STUDY))
    return {(line["by"], line["name"]): line for line in csv.DictReader(io.StringIO(answer.text))}


def test_a_round_counts_its_films_and_what_readers_said(bench: Bench, tmp_path: Path) -> None:
    lines = table(shown(bench, tmp_path))

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


def test_the_page_shows_the_counts_and_no_patient(bench: Bench, tmp_path: Path) -> None:
    page = shown(bench, tmp_path).get("/statistics")

    assert page.status_code == 200
    for words in (
        ROOM,
        "DigitalDiagnost",
        "Enlarged cardiomediastinum",
        "Readers agreed",
        "100&nbsp;%",
        "Lateral: 1",
        "Read: 1",
    ):
        assert words in page.text
    assert all(secret not in page.text for secret in ("Secret", "SECRET", STUDY))


def test_who_sees_patients_sees_the_names_of_stations(bench: Bench, tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "node", archive_port=104)
    with open_ledger(settings.storage) as ledger:
        note_patients(bench.spool, ledger, STUDY)

    for pages, names in (
        (client(settings, bench.spool, user="ada"), ("ROOM 7", ROOM)),
        (shown(bench, tmp_path), (ROOM, "ROOM 7")),
    ):
        assert table(pages)["station", names[0]]["read"] == "1"
        text = pages.get("/statistics").text
        assert names[0] in text and names[1] not in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("from=yesterday", "A day is written as 2026-11-27."),
        ("from=2026-03-02&to=2026-03-01", "The first day must not be after the last one."),
    ],
)
def test_days_that_are_no_period_are_refused(bench: Bench, tmp_path: Path, query: str, said: str) -> None:
    pages = shown(bench, tmp_path)

    assert said in pages.get(f"/statistics?{query}").text
    refused = pages.get(f"/statistics.csv?{query}")
    assert (refused.status_code, said in refused.text) == (422, True)


def test_other_days_have_no_films(bench: Bench, tmp_path: Path) -> None:
    page = shown(bench, tmp_path).get("/statistics?from=2026-03-01&to=2026-03-02")

    assert "No film of these days is on this node." in page.text


def test_a_ledger_that_was_lost_is_filled_again(bench: Bench, tmp_path: Path) -> None:
    storage = settings_for(tmp_path / "node", archive_port=104).storage
    before = counts(storage, first=today(), last=today())
    bench.ledger.forget(STUDY)
    assert counts(storage, first=today(), last=today()).films == (), "nothing of a removed study is counted"
    with closing(Ledger(bench.ledger._sql)) as ledger:
        ledger.add_finished_study(STUDY)
        finder = LedgerFiller(bench.spool, ledger, prompts=lambda: PROMPTS, zone=ZoneInfo("UTC"), with_patients=False)
        peers.wait_until(lambda: STUDY in ledger.statistics.recorded(), what="the study was looked at")
        finder.close()

    after = counts(storage, first=today(), last=today())
    assert sorted(after.films, key=order) == sorted(before.films, key=order)
    assert set(after.findings) == set(before.findings)


def order(count: FilmCount) -> tuple[str, ...]:
    return count.day, count.scanner, count.station, count.outcome
