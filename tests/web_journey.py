"""Runnable: a reader's way over the pages of a node beside an Orthanc, with a picture of each step.

    python -m tests.web_journey [--out docs/pictures]

A film comes to the worklist by itself; the reader opens it, types a prompt, draws a box, asks both at once, moves the
box of a finding, and the new report reaches Orthanc. The test of the same name does the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, Page, expect
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.commands import demo
from node.config import ModelSettings
from tests import films, peers
from tests.browsed import SIZES, Browsed, browsed, drag
from tests.conformance.browser import chromium
from tests.orthanc import Orthanc, beside_node
from tests.service import Service

SLOW: Final = 30_000  # milliseconds
_QUALITY: Final = 80
_BOX: Final = ((0.2, 0.5), (0.45, 0.8))

_HIDDEN: Final = """() => {
  const frame = document.getElementById("frame").getBoundingClientRect();
  return [...document.querySelectorAll("#tags .tag")].filter(tag => tag.offsetWidth).filter(tag => {
    const place = tag.getBoundingClientRect();
    return place.left < frame.left - 1 || place.right > frame.right + 1;
  }).map(tag => tag.textContent);
}"""


@dataclass(frozen=True, kw_only=True)
class Room:
    """An Orthanc that routes films to a node with the shipped model, and a browser."""

    orthanc: Orthanc
    service: Service
    browser: Browser


@dataclass(kw_only=True)
class Journey:
    """What one way left: film: that was read; pictures: of the window, JPEG, by name."""

    film: Dataset
    pictures: dict[str, bytes] = field(default_factory=dict)

    def keep(self, page: Page, name: str) -> None:
        """Keep a picture of the window, as JPEG."""
        made = BytesIO()
        Image.open(BytesIO(page.screenshot())).convert("RGB").save(made, "JPEG", quality=_QUALITY)
        self.pictures[name] = made.getvalue()


@contextmanager
def reading_room(folder: Path, browser: Browser) -> Iterator[Room]:
    """Start Orthanc and node, each of which knows the other."""
    model = ModelSettings(directory=Path(__file__).parents[1] / "models" / "weights" / "phantom")
    with (
        beside_node(folder, model=model) as (orthanc, settings),
        Service(settings, scripted=False) as service,
    ):
        yield Room(orthanc=orthanc, service=service, browser=browser)


def travel(room: Room, *, size: str) -> Journey:
    """Go the whole way in a window of one size. Raises AssertionError where the pages do not do what they should."""
    journey = Journey(film=films.as_another(dcmread(demo.FILMS[0]), f"journey {size}", study=f"journey {size}"))
    with browsed(room.browser, room.service.http_port, size=size) as seen:
        _find(room, journey, seen)
        _ask(journey, seen.page)
        assert seen.violations() == []
        _correct(room, journey, seen.page)
        seen.open("/upload")
        journey.keep(seen.page, "upload")
    return journey


def _find(room: Room, journey: Journey, seen: Browsed) -> None:
    """Wait for the film on the worklist, which is open before it comes, and open it by keys."""
    page, uid = seen.open("/"), str(journey.film.StudyInstanceUID)
    expect(page.locator("#live")).to_have_text("Live")
    room.orthanc.upload(journey.film)
    link = page.locator(f'a[href="/studies/{uid}"]').first
    expect(link).to_be_visible(timeout=SLOW)
    expect(page.locator("td.impression").first).to_contain_text("opacity", timeout=SLOW)
    room.orthanc.wait_for_count(3, study_uid=uid)
    journey.keep(page, "worklist")
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#stage.ready")
    journey.keep(page, "study")


def _ask(journey: Journey, page: Page) -> None:
    """Ask by a typed prompt, by a drawn box, and by both together."""
    answers = page.locator("#answers li")
    page.keyboard.press("/")
    page.keyboard.type("Lung opacity")
    page.keyboard.press("Enter")
    expect(answers).to_have_count(1, timeout=SLOW)
    for count, prompt in ((2, ""), (3, "Consolidation")):
        page.locator('.tools [data-tool="box"]').click()
        drag(page, *_BOX)
        page.fill("#prompt", prompt)
        page.locator("form.ask .go").click()
        expect(answers).to_have_count(count, timeout=SLOW)
    answers.first.scroll_into_view_if_needed()
    assert page.evaluate(_HIDDEN) == [], "a label is cut off by the edge of the film's frame"
    journey.keep(page, "answers")


def _correct(room: Room, journey: Journey, page: Page) -> None:
    """Move the box of a finding by keys, and wait for the new report, which names the first one, in Orthanc."""
    uid = str(journey.film.StudyInstanceUID)
    moving = page.locator('[data-correct="move"]').first
    moving.focus()
    page.keyboard.press("Enter")
    for key in ("ArrowLeft", "Shift+ArrowUp"):
        page.keyboard.press(key)
    journey.keep(page, "moving")
    page.keyboard.press("Enter")
    expect(page.locator("#version")).to_contain_text("Written.", timeout=SLOW)
    page.locator("#version").scroll_into_view_if_needed()
    peers.wait_until(
        lambda: bool(set(_replaced(room, uid)) & {str(report.SOPInstanceUID) for report in _reports(room, uid)}),
        what="Orthanc has a report that names the one before",
    )
    journey.keep(page, "corrected")


def _reports(room: Room, uid: str) -> list[Dataset]:
    return [found for found in room.orthanc.instances(uid) if found.Modality == "SR"]


def _replaced(room: Room, uid: str) -> Iterator[str]:
    """Yield the UIDs of the reports that later ones replace (PS3.3 C.17.2)."""
    for report in _reports(room, uid):
        for study in report.get("PredecessorDocumentsSequence", ()):
            yield str(study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID)


def main() -> None:
    """Go the way in both sizes, and write the pictures."""
    parser = argparse.ArgumentParser(description="Go a reader's way over the pages, and keep pictures of it.")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, chromium() as browser, reading_room(Path(folder), browser) as room:
        for size in SIZES:
            for name, picture in travel(room, size=size).pictures.items():
                (out / f"{name}-{size}.jpg").write_bytes(picture)


if __name__ == "__main__":
    main()
