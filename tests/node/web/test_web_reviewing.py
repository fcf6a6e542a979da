"""A reader at the page of a film, on a node with the shipped model: asks about it, and corrects what was found."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from pydicom import dcmread
from pydicom.dataset import Dataset

from node.commands import demo
from node.config import ModelSettings
from node.outputs import wording
from tests.node.jobs.test_rounds import predecessor
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import Browsed, drag, settled, tab_to
from tests.support.peers import ReceivingArchive
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

Edges = tuple[float, float, float, float]
Content = dict[str, object]

SLOW = 30_000  # milliseconds, in which a round is written on a busy machine


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with the shipped model, and its archive; asked: a film that it has read."""

    started: ArchivedNode
    asked: Dataset

    @property
    def service(self) -> Service:
        return self.started.service

    @property
    def archive(self) -> ReceivingArchive:
        return self.started.archive

    def read(self, name: str) -> Dataset:
        film = films.as_another(dcmread(demo.FILMS[0]), name, study=name)
        self.service.read(film)
        self.archive.wait_until(lambda: bool(self.objects(film, "SR")) and bool(self.objects(film, "PR")))
        return film

    def objects(self, film: Dataset, modality: str = "") -> list[Dataset]:
        return self.started.objects(film.StudyInstanceUID, modality)

    def newer_reports(self, film: Dataset) -> list[Dataset]:
        return [report for report in self.objects(film, "SR") if "PredecessorDocumentsSequence" in report]


@pytest.fixture(scope="module")
def node(start_node: StartNode, phantom_model: Path) -> Node:
    started = start_node(model=ModelSettings(directory=phantom_model), quiet_seconds=1.0)
    return Node(started=started, asked=Node(started=started, asked=Dataset()).read("asked"))


def path_of(film: Dataset) -> str:
    return f"/studies/{film.StudyInstanceUID}"


def opened(seen: Browsed, film: Dataset) -> Page:
    """Open the page of a film, which notes all that its status says."""
    page = seen.open(path_of(film))
    page.evaluate(
        """() => { window.said = [];
          const status = document.getElementById("version");
          new MutationObserver(() => window.said.push(status.textContent.trim()))
            .observe(status, {childList: true, subtree: true});
        }"""
    )
    return page


def question_of(page: Page, go: str = "form.ask .go") -> Content:
    """Ask what is set, and return what was sent."""
    with page.expect_request(re.compile("/(questions|replies)$")) as sent:
        page.locator(go).click()
    expect(page.locator("#answers li, #reply > *").first).to_be_visible(timeout=SLOW)
    return cast(Content, sent.value.post_data_json)


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


def assert_followed(node: Node, page: Page, film: Dataset, *, said: str, states: int = 2) -> None:
    """Check that the page told of a correction and of the new version, and that the archive has it; states: GSPS."""
    expect(page.locator("#version")).to_contain_text("Written.", timeout=SLOW)
    # The new version may be written before the page asks what became of the correction.
    stored = [text for text in page.evaluate("window.said") if text.startswith("Stored.")]
    assert all(text.startswith(f"Stored. {said}") for text in stored)
    node.archive.wait_until(lambda: bool(node.newer_reports(film)) and len(node.objects(film, "PR")) == states)
    known = {report.SOPInstanceUID for report in node.objects(film, "SR")}
    assert {predecessor(report) for report in node.newer_reports(film)} <= known
    expect(page.locator("#changed")).to_be_hidden()


def test_a_prompt_is_asked_and_the_answer_stays(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.asked))
    for phrase in ("Lung opacity", "Left pleural effusion"):
        expect(page.locator(f'#prompts option[value="{phrase}"]')).to_have_count(1)
    page.keyboard.press("/")
    page.keyboard.type("Lung opacity")

    with page.expect_request("**/replies") as sent:
        page.keyboard.press("Enter")

    answer = page.locator("#answers li")
    expect(answer).to_contain_text("There is an opacity.", timeout=SLOW)
    expect(answer).to_contain_text("Present")
    expect(page.locator("rect.asked").first).to_be_visible()
    expect(page.locator("#ask-state")).to_contain_text("Answer: Q1 Lung opacity")
    assert sent.value.post_data_json == {"text": "Lung opacity", "box": None}
    assert page.locator("#prompt").input_value() == ""
    page.get_by_role("button", name="Send to PACS").click()
    expect(page.get_by_role("button", name="Sent to PACS")).to_be_disabled()
    node.archive.wait_until(lambda: len(node.objects(node.asked, "PR")) == 2)
    seen.open(path_of(node.asked))
    expect(page.get_by_role("button", name="Sent to PACS")).to_be_disabled()


def test_the_label_of_an_answer_covers_no_other(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.asked))
    page.fill("#prompt", "Lung opacity")
    question_of(page)

    same = page.evaluate(
        """() => {
          const place = rect => ["x", "y", "width", "height"].map(name => Math.round(rect.getAttribute(name))).join();
          const found = new Set([...document.querySelectorAll("#found rect[data-number]")].map(place));
          return [...document.querySelectorAll("#asked-boxes rect")].some(rect => found.has(place(rect)));
        }"""
    )
    covered = page.evaluate(
        """() => {
          const seen = [...document.querySelectorAll("#tags .tag")].filter(tag => tag.offsetWidth);
          const box = tag => tag.getBoundingClientRect();
          const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
          return seen.filter(tag => tag.matches(".asked"))
            .flatMap(tag => seen.filter(other => other !== tag && meet(box(tag), box(other)))).length;
        }"""
    )

    assert (same, covered) == (True, 0)


