"""The pages of a running node in a browser: the worklist, a film with its boxes, its window, and questions about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import BytesIO
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from playwright.sync_api import Page, Route, expect
from pydicom.dataset import Dataset

from tests.support import films
from tests.support.archived import StartNode
from tests.support.browsed import Browsed, drag
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that has read a study of one film, and another whose second film it does not read."""

    service: Service
    alone: Dataset
    pair: tuple[Dataset, Dataset]

    @property
    def path(self) -> str:
        return f"/studies/{self.alone.StudyInstanceUID}"


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    alone = films.as_another(films.thumbnail(), "alone", study="alone")
    pair = (films.as_another(films.thumbnail(), "frontal", study="pair"), films.as_another(films.lateral(), "lateral"))
    pair[1].StudyInstanceUID = pair[0].StudyInstanceUID
    started = start_node()
    started.service.read(alone)
    started.service.read(*pair)
    started.archive.wait_for_kept(5)
    return Node(service=started.service, alone=alone, pair=pair)


def rect_of(page: Page, index: int = 0) -> tuple[float, ...]:
    """The first lines of a box in parts of the film's width and height, as the screen shows them."""
    return cast(
        tuple[float, ...],
        tuple(
            page.evaluate(
                """index => {
                  const film = document.getElementById("picture").getBoundingClientRect();
                  const box = document.querySelectorAll("rect[data-number]")[index].getBoundingClientRect();
                  return [(box.left - film.left) / film.width, (box.top - film.top) / film.height,
                          box.width / film.width, box.height / film.height];
                }""",
                index,
            )
        ),
    )


def film_shown(page: Page) -> npt.NDArray[np.float64]:
    """The film as the screen shows it, without boxes."""
    picture = Image.open(BytesIO(page.locator("#picture").screenshot())).convert("L")
    return np.asarray(picture, dtype=np.float64)


def test_keys_lead_from_the_worklist_to_a_film_and_back(node: Node, seen: Browsed) -> None:
    page = seen.open("/")
    newest, oldest = page.locator("a.open").all()

    page.keyboard.press("j")
    expect(newest).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(oldest).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{node.path}")
    page.wait_for_selector("#stage.ready")
    page.keyboard.press("u")
    page.wait_for_url(f"{seen.origin}/")
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type(str(node.alone.StudyInstanceUID)[-8:])
    page.keyboard.press("Enter")

    expect(page.locator("tr[data-uid]")).to_have_count(1)
    expect(page.locator("#live")).to_have_text("Live")
    assert seen.violations() == []
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()


