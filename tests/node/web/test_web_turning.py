"""A film that is turned and mirrored on its page, films in the order of their series, the earlier film of a patient."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from playwright.sync_api import Browser, Page, expect
from pydicom.dataset import Dataset

from node.config import Settings
from tests.node.web.test_web_pages import rect_of
from tests.support import films
from tests.support.archived import StartNode
from tests.support.browsed import Browsed, browsed, drag
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

Rect = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node on which everybody on this machine sees patients; earlier, later: films of one of them.

    pair: of one study, the one that came last is the first of its series
    """

    service: Service
    earlier: Dataset
    later: Dataset
    pair: tuple[Dataset, Dataset]


def shown(settings: Settings) -> Settings:
    return replace(settings, http=replace(settings.http, show_patient=True))


def taken(name: str, day: str, *, study: str | None = None, **values: object) -> Dataset:
    film = films.as_another(films.thumbnail(), name, study=study or name)
    dated = {f"{of}Date": day for of in ("Study", "Acquisition", "Content")}
    named = {"PatientID": "P-1", "PatientName": "Frau^Eva", "PatientBirthDate": "19900203"}
    return films.changed(film, {**named, **dated, **values})


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    service = start_node(change=shown).service
    earlier, later = taken("earlier", "20260101"), taken("later", "20260301")
    pair = tuple(
        taken(name, "20250101", study="pair", PatientID="P-2", SeriesNumber=1, InstanceNumber=number)
        for name, number in (("came first", 2), ("came last", 1))
    )
    service.read(earlier)
    service.read(later)
    service.read(*pair)
    return Node(service=service, earlier=earlier, later=later, pair=(pair[0], pair[1]))


def path_of(film: Dataset) -> str:
    return f"/studies/{film.StudyInstanceUID}"


def turned(rect: Rect) -> Rect:
    x, y, width, height = rect
    return 1 - y - height, x, height, width


def mirrored(rect: Rect) -> Rect:
    x, y, width, height = rect
    return 1 - x - width, y, width, height


def rect(page: Page) -> Rect:
    x, y, width, height = rect_of(page)
    return x, y, width, height


def test_boxes_turn_with_the_film_until_it_is_opened_again(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.later))
    before = expected = rect(page)
    for key, change in (("r", turned), ("m", mirrored), ("r", turned), ("r", turned), ("m", mirrored)):
        page.keyboard.press(key)
        expected = change(expected)
        assert rect(page) == pytest.approx(expected, abs=0.02), key
    page.get_by_role("button", name="Turn").click()
    assert rect(page) == pytest.approx(before, abs=0.02)
    page.get_by_role("button", name="Mirror").click()
    seen.open(path_of(node.later))

    assert rect(page) == pytest.approx(before, abs=0.02)


def test_a_box_on_a_turned_film_is_in_stored_pixels(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.later))
    page.keyboard.press("r")
    page.locator('.tools [data-tool="box"]').click()
    drag(page, (0.45, 0.3), (0.55, 0.6))

    screen, film = page.locator("#drawn").bounding_box(), page.locator("#picture").bounding_box()
    x, y, width, height = (
        float(page.locator("#drawn").get_attribute(name) or 0) for name in ("x", "y", "width", "height")
    )
    columns, rows = int(node.later.Columns), int(node.later.Rows)

    assert screen and film
    stored = (x / columns, y / rows, width / columns, height / rows)
    left, top = (screen["x"] - film["x"]) / film["width"], (screen["y"] - film["y"]) / film["height"]
    drawn = (left, top, screen["width"] / film["width"], screen["height"] / film["height"])
    assert turned(stored) == pytest.approx(drawn, abs=0.02)
    before = float(page.locator("#drawn").get_attribute("y") or 0)
    page.locator("#frame").press("ArrowRight")
    assert float(page.locator("#drawn").get_attribute("y") or 0) < before, "right on the screen is up on this film"


def test_the_letters_of_the_sides_go_where_the_sides_go(node: Node, browser: Browser) -> None:
    film = films.changed(taken("lettered", "20250601", PatientID="P-3"), {"PatientOrientation": ["L", "F"]})
    node.service.read(film)
    with browsed(browser, node.service.http_port) as seen:
        page = seen.open(path_of(film))
        letters = {edge: page.locator(f".side[data-edge={edge}]") for edge in ("start", "end")}
        places = [
            page.locator("#frame").evaluate("() => [...document.querySelectorAll('.side')].map(e => e.className)")
        ]
        for key in ("r", "r", "m"):
            page.keyboard.press(key)
            places.append([str(letter.get_attribute("class")) for letter in letters.values()])

    assert places == [
        ["side start", "side end"],
        ["side top", "side bottom"],
        ["side end", "side start"],
        ["side start", "side end"],
    ]


def test_films_are_in_the_order_of_their_series(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.pair[0]))

    links = [str(link.get_attribute("href")) for link in page.locator(".strip a").all()]

    assert [link.rpartition("=")[2] for link in links] == [str(film.SOPInstanceUID) for film in reversed(node.pair)]
    assert [text.split("\n")[0] for text in page.locator(".strip span").all_inner_texts()] == ["Film 2", "Film 1"]
    expect(page.locator(".strip a").first).to_have_attribute("aria-current", "page")


def test_the_earlier_film_stands_beside_by_a_key(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.later))
    beside, frame = page.locator("#earlier"), page.locator("#frame")
    expect(beside).to_be_hidden()
    width = frame.evaluate("frame => frame.clientWidth")

    page.keyboard.press("e")

    expect(beside).to_be_visible()
    expect(beside).to_contain_text("Earlier film, 2026-01-01 00:00: Frau, Eva, born 1990-02-03")
    expect(page.locator(".panel header")).to_contain_text("2026-01-01 00:00 (Frau, Eva, born 1990-02-03)")
    assert f"/films/{node.earlier.SOPInstanceUID}/" in str(beside.locator("img").get_attribute("src"))
    expect(beside.locator("img")).not_to_have_js_property("naturalWidth", 0)
    assert frame.evaluate("frame => frame.clientWidth") < width
    page.keyboard.press("r")
    assert seen.violations() == []

    page.keyboard.press("e")
    expect(beside).to_be_hidden()
    seen.open(path_of(node.earlier))
    assert page.locator("#earlier").count() == 0
