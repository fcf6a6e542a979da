"""The worklist of a user who may see patients: what it names and finds, in which order, and who is told nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from pydicom.dataset import Dataset
from starlette.testclient import TestClient

from node.config import Settings
from node.metrics import Metrics
from node.settings.http import HttpSettings
from node.store.ledger import open_ledger
from node.store.spool import Spool
from node.store.worklist import PatientRow
from node.web import application
from node.web.look_files import Looks
from node.web.parts import WebParts
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import Browsed, browsed
from tests.support.service import Line, Service, settings_for
from tests.support.spoken import PROMPTS
from tests.support.web_access import PASSWORD, as_user

FORM = "application/x-www-form-urlencoded"
PEOPLE = (
    ("Adler^Anna", "P-1", "ACC-1", "20261101", "ROOM 1"),
    ("Müller^Bernd", "P-2", "ACC-2", "20261102", "ROOM 2"),
    ("zimmer^Carla", "P-3", "ACC-3", "20261103", "ROOM 1"),
)


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node on which everybody on this machine sees patients; studies: of three people."""

    started: ArchivedNode
    films: tuple[Dataset, ...]

    @property
    def service(self) -> Service:
        return self.started.service

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.service.request("GET", path, **headers)

    def searched(self, text: str) -> str:
        """The place that a search leads to."""
        answer = self.service.request("POST", "/search", f"text={text}".encode(), kind=FORM)
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def listed(self) -> list[Line]:
        return self.service.logged("worklist.viewed")


def film_of(number: int) -> Dataset:
    name, patient, accession, date, station = PEOPLE[number]
    film = films.as_another(films.thumbnail(), f"person {number}", study=f"person {number}")
    film.SpecificCharacterSet = "ISO_IR 192"
    values = {"PatientName": name, "PatientID": patient, "AccessionNumber": accession, "StudyDate": date}
    return films.changed(film, {**values, "StationName": station, "Modality": "DX"})


def shown(settings: Settings) -> Settings:
    return replace(settings, http=replace(settings.http, show_patient=True))


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    started = start_node(change=shown)
    made = tuple(film_of(number) for number in range(len(PEOPLE)))
    for film in made:
        started.service.read(film)
    started.archive.wait_for_kept(2 * len(made))
    return Node(started=started, films=made)


def test_findings_of_two_patients_stand_beside_no_name(tmp_path: Path) -> None:
    settings = shown(settings_for(tmp_path, archive_port=104))
    spool, looks = Spool(settings.storage.directory), Looks(tmp_path / "looks")
    parts = WebParts(settings=settings, spool=spool, metrics=Metrics(), prompts=lambda: PROMPTS, looks=looks)
    said = {"issuer": "", "accession": "", "study_date": "", "modality": "DX", "station": "", "search": ""}
    with open_ledger(settings.storage) as ledger:
        for study, numbers in (("1.2", ("P-1", "P-2")), ("1.3", ("P-1", "P-1"))):
            ledger.set_study(study, "finished")
            rows = (
                PatientRow(study_uid=study, number=place, name="Adler", patient_id=number, **said)
                for place, number in enumerate(numbers)
            )
            ledger.searchable.set_patients(study, rows)

    page = TestClient(as_user(application.build(parts), name="ada")).get("/").text

    lines = {line.partition('"')[0]: line for line in page.split('data-uid="')}
    assert ["films of several patients" in lines[study] for study in ("1.2", "1.3")] == [True, False]


def people(page: Page) -> list[str]:
    return page.locator("td.who a").all_inner_texts()


def search(page: Page, text: str) -> None:
    page.keyboard.press("/")
    page.locator("#filter").fill(text)
    page.keyboard.press("Enter")


@pytest.mark.drill(part="pages")
def test_the_list_names_patient_request_date_and_station(node: Node, seen: Browsed) -> None:
    page = seen.open("/")

    row = page.locator("tbody tr", has_text="Müller, Bernd")

    expect(row.locator(".who")).to_contain_text("P-2 · ACC-2")
    expect(row.locator(".taken")).to_contain_text("2026-11-02")
    expect(row.locator(".taken")).to_contain_text("DX · ROOM 2")
    assert people(page) == ["zimmer, Carla", "Müller, Bernd", "Adler, Anna"]
    assert seen.violations() == []


@pytest.mark.drill(part="pages")
def test_a_search_finds_by_what_a_film_names(node: Node, seen: Browsed) -> None:
    page = seen.open("/")
    for text, names in (("room 1", ["zimmer, Carla", "Adler, Anna"]), ("nobody", []), ("muller", ["Müller, Bernd"])):
        search(page, text)
        page.wait_for_url("**/?search=*")
        expect(page.locator("td.who a")).to_have_text(names)
        assert page.locator("#filter").input_value() == text
        assert text not in page.url


