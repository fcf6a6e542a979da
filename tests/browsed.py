"""A page of a node in a browser that keeps a strict Content-Security-Policy, and what the page should not have done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, Route

from tests.conformance import packages
from tests.peers import LOOPBACK

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'"
SIZES: Mapping[str, tuple[int, int]] = {"wide": (1280, 800), "narrow": (390, 844)}

ASKED: dict[str, object] = {
    "id": "a" * 32,
    "asked_at": "2024-01-31T23:30:15+00:00",
    "asked_by": "",
    "source": "page",
    "sent": False,
    "prompt": "Pleural effusion",
    "box": None,
    "sentence": "The model points to a right pleural effusion.",
    "score": 0.71,
    "state": "uncalibrated",
    "positive": False,
    "reason": None,
    "boxes": [{"box": [20, 100, 90, 180], "score": 0.7}],
}
"""An entry of the answer to a question."""


@dataclass
class Browsed:
    """A page; faults: errors of the console and of scripts, broken policies, and requests to elsewhere.

    answers: what the node answers to a question: status and content; posted: the questions that were sent
    """

    page: Page
    port: int
    faults: list[str] = field(default_factory=list)
    answers: tuple[int, object] = (201, {"questions": [ASKED]})
    posted: list[tuple[Mapping[str, str], object]] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def open(self, path: str) -> Page:
        """Open a page, and wait for the film if it has one."""
        self.page.goto(f"{self.origin}{path}")
        if self.page.locator("#stage").count():
            self.page.wait_for_selector("#stage.ready")
        return self.page

    def violations(self) -> list[str]:
        """Return the serious and the critical faults that axe-core finds on the page as it is."""
        script = (packages.fetched(packages.AXE) / "axe.min.js").read_text(encoding="utf-8")
        self.page.evaluate(f"() => {{ {script} }}")
        found = self.page.evaluate("() => axe.run()")["violations"]
        return [
            f"{fault['id']}: {node['html'][:120]}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]


@contextmanager
def browsed(browser: Browser, port: int, *, size: str = "wide") -> Iterator[Browsed]:
    """Open a window on a node's pages; at its end nothing may have gone wrong in it."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    seen = Browsed(page=context.new_page(), port=port)
    _listen(seen, context)
    try:
        yield seen
        assert seen.faults == []
    finally:
        context.close()


def _listen(seen: Browsed, context: BrowserContext) -> None:
    page = seen.page
    page.on("console", lambda said: seen.faults.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: seen.faults.append(str(error)))
    context.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((f"{seen.origin}/", f"blob:{seen.origin}/"))
            else seen.faults.append(request.url)
        ),
    )
    context.route(lambda url: not url.startswith("blob:"), _with_policy)
    context.route("**/api/v1/prompts", lambda route: route.fulfill(json={"prompts": [PROMPT]}))
    context.route("**/api/v1/films/*/questions", lambda route: _answer(seen, route))
    context.route("**/api/v1/questions/*/send", lambda route: _send(seen, route))


PROMPT = {"key": "pleural_effusion", "kind": "pathology", "phrase": "Pleural effusion"}


def _with_policy(route: Route) -> None:
    """Put the policy on every page; all else is left to the node, whose stream of events never ends."""
    if route.request.resource_type != "document":
        route.fallback()
        return
    answer = route.fetch()
    route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": POLICY})


def _answer(seen: Browsed, route: Route) -> None:
    if route.request.method == "GET":
        route.fulfill(json={"questions": []})
        return
    seen.posted.append((route.request.headers, route.request.post_data_json))
    status, content = seen.answers
    route.fulfill(status=status, json=content)


def _send(seen: Browsed, route: Route) -> None:
    seen.posted.append((route.request.headers, urlsplit(route.request.url).path))
    route.fulfill(status=202, json={})
