"""Asking on the page of a film in a browser: by keys, in words and in a box; answers, their boxes and their labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest
from playwright.sync_api import Browser, Page, Route, expect
from pydicom.dataset import Dataset

from node.domain import JsonObject
from node.store.spool import Spool
from tests.support import films
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import SIZES, Browsed, browsed, drag, settled
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

Content = dict[str, object]
SLOW = 30_000  # milliseconds


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with a scripted reader, and its archive; film: one that it has read."""

    started: ArchivedNode
    film: Dataset

    @property
    def service(self) -> Service:
        return self.started.service

    @property
    def path(self) -> str:
        return f"/studies/{self.film.StudyInstanceUID}"

    @property
    def api(self) -> str:
        return f"/api/v1/films/{self.film.SOPInstanceUID}"

    def ask(self, method: str, path: str, body: object = None) -> Content:
        status, content = self.service.ask(method, path, body)
        assert status < 300, content
        return content

    def another(self, name: str) -> Node:
        """The same with another film that it has read."""
        film = films.as_another(films.thumbnail(), name, study=name)
        self.service.read(film)
        return Node(started=self.started, film=film)


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    return Node(started=start_node(), film=Dataset()).another("asked")


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
    page = seen.open(node.path)
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
    node.started.archive.wait_until(lambda: len(node.started.objects(node.film.StudyInstanceUID, "PR")) == 2)
    seen.open(node.path)
    expect(is_sent).to_be_disabled()


