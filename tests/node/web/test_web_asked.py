"""What others ask about a film appears on its page by itself, and no answer takes away what somebody types."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Route, expect

from node.outputs import wording
from tests.node.web.test_web_reviewing import SLOW, Node, node, path_of, question_of
from tests.support.browsed import Browsed

pytestmark = pytest.mark.drill(part="pages")

__all__ = ["node"]


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
