"""The page to look at a film without a PACS, in a browser: a DICOM file, a PNG, and what is neither."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import FilePayload, Page, expect

from node.store.spool import Spool
from tests.support import films
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import Browsed

pytestmark = pytest.mark.drill(part="pages")


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> ArchivedNode:
    return start_node()


def dicom(changes: dict[str, object] | None = None) -> FilePayload:
    content = films.file_bytes(films.thumbnail(changes))
    return {"name": "film.dcm", "mimeType": "", "buffer": content}


def png() -> FilePayload:
    """A gray picture with a gradient, 300 columns and 200 rows."""
    content = BytesIO()
    Image.fromarray(np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))).save(content, format="PNG")
    return {"name": "film.png", "mimeType": "image/png", "buffer": content.getvalue()}


def look(seen: Browsed, file: FilePayload) -> Page:
    """Choose a file, and wait for the page that shows it."""
    page = seen.open("/upload")
    page.set_input_files("#file", [file])
    page.wait_for_url("**/upload/*", timeout=30_000)
    page.wait_for_selector("#stage.ready")
    return page


def test_a_dicom_file_is_shown_and_asked_about(node: ArchivedNode, seen: Browsed) -> None:
    page = seen.open("/")
    page.locator(".empty").get_by_role("link", name="look at a film").click()
    page.wait_for_url("**/upload")
    look(seen, dicom())

    assert "it is sent nowhere" in page.locator(".panel header").inner_text()
    assert page.locator(".panel time").get_attribute("datetime")
    assert page.locator(".finding").count() > 0 and page.locator("#found rect[data-number]").count() > 0
    assert page.locator("[data-correct]").count() == page.locator("#results").count() == 0
    page.keyboard.press("/")
    page.keyboard.type("Edema")
    page.keyboard.press("Enter")
    expect(page.locator("#answers li")).to_contain_text("It is seen here.")
    expect(page.locator("#answers li")).to_contain_text("not kept")
    expect(page.locator("rect.asked").first).to_be_visible()
    assert page.get_by_role("button", name="What changed?").count() == 0
    page.get_by_role("button", name="List the findings").click()
    expect(page.locator("#reply .question b")).to_have_text("List the findings")
    expect(page.locator("#reply .text")).to_contain_text("telectasis")
    assert page.locator("#found rect[data-also=reply]").count() > 0
    assert list(Spool(node.directory).studies()) == [] and node.archive.requests == []
    viewed = node.service.logged("film.viewed")
    assert viewed[-1]["sop_instance_uid"] == str(films.thumbnail().SOPInstanceUID)


def test_a_png_is_shown_in_its_own_pixels_and_window(node: ArchivedNode, seen: Browsed) -> None:
    page = look(seen, png())

    assert seen.violations() == []
    assert page.locator("#boxes").get_attribute("viewBox") == "0 0 300 200"
    assert page.locator("#reading").inner_text() == "C 128  W 255"
    page.locator("#frame").focus()
    page.keyboard.press("Shift+ArrowDown")
    assert page.locator("#reading").inner_text() != "C 128  W 255"
    assert "url" in page.locator("#picture").evaluate("image => image.style.filter")


def test_pixels_that_are_not_square_are_drawn_by_their_shape(node: ArchivedNode, seen: Browsed) -> None:
    page = look(seen, dicom({"PixelAspectRatio": ["2", "1"], "PixelSpacing": None, "ImagerPixelSpacing": None}))
    film = films.thumbnail()

    picture, box = page.locator("#picture").bounding_box(), page.locator("#found rect[data-number]").first
    place = box.bounding_box()

    assert picture and place
    assert picture["height"] / picture["width"] == pytest.approx(2 * film.Rows / film.Columns, rel=0.01)
    top = (place["y"] - picture["y"]) / picture["height"] * film.Rows
    assert top == pytest.approx(float(box.get_attribute("y") or 0), abs=3)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no film"}, "notes.txt: "),
        ({"name": "broken.png", "mimeType": "image/png", "buffer": b"\x89PNG no picture"}, "not a readable picture"),
    ],
    ids=["text", "broken"],
)
def test_what_is_no_film_is_refused_in_place(node: ArchivedNode, seen: Browsed, file: FilePayload, said: str) -> None:
    page = seen.open("/upload")

    page.set_input_files("#file", [file])

    alert = page.locator("#upload-alert")
    expect(alert).to_contain_text(said)
    expect(alert).to_contain_text("Choose a frontal chest X-ray as DICOM, PNG or JPEG.")
    expect(page.locator("#file")).to_be_focused()
    expect(page.locator("#upload-state")).to_be_empty()
    assert seen.violations() == []
    seen.forgive(422)


def test_a_film_that_is_too_large_is_not_sent(node: ArchivedNode, seen: Browsed) -> None:
    page = seen.open("/upload")

    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(257 * 2 ** 20)], "large.dcm"));
          document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
        }"""
    )

    expect(page.locator("#upload-alert")).to_have_text("This file has 257 MiB. The node takes at most 256 MiB.")
