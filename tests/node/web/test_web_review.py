"""The films that a person should look at first: which, in which order, why, and when one leaves the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
from playwright.sync_api import expect
from pydicom.dataset import Dataset

from tests.support import films
from tests.support.archived import StartNode
from tests.support.browsed import Browsed
from tests.support.service import Service

Content = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node that has read two studies, each of one film, in the order in which they came."""

    service: Service
    first: Dataset
    second: Dataset

    def ask(self, method: str, path: str, body: Content | None = None) -> tuple[int, Content]:
        return self.service.ask(method, path, body)

    def queue(self, query: str = "") -> Content:
        status, said = self.ask("GET", f"/api/v1/review{query}")
        assert status == 200
        return said

    def films(self) -> list[Content]:
        return cast(list[Content], self.queue()["films"])


@pytest.fixture(scope="module")
def node(start_node: StartNode) -> Node:
    first, second = (films.as_another(films.thumbnail(), name, study=name) for name in ("first", "second"))
    service = start_node().service
    service.read(first)
    service.read(second)
    return Node(service=service, first=first, second=second)


@pytest.mark.drill(part="objects")
def test_uncertain_findings_are_listed_with_their_reasons(node: Node) -> None:
    film, other = node.films()

    assert [film["film"], other["film"]] == [node.first.SOPInstanceUID, node.second.SOPInstanceUID]
    findings = cast(list[Content], film["findings"])
    _, study = node.ask("GET", f"/api/v1/studies/{node.first.StudyInstanceUID}")
    (read,) = cast(list[dict[str, Content]], study["films"])
    states = {str(item["prompt"]): item["state"] for item in cast(list[Content], read["film"]["findings"])}
    uncertain = {prompt for prompt, state in states.items() if state == "indeterminate"}
    assert {str(item["prompt"]) for item in findings} == uncertain
    assert all(item["reasons"] for item in findings)
    assert node.queue()["total"] == 2
    part = node.queue("?limit=1")
    assert (len(cast(list[Content], part["films"])), part["total"]) == (1, 2)


@pytest.mark.drill(part="pages")
def test_the_page_leads_to_the_film_by_keys(node: Node, seen: Browsed) -> None:
    page = seen.open("/")
    page.get_by_role("link", name="To review").click()
    expect(page.locator("h1")).to_have_text("To review")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.wait_for_load_state()  # a module runs before that

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")

    page.wait_for_selector("#stage.ready")
    path = f"/studies/{node.second.StudyInstanceUID}?film={node.second.SOPInstanceUID}"
    assert page.url == f"{seen.origin}{path}"


@pytest.mark.drill(part="pages")
def test_each_film_of_the_list_is_seen_small(node: Node, seen: Browsed) -> None:
    page = seen.open("/review")

    pictures = page.locator("td.thumbnail img")

    expect(pictures).to_have_count(2)
    for image in pictures.all():
        expect(image).not_to_have_js_property("naturalWidth", 0)
    assert all(
        image.evaluate("image => Math.max(image.naturalWidth, image.naturalHeight)") == 96 for image in pictures.all()
    )
    assert seen.violations() == []


@pytest.mark.drill(part="pages")
def test_one_goes_from_film_to_film_by_a_key(node: Node, seen: Browsed) -> None:
    page = seen.open(f"/studies/{node.first.StudyInstanceUID}")
    expect(page.locator('[data-part="mark"]')).to_have_text("This film: to review.")

    for film in (node.second, node.first):
        page.keyboard.press("n")
        expect(page.locator("#results")).to_have_attribute("data-study", str(film.StudyInstanceUID))
        expect(page.locator("#frame")).to_have_attribute(
            "data-path", f"/api/v1/studies/{film.StudyInstanceUID}/films/{film.SOPInstanceUID}"
        )
        page.wait_for_selector("#stage.ready")


@pytest.mark.drill(part="pages")
def test_a_film_leaves_when_a_reader_has_judged_each_finding(node: Node, seen: Browsed) -> None:
    path = f"/api/v1/films/{node.first.SOPInstanceUID}/corrections"
    prompts = [str(item["prompt"]) for item in cast(list[Content], node.films()[0]["findings"])]

    for left, prompt in enumerate(reversed(prompts)):
        assert len(node.films()) == 2, left
        assert node.ask("POST", path, {"kind": "reject" if left % 2 else "accept", "prompt": prompt})[0] == 202

    assert [film["film"] for film in node.films()] == [node.second.SOPInstanceUID]
    page = seen.open("/review")
    expect(page.locator("tbody tr:not(.finished)")).to_have_count(1)
    seen.open(f"/studies/{node.first.StudyInstanceUID}")
    expect(page.locator('[data-part="mark"]')).to_have_text("This film: ✓ finished.")
