"""Three walks over the pages of a node in a browser: of a reader, a reviewer and an administrator; axe on each page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from playwright.sync_api import Browser, Page, expect
from pydicom.dataset import Dataset

from node.settings.destinations import DicomDestination
from node.settings.http import HttpSettings
from tests.drills.conformance.ohif import beside
from tests.node.web.test_browser_film import Rect, place_of, stored_place
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import SIZES, Browsed, browsed, drag, tab_to
from tests.support.identity_provider import Provider, oidc_of
from tests.support.orthanc import Orthanc, beside_node
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import Service
from tests.support.web_access import BASIC, PASSWORD
from tests.support.web_journey import Room, reading_room, travel

FIRST = "rect[data-number]"
SLOW = 30_000  # milliseconds, in which a round is written on a busy machine


def test_a_newcomer_finds_why_and_the_corrected_report(tmp_path: Path, browser: Browser) -> None:
    """With the node's pages alone, from a patient's name to what did not arrive, and on to OHIF."""
    film = films.as_another(films.thumbnail({"PatientName": "Zimmer^Anna"}), "newcomer", study="newcomer")
    films.changed(film, {"PixelSpacing": [0.4, 0.4], "SeriesDescription": "Film 1", "PatientOrientation": ["L", "F"]})
    with hospital(tmp_path) as (orthanc, service), browsed(browser, service.http_port) as seen:
        orthanc.upload(film)
        orthanc.wait_for_count(3, study_uid=film.StudyInstanceUID)
        page = seen.open("/")
        page.get_by_role("searchbox").fill("zimmer")
        page.keyboard.press("Enter")
        expect(page.locator("td.who")).to_have_count(1)
        expect(page.locator("td.deliveries")).to_contain_text("registry", timeout=SLOW)
        expect(page.locator(".troubles")).to_contain_text("registry", timeout=SLOW)
        page.locator("td.who a").click()
        page.wait_for_selector("#stage.ready")
        boxes_follow(page, film)
        asked_and_drawn(page, film)
        page.reload()
        page.wait_for_selector("#stage.ready")
        assert place_of(page, FIRST) == pytest.approx(stored_place(page, FIRST, film), abs=0.02), "turned no more"
        why = page.locator("#results .delivery", has_text="registry").first
        expect(why).to_contain_text(re.compile("registry: .*(title|rejected)"), timeout=SLOW)
        page.locator('[data-correct="accept"]').first.click()
        page.locator("[data-finish]").click()
        expect(page.locator("#version")).to_contain_text(re.compile(r"archive: \d+ sent\."), timeout=SLOW)
        with beside(browser, orthanc) as viewer, viewer.show(str(film.StudyInstanceUID), count=1) as shown:
            labels = [label for report in shown.reports() for label in report.labels]
    assert [label for label in labels if re.search(r", confirmed, AI: \d+\.00 %$", label)]


def turned(rect: Rect) -> Rect:
    x, y, width, height = rect
    return 1 - y - height, x, height, width


def mirrored(rect: Rect) -> Rect:
    x, y, width, height = rect
    return 1 - x - width, y, width, height


CHANGES: Mapping[str, Callable[[Rect], Rect]] = {"r": turned, "m": mirrored}
SIDES: Mapping[str, Mapping[str, str]] = {
    "r": {"start": "top", "top": "end", "end": "bottom", "bottom": "start"},
    "m": {"start": "end", "end": "start"},
}
"""Which edge of the screen each edge goes to."""


def boxes_follow(page: Page, film: Dataset) -> None:
    """Turn and mirror the film: boxes and sides go with it, and a box is drawn in pixels of the stored film."""
    rect, edges, keys = stored_place(page, FIRST, film), {"start": "start", "end": "end"}, "rmrrmmr"
    for number, key in enumerate(keys, 1):
        if number < len(keys):
            page.keyboard.press(key)
        else:
            page.get_by_role("button", name="Turn").click()
        rect = CHANGES[key](rect)
        edges = {letter: SIDES[key].get(edge, edge) for letter, edge in edges.items()}
        assert place_of(page, FIRST) == pytest.approx(rect, abs=0.02), keys[:number]
        shown = {letter: page.locator(f".side[data-edge={letter}]").get_attribute("class") for letter in edges}
        assert shown == {letter: f"side {edge}" for letter, edge in edges.items()}, keys[:number]
    page.locator('.tools [data-tool="box"]').click()
    drag(page, (0.4, 0.3), (0.55, 0.6))
    drawn = stored_place(page, "#drawn", film)
    for key in keys:
        drawn = CHANGES[key](drawn)
    assert place_of(page, "#drawn") == pytest.approx(drawn, abs=0.02)
    assert place_of(page, "#drawn", within="#frame") == pytest.approx((0.4, 0.3, 0.15, 0.3), abs=0.01)
    page.locator("#frame").press("ArrowRight")
    moved = place_of(page, "#drawn")
    assert moved[0] > drawn[0] and moved[1:] == pytest.approx(drawn[1:], abs=0.02), "right on the screen"


def asked_and_drawn(page: Page, film: Dataset) -> None:
    """Ask about the box that is drawn, invert the film, and move a box: what is sent, and what is said."""
    columns, rows = int(film.Columns), int(film.Rows)

    def in_pixels(box: str) -> object:
        left, top, width, height = stored_place(page, box, film)
        edges = (left * columns, top * rows, (left + width) * columns, (top + height) * rows)
        return pytest.approx(edges, abs=0.01)

    drawn = in_pixels("#drawn")
    page.fill("#prompt", "Edema")
    with page.expect_response("**/replies") as answered:
        page.locator("form.ask .go").click()
    assert answered.value.request.post_data_json == {"text": "Edema", "box": drawn}
    assert "form-action 'self'" in answered.value.headers["content-security-policy"]
    (question,) = answered.value.json()["questions"]
    answer = page.locator("#answers li").first
    expect(answer.locator("b")).to_have_text("Edema, in a box")
    expect(answer.locator(".probability")).to_have_text(f"{round(100 * question['score'])} %")
    expect(answer.locator(".mark")).to_have_text("Present")
    expect(answer.locator(".who")).to_have_text(re.compile("^[0-9-]{10} [0-9:]{5}, on the page$"))
    assert len(page.locator("rect.asked.present").all()) == len(question["boxes"])

    with page.expect_response("**/picture?invert=true") as shown:
        page.keyboard.press("i")
    low, high = map(float, shown.value.headers["x-values"].split())
    assert (low < high, shown.value.headers["x-dark"]) == (True, "low")
    expect(page.locator('[data-do="invert"]')).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("i")
    expect(page.locator('[data-do="invert"]')).to_have_attribute("aria-pressed", "false")

    page.route("**/corrections", lambda route: route.fulfill(status=202, json={}))
    finding = page.locator(".correct").first
    tracked = str(finding.locator("[data-tracks]").first.get_attribute("data-tracks"))
    before, prompt = in_pixels(f'rect[data-tracking="{tracked}"]'), finding.get_attribute("data-prompt")
    finding.locator('[data-correct="move"]').first.click()
    with page.expect_request("**/corrections") as sent:
        page.locator("#editing .save").click()
    content = cast(dict[str, object], sent.value.post_data_json)
    assert re.fullmatch("[0-9a-f]{32}", str(content.pop("id")))
    assert content == {"kind": "move", "prompt": prompt, "tracking_uid": tracked, "box": before}
    expect(page.locator("#editing")).to_be_hidden()
    page.unroute("**/corrections")


@contextmanager
def hospital(folder: Path) -> Iterator[tuple[Orthanc, Service]]:
    """Run a node beside an Orthanc and a registry that does not know it; all on this machine see patients."""
    with ReceivingArchive() as registry, beside_node(folder) as (orthanc, settings):
        registry.reject()
        (archive,) = settings.destinations
        refusing = DicomDestination(name="registry", ae_title="REGISTRY", host=LOOPBACK, port=registry.port)
        settings = replace(
            settings,
            destinations=(archive, refusing),
            http=replace(settings.http, show_patient=True),
            corrections=replace(settings.corrections, quiet_seconds=600.0),
        )
        with Service(settings) as service:
            yield orthanc, service


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, browser: Browser) -> Iterator[Room]:
    assert phantom_model.is_dir()
    with reading_room(tmp_path_factory.mktemp("journey"), browser) as opened:
        yield opened


@pytest.mark.drill(part="pages")
@pytest.mark.parametrize("size", SIZES)
def test_a_film_is_asked_about_and_its_report_corrected(room: Room, size: str) -> None:
    pictures = travel(room, size=size).pictures
    assert list(pictures) == ["worklist", "study", "answers", "moving", "corrected", "review", "upload"]


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """A node that knows its users, and has read two studies, each of one film, in the order in which they came."""

    service: Service
    first: Dataset
    second: Dataset


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Reviewed:
    service = start_node(users=["ada"]).service
    first, second = (
        films.as_another(films.thumbnail({"PatientName": f"{name}^Anna"}), name, study=name)
        for name in ("first", "second")
    )
    service.read(first)
    service.read(second)
    return Reviewed(service=service, first=first, second=second)


def path_of(film: Dataset) -> str:
    return f"/studies/{film.StudyInstanceUID}"


def signed_in(seen: Browsed) -> Page:
    page = seen.open("/")
    page.get_by_label("User").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Worklist")
    page.wait_for_load_state()  # a module runs before that
    return page


@pytest.mark.drill(part="pages")
def test_a_reviewer_goes_from_film_to_film_by_keys(node: Reviewed, seen: Browsed) -> None:
    page = signed_in(seen)
    expect(page.locator("td.who a")).to_have_text(["second, Anna", "first, Anna"])
    newest, oldest = page.locator("a.open").all()
    page.keyboard.press("j")
    expect(newest).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(oldest).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{path_of(node.first)}")
    page.wait_for_selector("#stage.ready")
    page.keyboard.press("u")
    page.wait_for_url(f"{seen.origin}/")
    page.keyboard.press("/")
    page.keyboard.type("first")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?search=*")
    page.locator("a.open").click()
    page.wait_for_selector("#stage.ready")
    page.go_back()
    expect(page.locator("#live")).to_have_text("Live")
    expect(page.locator("td.who a")).to_have_text(["first, Anna"])
    assert page.locator("#filter").input_value() == "first" and "first" not in page.url

    page.get_by_role("link", name="To review").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.wait_for_load_state()  # a module runs before that
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#stage.ready")
    assert page.url == f"{seen.origin}{path_of(node.second)}?film={node.second.SOPInstanceUID}"
    page.keyboard.press("n")
    expect(page.locator("#results")).to_have_attribute("data-study", str(node.first.StudyInstanceUID))
    expect(page.locator('[data-part="mark"]')).to_have_text("This film: to review.")
    page.wait_for_selector("#stage.ready")
    while (doubtful := page.locator(".finding.review")).count():
        left = doubtful.count()
        doubtful.first.locator('[data-correct="accept"]').click()
        expect(doubtful).to_have_count(left - 1)
    expect(page.locator('[data-part="mark"]')).to_have_text("This film: ✓ finished.", timeout=SLOW)
    to_review = node.service.request("GET", "/api/v1/review", **BASIC).json()["films"]
    assert [film["film"] for film in to_review] == [node.second.SOPInstanceUID]
    seen.open("/review")
    expect(page.locator("tbody tr:not(.finished)")).to_have_count(1)


def parked(started: ArchivedNode) -> Path:
    """Have a study parked because its film is damaged on the disk; return the film's file beside the sound one."""
    film = films.thumbnail()
    assert peers.send(film, port=started.service.dicom_port) == 0
    (path,) = started.directory.glob(f"studies/{film.StudyInstanceUID}/received/*.dcm")
    path.with_suffix(".sound").write_bytes(path.read_bytes())
    path.write_bytes(b"damaged")
    started.service.wait_for("study.parked")
    return path


