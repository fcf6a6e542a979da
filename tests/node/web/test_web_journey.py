"""A reader's way over the pages of a node: beside a real Orthanc from the worklist to a corrected report, and from the
demonstration, which opens its page, to the first answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from tests.paths import REPOSITORY
from tests.support import peers
from tests.support.browsed import SIZES, browsed
from tests.support.peers import LOOPBACK
from tests.support.service import INTERRUPTIBLE
from tests.support.web_journey import Room, ask, judge, reading_room, travel


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, browser: Browser) -> Iterator[Room]:
    assert phantom_model.is_dir()
    with reading_room(tmp_path_factory.mktemp("journey"), browser) as opened:
        yield opened


@pytest.mark.parametrize("size", SIZES)
def test_a_film_is_asked_about_and_its_report_corrected(room: Room, size: str) -> None:
    pictures = travel(room, size=size).pictures

    assert list(pictures) == ["worklist", "study", "answers", "moving", "corrected", "review", "upload"]


def test_reports_on_accepted_and_rejected_findings_reach_orthanc(room: Room) -> None:
    accepted, rejected = judge(room)

    assert "Right opacity, lower zone, confirmed by a reader" in accepted
    assert "Right opacity" not in rejected


def test_the_demonstration_opens_a_page_where_one_can_ask(
    tmp_path: Path, phantom_model: Path, browser: Browser
) -> None:
    with demonstration(tmp_path, model=phantom_model) as address:
        place = urlsplit(address)
        assert (place.scheme, place.hostname) == ("http", LOOPBACK)
        assert place.port is not None
        with browsed(browser, place.port) as seen:
            page = seen.open(place.path)

            ask(page)

            expect(page.locator("#answers li").last).to_contain_text("There is a lung opacity.")
            expect(page.locator("rect.asked:visible")).not_to_have_count(0)
            expect(page.locator(".finding").nth(0)).to_contain_text("There is a lung opacity.")


@contextmanager
def demonstration(folder: Path, *, model: Path) -> Iterator[str]:
    """Run `node demo --open`, and yield the address that it opens in the browser, here a script that writes it down."""
    opened, browser = folder / "opened.txt", folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{opened}.part" && mv "{opened}.part" "{opened}"\n', encoding="ascii")
    browser.chmod(0o755)
    command = [sys.executable, "-m", "node", "demo", "--open", "--model", str(model), "--out", str(folder / "out")]
    process = subprocess.Popen(
        [*INTERRUPTIBLE, *command],
        cwd=REPOSITORY,
        env={**os.environ, "BROWSER": str(browser)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        peers.wait_until(
            lambda: opened.exists() or process.poll() is not None, what="a page is opened", limit_seconds=120.0
        )
        yield opened.read_text(encoding="ascii").strip()
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, printed
    named = f"look at the film and ask about it: {opened.read_text(encoding='ascii').strip()}"
    assert printed.splitlines()[-2:] == [named, "Ctrl-C ends it"]
