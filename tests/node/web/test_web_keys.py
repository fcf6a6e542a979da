"""The pages by keys alone: Tab leads to every button and field, and no test here touches the mouse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from pydicom.dataset import Dataset

from tests.support import films, peers
from tests.support.archived import StartNode
from tests.support.browsed import Browsed, tab_to
from tests.support.peers import ReceivingArchive
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

SLOW = 30_000  # milliseconds, in which a round is written on a busy machine
FILM = films.as_another(films.thumbnail(), "keys", study="keys")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with a scripted reader, and its archive; film: one that it has read."""

    service: Service
    archive: ReceivingArchive
    directory: Path
    film: Dataset

    def wait_for(self, event: str, film: Dataset) -> None:
        uid = str(film.StudyInstanceUID)
        self.service.wait_for_line(lambda line: line["event"] == event and line["study"] == uid)

    def sent(self, modality: str, description: str) -> int:
        """Count the objects of the film that the archive has."""
        kept = [received.dataset for received in self.archive.kept]
        return len([found for found in kept if found.Modality == modality and description in found.SeriesDescription])

    def park(self, name: str) -> Path:
        """Have a study parked because its film is damaged on the disk; return the film's file beside the sound one."""
        film = films.as_another(films.thumbnail(), name, study=name)
        assert peers.send(film, port=self.service.dicom_port) == 0
        (path,) = self.directory.glob(f"studies/{film.StudyInstanceUID}/received/*.dcm")
        path.with_suffix(".sound").write_bytes(path.read_bytes())
        path.write_bytes(b"damaged")
        self.wait_for("study.parked", film)
        return path


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    started = start_node(quiet_seconds=2.0)
    started.service.read(FILM)
    return Node(service=started.service, archive=started.archive, directory=started.directory, film=FILM)


def opened(seen: Browsed, node: Node) -> Page:
    return seen.open(f"/studies/{node.film.StudyInstanceUID}")


def test_no_answer_covers_a_box_that_is_moved(node: Node, seen: Browsed) -> None:
    page = opened(seen, node)
    page.keyboard.press("/")
    page.keyboard.type("Edema")
    page.keyboard.press("Enter")
    pinned = page.locator("rect.asked:visible, .tag.asked:visible")
    expect(pinned).not_to_have_count(0)

    tab_to(page.locator('[data-correct="move"]').first)
    page.keyboard.press("Enter")
    expect(page.locator("#drawn")).to_be_visible()

    expect(pinned).to_have_count(0)
    page.keyboard.press("Escape")
    expect(pinned).not_to_have_count(0)


def test_a_file_is_chosen_and_shown(node: Node, seen: Browsed, tmp_path: Path) -> None:
    path = tmp_path / "film.dcm"
    path.write_bytes(films.file_bytes(films.thumbnail()))
    seen.page.on("filechooser", lambda _: None)  # Playwright does not wait until the browser hands choosers to it
    page = seen.open("/upload")

    tab_to(page.locator("#file"))
    with page.expect_file_chooser() as choosing:
        page.keyboard.press("Enter")
    choosing.value.set_files(path)

    page.wait_for_url("**/upload/*", timeout=SLOW)
    page.wait_for_selector("#stage.ready")
    assert page.locator(".finding").count() > 0


def test_a_parked_study_is_queued_again_on_its_page(node: Node, seen: Browsed) -> None:
    path = node.park("parked on its page")
    page = seen.page
    page.goto(f"{seen.origin}/studies/{path.parts[-3]}")
    expect(page.locator("#film-alert")).to_contain_text("cannot be decoded")
    expect(page.locator("#parked")).to_contain_text("Stopped at read: damaged")
    path.with_suffix(".sound").rename(path)

    tab_to(page.locator("[data-retry]"))
    page.keyboard.press("Enter")
    # A study that is queued again has changed too; its new report is there when the next round's results are.
    expect(page.locator('#results [aria-label*="round 2"]').first).to_be_visible(timeout=SLOW)
    expect(page.locator("#changed")).to_contain_text("This study has changed.", timeout=SLOW)
    tab_to(page.locator("#changed a"))
    page.keyboard.press("Enter")

    expect(page.locator(".finding").first).to_be_visible(timeout=SLOW)
    expect(page.locator("#parked")).to_have_count(0)
    seen.forgive(409)  # the picture of a damaged film


def test_a_study_is_read_again_and_deleted_with_reasons(node: Node, seen: Browsed) -> None:
    film = films.as_another(films.thumbnail(), "managed", study="managed")
    node.service.read(film)
    page = seen.open(f"/studies/{film.StudyInstanceUID}")

    chosen(page, "Read again")
    page.wait_for_url(f"{seen.origin}/studies/*")
    expect(page.locator('#results [aria-label*="round 3"]').first).to_be_visible(
        timeout=SLOW
    )  # 2 is that of the reason
    chosen(page, "Delete")
    page.wait_for_url(f"{seen.origin}/")

    expect(page.locator("h1")).to_have_text("Worklist")
    assert page.locator(f'tr[data-uid="{film.StudyInstanceUID}"]').count() == 0
    assert not [*node.directory.glob(f"studies/{film.StudyInstanceUID}/received/*.dcm")]


def chosen(page: Page, form: str) -> None:
    """Go to a form of a study, choose its first reason, and send it."""
    tab_to(page.get_by_role("link", name="Read again or delete"))
    page.keyboard.press("Enter")
    fields = page.get_by_role("form", name=form, exact=True)
    tab_to(fields.get_by_label("Reason"))
    page.keyboard.press("ArrowDown")
    if form == "Delete":
        tab_to(fields.get_by_role("checkbox"))
        page.keyboard.press("Space")
    tab_to(fields.get_by_role("button"))
    page.keyboard.press("Enter")


def test_days_are_counted_and_written_as_a_table(node: Node, seen: Browsed) -> None:
    page = seen.open("/")

    tab_to(page.get_by_role("link", name="Statistics"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/statistics")
    tab_to(page.get_by_label("From"))
    page.keyboard.type("01012026")
    page.keyboard.press("Enter")
    page.wait_for_url("**/statistics?from=2026-01-01&to=*")
    assert page.get_by_role("heading", name="By scanner").count() == 1
    assert seen.violations() == []
    tab_to(page.get_by_role("link", name="Download as CSV"))
    with page.expect_download() as saved:
        page.keyboard.press("Enter")

    assert saved.value.path().read_text(encoding="utf-8").startswith('"by","name","films",')
