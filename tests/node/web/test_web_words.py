"""A reader who types questions on the page of a film, on a node with the shipped model: replies and their boxes."""

from __future__ import annotations

from typing import cast

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.node.web.test_web_replies import BASIC, Content, Node, node, signed_in
from tests.support import peers
from tests.support.browsed import SIZES, Browsed, browsed, drag, settled

pytestmark = pytest.mark.drill(part="pages")

__all__ = ["node", "signed_in"]

SLOW = 30_000  # milliseconds


def opened(seen: Browsed, node: Node) -> Page:
    return seen.open(f"/studies/{node.film.StudyInstanceUID}")


def ask(page: Page, text: str) -> None:
    """Type a question by keys alone, and wait for the reply."""
    page.locator("#prompt").focus()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.locator("#reply .question b")).to_have_text(text, timeout=SLOW)


def tracked(page: Page, kind: str) -> set[str]:
    """The tracking UIDs of the boxes of a kind."""
    return set(page.locator(f"#found rect{kind}").evaluate_all("rects => rects.map(rect => rect.dataset.tracking)"))


def test_a_typed_question_is_answered_above_the_field(node: Node, seen: Browsed) -> None:
    page = opened(seen, node)
    expected = node.reply("left base?")

    ask(page, "left base?")

    expect(page.locator("#reply .text")).to_have_text(str(expected["text"]))
    expect(page.locator("#reply")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#ask-state")).to_have_text("Answered from the report, in standard wording.")
    expect(page.locator("#prompt")).to_be_focused()
    expect(page.locator("#prompt")).to_have_value("")
    assert page.locator("#answers li").count() == len(node.questions())


@pytest.mark.parametrize("size", SIZES)
def test_what_is_said_is_inside_the_window_and_moves_no_field(node: Node, browser: Browser, size: str) -> None:
    with browsed(browser, node.service.http_port, size=size) as seen:
        page = opened(seen, node)
        go = page.locator("form.ask .go")
        rows = [settled(go)["y"]]

        ask(page, "list the findings")
        rows.append(settled(go)["y"])
        reply = settled(page.locator("#reply"))
        page.fill("#prompt", "Pleural effusion")
        go.click()
        expect(page.locator("#ask-state")).to_contain_text("Answer: Q", timeout=SLOW)
        rows.append(settled(go)["y"])
        page.keyboard.press("Escape")
        expect(page.locator("#ask-state")).to_contain_text("Type a finding")
        rows.append(settled(go)["y"])

        assert rows == pytest.approx(rows[:1] * 4, abs=1.0)
        assert reply["y"] + reply["height"] <= SIZES[size][1]


def test_the_boxes_of_a_reply_light_by_keys_and_mouse(node: Node, seen: Browsed) -> None:
    path = f"/api/v1/films/{node.film.SOPInstanceUID}/corrections"
    beside = {"kind": "add", "prompt": "atelectasis", "box": [130, 320, 210, 380]}
    elsewhere = {"kind": "add", "prompt": "pleural_effusion", "box": [400, 300, 480, 420]}
    assert [node.ask("POST", path, added)[0] for added in (beside, elsewhere)] == [202, 202]
    page = opened(seen, node)
    expected = set(cast(list[str], node.reply("right base?")["boxes"]))
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
    page.locator("#prompt").focus()
    assert tracked(page, ".lit") == set()
    page.locator("#reply .text").hover()
    assert tracked(page, ".lit") == expected
    page.locator("#reply .close").click()
    expect(page.locator("#reply")).to_be_empty()
    expect(page.locator("#prompt")).to_be_focused()
    assert tracked(page, "[data-also]") == set()


def test_lit_boxes_stay_lit_when_a_correction_redraws_them(node: Node, seen: Browsed) -> None:
    page = opened(seen, node)
    ask(page, "right base?")
    page.locator("#reply .text").focus()
    lit, drawn = tracked(page, ".lit"), tracked(page, "[data-tracking]")
    assert lit
    path = f"/api/v1/films/{node.film.SOPInstanceUID}/corrections"
    # As after a correction of one's own, whose next version the page puts in place without being asked.
    page.locator("#version").evaluate("version => { version.dataset.state = 'pending' }")
    assert node.ask("POST", path, {"kind": "add", "prompt": "atelectasis", "box": [100, 300, 180, 420]})[0] == 202

    expect(page.locator("#found rect[data-tracking]")).not_to_have_count(len(drawn), timeout=SLOW)

    assert drawn < tracked(page, "[data-tracking]")
    assert tracked(page, ".lit") == lit


def test_what_the_report_does_not_know_goes_to_the_network_and_a_prompt_leaves_no_reply(
    node: Node, seen: Browsed
) -> None:
    page = opened(seen, node)
    page.get_by_role("button", name="Summarize").click()
    expect(page.locator("#reply .text")).to_have_text(str(node.reply("Summarize")["text"]), timeout=SLOW)

    ask(page, "is there a hiatal hernia?")
    expect(page.locator("#reply .text")).to_have_text("The report does not answer this, so the network is asked.")
    expect(page.locator("#answers li").first).to_contain_text("never learned: hiatal, hernia")
    assert seen.violations() == []

    page.keyboard.type("Pneumonia")
    page.keyboard.press("Enter")
    expect(page.locator("#ask-state")).to_contain_text("Pneumonia", timeout=SLOW)
    expect(page.locator("#reply")).to_be_empty()


@pytest.mark.parametrize("button", ["What is in this region?", "Ask"])
def test_a_drawn_box_is_asked_about_in_words(node: Node, seen: Browsed, button: str) -> None:
    page = opened(seen, node)
    page.locator('.tools [data-tool="box"]').click()
    drag(page, (0.4, 0.3), (0.5, 0.6))

    with page.expect_request("**/replies") as sent:
        page.get_by_role("button", name=button, exact=True).click()

    expect(page.locator("#reply .text")).to_contain_text("in the drawn box", timeout=SLOW)
    expect(page.locator("#answers li").first).to_contain_text("What is in this box?")
    assert cast(Content, sent.value.post_data_json)["box"]
    expect(page.locator("#drawn")).to_be_hidden()


def test_a_question_that_is_refused_says_why(node: Node, seen: Browsed) -> None:
    page = opened(seen, node)
    page.evaluate("document.getElementById('prompt').maxLength = 400")

    page.fill("#prompt", "x" * 301)
    page.keyboard.press("Enter")

    expect(page.locator("#ask-alert")).to_contain_text("text", timeout=SLOW)
    expect(page.locator("#reply")).to_be_empty()
    seen.forgive(422)


def test_another_earlier_film_is_chosen_to_compare_with(signed_in: Node, browser: Browser) -> None:
    with browsed(browser, signed_in.service.http_port) as seen:
        seen.page.context.set_extra_http_headers(BASIC)
        page = opened(seen, signed_in)
        ask(page, "what changed?")
        expect(page.locator("#reply .text")).to_contain_text("Compared with the film of 2026-11-03 09:30.")

        page.locator("#reply .choices button", has_text="2026-11-01").click()

        expect(page.locator("#reply .text")).to_contain_text(
            "Compared with the film of 2026-11-01 09:30.", timeout=SLOW
        )
        expect(page.locator("#reply .choices button")).to_have_text(["2026-11-03 09:30"])


@pytest.mark.parametrize("size", SIZES)
def test_the_film_has_half_of_the_window_and_the_earlier_film_its_zoom(
    signed_in: Node, browser: Browser, size: str
) -> None:
    with browsed(browser, signed_in.service.http_port, size=size) as seen:
        seen.page.context.set_extra_http_headers(BASIC)
        page = opened(seen, signed_in)
        page.locator('[data-do="earlier"]').click()
        earlier = page.locator("#earlier img")
        peers.wait_until(lambda: earlier.evaluate("img => img.naturalWidth") > 0, what="the earlier film")
        page.locator('[data-do="in"]').click()

        frame, zoomed = page.locator("#frame").bounding_box(), earlier.bounding_box()
        assert frame is not None and zoomed is not None
        assert frame["height"] >= SIZES[size][1] / 2
        assert zoomed["width"] == pytest.approx(1.25 * earlier.evaluate("img => img.clientWidth"), abs=1)