def test_a_box_that_is_drawn_is_asked_in_film_pixels(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.asked))
    film, frame = page.locator("#picture").bounding_box(), page.locator("#frame").bounding_box()
    assert film and frame

    page.locator('.tools [data-tool="box"]').click()
    drag(page, (0.4, 0.3), (0.5, 0.6))
    expect(page.locator("#ask-state")).to_contain_text("Box: columns")

    left, top, right, bottom = box_of(question_of(page))
    scale = film["width"] / int(node.asked.Columns)
    assert right - left == pytest.approx(0.1 * frame["width"] / scale, abs=1)
    assert left == pytest.approx((frame["x"] + 0.4 * frame["width"] - film["x"]) / scale, abs=1)
    assert top == pytest.approx((frame["y"] + 0.3 * frame["height"] - film["y"]) / scale, abs=1)
    assert bottom == pytest.approx((frame["y"] + 0.6 * frame["height"] - film["y"]) / scale, abs=1)


def test_a_box_is_drawn_and_asked_by_keys_alone(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.asked))

    page.keyboard.press("b")
    first = page.locator("#ask-state")
    expect(first).to_contain_text("Box: columns")
    before = first.inner_text()
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowDown", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    expect(first).not_to_have_text(before)
    with page.expect_request("**/replies") as sent:
        page.keyboard.press("Enter")
    expect(page.locator("#reply")).to_contain_text("in this box", timeout=SLOW)

    assert len(box_of(cast(Content, sent.value.post_data_json))) == 4
    page.keyboard.press("b")
    page.keyboard.press("Escape")
    expect(page.locator("#drawn")).to_be_hidden()


def test_an_answer_without_a_sentence_says_so(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.asked))

    page.fill("#prompt", "Pneumothorax")
    question_of(page)

    answer = page.locator("#answers li", has_text="Pneumothorax")
    expect(answer).to_contain_text("Not reported (below threshold, may have been missed)")
    expect(answer).to_contain_text("The network's sentence failed the checks and is not shown")
    assert answer.evaluate("answer => getComputedStyle(answer).columnCount") == "auto"


def test_an_accepted_finding_makes_a_new_report(node: Node, seen: Browsed) -> None:
    film = node.read("accepted")
    page = opened(seen, film)
    worklist = page.context.new_page()
    worklist.goto(f"{seen.origin}/?q={film.StudyInstanceUID}")
    expect(worklist.locator("#live")).to_have_text("Live")
    finding = page.locator(".correct").first
    prompt = finding.get_attribute("data-prompt")

    finding.locator('[data-correct="accept"]').focus()
    sent = corrected(page, "Enter")

    assert (sent["kind"], sent["prompt"]) == ("accept", prompt)
    first = page.locator(".finding").first
    expect(first).to_contain_text("confirmed by a reader")
    expect(first).to_have_class(re.compile("present"))
    expect(first.locator(".correct button").first).to_be_focused()
    assert_followed(node, page, film, said="Accepted: ")
    expect(worklist.locator("td.impression")).to_contain_text("confirmed by a reader", timeout=SLOW)


def test_a_rejection_is_asked_for_and_can_be_taken_back(node: Node, seen: Browsed) -> None:
    film = node.read("rejected")
    page = opened(seen, film)
    last = page.locator(".correct").last
    name, prompt = last.get_attribute("data-name"), last.get_attribute("data-prompt")
    count = page.locator(".finding").count()
    rejecting = last.locator('[data-correct="reject"]')

    rejecting.focus()
    page.keyboard.press("Enter")
    expect(page.locator("form.inline")).to_contain_text(f"Reject: {name}?")
    expect(page.locator("form.inline .save")).to_be_focused()
    assert seen.violations() == []
    page.keyboard.press("Escape")
    expect(rejecting).to_be_focused()
    page.keyboard.press("Enter")
    sent = corrected(page, "Enter")

    assert (sent["kind"], sent["prompt"]) == ("reject", prompt)
    expect(page.locator(".finding")).to_have_count(count - 1)
    expect(page.get_by_role("region", name="Rejected by a reader")).to_be_visible()
    taking = page.get_by_role("button", name="Take back: Rejected")
    expect(taking).to_be_focused()
    assert_followed(node, page, film, said="Rejected: ")
    expect(taking).to_be_focused()
    assert corrected(page, "Enter")["withdraws"] == sent["id"]
    expect(page.locator(".finding")).to_have_count(count)
    expect(page.locator("#version")).to_contain_text("Written.", timeout=SLOW)
    node.archive.wait_until(lambda: len(node.newer_reports(film)) >= 2)


