"""OHIF beside a real Orthanc: opens studies as a reader does, and returns pictures and what stands on the page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Locator, Page, ViewportSize
from pydicom.dataset import Dataset

from node.domain import derive_uid
from tests.drills.conformance import packages, pictures
from tests.drills.conformance.browser import settled
from tests.drills.conformance.pictures import Picture, Placing
from tests.drills.conformance.site import site
from tests.support import films
from tests.support.orthanc import Orthanc

_SCREEN: Final = ViewportSize(width=1400, height=900)
_FILMS: Final = "[data-cy=study-browser-thumbnail]"
_OTHERS: Final = "[data-cy=study-browser-thumbnail-no-image]"
_VIEWPORT: Final = "[data-cy=viewport-pane]"
_TICK: Final = f"{_FILMS} svg.text-highlight:visible"
_ATTEMPTS: Final = 3
_LEAST_VARIETY: Final = 10.0
_ERROR: Final = "text=/something went wrong/i"

# Without `disableConfirmationPrompts` OHIF asks before it draws a report's boxes.
_SETTINGS: Final = {
    "routerBasename": None,
    "extensions": [],
    "modes": [],
    "customizationService": {},
    "showStudyList": False,
    "disableConfirmationPrompts": True,
    "showCPUFallbackMessage": False,
    "showWarningMessageForCrossOrigin": False,
    "investigationalUseDialog": {"option": "never"},
    "maxNumberOfWebWorkers": 2,
    "defaultDataSourceName": "orthanc",
    "dataSources": [
        {
            "namespace": "@ohif/extension-default.dataSourcesModule.dicomweb",
            "sourceName": "orthanc",
            "configuration": {
                "friendlyName": "Orthanc",
                "name": "orthanc",
                "wadoUriRoot": "/dicom-web",
                "qidoRoot": "/dicom-web",
                "wadoRoot": "/dicom-web",
                "imageRendering": "wadors",
                "thumbnailRendering": "wadors",
                "omitQuotationForMultipartRequest": True,
            },
        }
    ],
}
# The introduction lies over the page and takes all clicks until it was seen once.
_SEEN_TOURS: Final = 'localStorage.setItem("shownTours", \'["basicViewerTour"]\')'


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownReport:
    """A structured report after a double click on it.

    film: the number of the film that its boxes are drawn on; None for a text
    labels: the texts beside the boxes, in no order
    text: what a report without boxes says
    """

    film: int | None
    picture: Picture
    png: bytes
    labels: tuple[str, ...]
    text: str


@dataclass(slots=True)
class Viewer:
    """One study in OHIF; faults: uncaught exceptions and error pages so far."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def film(self, number: int) -> bytes:
        """Show a film by a double click and take its picture as PNG."""
        self.page.locator(_FILMS).filter(has_text=f"Film {number}").first.dblclick()
        return settled(self.page, self._viewport_png, ready=lambda: f"Film {number}" in self._overlay())

    def reports(self) -> Iterator[ShownReport]:
        """Open the structured reports of the list in turn."""
        modality = self.page.locator("[data-cy=series-modality-label]", has_text="SR")
        rows = self.page.locator(_OTHERS).filter(has=modality)
        for number in range(rows.count()):
            png = self._open(rows.nth(number))
            if self.page.locator(_ERROR).count():
                self.faults.append("an error page")
            labels = self._labels()
            found = re.search(r"Film (\d+)", self._overlay())
            yield ShownReport(
                film=int(found[1]) if found and labels else None,
                picture=pictures.read(png),
                png=png,
                labels=tuple(labels),
                text="" if labels else self.page.locator(_VIEWPORT).inner_text(),
            )

    def has_picture(self) -> bool:
        """Whether the film is drawn: an empty viewport is black."""
        return float(pictures.read(self._viewport_png()).std()) > _LEAST_VARIETY

    def ticks(self) -> int:
        """Count the films that OHIF marks as measured by the user."""
        return self.page.locator(_TICK).count()

    def ask(self, words: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw a rectangle from one part of the viewport to another, label it, and save it as a report.

        For a viewer that asks before it tracks.
        """
        page = self.page
        page.locator("[data-cy=MeasurementTools-split-button-secondary]").click()
        page.locator("[data-cy=RectangleROI]").first.click()
        pane = page.locator(_VIEWPORT).first.bounding_box()
        assert pane is not None
        places = [(pane["x"] + x * pane["width"], pane["y"] + y * pane["height"]) for x, y in (start, end)]
        page.mouse.move(*places[0])
        page.mouse.down()
        page.mouse.move(*places[1], steps=10)
        page.mouse.up()
        page.get_by_role("button", name="Yes", exact=True).click()
        page.locator("[data-cy=trackedMeasurements-btn]").click()
        page.locator("[data-cy=actionsMenuTrigger]").last.click()
        page.locator("[role=menuitem]", has_text="Rename").click()
        page.locator("[role=dialog] input").fill(words)
        page.locator("[role=dialog] button", has_text="Save").click()
        page.locator("button", has_text="Create SR").click()
        page.locator("[role=dialog] button", has_text="Save").click()

    def part_of(self, film: Dataset, column: float, row: float) -> tuple[float, float]:
        """Return which part of the viewport shows a place of a film with square pixels, which fills it as it opens."""
        pane = self.page.locator(_VIEWPORT).first.bounding_box()
        assert pane is not None
        wide, high = int(film.Columns), int(film.Rows)
        scale = min(pane["width"] / wide, pane["height"] / high)
        return 0.5 + scale * (column - wide / 2) / pane["width"], 0.5 + scale * (row - high / 2) / pane["height"]

    def screen(self) -> bytes:
        """Take a picture of the whole page as PNG."""
        return self.page.screenshot()

    def _open(self, row: Locator) -> bytes:
        """Open a report by a double click, again as a reader would if nothing is drawn, and take a picture as PNG.

        On a busy machine OHIF 3.13.2 now and then shows the film of the first report without any box.
        """
        for attempt in range(_ATTEMPTS):
            if attempt:
                self.film(1)
            row.dblclick()
            # A report's boxes come after its film, and each after the other.
            self.page.wait_for_timeout(500)
            png = settled(self.page, self._viewport_png, ready=self._is_shown, limit_seconds=15.0)
            if self._is_shown():
                break
        return png

    def _viewport_png(self) -> bytes:
        return self.page.locator(_VIEWPORT).first.screenshot()

    def _overlay(self) -> str:
        corner = self.page.locator("[data-cy=viewport-overlay-top-left]")
        return corner.first.inner_text() if corner.count() else ""

    def _is_shown(self) -> bool:
        """Whether there is a box with its label, or a text."""
        return bool(self._labels()) or "Report" in self.page.locator(_VIEWPORT).first.inner_text()

    def _labels(self) -> list[str]:
        """Return the text of each label."""
        return [
            str(text)
            for text in self.page.evaluate(
                """viewport => [...document.querySelectorAll(viewport + " svg text")]
                    .filter(text => text.textContent.includes(":"))
                    .map(text => [...text.children].map(line => line.textContent).join(" / ") || text.textContent)""",
                _VIEWPORT,
            )
        ]


class Ohif:
    """The viewer and its archive; `show` opens a study of the archive."""

    def __init__(self, browser: Browser, address: str, orthanc: Orthanc) -> None:
        self._address, self._orthanc = address, orthanc
        self._context = browser.new_context(viewport=_SCREEN)
        self._context.add_init_script(_SEEN_TOURS)
        self._placings: dict[tuple[int, ...], Placing] = {}

    def store(self, *objects: Dataset) -> None:
        """Put objects into the archive."""
        for dataset in objects:
            self._orthanc.upload(dataset)

    @contextmanager
    def show(self, study_uid: str, *, count: int) -> Iterator[Viewer]:
        """Open a study with `count` films, and wait until the first is drawn."""
        page = self._context.new_page()
        viewer = Viewer(page=page)
        page.on("pageerror", lambda error: viewer.faults.append(f"uncaught: {error}"[:300]))
        try:
            page.goto(f"{self._address}/viewer?StudyInstanceUIDs={study_uid}")
            page.locator(_FILMS).nth(count - 1).wait_for(timeout=60_000)
            page.locator(f"{_VIEWPORT} canvas").first.wait_for(timeout=60_000)
            settled(page, page.screenshot, ready=viewer.has_picture)
            yield viewer
        finally:
            page.close()

    def place(self, film: Dataset) -> Placing:
        """Measure where the viewer shows films of this geometry."""
        key = (int(film.Rows), int(film.Columns), *(round(1000 * float(value)) for value in film.PixelSpacing))
        if key not in self._placings:
            name = f"calibration {key}"
            calibration = films.as_another(pictures.calibration(film), name, study=name)
            calibration.SeriesInstanceUID = derive_uid("calibration series", name)
            calibration.SeriesDescription = "Film 1"
            self.store(calibration)
            with self.show(calibration.StudyInstanceUID, count=1) as viewer:
                self._placings[key] = pictures.locate(pictures.read(viewer.film(1)), film)
        return self._placings[key]


@contextmanager
def ohif(browser: Browser, folder: Path) -> Iterator[Ohif]:
    """Run OHIF with an archive of its own, which has the settings of `deploy/orthanc` and routes nothing."""
    with Orthanc(folder, node_port=1, settings={"LuaScripts": []}) as orthanc, beside(browser, orthanc) as viewer:
        yield viewer


@contextmanager
def beside(browser: Browser, orthanc: Orthanc, *, tracks: bool = False) -> Iterator[Ohif]:
    """Run OHIF with an archive; tracks: it asks whether to track what is drawn, without which it saves nothing."""
    dist = packages.fetched(packages.OHIF) / "dist"
    settings = f"window.config = {json.dumps({**_SETTINGS, 'disableConfirmationPrompts': not tracks})};"
    with site(dist, settings=settings, archive_port=orthanc.http_port) as address:
        yield Ohif(browser, address, orthanc)
