"""A reader's way over the pages of a node: beside a real Orthanc from the worklist to a corrected report, and from the
demonstration, which opens its page, to the first answers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect

from node.settings.destinations import DicomDestination
from tests.drills.conformance.ohif import beside
from tests.paths import REPOSITORY
from tests.support import films, peers
from tests.support.browsed import SIZES, browsed
from tests.support.orthanc import Orthanc, beside_node
from tests.support.peers import LOOPBACK, ReceivingArchive
from tests.support.service import INTERRUPTIBLE, Service
from tests.support.web_journey import Room, ask, reading_room, travel


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, browser: Browser) -> Iterator[Room]:
    assert phantom_model.is_dir()
    with reading_room(tmp_path_factory.mktemp("journey"), browser) as opened:
        yield opened


@pytest.mark.drill(part="pages")
@pytest.mark.parametrize("size", SIZES)
def test_a_film_is_asked_about_and_its_report_corrected(room: Room, size: str) -> None:
    pictures = travel(room, size=size).pictures

    assert list(pictures) == ["worklist", "study", "answers", "moving", "corrected", "review", "upload"]


MOST_ACTIONS = 12
SLOW = 30_000  # milliseconds


def test_a_newcomer_finds_why_and_the_corrected_report(tmp_path: Path, browser: Browser) -> None:
    """With the node's pages alone, from a patient's name to what did not arrive, and on to OHIF."""
    film = films.as_another(films.thumbnail({"PatientName": "Zimmer^Anna"}), "newcomer", study="newcomer")
    films.changed(film, {"PixelSpacing": [0.4, 0.4], "SeriesDescription": "Film 1"})
    actions: list[str] = []
    with hospital(tmp_path) as (orthanc, service), browsed(browser, service.http_port) as seen:
        orthanc.upload(film)
        orthanc.wait_for_count(3, study_uid=film.StudyInstanceUID)
        page = seen.page

        def do(what: str, act: Callable[[], object]) -> None:
            actions.append(what)
            act()

        do("open the pages", lambda: seen.open("/"))
        do("type the patient's name", lambda: page.get_by_role("searchbox").fill("zimmer"))
        do("search", lambda: page.keyboard.press("Enter"))
        expect(page.locator("td.who")).to_have_count(1)
        expect(page.locator("td.deliveries")).to_contain_text("registry", timeout=SLOW)
        expect(page.locator(".troubles")).to_contain_text("registry", timeout=SLOW)
        do("open the study", page.locator("td.who a").click)
        page.wait_for_selector("#stage.ready")
        why = page.locator("#results .delivery", has_text="registry").first
        expect(why).to_contain_text(re.compile("registry: .*(title|rejected)"), timeout=SLOW)
        do("accept a finding", page.locator('[data-correct="accept"]').first.click)
        do("send the report", page.locator("[data-finish]").click)
        expect(page.locator("#version")).to_contain_text(re.compile(r"archive: \d+ sent\."), timeout=SLOW)
        with beside(browser, orthanc) as viewer, viewer.show(str(film.StudyInstanceUID), count=1) as shown:
            labels = [label for report in shown.reports() for label in report.labels]

    assert [label for label in labels if re.search(r", confirmed, AI: \d+\.00 %$", label)]
    assert len(actions) <= MOST_ACTIONS, actions


@contextmanager
def hospital(folder: Path) -> Iterator[tuple[Orthanc, Service]]:
    """Run a node beside an Orthanc and a registry that does not know it; all on this machine see patients."""
    with ReceivingArchive() as registry, beside_node(folder) as (orthanc, settings):
        registry.reject()
        (archive,) = settings.destinations
        refusing = DicomDestination(name="registry", ae_title="REGISTRY", host=LOOPBACK, port=registry.port)
        settings = replace(
            settings,
            destinations=(archive, refusing),
            http=replace(settings.http, show_patient=True),
            corrections=replace(settings.corrections, quiet_seconds=600.0),
        )
        with Service(settings) as service:
            yield orthanc, service


@pytest.mark.drill(part="pages")
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

            expect(page.locator("#answers li").last).to_contain_text("There is an opacity.")
            expect(page.locator("rect.asked:visible")).not_to_have_count(0)
            expect(page.locator(".finding").nth(0)).to_contain_text("Opacity 78 % present")


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