def chosen(page: Page, form: str) -> None:
    """Go to a form of a study by keys, choose its first reason, and send it."""
    tab_to(page.get_by_role("link", name="Read again or delete"))
    page.keyboard.press("Enter")
    fields = page.get_by_role("form", name=form, exact=True)
    tab_to(fields.get_by_label("Reason"))
    page.keyboard.press("ArrowDown")
    if form == "Delete":
        tab_to(fields.get_by_role("checkbox"))
        page.keyboard.press("Space")
    tab_to(fields.get_by_role("button"))
    page.keyboard.press("Enter")


@pytest.mark.drill(part="pages")
def test_an_administrator_mends_asks_and_deletes_by_keys(
    start_node: StartNode, tmp_path: Path, browser: Browser
) -> None:
    with Provider() as provider:
        provider.claims["groups"] = ["chex-admins"]
        http = HttpSettings(port=0, oidc=oidc_of(provider, tmp_path))
        started = start_node(change=lambda settings: replace(settings, http=http), quiet_seconds=2.0)
        path = parked(started)
        study = path.parts[-3]
        with browsed(browser, started.service.http_port) as seen:
            page = seen.open("/?state=parked")
            page.get_by_text("Sign in by single sign-on").click()
            page.wait_for_url(f"{seen.origin}/?state=parked")
            seen.forgive(provider.issuer)

            page.locator("a.open").click()
            expect(page.locator("#film-alert")).to_contain_text("cannot be shown")
            expect(page.locator("#parked")).to_contain_text("Stopped at read: damaged")
            seen.forgive(409)  # the picture of a damaged film
            path.with_suffix(".sound").rename(path)
            tab_to(page.locator("[data-retry]"))
            page.keyboard.press("Enter")
            # A study that is queued again has changed too; its new report is there when the next round's results are.
            expect(page.locator('#results [aria-label*="round 2"]').first).to_be_visible(timeout=SLOW)
            tab_to(page.locator("#changed a"))
            page.keyboard.press("Enter")
            expect(page.locator(".finding").first).to_be_visible(timeout=SLOW)
            expect(page.locator("#parked")).to_have_count(0)

            page.get_by_role("link", name="System", exact=True).click()
            tab_to(page.get_by_role("button", name="Ask archive"))
            page.keyboard.press("Enter")
            expect(page.locator(".echo p").first).to_contain_text("ok: ", timeout=20_000)
            assert started.archive.echoes > 0

            seen.open(f"/studies/{study}")
            chosen(page, "Read again")
            page.wait_for_url(f"{seen.origin}/studies/{study}")
            expect(page.locator('#results [aria-label*="round 4"]').first).to_be_visible(
                timeout=SLOW
            )  # 3 is that of the reason
            chosen(page, "Delete")
            page.wait_for_url(f"{seen.origin}/")
            expect(page.locator(f'tr[data-uid="{study}"]')).to_have_count(0)
            assert not path.exists()
            page.get_by_role("button", name="Log out").click()
            page.wait_for_url(f"{seen.origin}/login")


