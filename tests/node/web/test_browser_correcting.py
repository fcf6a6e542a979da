"""Correcting on the page of a film in a browser, by mouse and keys: what is sent, and what the page says after it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from pydicom.dataset import Dataset

from tests.node.jobs.test_rounds import predecessor
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import SIZES, Browsed, browsed, drag, settled, tab_to
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

Edges = tuple[float, float, float, float]
Content = dict[str, object]
SLOW = 30_000  # milliseconds, in which a round is written on a busy machine
LONG = 600.0  # seconds, in which corrections are gathered: no test waits for it


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with a scripted reader on which corrections wait long, and its archive."""

    started: ArchivedNode

    @property
    def service(self) -> Service:
        return self.started.service

    def read(self, name: str) -> Dataset:
        film = films.as_another(films.thumbnail(), name, study=name)
        self.service.read(film)
        self.started.archive.wait_until(lambda: len(self.sent(film)) == 2)
        return film

    def sent(self, film: Dataset, modality: str = "") -> list[Dataset]:
        return self.started.objects(film.StudyInstanceUID, modality)


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    gathering = start_node(
        change=lambda settings: replace(settings, corrections=replace(settings.corrections, quiet_seconds=LONG))
    )
    return Node(started=gathering)


def opened(seen: Browsed, film: Dataset) -> Page:
    return seen.open(f"/studies/{film.StudyInstanceUID}")


def corrected(page: Page, press: Locator | str) -> Content:
    """Press a button or a key, and return the correction that was sent."""
    with page.expect_request("**/corrections") as sent:
        if isinstance(press, str):
            page.keyboard.press(press)
        else:
            press.click()
    return cast(Content, sent.value.post_data_json)


