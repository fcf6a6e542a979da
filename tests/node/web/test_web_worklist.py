"""The worklist of a user who may see patients: what it names and finds, in which order, and who is told nothing."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from pydicom.dataset import Dataset
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from node.settings.http import HttpSettings
from node.store.ledger import open_ledger
from node.store.worklist import PatientRow, set_patients
from node.web import application
from tests.node.web.test_web_study_actions import shown
from tests.support import films
from tests.support.finished import Finished, pages_of, parts_of
from tests.support.service import settings_for
from tests.support.web_access import ADDRESS, opened

PEOPLE = (
    ("Adler^Anna", "P-1", "ACC-1", "20261101", "ROOM 1"),
    ("Müller^Bernd", "P-2", "ACC-2", "20261102", "ROOM 2"),
    ("zimmer^Carla", "P-3", "ACC-3", "20261103", "ROOM 1"),
)
ANNA, BERND, CARLA = "Adler, Anna", "Müller, Bernd", "zimmer, Carla"


def film_of(number: int) -> Dataset:
    name, patient, accession, date, station = PEOPLE[number]
    film = films.as_another(films.thumbnail(), f"person {number}", study=f"person {number}")
    film.SpecificCharacterSet = "ISO_IR 192"
    values = {"PatientName": name, "PatientID": patient, "AccessionNumber": accession, "StudyDate": date}
    return films.changed(film, {**values, "StationName": station, "Modality": "DX"})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """What a node left that read films of three people, and on whose machine everybody sees patients."""
    finished = Finished(tmp_path_factory.mktemp("worklist") / "node", change=shown)
    for number in range(len(PEOPLE)):
        finished.read(film_of(number))
    return finished


def page_of(node: Finished, path: str) -> str:
    answer = node.client().get(path)
    assert answer.status_code == 200
    return html.unescape(answer.text)


def searched(node: Finished, text: str, **filters: str) -> str:
    """The place that a search leads to."""
    answer = node.client().post("/search", data={"text": text, **filters}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


def people(page: str) -> list[str]:
    return re.findall(r'<td class="who"><a [^>]*>([^<]*)</a>', page)


def test_the_list_names_patient_request_date_and_station_in_one_event(node: Finished) -> None:
    with capture_logs() as lines:
        page = page_of(node, "/")
        page_of(node, searched(node, "adler"))
    (row,) = (line for line in page.split("<tr ") if BERND in line)
    assert all(text in row for text in ("P-2 · ACC-2", "2026-11-02", "DX · ROOM 2"))
    assert people(page) == [CARLA, BERND, ANNA]
    assert [line["studies"] for line in lines if line["event"] == "worklist.viewed"] == [3, 1]
    assert "adler" not in str(lines).lower()


def test_findings_of_two_patients_stand_beside_no_name(tmp_path: Path) -> None:
    settings = shown(settings_for(tmp_path, archive_port=104))
    said = {"accession": "", "study_date": "", "modality": "DX", "station": "", "search": ""}
    studies = {
        "1.2": (("P-1", "", "Adler"), ("P-2", "", "Adler")),
        "1.3": (("P-1", "EAST", "Adler"), ("P-1", "WEST", "Adler")),
        "1.4": (("", "", "Adler"), ("", "", "Zimmer")),
        "1.5": (("P-1", "", "Adler"), ("P-1", "", "Adler^Anna")),
        "1.6": (("", "", "Adler"), ("", "", "Adler")),
    }
    with open_ledger(settings.storage) as ledger:
        for study, people in studies.items():
            ledger.set_study(study, "finished")
            rows = (
                PatientRow(study_uid=study, number=place, patient_id=number, issuer=issuer, name=name, **said)
                for place, (number, issuer, name) in enumerate(people)
            )
            set_patients(ledger.tables, study, rows)
    page = pages_of(parts_of(settings), user="ada").get("/").text
    lines = {line.partition('"')[0]: line for line in page.split('data-uid="')}
    several = [study for study in studies if "films of several patients" in lines[study]]
    assert several == ["1.2", "1.3", "1.4"], "the others may be of one"


def test_a_search_finds_by_what_a_film_names_stands_in_no_address_and_keeps_order_and_filters(node: Finished) -> None:
    for text, names in (("room 1", [CARLA, ANNA]), ("nobody", []), ("muller", [BERND]), ("P-3", [CARLA])):
        place = searched(node, text)
        page = page_of(node, place)
        assert (people(page), f'value="{text}"' in page, text in place) == (names, True, False)

    page = page_of(node, searched(node, "room 1"))
    (link,) = re.findall(r'<a href="([^"]*sort=accession)">Accession', page)
    assert people(page_of(node, link)) == [ANNA, CARLA]
    filters = {"from": "2026-11-02", "to": "2026-11-03", "state": "finished", "sort": "-date"}
    place = searched(node, "room 1", **filters)
    page = page_of(node, place)
    assert people(page) == [CARLA]
    assert place.endswith("&state=finished&from=2026-11-02&to=2026-11-03&sort=-date")
    assert f'href="{place.replace("sort=-date", "sort=urgent")}"' in page, "and so does another order"


def test_an_address_filters_and_sorts_and_what_it_cannot_name_is_refused_and_not_repeated(node: Finished) -> None:
    for query, names in (
        ("from=2026-11-02", [CARLA, BERND]),
        ("to=2026-11-02", [BERND, ANNA]),
        ("from=2026-11-02&to=2026-11-02", [BERND]),
        ("sort=date", [ANNA, BERND, CARLA]),
        ("sort=-patient", [CARLA, BERND, ANNA]),
        ("state=receiving", []),
        ("finding=atelectasis&destination=archive&state=finished", [CARLA, BERND, ANNA]),
        ("finding=cardiomegaly", []),
        ("page=2", []),
    ):
        assert people(page_of(node, f"/?{query}")) == names, query
    for query in ("sort=Adler", "finding=Adler", "destination=Adler", "from=Adler", "q=Adler"):
        page = page_of(node, f"/?{query}")
        assert ('id="refused"' in page, "Adler" in page) == (True, False), query
    page = page_of(node, "/?search=forgotten")
    assert ("Type it again." in page, "Adler" in page) == (True, False)


def test_nothing_is_shown_over_a_proxy_that_is_not_trusted_or_searched_by_another_site(node: Finished) -> None:
    with opened(node.settings.http, node.spool.directory) as access:
        called = access.protected(application.build(node.parts, access))
        guarded = TestClient(called, base_url=ADDRESS, client=("127.0.0.1", 50000))
        for path in ("/", f"/studies/{film_of(0).StudyInstanceUID}"):
            assert "Adler" in guarded.get(path).text
            answer = guarded.get(path, headers={"X-Forwarded-For": "for=10.0.0.7"})
            assert (answer.status_code, "Adler" in answer.text) == (403, False)
        foreign, own = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}, {"Origin": ADDRESS}
        found = [guarded.post("/search", data={"text": "adler"}, headers=headers) for headers in (foreign, own)]
        assert [answer.status_code for answer in found] == [403, 200]


def test_a_node_without_the_setting_names_nobody(tmp_path: Path) -> None:
    assert HttpSettings().shows_patients is False
    finished = Finished(tmp_path / "node")
    finished.read(film_of(0))
    pages = finished.client()
    with capture_logs() as lines:
        page = pages.get("/").text
    assert str(film_of(0).StudyInstanceUID) in page
    assert "Adler" not in page
    assert pages.get("/?sort=patient").text.count("cannot be filtered or sorted") == 1
    assert [line for line in lines if line["event"] == "worklist.viewed"] == []
    files = [path for path in finished.spool.directory.glob("*.sqlite*") if b"adler" in path.read_bytes().lower()]
    assert files == []