def test_a_finding_and_its_boxes_light_up_together(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    lit = page.locator("rect.lit")

    keys = [box.get_attribute("data-key") or "" for box in page.locator('rect[data-key^="f"]').all()]
    several = next(key for key in keys if keys.count(key) == 2)
    other = next(key for key in keys if key != several)

    page.locator(".finding").nth(int(several.removeprefix("f")) - 1).hover()
    assert [box.get_attribute("data-key") for box in lit.all()] == [several] * 2
    page.locator(f'rect[data-key="{other}"]').first.focus()
    page.mouse.move(5, 5)

    expect(page.locator(".finding.lit")).to_have_count(1)
    expect(page.locator(".finding").nth(int(other.removeprefix("f")) - 1)).to_have_class(re.compile("lit"))
    expect(lit).to_have_count(keys.count(other))


def test_states_differ_in_line_color_and_mark(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    present, review = (page.locator(f"rect.{state}").first for state in ("present", "review"))
    square = page.locator("rect.square")
    looks = [
        line.evaluate("line => [getComputedStyle(line).stroke, getComputedStyle(line).strokeDasharray]")
        for line in (present, review, square)
    ]

    assert looks[0] == ["rgb(255, 96, 64)", "none"]
    assert looks[1][0] == "rgb(255, 208, 64)"
    assert looks[2][0] == "rgb(80, 200, 255)"
    assert "none" not in (looks[1][1], looks[2][1])
    marks = page.locator("i.tag.review").all_inner_texts()
    assert marks and all(text.endswith("?") for text in marks)
    assert page.locator("i.tag.present").first.inner_text() == "1"


def test_boxes_stay_on_the_film_when_it_moves(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    box = page.locator("rect[data-number]").first
    x, y, width, height = (float(box.get_attribute(name) or 0) for name in ("x", "y", "width", "height"))
    columns, rows = int(node.alone.Columns), int(node.alone.Rows)
    expected = pytest.approx((x / columns, y / rows, width / columns, height / rows), abs=0.02)
    before = page.locator("#picture").bounding_box()
    assert rect_of(page) == expected

    page.locator("#frame").hover()
    page.mouse.wheel(0, -600)
    assert rect_of(page) == expected
    drag(page, (0.5, 0.5), (0.3, 0.4))
    page.locator("#frame").press("ArrowLeft")
    assert rect_of(page) == expected
    after = page.locator("#picture").bounding_box()
    page.keyboard.press("f")

    assert before and after and after["width"] > 2 * before["width"]
    assert page.locator("#picture").bounding_box() == before
    assert rect_of(page) == expected


def test_dragging_shows_the_window_before_the_node_does(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    page.keyboard.press("h")
    original, reading = film_shown(page), page.locator("#reading").inner_text()
    held: list[Route] = []
    page.route(re.compile("/picture[?]center="), lambda route: held.append(route))

    drag(page, (0.5, 0.5), (0.4, 0.6), button="right")
    page.wait_for_timeout(1000)
    preview = film_shown(page)
    address = page.locator("#picture").get_attribute("src")
    held[-1].continue_()
    expect(page.locator("#picture")).not_to_have_attribute("src", address or "")
    real = film_shown(page)

    assert page.locator("#reading").inner_text() != reading
    assert np.abs(real - original).mean() > 5
    inside = (original > 8) & (original < 247)  # the preview knows no values beyond the window that was shown
    assert np.abs(real - preview)[inside].mean() < 3


def test_inverting_twice_shows_the_first_picture(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    page.keyboard.press("h")
    original = film_shown(page)
    inverting = page.locator('[data-do="invert"]')

    with page.expect_response("**/picture?invert=true"):
        page.keyboard.press("i")
    expect(inverting).to_have_attribute("aria-pressed", "true")
    page.wait_for_timeout(200)
    inverted = film_shown(page)
    page.keyboard.press("i")
    page.wait_for_timeout(500)
    assert np.abs(inverted - (255 - original)).mean() < 6
    assert np.abs(film_shown(page) - original).mean() < 1
    reading = page.locator("#reading")
    before = reading.inner_text()
    page.locator("#frame").press("Shift+ArrowDown")
    expect(reading).not_to_have_text(before)
    page.keyboard.press("0")
    expect(reading).to_have_text(before)


def test_a_film_that_was_not_read_says_why(node: Node, seen: Browsed) -> None:
    page = seen.open(f"/studies/{node.pair[0].StudyInstanceUID}")
    expect(page.locator(".strip a")).to_have_count(2)

    page.keyboard.press("]")

    expect(page.locator("section.impression")).to_contain_text("Not processed: it is a lateral view")
    expect(page.locator(".strip a").nth(1)).to_have_attribute("aria-current", "page")
    page.keyboard.press("b")
    assert not page.locator("#drawn").is_visible() and not page.locator("#ask").is_visible()
    assert page.locator(".research").inner_text() == "AI RESEARCH - NOT FOR DIAGNOSIS"


def test_the_policy_of_these_tests_is_kept_by_the_browser(node: Node, seen: Browsed) -> None:
    page = seen.open("/")

    page.evaluate("document.head.append(Object.assign(document.createElement('style'), {textContent: 'p { top: 0 }'}))")
    page.wait_for_timeout(100)

    assert ["style-src" in fault for fault in seen.faults] == [True]
    seen.faults.clear()


def test_a_refused_question_says_why(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    page.locator(".go").click()
    expect(page.locator("#ask-alert")).to_contain_text("type a finding or a question, or draw a box")

    page.fill("#prompt", "Pleural effusion")
    page.evaluate(
        """async path => {
          const token = document.querySelector('meta[name="csrf-token"]').content;
          const init = {method: "POST", headers: {"Content-Type": "application/json", "X-CSRF-Token": token},
                        body: JSON.stringify({questions: [{box: [0, 0, 1e5, 9]}]})};
          const alert = document.querySelector("#ask-alert");
          for (let round = 0; round < 10 && !alert.textContent.includes("too many"); round++) {
            await Promise.all(Array.from({length: 60}, () => fetch(path, init)));
            document.querySelector("#prompt").value = "Pleural effusion";
            document.querySelector(".go").click();  // before a token comes back, unless the machine is busy
            await new Promise((done) => setTimeout(done, 500));
          }
        }""",
        f"/api/v1/films/{node.alone.SOPInstanceUID}/questions",
    )

    expect(page.locator("#ask-alert")).to_contain_text("too many questions from here; ask again in")
    assert page.locator("#prompt").input_value() == "Pleural effusion"
    seen.forgive(409)
    seen.forgive(429)
