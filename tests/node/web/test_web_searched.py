"""The layer of a film that shows where the network looked for what it does not report: boxes that are no findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest
from playwright.sync_api import Browser, Page, expect
from pydicom.dataset import Dataset

from node.config import ReportSettings
from node.outputs.report_json import SEARCHED_NOTE
from tests.support import films, peers
from tests.support.browsed import Browsed, tab_to
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, settings_for

Content = dict[str, object]

FILM = films.as_another(films.thumbnail(), "searched", study="searched")
LAYER, CHOICE, LEGEND = "rect.searched", "#show-searched", "#searched-legend"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node with a scripted reader, whose interface for programs tells where the network looked."""

    service: Service
    film: Dataset

    @property
    def path(self) -> str:
        return f"/studies/{self.film.StudyInstanceUID}"

    def entry(self) -> Content:
        """The film as programs get it."""
        _, study = self.service.ask("GET", f"/api/v1{self.path}")
        [film] = cast(list[Content], study["films"])
        return cast(Content, film["film"])

    def searched(self) -> dict[str, int]:
        """How many boxes programs get, by prompt."""
        told = cast(dict[str, list[dict[str, list[Content]]]], self.entry()["searched"])["prompts"]
        return {str(place["prompt"]): len(place["boxes"]) for place in told}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("searched") / "node"
    with ReceivingArchive() as archive:
        settings = settings_for(directory, archive_port=archive.port)
        settings = dataclasses.replace(settings, report=ReportSettings(searched=True))
        with Service(settings) as service:
            assert peers.send(FILM, port=service.dicom_port) == 0
            service.wait_for("study.finished")
            yield Node(service=service, film=FILM)


def reported(page: Page) -> list[str]:
    return page.locator(".impression, .findings, .below").all_inner_texts()


@pytest.mark.drill(part="pages")
def test_the_layer_is_off_until_a_key_chooses_it_and_at_every_load(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    before, boxes = reported(page), page.locator("rect.box").count()
    layer = page.locator(f"{LAYER}:visible, {LEGEND}:visible")
    expect(layer).to_have_count(0)
    expect(page.get_by_label("Where the network looked for findings it does not report")).not_to_be_checked()

    for leave in (page.reload, lambda: (page.goto(f"{seen.origin}/"), page.go_back())):
        tab_to(page.locator(CHOICE))
        page.keyboard.press("Space")
        expect(page.locator(f"{LAYER}:visible")).to_have_count(sum(node.searched().values()))
        expect(page.locator(LEGEND)).to_contain_text("no findings: where the network looked")
        assert (reported(page), page.locator("rect.box").count()) == (before, boxes)
        leave()
        page.wait_for_selector("#stage.ready")
        expect(page.locator(CHOICE)).not_to_be_checked()
        expect(layer).to_have_count(0)


@pytest.mark.drill(part="pages")
def test_a_box_of_the_layer_says_and_shows_that_it_is_no_finding(node: Node, seen: Browsed) -> None:
    page = seen.open(node.path)
    page.locator(CHOICE).check()
    box = page.locator(LAYER).first

    tab_to(box)

    name = box.get_attribute("aria-label") or ""
    assert name.startswith("not a finding: looked here for ")
    expect(page.locator(".tags .tag.searched:visible").first).to_have_text(name)
    lit = {rect.get_attribute("class") for rect in page.locator("rect.lit").all()}
    assert lit == {"searched lit"}
    assert page.locator("rect.box").first.evaluate("rect => getComputedStyle(rect).opacity") == "1"
    looks = [
        page.locator(f"rect.{kind}").first.evaluate(
            "line => { const style = getComputedStyle(line); return `${style.stroke} ${style.strokeDasharray}`; }"
        )
        for kind in ("searched", "present", "review", "square", "drawn")
    ]
    assert len(set(looks)) == len(looks)
    assert "none" not in looks[0]
    assert seen.violations() == []


@pytest.mark.drill(part="pages")
def test_the_layer_stays_hidden_without_scripts(node: Node, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"http://{peers.LOOPBACK}:{node.service.http_port}{node.path}")

    expect(page.locator(LAYER)).not_to_have_count(0)
    expect(page.locator(f"{LAYER}:visible, {CHOICE}:visible, {LEGEND}:visible")).to_have_count(0)
    context.close()


def test_programs_get_the_boxes_under_a_note(node: Node) -> None:
    entry = node.entry()

    silent = [str(found["prompt"]) for found in cast(list[Content], entry["findings"]) if found["state"] == "absent"]
    assert list(node.searched()) == silent
    assert cast(Content, entry["searched"])["note"] == SEARCHED_NOTE
    assert all(not found["boxes"] for found in cast(list[Content], entry["findings"]) if found["prompt"] in silent)


@pytest.mark.drill(part="pages")
def test_a_finding_that_a_reader_adds_leaves_the_layer(node: Node, seen: Browsed) -> None:
    page, added = seen.open(node.path), next(iter(node.searched()))
    before = page.locator(LAYER).count()
    gone = node.searched()[added]
    correction = {"id": "0" * 32, "kind": "add", "prompt": added, "box": [10, 10, 40, 40]}
    path = f"/api/v1/films/{node.film.SOPInstanceUID}/corrections"

    status, _ = node.service.ask("POST", path, correction)

    assert status == 202
    assert added not in node.searched()
    page = seen.open(node.path)
    page.locator(CHOICE).check()
    expect(page.locator(f"{LAYER}:visible")).to_have_count(before - gone)
