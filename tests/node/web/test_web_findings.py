"""The findings of all films as rows: what a program that polls has in its table in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from pydicom.dataset import Dataset
from starlette.testclient import TestClient

from node import config
from node.metrics import Metrics
from node.store.spool import Spool
from node.web import application
from node.web.look_files import Looks
from node.web.parts import WebParts
from tests.support import films
from tests.support.service import Service, settings_for
from tests.support.spoken import PROMPTS
from tests.support.web_access import as_user

FIRST, SECOND = (films.as_another(films.thumbnail(), name, study=name) for name in ("first", "second"))
LATERAL = films.as_another(films.thumbnail(), "lateral", study="second")
LATERAL.ViewPosition = "LL"
LATERAL.SeriesInstanceUID = SECOND.SeriesInstanceUID


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    for film in (FIRST, SECOND, LATERAL):
        film.AccessionNumber = "ACC-17"
    settings = replace(settings_for(tmp_path_factory.mktemp("rows") / "node", archive_port=104), destinations=())
    with Service(settings) as service:
        service.read(FIRST)
        service.read(SECOND, LATERAL)
        following(service, following(service, None)["cursor"])
        yield service


def page(node: Service, **query: object) -> dict[str, Any]:
    status, said = node.ask("GET", f"/api/v1/findings?{urlencode(query)}")
    assert status == 200, said
    return said


def following(node: Service, cursor: str | None) -> dict[str, Any]:
    """The next page that has rows: a study is listed a moment after it has changed."""
    limit = time.monotonic() + 30
    while not (found := page(node, limit=1, **({} if cursor is None else {"cursor": cursor})))["rows"]:
        assert time.monotonic() < limit, "no study came"
        time.sleep(0.2)
    return found


def test_each_study_comes_once_and_again_when_it_has_changed(node: Service) -> None:
    first = following(node, None)
    second = following(node, first["cursor"])
    studies = [{row["study"] for row in found["rows"]} for found in (first, second)]
    assert studies == [{str(FIRST.StudyInstanceUID)}, {str(SECOND.StudyInstanceUID)}]
    rest = page(node, cursor=second["cursor"])
    assert (rest["rows"], rest["cursor"], rest["is_last"]) == ([], second["cursor"], True)

    correct(node, FIRST, kind="reject", prompt="pleural_effusion")
    again = following(node, rest["cursor"])

    (row,) = [row for row in again["rows"] if row["said"] is not None]
    assert (row["film"], row["finding"], row["state"], row["said"]) == (
        str(FIRST.SOPInstanceUID),
        "pleural_effusion",
        "absent",
        "rejected",
    )
    assert row["at"] is not None


def correct(node: Service, film: Dataset, **correction: str) -> None:
    path = f"/api/v1/studies/{film.StudyInstanceUID}/films/{film.SOPInstanceUID}/corrections"
    status, said = node.ask("POST", path, correction)
    assert status == 202, said


def test_rows_say_what_the_study_says(node: Service) -> None:
    rows = page(node, since="2000-01-01T00:00:00Z")["rows"]
    _, study = node.ask("GET", f"/api/v1/studies/{SECOND.StudyInstanceUID}")
    known: Any = study["films"]
    read = next(film for film in known if film["status"] == "read")
    said = {
        finding["prompt"]: (finding["state"], finding["probability"], [box["box"] for box in finding["boxes"]])
        for finding in read["film"]["findings"]
    }

    own = [row for row in rows if row["film"] == read["uid"]]

    assert {row["finding"]: (row["state"], row["probability"], row["boxes"]) for row in own} == said
    assert {(row["series"], row["model"]) for row in own} == {(str(SECOND.SeriesInstanceUID), read["model"])}
    assert read["model"]


def test_a_film_that_was_not_read_has_one_row_that_says_so(node: Service) -> None:
    rows = page(node, since="2000-01-01T00:00:00Z")["rows"]

    (row,) = [row for row in rows if row["film"] == str(LATERAL.SOPInstanceUID)]

    assert (row["finding"], row["state"], row["boxes"], row["probability"]) == (None, "not_processed", [], None)


def test_only_who_may_see_patients_gets_accession_numbers(node: Service) -> None:
    settings = config.load(node.settings_path)
    looks = Looks(settings.storage.directory / "looks" / "other")
    parts = WebParts(
        settings=settings,
        spool=Spool(settings.storage.directory),
        metrics=Metrics(),
        prompts=lambda: PROMPTS,
        looks=looks,
        troubles=tuple,
    )
    client = TestClient(as_user(application.build(parts), name="ada"))

    shown = client.get("/api/v1/findings").json()["rows"]

    assert {row["accession"] for row in shown} == {"ACC-17"}
    assert {row["accession"] for row in page(node)["rows"]} == {None}
    looks.close()


@pytest.mark.parametrize("query", ["since=yesterday", "since=2031-05-04T00:00:00", "cursor=x", "limit=0"])
def test_what_names_no_page_is_refused(node: Service, query: str) -> None:
    status, said = node.ask("GET", f"/api/v1/findings?{query}")

    assert (status, "input" in str(said["detail"]) or "query" in str(said["detail"])) == (422, True)
