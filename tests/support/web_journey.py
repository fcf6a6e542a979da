"""Runnable: a reader's way over the pages of a node beside an Orthanc, with a picture of each step.

    python -m tests.support.web_journey [--out docs/pictures]

A film comes to the worklist by itself; the reader opens it, types a prompt, draws a box, asks both at once, moves the
box of a finding, and the new report reaches Orthanc. The list of what to review, the page for a file, and a question
that is drawn in OHIF come after it. `test_browser_walks` goes the same way, but for OHIF.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from PIL import Image
from playwright.sync_api import Browser, Page, expect
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.commands import demo
from node.config import ModelSettings, QuestionsSettings
from node.outputs.sr.items import COMPREHENSIVE, OF_FILM
from tests.drills.conformance.browser import chromium
from tests.drills.conformance.ohif import beside
from tests.paths import REPOSITORY
from tests.support import films, peers
from tests.support.browsed import SIZES, Browsed, browsed, drag
from tests.support.documents import said
from tests.support.orthanc import Orthanc, beside_node, routing_questions
from tests.support.service import Service

SLOW: Final = 30_000  # milliseconds
_QUALITY: Final = 80
_BOX: Final = ((0.2, 0.5), (0.45, 0.8))
_OPACITY: Final = ((106, 262), (241, 425))
"""Corners of a box in pixels of the film."""
_OBJECTS: Final = 3
"""The film, the report on it, and its presentation state."""

_HIDDEN: Final = """() => {
  const frame = document.getElementById("frame").getBoundingClientRect();
  return [...document.querySelectorAll("#tags .tag")].filter(tag => tag.offsetWidth).filter(tag => {
    const place = tag.getBoundingClientRect();
    return place.left < frame.left - 1 || place.right > frame.right + 1;
  }).map(tag => tag.textContent);
}"""

_COVERING: Final = """() => {
  const seen = [...document.querySelectorAll("#tags .tag")].filter(tag => tag.offsetWidth);
  const box = tag => tag.getBoundingClientRect();
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return seen.filter(tag => tag.matches(".asked"))
    .filter(tag => seen.some(other => other !== tag && meet(box(tag), box(other)))).map(tag => tag.textContent);
}"""


@dataclass(frozen=True, kw_only=True)
class Room:
    """An Orthanc that routes films and questions to a node with the shipped model, and a browser."""

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
        self.pictures[name] = as_jpeg(page.screenshot())


def as_jpeg(png: bytes) -> bytes:
    """Return a picture of a window as JPEG."""
    made = BytesIO()
    Image.open(BytesIO(png)).convert("RGB").save(made, "JPEG", quality=_QUALITY)
    return made.getvalue()


@contextmanager
def reading_room(folder: Path, browser: Browser) -> Iterator[Room]:
    """Start Orthanc and node, each of which knows the other."""
    model = ModelSettings(directory=REPOSITORY / "models" / "weights" / "phantom")
    with beside_node(folder, changes=routing_questions(folder), model=model) as (orthanc, settings):
        settings = replace(settings, questions=QuestionsSettings(ae_titles=(orthanc.ae_title,)))
        with Service(settings, scripted=False) as service:
            yield Room(orthanc=orthanc, service=service, browser=browser)


def travel(room: Room, *, size: str) -> Journey:
    """Go the whole way in a window of one size. Raises AssertionError where the pages do not do what they should."""
    journey = Journey(film=films.as_another(dcmread(demo.FILMS[0]), f"journey {size}", study=f"journey {size}"))
    with browsed(room.browser, room.service.http_port, size=size) as seen:
        seen.page.emulate_media(color_scheme="dark")  # as in a reading room
        _find(room, journey, seen)
        ask(seen.page)
        journey.keep(seen.page, "answers")
        assert seen.violations() == []
        _move(room, journey, seen.page)
        _review(room, journey, seen)
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
    expect(page.locator("td.impression").first).to_contain_text("Opacity", timeout=SLOW)
    room.orthanc.wait_for_count(_OBJECTS, study_uid=uid)
    expect(page.locator("tr").filter(has=page.locator(f'a[href="/studies/{uid}"]'))).to_contain_text(
        "finished", timeout=SLOW
    )
    journey.keep(page, "worklist")
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#stage.ready")
    journey.keep(page, "study")


def ask(page: Page) -> None:
    """Ask by a typed prompt, by a drawn box, and by both together, and see each answer."""
    answers = page.locator("#answers li")
    page.keyboard.press("/")
    page.keyboard.type("Lung opacity")
    page.keyboard.press("Enter")
    expect(answers).to_have_count(1, timeout=SLOW)
    assert page.evaluate(_COVERING) == [], "the label of an answer covers that of the finding in the same place"
    for count, prompt in ((2, ""), (3, "Consolidation")):
        page.locator('.tools [data-tool="box"]').click()
        drag(page, *_BOX)
        page.fill("#prompt", prompt)
        page.locator("form.ask .go").click()
        expect(answers).to_have_count(count, timeout=SLOW)
    assert answers.locator("b").all_inner_texts() == ["Consolidation, in a box", "What is in this box?", "Lung opacity"]
    answers.first.scroll_into_view_if_needed()
    assert page.evaluate(_HIDDEN) == [], "a label is cut off by the edge of the film's frame"


def _move(room: Room, journey: Journey, page: Page) -> None:
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
    assert_replaced(room, uid, times=1)
    expect(page.locator("#version")).to_contain_text(re.compile(r"archive: \d+ sent\."), timeout=SLOW)
    journey.keep(page, "corrected")


def _review(room: Room, journey: Journey, seen: Browsed) -> None:
    """Look at what to review: a dark film that looks mirrored, with a finding."""
    film = films.as_another(dcmread(demo.FILMS[0]), "mirrored", study="mirrored")
    darker = 255 * (film.pixel_array[:, ::-1] / 255) ** 2
    room.orthanc.upload(films.with_pixels(film, darker.astype("uint8"), bits=8))  # the second time it is there
    row = seen.page.locator(f'tbody tr:has(a[href*="{film.StudyInstanceUID}"])')

    def is_listed() -> bool:
        seen.open("/review")
        return row.count() > 0

    peers.wait_until(is_listed, what="the film is to be reviewed")
    expect(row).to_contain_text("The picture looks mirrored")
    journey.keep(seen.page, "review")


def assert_replaced(room: Room, uid: str, *, times: int) -> Dataset:
    """Wait until Orthanc has a report of a study that replaces those before it, and return it."""
    peers.wait_until(
        lambda: len(set(_replaced(room, uid))) == times,
        what="Orthanc has a report that names the one before",
        limit_seconds=60.0,
    )
    reports = sorted(_reports(room, uid), key=lambda report: int(report.InstanceNumber))
    assert len(set(map(said, reports))) == times + 1, "each report replaces one"
    return reports[-1]


def ask_in_ohif(room: Room) -> bytes:
    """Draw a labeled box in OHIF, save it as a report, and return a picture of OHIF with the answer's box, as PNG."""
    film = films.as_another(dcmread(demo.FILMS[0]), "asked in OHIF", study="asked in OHIF")
    film.SeriesDescription, uid = "Film 1", str(film.StudyInstanceUID)
    room.orthanc.upload(film)
    room.orthanc.wait_for_count(_OBJECTS, study_uid=uid)
    with beside(room.browser, room.orthanc, tracks=True) as viewer, viewer.show(uid, count=1) as seen:
        seen.ask("Lung opacity", *(seen.part_of(film, *corner) for corner in _OPACITY))
        room.orthanc.wait_for_count(_OBJECTS + 3, study_uid=uid)
    with beside(room.browser, room.orthanc) as viewer, viewer.show(uid, count=1) as seen:
        for report in seen.reports():
            if any(label.startswith("Lung opacity, review, AI: ") for label in report.labels):
                return seen.screen()
    raise AssertionError("OHIF draws no box of the answer")


def _reports(room: Room, uid: str) -> list[Dataset]:
    """Fetch the reports on the film; that on its cardiothoracic ratio is another."""
    return [
        found for found in room.orthanc.instances(uid) if found.get("SeriesNumber") == COMPREHENSIVE.first + OF_FILM
    ]


def _replaced(room: Room, uid: str) -> Iterator[str]:
    """Yield the UIDs of the reports that later ones replace (PS3.3 C.17.2)."""
    for report in _reports(room, uid):
        for study in report.get("PredecessorDocumentsSequence", ()):
            yield str(study.ReferencedSeriesSequence[0].ReferencedSOPSequence[0].ReferencedSOPInstanceUID)


def main() -> None:
    """Go the way in both sizes, then ask in OHIF, and write the pictures."""
    parser = argparse.ArgumentParser(description="Go a reader's way over the pages, and keep pictures of it.")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder, chromium() as browser, reading_room(Path(folder), browser) as room:
        for size in SIZES:
            for name, picture in travel(room, size=size).pictures.items():
                (out / f"{name}-{size}.jpg").write_bytes(picture)
        (out / "ohif-answer.jpg").write_bytes(as_jpeg(ask_in_ohif(room)))


if __name__ == "__main__":
    main()