def test_a_page_from_before_a_correction_is_not_shown_after_it(node: Node, seen: Browsed) -> None:
    film = node.read("overtaken")
    page = opened(seen, film)
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
    assert seen.violations() == []
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
    assert box_of(sent) == pytest.approx(expected, abs=0.5)
    moved = page.locator(".finding", has_text="box drawn by a reader")
    expect(moved).to_have_count(1)
    boxes = page.locator("#found rect[data-tracking]").all()
    assert any(edges(box) == pytest.approx(box_of(sent), abs=0.01) for box in boxes)
    assert_followed(node, page, film, said="Box moved: ")


def test_a_sentence_is_reworded_by_keys_alone(node: Node, seen: Browsed) -> None:
    film = node.read("reworded")
    page = opened(seen, film)
    rewording = page.locator('[data-correct="reword"]').first
    tab_to(rewording)
    page.keyboard.press("Enter")
    field = page.locator("form.inline textarea")
    expect(field).to_be_focused()
    assert field.input_value() == page.locator(".correct").first.get_attribute("data-text")
    assert seen.violations() == []

    page.keyboard.press("Control+A")
    page.keyboard.type("Discuss this with the ward.")
    assert corrected(page, "Enter")["text"] == "Discuss this with the ward."
    expect(page.locator(".finding").first).to_contain_text("Discuss this with the ward. (written by a reader)")
    expect(rewording).to_be_focused()
    assert_followed(node, page, film, said="Reworded: ", states=1)  # no sentence is drawn on the film


def test_a_missed_finding_is_added_in_a_box(node: Node, seen: Browsed) -> None:
    film = node.read("added")
    page = opened(seen, film)

    page.locator("#missed").select_option("pneumothorax")
    page.locator("#adding button").click()
    expect(page.locator("#editing")).to_contain_text("Add: Pneumothorax.")
    drag(page, (0.3, 0.1), (0.4, 0.25))
    sent = corrected(page, page.locator("#editing .save"))

    assert (sent["kind"], sent["prompt"]) == ("add", "pneumothorax")
    expect(page.locator(".finding", has_text="Pneumothorax")).to_contain_text("added by a reader")
    added = page.locator('rect[data-label*="neumothorax"]')
    assert edges(added) == pytest.approx(box_of(sent), abs=0.01)
    assert_followed(node, page, film, said="Box added: pneumothorax")


def test_a_box_that_is_drawn_for_a_finding_confirms_it(node: Node, seen: Browsed) -> None:
    film = node.read("drawn")
    page = opened(seen, film)
    finding = page.locator(".finding").first
    name = finding.locator(".correct").get_attribute("data-name")

    finding.locator('[data-correct="draw"]').click()
    expect(page.locator("#editing")).to_contain_text(f"Draw the box: {name}.")
    drag(page, (0.3, 0.1), (0.4, 0.25))
    sent = corrected(page, page.locator("#editing .save"))

    assert (sent["kind"], sent["prompt"]) == ("add", finding.locator(".correct").get_attribute("data-prompt"))
    expect(finding).to_contain_text("confirmed, box drawn by a reader")
    expect(finding).to_contain_text(re.compile(r"AI \d+\s%"))
    assert_followed(node, page, film, said="Box added: ")


def test_a_correction_that_is_refused_says_why(node: Node, seen: Browsed) -> None:
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


def test_what_another_reader_asks_appears_by_itself(node: Node, seen: Browsed) -> None:
    film = node.read("asked by two")
    page = seen.open(path_of(film))
    expect(page.locator("#prompts option").first).to_be_attached()
    expect(page.locator("#asked")).to_be_hidden()

    asked = page.context.request.post(
        f"{seen.origin}/api/v1/films/{film.SOPInstanceUID}/questions", data={"questions": [{"prompt": "Pneumonia"}]}
    )

    answer = page.locator("#answers li")
    expect(answer).to_contain_text("Pneumonia", timeout=SLOW)
    expect(answer).to_contain_text("by a program")
    expect(answer.locator(".objection")).to_have_text(f"{wording.NEVER}.")  # the shipped model leaves it out
    expect(answer.locator(".probability")).to_have_text("")
    page.context.request.post(f"{seen.origin}/api/v1/questions/{asked.json()['questions'][0]['id']}/send")
    expect(answer.get_by_role("button", name="Sent to PACS")).to_be_disabled(timeout=SLOW)
    page.fill("#prompt", "Lung opacity")
    question_of(page)
    expect(page.locator("#answers li")).to_have_count(2)


def test_the_next_question_outlives_the_answer_to_the_last(node: Node, seen: Browsed) -> None:
    page = seen.open(path_of(node.read("asked in a hurry")))
    held: list[Route] = []
    page.route(
        re.compile("/(questions|replies)$"),
        lambda route: held.append(route) if route.request.method == "POST" else route.continue_(),
    )
    page.fill("#prompt", "Lung opacity")
    page.locator("form.ask .go").click()
    expect(page.locator("#ask")).to_have_attribute("aria-busy", "true")

    page.fill("#prompt", "Edema")
    held[0].continue_()

    expect(page.locator("#answers li")).to_have_count(1, timeout=SLOW)
    expect(page.locator("#ask")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#prompt")).to_have_value("Edema")
