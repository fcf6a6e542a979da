"""Debian's Chromium without a window, driven by Playwright: chromium-headless-shell takes half the time of chromium."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.peers import require

# Root has no sandbox; the pages are ours. SwiftShader draws WebGL where there is no graphics card; were it to draw the
# pages, too, it would take three times the processor time.
_OPTIONS = (
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-gpu-compositing",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser while the block runs."""
    program = require("chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


def settled(page: Page, shot: Callable[[], bytes], *, ready: Callable[[], bool], limit_seconds: float = 30.0) -> bytes:
    """Take a picture when the page is ready and shows the same twice; the last one when that never comes.

    A person who looks at it would not wait longer either, so it is then judged as it is.
    """
    end = time.monotonic() + limit_seconds
    before = b""
    while time.monotonic() < end:
        page.wait_for_timeout(250)
        if not ready():
            continue
        picture = shot()
        if picture == before:
            return picture
        before = picture
    return before or shot()
