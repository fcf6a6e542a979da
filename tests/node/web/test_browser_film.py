"""The page of a film in a browser: where boxes and letters lie, gray values, what lights up; films without a PACS."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Page, Route, expect
from pydicom.dataset import Dataset

from node.config import Settings
from tests.support import films
from tests.support.archived import StartNode
from tests.support.browsed import Browsed, drag, tab_to
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

Rect = tuple[float, float, float, float]
"""Left, top, width and height in parts of a film's width and height."""
EDGES = ("x", "y", "width", "height")
LAYER, CHOICE, LEGEND = "rect.searched", "#show-searched", "#searched-legend"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node on which everybody on this machine sees patients, and where the network looked.

    earlier, later: films of one patient
    pair: of one study; the one that came last is the first of its series, and a lateral one
    """

    service: Service
    earlier: Dataset
    later: Dataset
    pair: tuple[Dataset, Dataset]

    @property
    def path(self) -> str:
        return path_of(self.later)


def shown(settings: Settings) -> Settings:
    http = replace(settings.http, show_patient=True)
    return replace(settings, http=http)


def taken(film: Dataset, name: str, day: str, *, study: str = "", **values: object) -> Dataset:
    films.as_another(film, name, study=study or name)
    dated = {f"{of}Date": day for of in ("Study", "Acquisition", "Content")}
    named = {"PatientID": "P-1", "PatientName": "Frau^Eva", "PatientBirthDate": "19900203"}
    return films.changed(film, {**named, **dated, **values})


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    service = start_node(change=shown).service
    earlier = taken(films.thumbnail(), "earlier", "20260101")
    later = taken(films.thumbnail(), "later", "20260301", PatientOrientation=["L", "F"])
    of_pair: dict[str, Any] = {"PatientID": "P-2", "SeriesNumber": 1}
    pair = (
        taken(films.thumbnail(), "came first", "20250101", study="pair", **of_pair, InstanceNumber=2),
        taken(films.lateral(), "came last", "20250101", study="pair", **of_pair, InstanceNumber=1),
    )
    service.read(earlier)
    service.read(later)
    service.read(*pair)
    return Node(service=service, earlier=earlier, later=later, pair=pair)


def path_of(film: Dataset) -> str:
    return f"/studies/{film.StudyInstanceUID}"


def place_of(page: Page, box: str, *, within: str = "#picture") -> Rect:
    """Where a box is on the film, or within another part of the page, as the screen shows both."""
    return cast(
        Rect,
        tuple(
            page.evaluate(
                """([box, within]) => {
                  const film = document.querySelector(within).getBoundingClientRect();
                  const seen = document.querySelector(box).getBoundingClientRect();
                  return [(seen.left - film.left) / film.width, (seen.top - film.top) / film.height,
                          seen.width / film.width, seen.height / film.height];
                }""",
                [box, within],
            )
        ),
    )


def stored_place(page: Page, box: str, film: Dataset) -> Rect:
    """Where it is in the stored film."""
    x, y, width, height = (float(page.locator(box).first.get_attribute(name) or 0) for name in EDGES)
    return x / film.Columns, y / film.Rows, width / film.Columns, height / film.Rows


def test_boxes_stay_on_the_film_when_it_moves(node: Node, seen: Browsed) -> None:
    page, first = seen.open(node.path), "rect[data-number]"
    expected = pytest.approx(stored_place(page, first, node.later), abs=0.02)
    picture = page.locator("#picture")
    before = picture.bounding_box()
    assert place_of(page, first) == expected

    page.locator("#frame").hover()
    page.mouse.wheel(0, -600)
    assert place_of(page, first) == expected
    drag(page, (0.5, 0.5), (0.3, 0.4))
    page.locator("#frame").press("ArrowLeft")
    assert place_of(page, first) == expected
    after = picture.bounding_box()
    page.keyboard.press("f")

    assert before and after and after["width"] > 2 * before["width"]
    assert picture.bounding_box() == before


def film_shown(page: Page) -> npt.NDArray[np.float64]:
    """The film as the screen shows it, without boxes."""
    picture = Image.open(BytesIO(page.locator("#picture").screenshot())).convert("L")
    return np.asarray(picture, dtype=np.float64)


def test_dragging_shows_the_window_before_the_node_does(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    page.keyboard.press("h")
    original, reading = film_shown(page), page.locator("#reading").inner_text()
    held: list[Route] = []
    page.route(re.compile("/picture[?]center="), lambda route: held.append(route))
    drag(page, (0.5, 0.5), (0.4, 0.6), button="right")
    page.wait_for_timeout(1000)
    preview = film_shown(page)
    address = page.locator("#picture").get_attribute("src")
    held[-1].continue_()
    expect(page.locator("#picture")).not_to_have_attribute("src", address or "")
    real = film_shown(page)

    assert page.locator("#reading").inner_text() != reading
    assert np.abs(real - original).mean() > 5
    inside = (original > 8) & (original < 247)  # the preview knows no values beyond the window that was shown
    assert np.abs(real - preview)[inside].mean() < 3


def test_inverting_twice_and_a_reset_show_the_first_picture(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    page.keyboard.press("h")
    original, reading = film_shown(page), page.locator("#reading")
    before = reading.inner_text()
    with page.expect_response("**/picture?invert=true"):
        page.keyboard.press("i")
    expect(page.locator('[data-do="invert"]')).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(200)
    inverted = film_shown(page)
    page.keyboard.press("i")
    page.wait_for_timeout(500)

    assert np.abs(inverted - (255 - original)).mean() < 6
    assert np.abs(film_shown(page) - original).mean() < 1
    page.locator("#frame").press("Shift+ArrowDown")
    expect(reading).not_to_have_text(before)
    page.keyboard.press("0")
    expect(reading).to_have_text(before)


def test_a_finding_and_its_boxes_light_up_together(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    lit = page.locator("rect.lit")
    keys = [box.get_attribute("data-key") or "" for box in page.locator('rect[data-key^="f"]').all()]
    several = next(key for key in keys if keys.count(key) == 2)
    other = next(key for key in keys if key != several)

    page.locator(".finding").nth(int(several.removeprefix("f")) - 1).hover()
    assert [box.get_attribute("data-key") for box in lit.all()] == [several] * 2

    page.locator(f'rect[data-key="{other}"]').first.focus()
    page.mouse.move(5, 5)
    expect(page.locator(".finding.lit")).to_have_count(1)
    expect(page.locator(".finding").nth(int(other.removeprefix("f")) - 1)).to_have_class(re.compile("lit"))
    expect(lit).to_have_count(keys.count(other))


def test_where_the_network_looked_is_shown_by_a_key_alone_and_at_no_load(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    said = page.locator(".impression, .findings, .below")
    before, boxes = said.all_inner_texts(), page.locator("rect.box").count()
    layer = page.locator(f"{LAYER}:visible, {LEGEND}:visible")
    for leave in (page.reload, lambda: (page.goto(f"{seen.origin}/"), page.go_back())):
        expect(page.locator(CHOICE)).not_to_be_checked()
        expect(layer).to_have_count(0)
        tab_to(page.locator(CHOICE))
        page.keyboard.press("Space")
        expect(page.locator(f"{LAYER}:visible")).to_have_count(page.locator(LAYER).count())
        expect(page.locator(LEGEND)).to_contain_text("no findings: where the network looked")
        assert (said.all_inner_texts(), page.locator("rect.box").count()) == (before, boxes)
        leave()
        page.wait_for_selector("#stage.ready")
    expect(layer).to_have_count(0)

    page.locator(CHOICE).check()
    box = page.locator(LAYER).first
    tab_to(box)
    name = box.get_attribute("aria-label") or ""
    assert name.startswith("not a finding: looked here for ")
    expect(page.locator(".tags .tag.searched:visible").first).to_have_text(name)
    assert {rect.get_attribute("class") for rect in page.locator("rect.lit").all()} == {"searched lit"}
    kinds = ("present", "review", "square", "drawn", "searched")
    lines = [
        page.locator(f"rect.{kind}").first.evaluate(
            "line => { const style = getComputedStyle(line); return [style.stroke, style.strokeDasharray]; }"
        )
        for kind in kinds
    ]
    assert len({str(line) for line in lines}) == len(kinds), "each kind of box looks like no other"
    assert [dashes == "none" for _, dashes in lines] == [True, False, False, False, False]
    assert all(text.endswith("?") for text in page.locator("i.tag.review").all_inner_texts())
    assert page.locator("i.tag.present").first.inner_text() == "1"


def test_that_layer_stays_hidden_without_scripts(node: Node, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{node.service.http_port}{node.path}")
    expect(page.locator(LAYER)).not_to_have_count(0)
    expect(page.locator(f"{LAYER}:visible, {CHOICE}:visible, {LEGEND}:visible")).to_have_count(0)
    context.close()


def test_films_are_leafed_in_the_order_of_their_series(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.pair[0]))
    links = page.locator(".strip a")
    assert [str(link.get_attribute("href")).rpartition("=")[2] for link in links.all()] == [
        str(film.SOPInstanceUID) for film in reversed(node.pair)
    ]
    expect(links.nth(0)).to_have_attribute("aria-current", "page")
    expect(page.locator("section.impression")).to_contain_text("Not processed: it is a lateral view")
    page.keyboard.press("b")
    assert not page.locator("#drawn").is_visible() and not page.locator("#ask").is_visible()
    page.keyboard.press("]")
    expect(links.nth(1)).to_have_attribute("aria-current", "page")
    expect(page.locator("#ask")).to_be_visible()


def test_the_earlier_film_stands_beside_by_a_key_and_is_zoomed_with_the_film(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    beside, image, frame = page.locator("#earlier"), page.locator("#earlier img"), page.locator("#frame")
    expect(beside).to_be_hidden()
    width = frame.evaluate("frame => frame.clientWidth")
    page.keyboard.press("e")
    expect(beside).to_contain_text("Earlier film, 2026-01-01 00:00: Frau, Eva, born 1990-02-03")
    assert f"/films/{node.earlier.SOPInstanceUID}/" in str(image.get_attribute("src"))
    expect(image).not_to_have_js_property("naturalWidth", 0)
    expect(beside.locator(".side.start")).to_have_css("color", "rgb(221, 227, 233)")
    assert frame.evaluate("frame => frame.clientWidth") < width
    page.locator('[data-do="in"]').click()
    zoomed = image.evaluate("img => img.getBoundingClientRect().width / img.clientWidth")
    assert zoomed == pytest.approx(1.25, abs=0.01)
    page.keyboard.press("e")
    expect(beside).to_be_hidden()
    seen.open(path_of(node.earlier))
    assert page.locator("#earlier").count() == 0


def png() -> bytes:
    """A gray picture with a gradient, 300 columns and 200 rows."""
    content = BytesIO()
    Image.fromarray(np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))).save(content, format="PNG")
    return content.getvalue()


def look(seen: Browsed, name: str, kind: str, content: bytes) -> Page:
    """Choose a file by keys, and wait for the page that shows it."""
    page = seen.page
    page.on("filechooser", lambda _: None)  # Playwright does not wait until the browser hands choosers to it
    seen.open("/upload")
    tab_to(page.locator("#file"))
    with page.expect_file_chooser() as choosing:
        page.keyboard.press("Enter")
    choosing.value.set_files([FilePayload(name=name, mimeType=kind, buffer=content)])
    page.wait_for_url("**/upload/*", timeout=30_000)
    page.wait_for_selector("#stage.ready")
    return page


def test_a_picture_is_shown_and_asked_about_and_nothing_of_it_is_kept(node: Node, seen: Browsed) -> None:
    page = look(seen, "film.png", "image/png", png())
    assert page.locator("#boxes").get_attribute("viewBox") == "0 0 300 200"
    assert page.locator("#reading").inner_text() == "C 128  W 255"
    page.locator("#frame").press("Shift+ArrowDown")
    assert page.locator("#reading").inner_text() != "C 128  W 255"
    assert "url" in page.locator("#picture").evaluate("image => image.style.filter"), "its gray values change here"
    assert page.locator("#found rect[data-number]").count() > 0
    assert page.locator("[data-correct]").count() == page.locator("#results").count() == 0
    page.keyboard.press("/")
    page.keyboard.type("Edema")
    page.keyboard.press("Enter")
    expect(page.locator("#answers li")).to_contain_text("not kept")
    expect(page.locator("rect.asked").first).to_be_visible()


def test_pixels_that_are_not_square_are_drawn_by_their_shape(node: Node, seen: Browsed) -> None:
    shape = {"PixelAspectRatio": ["2", "1"], "PixelSpacing": None, "ImagerPixelSpacing": None}
    film, first = films.thumbnail(shape), "#found rect[data-number]"
    page = look(seen, "film.dcm", "", films.file_bytes(film))
    shape = page.locator("#picture").evaluate("film => film.clientHeight / film.clientWidth")
    assert shape == pytest.approx(2 * film.Rows / film.Columns, rel=0.01)
    assert place_of(page, first) == pytest.approx(stored_place(page, first, film), abs=0.02)


def test_what_is_no_film_or_too_large_is_refused_in_place(node: Node, seen: Browsed) -> None:
    page = seen.open("/upload")
    alert = page.locator("#upload-alert")
    page.set_input_files("#file", FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"no film"))
    expect(alert).to_contain_text("notes.txt: ")
    expect(alert).to_contain_text("Choose a frontal chest X-ray as DICOM, PNG or JPEG.")
    expect(page.locator("#file")).to_be_focused()
    seen.forgive(422)
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(257 * 2 ** 20)], "large.dcm"));
          document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
        }"""
    )
    expect(alert).to_have_text("This file has 257 MiB. The node takes at most 256 MiB.")
