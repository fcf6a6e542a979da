"""Asking and correcting on the page of a film in a browser, by mouse and keys: what is sent, and what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from pydicom.dataset import Dataset

from node.domain import JsonObject
from node.store.spool import Spool
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
        """Have a film of a study of its own read and its results sent."""
        film = films.as_another(films.thumbnail(), name, study=name)
        self.service.read(film)
        self.started.archive.wait_until(lambda: len(self.sent(film)) == 2)
        return film

    def sent(self, film: Dataset, modality: str = "") -> list[Dataset]:
        return self.started.objects(film.StudyInstanceUID, modality)

    def ask(self, method: str, path: str, body: object = None) -> Content:
        """Ask the interface as another program does."""
        status, content = self.service.ask(method, path, body)
        assert status < 300, content
        return content


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    gathering = start_node(
        change=lambda settings: replace(settings, corrections=replace(settings.corrections, quiet_seconds=LONG))
    )
    return Node(started=gathering)


def opened(seen: Browsed, film: Dataset) -> Page:
    return seen.open(f"/studies/{film.StudyInstanceUID}")


def api_of(film: Dataset) -> str:
    return f"/api/v1/films/{film.SOPInstanceUID}"


def type_in(page: Page, text: str) -> None:
    page.locator("#prompt").focus()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def ask(page: Page, text: str) -> None:
    """Type a question by keys alone, and wait for the reply in words."""
    type_in(page, text)
    expect(page.locator("#reply .question b")).to_have_text(text, timeout=SLOW)


def tracked(page: Page, kind: str) -> set[str]:
    """The tracking UIDs of the boxes of a kind."""
    return set(page.locator(f"#found rect{kind}").evaluate_all("rects => rects.map(rect => rect.dataset.tracking)"))


def test_a_prompt_is_asked_and_the_answer_stays_and_is_sent(node: Node, seen: Browsed) -> None:
    film = node.read("prompted")
    page = opened(seen, film)
    for phrase in ("Edema", "Left pleural effusion"):
        expect(page.locator(f'#prompts option[value="{phrase}"]')).to_have_count(1)
    page.keyboard.press("/")
    with page.expect_request("**/replies") as sent:
        page.keyboard.type("Edema")
        page.keyboard.press("Enter")
    answer = page.locator("#answers li")
    expect(answer).to_contain_text("It is seen here.", timeout=SLOW)
    expect(answer).to_contain_text("Present")
    expect(page.locator("rect.asked").first).to_be_visible()
    expect(page.locator("#ask-state")).to_contain_text("Answer: Q1 Edema")
    assert sent.value.post_data_json == {"text": "Edema", "box": None}
    assert page.locator("#prompt").input_value() == ""
    page.get_by_role("button", name="Send to PACS").click()
    is_sent = page.get_by_role("button", name="Sent to PACS")
    expect(is_sent).to_be_disabled()
    node.started.archive.wait_until(lambda: len(node.sent(film, "PR")) == 2)
    opened(seen, film)
    expect(is_sent).to_be_disabled()


def test_words_are_answered_above_the_field_and_their_boxes_light_up(node: Node, seen: Browsed) -> None:
    film = node.read("in words")
    page = opened(seen, film)
    said = node.ask("POST", f"{api_of(film)}/replies", {"text": "right base?"})
    expected = set(cast(list[str], said["boxes"]))
    ask(page, "right base?")
    expect(page.locator("#reply .text")).to_have_text(str(said["text"]))
    expect(page.locator("#reply")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#ask-state")).to_have_text("Answered from the report, in standard wording.")
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value("")
    assert tracked(page, ".lit") == set()
    page.locator("#reply .close").focus()
    page.keyboard.press("Tab")
    expect(page.locator("#reply .text")).to_be_focused()
    assert tracked(page, ".lit") == expected < tracked(page, "[data-tracking]")
    lit: set[str] = set()
    # Tab moves to the next finding of the reply; all boxes of that finding are lit, also those elsewhere.
    while not expected <= lit:
        page.keyboard.press("Tab")
        own = tracked(page, ".lit")
        assert own & expected != expected and own & expected and not own & lit
        lit |= own
    assert lit > expected
    page.locator("#prompt").focus()
    assert tracked(page, ".lit") == set()
    page.locator("#reply .text").hover()
    assert tracked(page, ".lit") == expected
    page.locator("#reply .close").click()
    expect(page.locator("#reply")).to_be_empty()
    assert tracked(page, "[data-also]") == set()
    page.get_by_role("button", name="Summarize").click()
    expect(page.locator("#reply .question b")).to_have_text("Summarize", timeout=SLOW)
    type_in(page, "Pneumonia")
    expect(page.locator("#ask-state")).to_contain_text("Pneumonia", timeout=SLOW)
    expect(page.locator("#reply")).to_be_empty()


def test_a_box_is_drawn_and_asked_about_by_keys_or_by_mouse(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read("in a box"))
    page.keyboard.press("b")
    state = page.locator("#ask-state")
    expect(state).to_contain_text("Box: columns")
    before = state.inner_text()
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowDown", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    expect(state).not_to_have_text(before)
    with page.expect_request("**/replies") as sent:
        page.keyboard.press("Enter")
    expect(page.locator("#reply .text")).to_contain_text("in the drawn box", timeout=SLOW)
    assert len(cast(list[float], cast(Content, sent.value.post_data_json)["box"])) == 4
    expect(page.locator("#answers li")).to_have_text([re.compile("What is in this box\\?")])
    page.keyboard.press("b")
    page.keyboard.press("Escape")
    expect(page.locator("#drawn")).to_be_hidden()
    page.locator('.tools [data-tool="box"]').click()
    drag(page, (0.4, 0.3), (0.5, 0.6))
    page.get_by_role("button", name="What is in this region?", exact=True).click()
    expect(page.locator("#answers li")).to_have_count(2, timeout=SLOW)
    expect(page.locator("#drawn")).to_be_hidden()


def test_what_another_reader_asks_appears_by_itself(node: Node, seen: Browsed) -> None:
    film = node.read("asked by two")
    page = opened(seen, film)
    expect(page.locator("#prompts option").first).to_be_attached()
    expect(page.locator("#asked")).to_be_hidden()
    asked = node.ask("POST", f"{api_of(film)}/questions", {"questions": [{"prompt": "Pneumonia"}]})["questions"]
    answer = page.locator("#answers li")
    expect(answer).to_contain_text("Pneumonia", timeout=SLOW)
    expect(answer).to_contain_text("by a program")
    node.ask("POST", f"/api/v1/questions/{cast(list[Content], asked)[0]['id']}/send")
    expect(answer.get_by_role("button", name="Sent to PACS")).to_be_disabled(timeout=SLOW)
    type_in(page, "Edema")
    expect(page.locator("#answers li")).to_have_count(2, timeout=SLOW)


def test_the_next_question_outlives_the_answer_to_the_last_and_a_refused_one_says_why(
    node: Node, seen: Browsed
) -> None:
    page = opened(seen, node.read("asked in a hurry"))
    held: list[Route] = []
    page.route("**/replies", lambda route: held.append(route))
    type_in(page, "Pneumonia")
    expect(page.locator("#ask")).to_have_attribute("aria-busy", "true")
    page.fill("#prompt", "Edema")
    held[0].continue_()
    expect(page.locator("#answers li")).to_have_count(1, timeout=SLOW)
    expect(page.locator("#ask")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#prompt")).to_have_value("Edema")

    page.unroute("**/replies")
    page.fill("#prompt", "")
    alert = page.locator("#ask-alert")
    page.locator(".go").click()
    expect(alert).to_contain_text("type a finding or a question, or draw a box")
    page.evaluate("document.getElementById('prompt').maxLength = 400")
    page.fill("#prompt", "x" * 301)
    page.keyboard.press("Enter")
    expect(alert).to_contain_text("text", timeout=SLOW)
    expect(page.locator("#prompt")).to_have_value("x" * 301)
    expect(page.locator("#reply")).to_be_empty()
    seen.forgive(422)


def test_a_question_that_the_model_refused_is_removed(node: Node, seen: Browsed) -> None:
    film, spool = node.read("never learned"), Spool(node.started.directory)
    study = str(film.StudyInstanceUID)
    node.ask("POST", f"{api_of(film)}/questions", {"questions": [{"prompt": "Edema"}]})
    (stored,) = spool.documents(study, "questions")
    answer: JsonObject = {**cast(JsonObject, stored["answer"]), "never_learned": ["zyx"], "boxes": []}
    refused: JsonObject = {**stored, "id": "f" * 32, "answer": {**answer, "question": {"prompt": "zyx", "box": None}}}
    spool.keep_document(study, "questions", "f" * 32, refused)
    page = opened(seen, film)
    expect(page.locator("#answers li")).to_have_count(2)
    expect(page.locator("#answers li", has_text="zyx")).to_contain_text("this model never learned: zyx")
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("#answers li")).to_have_count(1)
    assert len(spool.documents(study, "questions")) == 1


def test_another_earlier_film_is_chosen_to_compare_with(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read("compared"))
    films_known = [{"film": f"1.2.{day}", "study": f"1.{day}", "at": f"2026-11-0{day} 09:30"} for day in (1, 3)]
    said = {"boxes": [], "findings": [], "questions": [], "corrections": [], "changes": [], "earlier": films_known}
    sent: list[Content] = []

    def compare(route: Route) -> None:
        sent.append(cast(Content, route.request.post_data_json))
        film = sent[-1].get("earlier", "1.2.3")
        study = next(known["study"] for known in films_known if known["film"] == film)
        route.fulfill(json={**said, "text": f"Compared with {film}.", "compared_with": film, "compared_study": study})

    page.route(re.compile("/replies$"), compare)
    ask(page, "what changed?")
    expect(page.locator("#reply .choices button")).to_have_text(["2026-11-01 09:30"])
    page.locator("#reply .choices button").click()
    expect(page.locator("#reply .text")).to_have_text("Compared with 1.2.1.")
    expect(page.locator("#reply .choices button")).to_have_text(["2026-11-03 09:30"])
    assert sent[-1] == {"text": "what changed?", "box": None, "earlier": "1.2.1", "earlier_study": "1.1"}


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


def test_corrections_wait_until_a_reader_finishes_without_a_mouse(node: Node, seen: Browsed) -> None:
    film = node.read("finished")
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

    page.locator("#frame").focus()
    page.keyboard.press("s")
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

    def drag_from(part_of_width: float, part_of_height: float, *, left: int, up: int) -> None:
        """Drag a point of the box by so many pixels of the film."""
        drawn, scale = settled(page.locator("#drawn")), settled(page.locator("#picture"))["width"] / int(film.Columns)
        x, y = drawn["x"] + part_of_width * drawn["width"], drawn["y"] + part_of_height * drawn["height"]
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - left * scale, y - up * scale, steps=4)
        page.mouse.up()

    before = edges(page.locator("#found rect[data-tracking]").last)
    page.locator('[data-correct="move"]').last.click()
    expect(page.locator("#editing")).to_contain_text("Columns")
    drag_from(0.5, 0.5, left=10, up=5)
    drag_from(1.0, 1.0, left=3, up=2)
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
    rejection = {"kind": "reject", "prompt": finding.get_attribute("data-prompt")}
    node.ask("POST", f"{api_of(film)}/corrections", rejection)
    page.locator("#editing .save").click()

    expect(page.locator("#editing .alert")).to_have_text("this finding has no such box now; load the film again")
    expect(page.locator("#drawn")).to_be_visible()
    seen.forgive(409)


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
