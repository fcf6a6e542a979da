"""dwv: a page that shows one film with one structured report, as dwv's own viewer does when both are opened."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from playwright.sync_api import Browser
from pydicom.dataset import Dataset

from tests.drills.conformance import packages
from tests.drills.conformance.browser import settled
from tests.drills.conformance.site import site
from tests.support import films

_SIZE: Final = 900
_MODULES: Final = {"konva": "Konva", "jszip": "JSZip", "magic-wand-tool": "MagicWand"}
"""What dwv imports, and the names under which classic scripts offer it; the last one serves a tool that is not used."""

_PAGE: Final = """<!doctype html>
<html><head><meta charset="utf-8"><link rel="icon" href="data:,">
<style>
  body { margin: 0; background: #000; }
  #layerGroup0 { position: relative; width: 900px; height: 900px; }
  .layer { position: absolute; }
</style>
<script src="/konva/konva.min.js"></script>
<script src="/jszip/dist/jszip.min.js"></script>
<script type="importmap">
  {"imports": {"konva": "/konva.mjs", "jszip": "/jszip.mjs", "magic-wand-tool": "/magic-wand-tool.mjs"}}
</script></head>
<body><div id="layerGroup0"></div>
<script type="module">
  import { App, AppOptions, ViewConfig } from "/dwv/dist/dwv.min.js";
  const app = new App();
  const options = new AppOptions({ "*": [new ViewConfig("layerGroup0")] });
  options.tools = { Draw: { options: ["Rectangle", "Roi"] } };
  app.init(options);
  const waiting = new URLSearchParams(location.search).getAll("url");
  window.errors = [];
  app.addEventListener("error", event => window.errors.push(String(event.error)));
  app.addEventListener("loadend", () => next());
  const next = () => { waiting.length ? app.loadURLs([waiting.shift()]) : (window.finished = true); };
  next();
</script></body></html>
"""
_TEXTS: Final = """() => Konva.stages.flatMap(stage => stage.find("Text"))
    .filter(text => text.isVisible()).map(text => text.text()).filter(text => text.trim())"""


def show(browser: Browser, film: Dataset, report: Dataset | None) -> tuple[bytes, list[str], list[str]]:
    """Show a film, with a report or without. Returns the picture as PNG, the labels, and what went wrong."""
    shown = [films.file_bytes(dataset) for dataset in (film, report) if dataset is not None]
    objects = {f"/{number}.dcm": content for number, content in enumerate(shown)}
    modules = {f"/{name}.mjs": f"export default globalThis.{global_};" for name, global_ in _MODULES.items()}
    places = {"/dwv": packages.DWV, "/konva": packages.KONVA, "/jszip": packages.JSZIP}
    served = {path: packages.fetched(package) for path, package in places.items()}
    with site(served, pages={"/": _PAGE, **modules, **objects}) as address:
        page = browser.new_page(viewport={"width": _SIZE, "height": _SIZE})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        query = urlencode([("url", f"/{number}.dcm") for number in range(len(shown))])
        page.goto(f"{address}/?{query}")
        png = settled(
            page, page.screenshot, ready=lambda: bool(page.evaluate("window.finished || window.errors.length"))
        )
        wrong += page.evaluate("window.errors")
        labels = page.evaluate(_TEXTS)
        page.close()
    return png, labels, wrong
