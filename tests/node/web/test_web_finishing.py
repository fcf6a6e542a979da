"""Corrections that wait, on the page of a film: how many and how long, and a button and a key that send the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from playwright.sync_api import Browser, Page, expect
from pydicom.dataset import Dataset

from tests.node.jobs.test_rounds import predecessor
from tests.support import films
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import SIZES, Browsed, browsed, tab_to
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

SLOW = 30_000  # milliseconds, in which a round is written on a busy machine
LONG = 600.0  # seconds: no test waits for it


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node on which corrections wait long, with a scripted reader, and its archive."""

    started: ArchivedNode

    @property
    def service(self) -> Service:
        return self.started.service

    def read(self, name: str) -> Dataset:
        film = films.as_another(films.thumbnail(), name, study=name)
        self.service.read(film)
        self.started.archive.wait_until(lambda: len(self.sent(film)) == 2)
        return film

    def sent(self, film: Dataset) -> list[Dataset]:
        return self.started.objects(film.StudyInstanceUID)


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    return Node(
        started=start_node(
            change=lambda settings: replace(settings, corrections=replace(settings.corrections, quiet_seconds=LONG))
        )
    )


def corrected(seen: Browsed, film: Dataset) -> Page:
    """Open the page of a film, and reject and reword what it says."""
    page = seen.open(f"/studies/{film.StudyInstanceUID}")
    page.locator('[data-correct="reject"]').last.click()
    page.locator("form.inline .save").click()
    expect(page.locator("#version")).to_contain_text("1 correction waits; the report is sent in ", timeout=SLOW)
    reworded(page)
    expect(page.locator("#version")).to_contain_text("2 corrections wait; the report is sent in ", timeout=SLOW)
    return page


def reworded(page: Page) -> None:
    page.locator('[data-correct="reword"]').first.click()
    page.locator("form.inline textarea").fill("Discuss this with the ward.")
    page.locator("form.inline .save").click()


def by_button(page: Page) -> None:
    tab_to(page.locator("[data-finish]"))
    page.keyboard.press("Enter")


def by_key(page: Page) -> None:
    page.locator("#frame").focus()
    page.keyboard.press("s")


@pytest.mark.parametrize("finish", [by_button, by_key], ids=["button", "key"])
def test_a_reader_finishes_without_a_mouse(node: Node, seen: Browsed, finish: Callable[[Page], None]) -> None:
    film = node.read(finish.__name__.replace("_", "-"))
    page = corrected(seen, film)
    assert len(node.sent(film)) == 2

    finish(page)

    expect(page.locator("#version")).to_contain_text("Written.", timeout=SLOW)
    expect(page.locator("#frame")).to_be_focused(timeout=SLOW)
    node.started.archive.wait_until(lambda: len(node.sent(film)) == 4)
    old, new = (each for each in node.sent(film) if each.Modality == "SR")
    assert predecessor(new) == old.SOPInstanceUID


def test_a_correction_taken_back_sends_no_report(node: Node, seen: Browsed) -> None:
    film = node.read("back")
    page = seen.open(f"/studies/{film.StudyInstanceUID}")
    page.locator('[data-correct="reject"]').last.click()
    page.locator("form.inline .save").click()
    page.get_by_role("button", name="Take back: Rejected").click(timeout=SLOW)

    status = page.locator("#version")
    expect(status).to_contain_text("All was taken back: no new report is sent.", timeout=SLOW)
    expect(status.locator("[data-finish]")).to_have_count(0)


@pytest.mark.parametrize("size", SIZES)
def test_what_waits_covers_nothing_of_the_impression(node: Node, browser: Browser, size: str) -> None:
    film = node.read(f"seen-{size}")
    with browsed(browser, node.service.http_port, size=size) as seen:
        page = corrected(seen, film)
        assert seen.violations() == []
        page.locator("#impression-title").evaluate("title => title.scrollIntoView()")

        bar, impression = (page.locator(place).bounding_box() for place in ("#version", ".impression"))
        assert bar is not None and impression is not None
        assert impression["y"] + impression["height"] < bar["y"]
        assert bar["y"] + bar["height"] <= page.viewport_size["height"]  # type: ignore[index]  # it has a size