def test_words_are_answered_above_the_field_and_a_prompt_leaves_no_reply(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    ask(page, "left base?")
    said = node.ask("POST", f"{node.api}/replies", {"text": "left base?"})["text"]
    expect(page.locator("#reply .text")).to_have_text(str(said))
    expect(page.locator("#reply")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#ask-state")).to_have_text("Answered from the report, in standard wording.")
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value("")
    page.get_by_role("button", name="Summarize").click()
    expect(page.locator("#reply .question b")).to_have_text("Summarize", timeout=SLOW)
    type_in(page, "Pneumonia")
    expect(page.locator("#ask-state")).to_contain_text("Pneumonia", timeout=SLOW)
    expect(page.locator("#reply")).to_be_empty()


@pytest.mark.parametrize("button", ["What is in this region?", "Ask"])
def test_a_drawn_box_is_asked_about_in_words(node: Node, seen: Browsed, button: str) -> None:
    page = seen.open(node.path)
    page.locator('.tools [data-tool="box"]').click()
    drag(page, (0.4, 0.3), (0.5, 0.6))
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("#reply .text")).to_contain_text("in the drawn box", timeout=SLOW)
    expect(page.locator("#answers li").first).to_contain_text("What is in this box?")
    expect(page.locator("#drawn")).to_be_hidden()


def test_a_box_is_drawn_and_asked_by_keys_alone(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
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
    assert len(cast(Sequence[float], cast(Content, sent.value.post_data_json)["box"])) == 4
    page.keyboard.press("b")
    page.keyboard.press("Escape")
    expect(page.locator("#drawn")).to_be_hidden()


@pytest.mark.parametrize("size", SIZES)
def test_what_is_said_is_inside_the_window_and_moves_no_field(node: Node, browser: Browser, size: str) -> None:
    with browsed(browser, node.service.http_port, size=size) as seen:
        page = seen.open(node.path)
        go = page.locator("form.ask .go")
        rows = [settled(go)["y"]]
        ask(page, "list the findings")
        rows.append(settled(go)["y"])
        reply = settled(page.locator("#reply"))
        assert reply["y"] + reply["height"] <= SIZES[size][1]
        page.fill("#prompt", "Edema")
        go.click()
        expect(page.locator("#ask-state")).to_contain_text("Answer: Q", timeout=SLOW)
        rows.append(settled(go)["y"])
        page.keyboard.press("Escape")
        expect(page.locator("#ask-state")).to_contain_text("Type a finding")
        rows.append(settled(go)["y"])
        assert rows == pytest.approx(rows[:1] * 4, abs=1.0)


def test_the_boxes_of_a_reply_light_by_keys_and_mouse(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    expected = set(cast(list[str], node.ask("POST", f"{node.api}/replies", {"text": "right base?"})["boxes"]))
    ask(page, "right base?")
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
    expect(page.locator("#prompt")).to_be_focused()
    assert tracked(page, "[data-also]") == set()


def test_lit_boxes_stay_lit_when_a_correction_redraws_them(node: Node, seen: Browsed) -> None:
    corrected = node.another("redrawn")
    page = seen.open(corrected.path)
    ask(page, "right base?")
    page.locator("#reply .text").focus()
    lit, drawn = tracked(page, ".lit"), tracked(page, "[data-tracking]")
    assert lit
    # As after a correction of one's own, whose next version the page puts in place without being asked.
    page.locator("#version").evaluate("version => { version.dataset.state = 'pending' }")
    node.ask("POST", f"{corrected.api}/corrections", {"kind": "add", "prompt": "edema", "box": [20, 20, 60, 60]})
    expect(page.locator("#found rect[data-tracking]")).to_have_count(len(drawn) + 1, timeout=SLOW)
    assert drawn < tracked(page, "[data-tracking]")
    assert tracked(page, ".lit") == lit


def test_what_another_reader_asks_appears_by_itself(node: Node, seen: Browsed) -> None:
    by_two = node.another("asked by two")
    page = seen.open(by_two.path)
    expect(page.locator("#prompts option").first).to_be_attached()
    expect(page.locator("#asked")).to_be_hidden()
    asked = node.ask("POST", f"{by_two.api}/questions", {"questions": [{"prompt": "Pneumonia"}]})["questions"]
    answer = page.locator("#answers li")
    expect(answer).to_contain_text("Pneumonia", timeout=SLOW)
    expect(answer).to_contain_text("by a program")
    node.ask("POST", f"/api/v1/questions/{cast(list[Content], asked)[0]['id']}/send")
    expect(answer.get_by_role("button", name="Sent to PACS")).to_be_disabled(timeout=SLOW)
    type_in(page, "Edema")
    expect(page.locator("#answers li")).to_have_count(2, timeout=SLOW)


def test_the_next_question_outlives_the_answer_to_the_last(node: Node, seen: Browsed) -> None:
    page = seen.open(node.another("asked in a hurry").path)
    held: list[Route] = []
    page.route("**/replies", lambda route: held.append(route))
    type_in(page, "Pneumonia")
    expect(page.locator("#ask")).to_have_attribute("aria-busy", "true")
    page.fill("#prompt", "Edema")
    held[0].continue_()
    expect(page.locator("#answers li")).to_have_count(1, timeout=SLOW)
    expect(page.locator("#ask")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#prompt")).to_have_value("Edema")


def test_a_question_that_is_refused_says_why_and_stays(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
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
    of_film, spool = node.another("never learned"), Spool(node.started.directory)
    node.ask("POST", f"{of_film.api}/questions", {"questions": [{"prompt": "Edema"}]})
    (stored,) = spool.documents(str(of_film.film.StudyInstanceUID), "questions")
    answer: JsonObject = {**cast(JsonObject, stored["answer"]), "never_learned": ["zyx"], "boxes": []}
    refused: JsonObject = {**stored, "id": "f" * 32, "answer": {**answer, "question": {"prompt": "zyx", "box": None}}}
    spool.keep_document(str(of_film.film.StudyInstanceUID), "questions", "f" * 32, refused)
    page = seen.open(of_film.path)
    expect(page.locator("#answers li")).to_have_count(2)
    expect(page.locator("#answers li", has_text="zyx")).to_contain_text("this model never learned: zyx")
    page.get_by_role("button", name="Remove").click()
    expect(page.locator("#answers li")).to_have_count(1)
    assert len(spool.documents(str(of_film.film.StudyInstanceUID), "questions")) == 1


def test_another_earlier_film_is_chosen_to_compare_with(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
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