def edges(rect: Locator) -> Edges:
    x, y, width, height = (float(rect.get_attribute(name) or 0) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def box_of(sent: Content) -> Edges:
    return cast(Edges, tuple(cast(list[float], sent["box"])))


def by_button(page: Page) -> None:
    tab_to(page.locator("[data-finish]"))
    page.keyboard.press("Enter")


def by_key(page: Page) -> None:
    page.locator("#frame").focus()
    page.keyboard.press("s")


@pytest.mark.parametrize("finish", [by_button, by_key], ids=["button", "key"])
def test_corrections_wait_until_a_reader_finishes_without_a_mouse(
    node: Node, seen: Browsed, finish: Callable[[Page], None]
) -> None:
    film = node.read(finish.__name__.replace("_", "-"))
    page = opened(seen, film)
    worklist = page.context.new_page()
    worklist.goto(f"{seen.origin}/?q={film.StudyInstanceUID}")
    expect(worklist.locator("#live")).to_have_text("Live")
    first = page.locator(".finding").first
    first.locator('[data-correct="accept"]').focus()
    sent = corrected(page, "Enter")
    assert (sent["kind"], sent["prompt"]) == ("accept", first.locator(".correct").get_attribute("data-prompt"))
    expect(first).to_contain_text("confirmed by a reader")
    expect(first).to_have_class(re.compile("present"))
    expect(first.locator(".correct button").first).to_be_focused()
    expect(page.locator("#version")).to_contain_text("1 correction waits; the report is sent in ", timeout=SLOW)

    rewording = page.locator('[data-correct="reword"]').first
    tab_to(rewording)
    page.keyboard.press("Enter")
    field = page.locator("form.inline textarea")
    expect(field).to_be_focused()
    assert field.input_value() == page.locator(".correct").first.get_attribute("data-text")
    page.keyboard.press("Control+A")
    page.keyboard.type("Discuss this with the ward.")
    assert corrected(page, "Enter")["text"] == "Discuss this with the ward."
    expect(page.locator(".finding").first).to_contain_text("Discuss this with the ward. (written by a reader)")
    expect(rewording).to_be_focused()
    expect(page.locator("#version")).to_contain_text("2 corrections wait; the report is sent in ", timeout=SLOW)
    assert len(node.sent(film)) == 2

    finish(page)
    expect(page.locator("#version")).to_contain_text("Written.", timeout=SLOW)
    expect(page.locator("#frame")).to_be_focused(timeout=SLOW)
    node.started.archive.wait_until(lambda: len(node.sent(film, "SR")) == 2)
    old, new = node.sent(film, "SR")
    assert predecessor(new) == old.SOPInstanceUID
    expect(page.locator("#changed")).to_be_hidden()
    expect(worklist.locator("td.impression")).to_contain_text("confirmed by a reader", timeout=SLOW)


def test_a_rejection_is_asked_for_and_taken_back_and_sends_no_report(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read("rejected"))
    last = page.locator(".correct").last
    name, prompt = last.get_attribute("data-name"), last.get_attribute("data-prompt")
    count = page.locator(".finding").count()
    rejecting = last.locator('[data-correct="reject"]')
    rejecting.focus()
    page.keyboard.press("Enter")
    expect(page.locator("form.inline")).to_contain_text(f"Reject: {name}?")
    expect(page.locator("form.inline .save")).to_be_focused()
    page.keyboard.press("Escape")
    expect(rejecting).to_be_focused()
    page.keyboard.press("Enter")
    sent = corrected(page, "Enter")
    assert (sent["kind"], sent["prompt"]) == ("reject", prompt)
    expect(page.locator(".finding")).to_have_count(count - 1)
    expect(page.get_by_role("region", name="Rejected by a reader")).to_be_visible()
    expect(page.get_by_role("button", name="Take back: Rejected")).to_be_focused()
    assert corrected(page, "Enter")["withdraws"] == sent["id"]
    expect(page.locator(".finding")).to_have_count(count)
    status = page.locator("#version")
    expect(status).to_contain_text("All was taken back: no new report is sent.", timeout=SLOW)
    expect(status.locator("[data-finish]")).to_have_count(0)


def test_a_page_from_before_a_correction_is_not_shown_after_it(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read("overtaken"))
    count = page.locator(".finding").count()
    page.evaluate(
        """() => { const fetched = window.fetch;
        let isFirst = true;
        window.fetch = async (place, ...rest) => {
          const answer = await fetched(place, ...rest);
          if (place !== location.href || !isFirst) return answer;
          isFirst = false;
          const text = await answer.text();
          await new Promise((done) => { window.release = done; });
          return new Response(text);
        };
        document.dispatchEvent(new Event("visibilitychange")); }"""  # opens the stream of events anew, so one comes
    )
    peers.wait_until(lambda: bool(page.evaluate("Boolean(window.release)")), what="a page has come and is held back")
    page.locator('.correct [data-correct="reject"]').last.focus()
    page.keyboard.press("Enter")
    corrected(page, "Enter")
    taking = page.get_by_role("button", name="Take back: Rejected")
    expect(taking).to_be_focused()
    page.evaluate("window.release()")
    page.wait_for_timeout(500)
    expect(page.locator(".finding")).to_have_count(count - 1)
    expect(taking).to_be_focused()


def test_a_box_is_moved_and_resized_by_mouse(node: Node, seen: Browsed) -> None:
    film = node.read("dragged")
    page = opened(seen, film)
    before = edges(page.locator("#found rect[data-tracking]").last)
    page.locator('[data-correct="move"]').last.click()
    expect(page.locator("#editing")).to_contain_text("Columns")
    drawn, picture = settled(page.locator("#drawn")), settled(page.locator("#picture"))
    scale = picture["width"] / int(film.Columns)
    middle = (drawn["x"] + drawn["width"] / 2, drawn["y"] + drawn["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] - 10 * scale, middle[1] - 5 * scale, steps=4)
    page.mouse.up()
    drawn = settled(page.locator("#drawn"))
    corner = (drawn["x"] + drawn["width"], drawn["y"] + drawn["height"])
    page.mouse.move(*corner)
    page.mouse.down()
    page.mouse.move(corner[0] - 3 * scale, corner[1] - 2 * scale, steps=4)
    page.mouse.up()
    sent = corrected(page, page.locator("#editing .save"))
    expected = (before[0] - 10, before[1] - 5, before[2] - 13, before[3] - 7)
    assert (sent["kind"], box_of(sent)) == ("move", pytest.approx(expected, abs=0.5))
    expect(page.locator(".finding", has_text="box drawn by a reader")).to_have_count(1)
    boxes = page.locator("#found rect[data-tracking]").all()
    assert any(edges(box) == pytest.approx(box_of(sent), abs=0.01) for box in boxes)


def missed(page: Page) -> str:
    """Begin to add a finding that the network did not report; its prompt."""
    page.locator("#missed").select_option("pneumothorax")
    page.locator("#adding button").click()
    expect(page.locator("#editing")).to_contain_text("Add: Pneumothorax.")
    return "pneumothorax"


def reported(page: Page) -> str:
    """Begin to draw a box for a finding that it reported; its prompt."""
    finding = page.locator(".correct").first
    finding.locator('[data-correct="draw"]').click()
    expect(page.locator("#editing")).to_contain_text(f"Draw the box: {finding.get_attribute('data-name')}.")
    return str(finding.get_attribute("data-prompt"))


@pytest.mark.parametrize(
    ("begin", "said"), [(missed, "added by a reader"), (reported, "confirmed, box drawn by a reader")]
)
def test_a_finding_is_drawn_where_the_reader_sees_it(
    node: Node, seen: Browsed, begin: Callable[[Page], str], said: str
) -> None:
    page = opened(seen, node.read(begin.__name__))
    prompt = begin(page)
    drag(page, (0.3, 0.1), (0.4, 0.25))
    sent = corrected(page, page.locator("#editing .save"))
    assert (sent["kind"], sent["prompt"]) == ("add", prompt)
    finding = page.locator(".finding", has_text=said)
    expect(finding).to_have_count(1)
    assert bool(re.search(r"AI \d+\s%", finding.inner_text())) is (begin is reported)
    drawn = page.locator(f'#found rect[data-key="{finding.get_attribute("data-key")}"]').all()
    assert any(edges(box) == pytest.approx(box_of(sent), abs=0.01) for box in drawn)


def test_a_correction_that_is_refused_says_why_and_keeps_its_box(node: Node, seen: Browsed) -> None:
    film = node.read("refused")
    page = opened(seen, film)
    finding = page.locator(".correct").first
    finding.locator('[data-correct="move"]').first.click()
    body = json.dumps({"kind": "reject", "prompt": finding.get_attribute("data-prompt")})
    path = f"{seen.origin}/api/v1/films/{film.SOPInstanceUID}/corrections"
    other = page.context.request.post(path, data=body, headers={"Content-Type": "application/json"})
    page.locator("#editing .save").click()

    assert other.status == 202
    expect(page.locator("#editing .alert")).to_have_text("this finding has no such box now; load the film again")
    expect(page.locator("#drawn")).to_be_visible()
    seen.forgive(409)


def test_no_answer_covers_a_box_that_is_moved(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read("asked and moved"))
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


@pytest.mark.parametrize("size", SIZES)
def test_what_waits_covers_nothing_of_the_impression(node: Node, browser: Browser, size: str) -> None:
    film = node.read(f"seen-{size}")
    with browsed(browser, node.service.http_port, size=size) as seen:
        page = opened(seen, film)
        page.locator('[data-correct="accept"]').first.click()
        expect(page.locator("#version")).to_contain_text("1 correction waits", timeout=SLOW)
        above, below = page.evaluate(
            """() => {
              document.getElementById("impression-title").scrollIntoView();
              const [bar, impression] = ["#version", ".impression"].map(
                place => document.querySelector(place).getBoundingClientRect());
              return [bar.top - impression.bottom, innerHeight - bar.bottom];
            }"""
        )
        assert above > 0 and below >= 0
