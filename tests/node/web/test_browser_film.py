"""The page of a film in a browser: where boxes lie, asking and correcting by mouse and keys, films without a PACS."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, FilePayload, Locator, Page, Route, expect
from pydicom.dataset import Dataset

from node.config import Settings
from tests.node.jobs.test_rounds import predecessor
from tests.support import films, peers
from tests.support.archived import ArchivedNode, StartNode
from tests.support.browsed import Browsed, drag, settled, tab_to
from tests.support.service import Service

pytestmark = pytest.mark.drill(part="pages")

Rect = tuple[float, float, float, float]
"""Left, top, width and height in parts of a film's width and height."""
Content = dict[str, object]
EDGES = ("x", "y", "width", "height")
LAYER, CHOICE, LEGEND = "rect.searched", "#show-searched", "#searched-legend"
SLOW = 30_000  # milliseconds, in which a round is written on a busy machine


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with a scripted reader on which all see patients and corrections wait long, and its archive."""

    started: ArchivedNode

    @property
    def service(self) -> Service:
        return self.started.service

    def read(self, film: Dataset | None = None, *, name: str, study: str = "", **values: object) -> Dataset:
        """Have a film of a patient read, and its results sent."""
        named = {"PatientID": name, "PatientName": "Frau^Eva", "PatientBirthDate": "19900203"}
        film = films.as_another(film or films.thumbnail(), name, study=study or name)
        films.changed(film, {**named, **values})
        self.service.read(film)
        self.started.archive.wait_until(lambda: self.sent(film) != [])
        return film

    def sent(self, film: Dataset, modality: str = "") -> list[Dataset]:
        return self.started.objects(film.StudyInstanceUID, modality)

    def ask(self, film: Dataset, what: str, body: object) -> Content:
        """Ask the interface as another program does."""
        status, content = self.service.ask("POST", f"/api/v1/films/{film.SOPInstanceUID}/{what}", body)
        assert status < 300, content
        return content


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    def changed(settings: Settings) -> Settings:
        corrections = replace(settings.corrections, quiet_seconds=600.0)  # for which no test waits
        return replace(settings, corrections=corrections, http=replace(settings.http, show_patient=True))

    return Node(started=start_node(change=changed))


def opened(seen: Browsed, film: Dataset) -> Page:
    return seen.open(f"/studies/{film.StudyInstanceUID}")


def place_of(page: Page, box: str, *, within: str = "#picture") -> Rect:
    """Where a box is on the film, or within another part of the page, as the screen shows both."""
    place = page.evaluate(
        """([box, within]) => {
          const film = document.querySelector(within).getBoundingClientRect();
          const seen = document.querySelector(box).getBoundingClientRect();
          return [(seen.left - film.left) / film.width, (seen.top - film.top) / film.height,
                  seen.width / film.width, seen.height / film.height];
        }""",
        [box, within],
    )
    return cast(Rect, tuple(place))


def stored_place(page: Page, box: str, film: Dataset) -> Rect:
    """Where it is in the stored film."""
    x, y, width, height = (float(page.locator(box).first.get_attribute(name) or 0) for name in EDGES)
    return x / film.Columns, y / film.Rows, width / film.Columns, height / film.Rows


def test_boxes_stay_on_the_film_when_it_moves(node: Node, seen: Browsed) -> None:
    film = node.read(name="moved")
    page, first = opened(seen, film), "rect[data-number]"
    expected = pytest.approx(stored_place(page, first, film), abs=0.02)
    picture = page.locator("#picture")
    before = picture.bounding_box()
    assert place_of(page, first) == expected

    page.locator("#frame").hover()
    page.mouse.wheel(0, -600)
    assert place_of(page, first) == expected
    drag(page, (0.5, 0.5), (0.3, 0.4))
    page.locator("#frame").press("ArrowLeft")
    assert place_of(page, first) == expected
    after = picture.bounding_box()
    page.keyboard.press("f")

    assert before and after and after["width"] > 2 * before["width"]
    assert picture.bounding_box() == before


def test_where_the_network_looked_is_shown_by_a_key_alone_and_looks_like_no_finding(
    node: Node, seen: Browsed, browser: Browser
) -> None:
    film = node.read(name="searched")
    page = opened(seen, film)
    said = page.locator(".impression, .findings, .below")
    before, boxes = said.all_inner_texts(), page.locator("rect.box").count()
    layer = page.locator(f"{LAYER}:visible, {LEGEND}:visible")
    for _ in range(2):
        expect(layer).to_have_count(0)
        tab_to(page.locator(CHOICE))
        page.keyboard.press("Space")
        expect(page.locator(f"{LAYER}:visible")).to_have_count(page.locator(LAYER).count())
        expect(page.locator(LEGEND)).to_contain_text("no findings: where the network looked")
        assert (said.all_inner_texts(), page.locator("rect.box").count()) == (before, boxes)
        opened(seen, film)
    page.locator(CHOICE).check()
    box = page.locator(LAYER).first
    tab_to(box)
    name = box.get_attribute("aria-label") or ""
    assert name.startswith("not a finding: looked here for ")
    expect(page.locator(".tags .tag.searched:visible").first).to_have_text(name)
    kinds = ("present", "review", "square", "drawn", "searched")
    style = "line => { const style = getComputedStyle(line); return [style.stroke, style.strokeDasharray]; }"
    lines = [page.locator(f"rect.{kind}").first.evaluate(style) for kind in kinds]
    assert len({str(line) for line in lines}) == len(kinds), "each kind of box looks like no other"
    assert [dashes == "none" for _, dashes in lines] == [True, False, False, False, False]
    assert all(text.endswith("?") for text in page.locator("i.tag.review").all_inner_texts())

    without_scripts = browser.new_context(java_script_enabled=False)
    page = without_scripts.new_page()
    page.goto(f"{seen.origin}/studies/{film.StudyInstanceUID}")
    expect(page.locator(LAYER)).not_to_have_count(0)
    expect(page.locator(f"{LAYER}:visible, {CHOICE}:visible, {LEGEND}:visible")).to_have_count(0)
    without_scripts.close()


def test_films_are_leafed_in_the_order_of_their_series(node: Node, seen: Browsed) -> None:
    of_pair: dict[str, Any] = {"study": "pair", "SeriesNumber": 1}
    second = node.read(name="came first", InstanceNumber=2, **of_pair)
    first = node.read(films.lateral(), name="came last", InstanceNumber=1, **of_pair)
    page = opened(seen, first)
    links = page.locator(".strip a")
    shown = [str(link.get_attribute("href")).rpartition("=")[2] for link in links.all()]
    assert shown == [str(film.SOPInstanceUID) for film in (first, second)]
    expect(links.nth(0)).to_have_attribute("aria-current", "page")
    expect(page.locator("section.impression")).to_contain_text("Not processed: it is a lateral view")
    page.keyboard.press("b")
    assert not page.locator("#drawn").is_visible() and not page.locator("#ask").is_visible()
    page.keyboard.press("]")
    expect(links.nth(1)).to_have_attribute("aria-current", "page")
    expect(page.locator("#ask")).to_be_visible()


def test_the_earlier_film_stands_beside_by_a_key_and_is_zoomed_with_the_film(node: Node, seen: Browsed) -> None:
    def taken(name: str, day: str) -> Dataset:
        dates: dict[str, Any] = {f"{of}Date": day for of in ("Study", "Acquisition", "Content")}
        return node.read(name=name, PatientID="P-1", **dates)

    earlier, later = taken("earlier", "20260101"), taken("later", "20260301")
    page = opened(seen, later)
    beside, image = page.locator("#earlier"), page.locator("#earlier img")
    expect(beside).to_be_hidden()
    page.keyboard.press("e")
    expect(beside).to_contain_text("Earlier film, 2026-01-01 00:00: Frau, Eva, born 1990-02-03")
    assert f"/films/{earlier.SOPInstanceUID}/" in str(image.get_attribute("src"))
    expect(image).not_to_have_js_property("naturalWidth", 0)
    page.locator('[data-do="in"]').click()
    zoomed = image.evaluate("img => img.getBoundingClientRect().width / img.clientWidth")
    assert zoomed == pytest.approx(1.25, abs=0.01)
    page.keyboard.press("e")
    expect(beside).to_be_hidden()
    opened(seen, earlier)
    assert page.locator("#earlier").count() == 0


def look(seen: Browsed, name: str, content: bytes) -> Page:
    """Choose a file by keys, and wait for the page that shows it."""
    page = seen.page
    page.on("filechooser", lambda _: None)  # Playwright does not wait until the browser hands choosers to it
    seen.open("/upload")
    tab_to(page.locator("#file"))
    with page.expect_file_chooser() as choosing:
        page.keyboard.press("Enter")
    choosing.value.set_files([FilePayload(name=name, mimeType="", buffer=content)])
    page.wait_for_url("**/upload/*", timeout=30_000)
    page.wait_for_selector("#stage.ready")
    return page


def test_a_file_is_drawn_by_its_shape_and_asked_about_and_nothing_of_it_is_kept(node: Node, seen: Browsed) -> None:
    content = BytesIO()
    Image.fromarray(np.tile(np.linspace(0, 255, 300, dtype=np.uint8), (200, 1))).save(content, format="PNG")
    page = look(seen, "film.png", content.getvalue())
    assert page.locator("#boxes").get_attribute("viewBox") == "0 0 300 200"
    assert page.locator("#reading").inner_text() == "C 128  W 255"
    page.locator("#frame").press("Shift+ArrowDown")
    assert page.locator("#reading").inner_text() != "C 128  W 255"
    assert "url" in page.locator("#picture").evaluate("image => image.style.filter"), "its gray values change here"
    assert page.locator("[data-correct]").count() == page.locator("#results").count() == 0
    type_in(page, "Edema")
    expect(page.locator("#answers li")).to_contain_text("not kept")
    expect(page.locator("rect.asked").first).to_be_visible()

    not_square = {"PixelAspectRatio": ["2", "1"], "PixelSpacing": None, "ImagerPixelSpacing": None}
    film, first = films.thumbnail(not_square), "#found rect[data-number]"
    page = look(seen, "film.dcm", films.file_bytes(film))
    shape = page.locator("#picture").evaluate("film => film.clientHeight / film.clientWidth")
    assert shape == pytest.approx(2 * film.Rows / film.Columns, rel=0.01)
    assert place_of(page, first) == pytest.approx(stored_place(page, first, film), abs=0.02)

    seen.open("/upload")
    page.set_input_files("#file", FilePayload(name="notes.txt", mimeType="text/plain", buffer=b"no film"))
    expect(page.locator("#upload-alert")).to_contain_text("notes.txt: ")
    expect(page.locator("#upload-alert")).to_contain_text("Choose a frontal chest X-ray as DICOM, PNG or JPEG.")
    seen.forgive(422)


def type_in(page: Page, text: str) -> None:
    """Type a question by keys alone."""
    page.locator("#frame").focus()
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def tracked(page: Page, kind: str) -> set[str]:
    """The tracking UIDs of the boxes of a kind."""
    return set(page.locator(f"#found rect{kind}").evaluate_all("rects => rects.map(rect => rect.dataset.tracking)"))


def test_a_prompt_or_a_box_is_asked_by_keys_and_the_answer_stays_and_is_sent(node: Node, seen: Browsed) -> None:
    film = node.read(name="prompted")
    page = opened(seen, film)
    for phrase in ("Edema", "Left pleural effusion"):
        expect(page.locator(f'#prompts option[value="{phrase}"]')).to_have_count(1)
    with page.expect_request("**/replies") as sent:
        type_in(page, "Edema")
    answers, state = page.locator("#answers li"), page.locator("#ask-state")
    expect(answers).to_contain_text("It is seen here.", timeout=SLOW)
    expect(answers).to_contain_text("Present")
    expect(page.locator("rect.asked").first).to_be_visible()
    expect(state).to_contain_text("Answer: Q1 Edema")
    assert sent.value.post_data_json == {"text": "Edema", "box": None}
    assert page.locator("#prompt").input_value() == ""
    page.get_by_role("button", name="Send to PACS").click()
    is_sent = page.get_by_role("button", name="Sent to PACS")
    expect(is_sent).to_be_disabled()
    node.started.archive.wait_until(lambda: len(node.sent(film, "PR")) == 2)
    opened(seen, film)
    expect(is_sent).to_be_disabled()

    page.locator("#frame").focus()
    page.keyboard.press("b")
    expect(state).to_contain_text("Box: columns")
    before = state.inner_text()
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowDown", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    expect(state).not_to_have_text(before)
    with page.expect_request("**/replies") as sent:
        page.keyboard.press("Enter")
    expect(page.locator("#reply .text")).to_contain_text("in the drawn box", timeout=SLOW)
    assert len(cast(list[float], cast(Content, sent.value.post_data_json)["box"])) == 4
    expect(page.locator("#drawn")).to_be_hidden()


def keys_of(page: Page, boxes: str) -> list[str]:
    """To which findings boxes belong."""
    return cast(list[str], page.locator(boxes).evaluate_all("rects => rects.map(rect => rect.dataset.key)"))


def test_words_are_answered_above_the_field_and_light_their_boxes_as_each_finding_does(
    node: Node, seen: Browsed
) -> None:
    film = node.read(name="in words")
    page = opened(seen, film)
    said = node.ask(film, "replies", {"text": "right base?"})
    expected = set(cast(list[str], said["boxes"]))
    type_in(page, "right base?")
    expect(page.locator("#reply .text")).to_have_text(str(said["text"]), timeout=SLOW)
    expect(page.locator("#reply")).to_have_attribute("aria-live", "polite")
    expect(page.locator("#ask-state")).to_have_text("Answered from the report, in standard wording.")
    expect(page.locator("#prompt")).to_be_focused()
    assert tracked(page, ".lit") == set()
    page.locator("#reply .close").focus()
    page.keyboard.press("Tab")
    expect(page.locator("#reply .text")).to_be_focused()
    assert tracked(page, ".lit") == expected < tracked(page, "[data-tracking]")
    page.locator("#reply .close").click()
    expect(page.locator("#reply")).to_be_empty()
    assert tracked(page, "[data-also]") == tracked(page, ".lit") == set()

    lit, boxes = dict[str, list[str]](), keys_of(page, "#found rect[data-key]")
    for finding in page.locator(".finding").all():
        finding.hover()
        lit[str(finding.get_attribute("data-key"))] = keys_of(page, "rect.lit")
    assert lit == {key: [key] * boxes.count(key) for key in lit}
    assert set(boxes) <= set(lit) and len(set(boxes)) > 1


def test_another_earlier_film_is_chosen_to_compare_with(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read(name="compared"))
    films_known = [{"film": f"1.2.{day}", "study": f"1.{day}", "at": f"2026-11-0{day} 09:30"} for day in (1, 3)]
    said = {"boxes": [], "findings": [], "questions": [], "corrections": [], "changes": [], "earlier": films_known}
    sent: list[Content] = []

    def compare(route: Route) -> None:
        sent.append(cast(Content, route.request.post_data_json))
        film = sent[-1].get("earlier", "1.2.3")
        study = next(known["study"] for known in films_known if known["film"] == film)
        route.fulfill(json={**said, "text": f"Compared with {film}.", "compared_with": film, "compared_study": study})

    page.route(re.compile("/replies$"), compare)
    type_in(page, "what changed?")
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


def edges(rect: Locator) -> Rect:
    x, y, width, height = (float(rect.get_attribute(name) or 0) for name in EDGES)
    return x, y, x + width, y + height


def test_corrections_wait_until_a_reader_finishes_without_a_mouse(node: Node, seen: Browsed) -> None:
    film = node.read(name="finished")
    page, version = opened(seen, film), seen.page.locator("#version")
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
    expect(version).to_contain_text("1 correction waits; the report is sent in ", timeout=SLOW)

    tab_to(page.locator('[data-correct="reword"]').first)
    page.keyboard.press("Enter")
    field = page.locator("form.inline textarea")
    expect(field).to_be_focused()
    assert field.input_value() == page.locator(".correct").first.get_attribute("data-text")
    page.keyboard.press("Control+A")
    page.keyboard.type("Discuss this with the ward.")
    assert corrected(page, "Enter")["text"] == "Discuss this with the ward."
    expect(first).to_contain_text("Discuss this with the ward. (written by a reader)")
    expect(version).to_contain_text("2 corrections wait; the report is sent in ", timeout=SLOW)
    assert len(node.sent(film, "SR")) == 1

    page.locator("#frame").focus()
    page.keyboard.press("s")
    expect(version).to_contain_text("Written.", timeout=SLOW)
    node.started.archive.wait_until(lambda: len(node.sent(film, "SR")) == 2)
    old, new = node.sent(film, "SR")
    assert predecessor(new) == old.SOPInstanceUID
    expect(page.locator("#changed")).to_be_hidden()
    expect(worklist.locator("td.impression")).to_contain_text("confirmed by a reader", timeout=SLOW)


def test_a_rejection_is_asked_for_and_taken_back_and_sends_no_report(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read(name="rejected"))
    last, findings = page.locator(".correct").last, page.locator(".finding")
    name, prompt, count = last.get_attribute("data-name"), last.get_attribute("data-prompt"), findings.count()
    rejecting = last.locator('[data-correct="reject"]')
    rejecting.focus()
    page.keyboard.press("Enter")
    expect(page.locator("form.inline")).to_contain_text(f"Reject: {name}?")
    page.keyboard.press("Escape")
    expect(rejecting).to_be_focused()
    page.keyboard.press("Enter")
    sent = corrected(page, "Enter")
    assert (sent["kind"], sent["prompt"]) == ("reject", prompt)
    expect(findings).to_have_count(count - 1)
    expect(page.get_by_role("region", name="Rejected by a reader")).to_be_visible()
    expect(page.get_by_role("button", name="Take back: Rejected")).to_be_focused()
    assert corrected(page, "Enter")["withdraws"] == sent["id"]
    expect(findings).to_have_count(count)
    expect(page.locator("#version")).to_contain_text("All was taken back: no new report is sent.", timeout=SLOW)
    expect(page.locator("#version [data-finish]")).to_have_count(0)


def test_a_page_from_before_a_correction_is_not_shown_after_it(node: Node, seen: Browsed) -> None:
    page = opened(seen, node.read(name="overtaken"))
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
    film = node.read(name="dragged")
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
    assert (sent["kind"], sent["box"]) == ("move", pytest.approx(expected, abs=0.5))
    expect(page.locator(".finding", has_text="box drawn by a reader")).to_have_count(1)
    boxes = page.locator("#found rect[data-tracking]").all()
    assert any(edges(box) == pytest.approx(sent["box"], abs=0.01) for box in boxes)


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
    page = opened(seen, node.read(name=begin.__name__))
    prompt = begin(page)
    drag(page, (0.3, 0.1), (0.4, 0.25))
    sent = corrected(page, page.locator("#editing .save"))
    assert (sent["kind"], sent["prompt"]) == ("add", prompt)
    finding = page.locator(".finding", has_text=said)
    expect(finding).to_have_count(1)
    assert bool(re.search(r"AI \d+\s%", finding.inner_text())) is (begin is reported)
    drawn = page.locator(f'#found rect[data-key="{finding.get_attribute("data-key")}"]').all()
    assert any(edges(box) == pytest.approx(sent["box"], abs=0.01) for box in drawn)


def test_a_correction_that_is_refused_says_why_and_keeps_its_box(node: Node, seen: Browsed) -> None:
    film = node.read(name="refused")
    page = opened(seen, film)
    finding = page.locator(".correct").first
    finding.locator('[data-correct="move"]').first.click()
    node.ask(film, "corrections", {"kind": "reject", "prompt": finding.get_attribute("data-prompt")})
    page.locator("#editing .save").click()

    expect(page.locator("#editing .alert")).to_have_text("this finding has no such box now; load the film again")
    expect(page.locator("#drawn")).to_be_visible()
    seen.forgive(409)
