"""The pages by keys alone: Tab leads to every button and field, and no test here touches the mouse."""

from __future__ import annotations

import re
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


def assert_written(page: Page) -> None:
    expect(page.locator("#version")).to_contain_text("Written.", timeout=SLOW)


def test_a_prompt_and_a_box_are_asked_together_and_sent(node: Node, seen: Browsed) -> None:
    page, before = opened(seen, node), node.sent("SR", "answer")

    page.keyboard.press("b")
    for key in ("ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    tab_to(page.locator("#prompt"))
    page.keyboard.type("Edema")
    page.keyboard.press("Enter")
    answer = page.locator("#answers li").first
    expect(answer.locator("b")).to_have_text("Edema, in a box", timeout=SLOW)
    said = [answer.locator(part).inner_text() for part in (".probability", ".mark")]
    assert re.fullmatch(r"\d+ %", said[0]), "as in the report of the answer"
    expect(page.locator("#ask-state")).to_contain_text(f"Edema, in a box, {said[0]}, {said[1]}. ")
    tab_to(answer.locator(".send"))
    page.keyboard.press("Enter")

    expect(answer.locator(".send")).to_have_text("Sent to PACS")
    node.archive.wait_until(lambda: node.sent("SR", "answer") == before + 1)


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


def test_a_box_is_drawn_for_a_finding_of_the_list(node: Node, seen: Browsed) -> None:
    page = opened(seen, node)
    choice = page.locator("#missed")
    name = choice.locator("option").last.inner_text()

    tab_to(choice)
    page.keyboard.press("End")
    tab_to(page.locator("#adding button"))
    page.keyboard.press("Enter")
    expect(page.locator("#editing")).to_contain_text(f"Add: {name}.")
    expect(page.locator("#drawn")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#drawn")).to_be_hidden()
    for key in ("b", "ArrowLeft", "Shift+ArrowUp", "Enter"):
        page.keyboard.press(key)

    expect(page.locator(".finding", has_text=name)).to_contain_text("confirmed, box drawn by a reader", timeout=SLOW)
    assert_written(page)


def test_a_sentence_is_reworded(node: Node, seen: Browsed) -> None:
    page = opened(seen, node)

    tab_to(page.locator('[data-correct="reword"]').first)
    page.keyboard.press("Enter")
    expect(page.locator("form.inline textarea")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("Discuss this with the ward.")
    page.keyboard.press("Enter")

    said = page.locator(".finding").first
    expect(said).to_contain_text("Discuss this with the ward. (written by a reader)", timeout=SLOW)
    assert_written(page)


def test_the_window_of_a_film_is_changed(node: Node, seen: Browsed) -> None:
    page = opened(seen, node)
    reading = page.locator("#reading")
    before = reading.inner_text()

    tab_to(page.locator("#frame"))
    page.keyboard.press("Shift+ArrowDown")

    expect(reading).not_to_have_text(before)
    page.keyboard.press("0")
    expect(reading).to_have_text(before)


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


def test_a_parked_study_is_queued_again_from_the_worklist(node: Node, seen: Browsed) -> None:
    path = node.park("parked on the worklist")
    page = seen.open("/")
    row = page.locator(f'tr[data-uid="{path.parts[-3]}"]')
    expect(row).to_contain_text("Stopped at read: damaged")
    path.with_suffix(".sound").rename(path)

    tab_to(row.locator("a.open"))
    page.keyboard.press("r")

    expect(row.locator(".chip")).to_have_text("finished", timeout=SLOW)
    expect(row.locator("[data-retry]")).to_have_count(0)
    expect(row.locator("a.open")).to_be_focused()


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
    tab_to(page.get_by_role("link", name="Download as CSV"))
    with page.expect_download() as saved:
        page.keyboard.press("Enter")

    assert saved.value.path().read_text(encoding="utf-8").startswith('"by","name","films",')
