"""A page of a node in a browser, and what the page should not have done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, FloatRect, Locator, Page

from tests.drills.conformance import packages
from tests.support.peers import LOOPBACK

SIZES: Mapping[str, tuple[int, int]] = {"wide": (1280, 800), "narrow": (390, 844)}
"""Of the windows in which one works, and pictures are taken."""
WINDOWS: Mapping[str, tuple[int, int]] = {"phone": (390, 844), "laptop": (1366, 768), "wide": (1920, 1080)}
THEMES: Sequence[Literal["dark", "light"]] = ("dark", "light")
"""In all of them each page is looked through for violations."""
_IS_DARK = "matchMedia('(prefers-color-scheme: dark)').matches"


@dataclass
class Browsed:
    """A page; faults: errors of the console (among them of the policy) and of scripts, and requests to elsewhere."""

    page: Page
    port: int
    faults: list[str] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def open(self, path: str) -> Page:
        """Open a page, and wait for the film if it has one."""
        self.page.goto(f"{self.origin}{path}")
        if self.page.locator("#stage").count():
            self.page.wait_for_selector("#stage.ready")
        return self.page

    def forgive(self, what: object) -> None:
        """Forget what names this, such as the status of an answer; all else stays a fault."""
        assert any(str(what) in fault for fault in self.faults)
        self.faults[:] = [fault for fault in self.faults if str(what) not in fault]

    def violations(self) -> list[str]:
        """Return what axe-core finds on the page as it is, and where it scrolls sideways, in every window and theme.

        At its end the window has its size and its theme again.
        """
        page, was_dark = self.page, self.page.evaluate(_IS_DARK)
        size = page.viewport_size
        assert size is not None
        page.evaluate(f"() => {{ {(packages.fetched(packages.AXE) / 'axe.min.js').read_text(encoding='utf-8')} }}")
        found: list[str] = []
        for window, (width, height) in WINDOWS.items():
            page.set_viewport_size({"width": width, "height": height})
            for theme in THEMES:
                page.emulate_media(color_scheme=theme)
                found += [f"{window}, {theme}: {fault}" for fault in _faults_of(page)]
        page.set_viewport_size(size)
        page.emulate_media(color_scheme="dark" if was_dark else "light")
        return found


def _faults_of(page: Page) -> list[str]:
    """Return what axe-core finds on a page in its window, and whether it scrolls sideways."""
    found = page.evaluate("() => axe.run()")["violations"]
    faults = [f"{fault['id']}: {node['html'][:120]}" for fault in found for node in fault["nodes"]]
    is_wider = page.evaluate("document.documentElement.scrollWidth > innerWidth")
    return [*faults, *(["scrolls sideways"] if is_wider else [])]


@contextmanager
def browsed(browser: Browser, port: int, *, size: str = "wide") -> Iterator[Browsed]:
    """Open a window on a node's pages; at its end nothing may have gone wrong in it."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    seen = Browsed(page=context.new_page(), port=port)
    _listen(seen, context)
    try:
        yield seen
        assert seen.faults == [], seen.faults
    finally:
        context.close()


def _listen(seen: Browsed, context: BrowserContext) -> None:
    page = seen.page
    page.on("console", lambda said: seen.faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.faults.append(str(error)))
    context.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((f"{seen.origin}/", f"blob:{seen.origin}/"))
            else seen.faults.append(request.url)
        ),
    )


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag over the film, from one part of its frame to another."""
    frame = page.locator("#frame").bounding_box()
    assert frame is not None
    places = [(frame["x"] + x * frame["width"], frame["y"] + y * frame["height"]) for x, y in (start, end)]
    page.mouse.move(*places[0])
    page.mouse.down()
    page.mouse.move(*places[1], steps=4)
    page.mouse.up()


def settled(place: Locator) -> FloatRect:
    """Return where a part of the page is, once it has stayed there for a tenth of a second."""
    before = None
    for _ in range(50):
        now = place.bounding_box()
        if now is not None and now == before:
            return now
        before = now
        place.page.wait_for_timeout(100)
    raise AssertionError("a part of the page is hidden, or does not come to rest")


def tab_to(place: Locator) -> None:
    """Press Tab until a part of the page has the focus. Raises AssertionError where no Tab leads there."""
    for _ in range(200):
        if place.evaluate("part => part === document.activeElement"):
            return
        place.page.keyboard.press("Tab")
    raise AssertionError("no Tab leads there")