@pytest.mark.drill(part="pages")
def test_a_search_outlives_a_look_at_a_study(node: Node, seen: Browsed) -> None:
    page = seen.open("/")
    search(page, "room 1")
    page.wait_for_url("**/?search=*")
    page.get_by_role("link", name="Accession").click()
    page.wait_for_url("**sort=accession*")
    assert people(page) == ["Adler, Anna", "zimmer, Carla"]

    page.locator("a.open").first.click()
    page.wait_for_selector("#stage.ready")
    page.go_back()

    expect(page.locator("td.who a")).to_have_count(2)
    assert people(page) == ["Adler, Anna", "zimmer, Carla"]
    expect(page.locator("#live")).to_have_text("Live")


def test_a_list_with_patients_is_one_event_that_says_how_many(node: Node) -> None:
    before = len(node.listed())

    assert node.get("/").is_success
    assert node.get(node.searched("adler")).is_success
    peers.wait_until(lambda: len(node.listed()) == before + 2, what="both lists are in the log")

    assert [line["studies"] for line in node.listed()[before:]] == [3, 1]
    assert "adler" not in str(node.service.lines).lower()


@pytest.mark.parametrize(
    "header", ["Forwarded", "Via", "X-Real-IP", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Port"]
)
def test_nothing_is_shown_over_a_proxy_that_is_not_trusted(node: Node, header: str) -> None:
    for path in ("/", f"/studies/{node.films[0].StudyInstanceUID}"):
        answer = node.get(path, **{header: "for=10.0.0.7"})

        assert answer.status_code == 403
        assert "Adler" not in answer.text


def test_a_page_of_another_site_searches_for_nothing(node: Node) -> None:
    headers = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}

    answer = node.service.request("POST", "/search", b"text=adler", kind=FORM, **headers)

    assert answer.status_code == 403


@pytest.mark.parametrize("query", ["sort=Adler", "finding=Adler", "destination=Adler", "from=Adler", "q=Adler"])
def test_a_filter_that_is_unknown_is_refused_and_not_repeated(node: Node, query: str) -> None:
    answer = node.get(f"/?{query}")

    assert answer.status_code == 200
    assert 'id="refused"' in answer.text
    assert "Adler" not in answer.text


def test_a_forgotten_search_says_so_and_lists_nothing(node: Node) -> None:
    answer = node.get("/?search=forgotten")

    assert "Type it again." in answer.text
    assert "Adler" not in answer.text


@pytest.mark.drill(part="pages")
def test_on_a_phone_a_study_is_a_line_and_its_findings_stand_below(node: Node, browser: Browser) -> None:
    with browsed(browser, node.service.http_port, size="narrow") as seen:
        row = seen.open("/").locator("tbody tr").first
        places = [row.locator(f"td.{name}").bounding_box() for name in ("who", "state", "films", "impression")]

        who, state, films_, found = [place for place in places if place is not None]
        assert max(abs(who["y"] - other["y"]) for other in (state, films_)) < who["height"] / 2
        assert found["y"] >= who["y"] + who["height"] / 2


@pytest.mark.drill(part="pages")
def test_the_list_is_read_and_searched_without_scripts(node: Node, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()

    page.goto(f"http://127.0.0.1:{node.service.http_port}/")
    page.locator("#filter").fill("carla")
    page.get_by_role("button", name="Filter").click()

    expect(page.locator("td.who a")).to_have_text(["zimmer, Carla"])
    page.locator("a.open").click()
    expect(page.locator("dl.patient")).to_contain_text("zimmer, Carla")
    context.close()


@pytest.fixture(scope="module")
def signed(start_node: StartNode) -> Iterator[ArchivedNode]:
    started = start_node(users=["ada"])
    started.service.read(film_of(0))
    yield started


@pytest.mark.drill(part="pages")
def test_a_user_who_signs_in_sees_patients_without_the_setting(signed: ArchivedNode, browser: Browser) -> None:
    with browsed(browser, signed.service.http_port) as seen:
        page = seen.open("/")
        page.get_by_label("User").fill("ada")
        page.get_by_label("Password").fill(PASSWORD)
        page.keyboard.press("Enter")
        expect(page.locator("td.who a")).to_have_text(["Adler, Anna"])

        search(page, "adl")
        page.wait_for_url("**/?search=*")
        expect(page.locator("td.who a")).to_have_text(["Adler, Anna"])
        seen.faults.clear()


@pytest.mark.drill(part="pages")
def test_a_node_without_the_setting_names_nobody(start_node: StartNode, tmp_path: Path) -> None:
    assert HttpSettings().shows_patients is False
    started = start_node()
    started.service.read(film_of(0))

    page = started.service.request("GET", "/").text

    assert str(film_of(0).StudyInstanceUID) in page
    assert "Adler" not in page
    assert started.service.request("GET", "/?sort=patient").text.count("cannot be filtered or sorted") == 1
    assert started.service.logged("worklist.viewed") == []
    files = [path for path in started.directory.glob("*.sqlite*") if b"adler" in path.read_bytes().lower()]
    assert files == []