def rejecting(page: Page) -> None:
    page.locator('[data-correct="reject"]').last.click()
    expect(page.locator("form.inline")).to_be_visible()


def asked(page: Page) -> None:
    page.locator("#show-searched").check()
    page.fill("#prompt", "right base?")
    page.keyboard.press("Enter")
    expect(page.locator("#reply .text")).to_be_visible()
    page.fill("#prompt", "Edema")
    page.keyboard.press("Enter")
    expect(page.locator("#answers li").first).to_be_visible()


@pytest.mark.drill(part="pages")
def test_axe_finds_nothing_on_any_page(node: Reviewed, seen: Browsed) -> None:
    study = path_of(node.second)
    pages: tuple[tuple[str, Callable[[Page], None] | None], ...] = (
        *((path, None) for path in ("/", "/review", "/upload", "/statistics", "/interface", "/users")),
        *((path, None) for path in ("/system", "/system/settings", f"{study}/manage")),
        *((study, act) for act in (None, rejecting, asked)),
    )
    found = dict[str, list[str]]()
    seen.open("/login")
    found["/login"] = seen.violations()
    signed_in(seen)
    for path, act in pages:
        page = seen.open(path)
        if act is not None:
            act(page)
        found[f"{path} {act.__name__ if act else ''}"] = seen.violations()
    seen.open("/studies/1.2.3")
    found["no such study"] = seen.violations()
    seen.forgive(404)
    assert {place: faults for place, faults in found.items() if faults} == {}
