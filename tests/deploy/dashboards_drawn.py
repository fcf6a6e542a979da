"""Runnable: draws the dashboards with what a node under load tells a real Prometheus, by components of Grafana.

    python -m tests.deploy.dashboards_drawn [--out docs/pictures] [--seconds 120]

Grafana itself cannot be had as a package. `@grafana/ui` on npm has the components of its panels: they are bundled into
`.venv/npm-panels` with `tests/deploy/panels/draw.jsx`, which puts the panels of a dashboard's JSON in their places.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

from PIL import Image
from playwright.sync_api import Browser, Route

from node.config import ModelSettings, OrdersSettings
from tests.deploy.expressions import Json, Query, dashboards
from tests.drills.conformance.browser import chromium, settled
from tests.drills.soak import CALLER, Callers
from tests.paths import REPOSITORY
from tests.support import peers
from tests.support.prometheus import Prometheus, run_prometheus
from tests.support.service import Service, settings_for

PANELS: Final = Path(__file__).parent / "panels"
FOLDER: Final = REPOSITORY / ".venv" / "npm-panels"
_LOADERS: Final = ("--loader:.svg=text", "--loader:.ttf=empty", "--loader:.woff2=empty")
_DEFINED: Final = ("--define:global=window", '--define:process.env.NODE_ENV="production"')
_BUNDLED: Final = ("--bundle", "--minify", "--jsx=automatic", *_LOADERS, *_DEFINED, "--log-level=error")
_ADDRESS: Final = "http://dashboards.test/"
_WIDTH: Final = 1576
_SHOWN: Final = 0.7
"""The part of its size at which a picture is kept."""
_POINTS: Final = 120
_AWAY: Final = (0.5, 0.7)
"""The part of the time in which the archive is down."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.deploy.dashboards_drawn", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--seconds", type=float, default=120.0, help="of load before the pictures")
    arguments = parser.parse_args()
    script = bundle()
    with TemporaryDirectory() as folder, watched(Path(folder), seconds=arguments.seconds) as (prometheus, began):
        for path in draw(prometheus, script, arguments.out, began=began):
            sys.stdout.write(f"{path}: {path.stat().st_size // 1024} KiB\n")
    return 0


def bundle() -> Path:
    """Fetch the components at the versions of the lock file and bundle them; the script for the browser."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PANELS / name, FOLDER)
    npm = [peers.require("npm"), "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
    if not (FOLDER / "node_modules" / "@grafana" / "ui").is_dir():
        subprocess.run(npm, cwd=FOLDER, check=True, timeout=900)
    source = shutil.copy(PANELS / "draw.jsx", FOLDER)  # beside what it imports
    command = [FOLDER / "node_modules" / ".bin" / "esbuild", source, f"--outfile={FOLDER / 'draw.js'}", *_BUNDLED]
    subprocess.run(command, check=True, timeout=300)
    return FOLDER / "draw.js"


@contextmanager
def watched(folder: Path, *, seconds: float) -> Iterator[tuple[Prometheus, float]]:
    """Put a node with the shipped model under load for a while, its archive down for a part of it.

    Yields Prometheus, and when the load began.
    """
    model = ModelSettings(directory=REPOSITORY / "models" / "weights" / "phantom")
    with peers.ReceivingArchive() as archive:
        settings = settings_for(
            folder / "node", archive_port=archive.port, callers=(CALLER,), min_free_mib=10, model=model
        )
        settings = replace(settings, orders=OrdersSettings(port=0, hosts=(peers.LOOPBACK,)))
        with Service(settings, scripted=False) as node, run_prometheus(folder, node=[node.http_port]) as prometheus:
            began = time.time()
            with Callers(port=node.dicom_port, count=3, seed=1):
                _sleep_until(began + _AWAY[0] * seconds)
                with archive.down():
                    _sleep_until(began + _AWAY[1] * seconds)
                _sleep_until(began + seconds)
            yield prometheus, began


def draw(prometheus: Prometheus, script: Path, out: Path, *, began: float) -> Iterator[Path]:
    """Draw each dashboard from what Prometheus knows; the pictures. Raises AssertionError if the script failed."""
    end = time.time()
    out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, dashboard in dashboards().items():
            panels = cast(list[Json], dashboard["panels"])
            answers = [_answer(prometheus, panel, began=began, end=end) for panel in panels]
            told = {"dashboard": dashboard, "answers": answers, "from": 1000 * began, "to": 1000 * end}
            picture = _painted(browser, script, told)
            path = out / f"dashboard-{name.removeprefix('chex-').removesuffix('.json')}.jpg"
            image = Image.open(BytesIO(picture)).convert("RGB")
            image.resize((round(_SHOWN * image.width), round(_SHOWN * image.height))).save(path, quality=75)
            yield path


def _painted(browser: Browser, script: Path, told: Json) -> bytes:
    """Take a picture of a dashboard; told: its file, the answers to its panels, and from when to when."""
    page, faults = browser.new_page(viewport={"width": _WIDTH, "height": 900}), list[str]()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.route("**/*", _answer_the_page_alone)
    page.goto(_ADDRESS)
    page.add_style_tag(path=script.with_suffix(".css"))
    page.add_script_tag(path=script)
    page.evaluate("told => window.drawn(told)", told)
    page.wait_for_selector(".panel")
    picture = settled(page, lambda: page.screenshot(full_page=True), ready=lambda: True)
    page.close()
    assert not faults, faults
    return picture


def _answer_the_page_alone(route: Route) -> None:
    """Answer the page that the dashboard is drawn on; Grafana's fonts, which are not there, are not found."""
    if route.request.url == _ADDRESS:
        route.fulfill(content_type="text/html", body="<!doctype html><meta charset=utf-8><div id=dashboard></div>")
    else:
        route.fulfill(status=404)


def _answer(prometheus: Prometheus, panel: Json, *, began: float, end: float) -> list[Json]:
    """The series of a panel, each with the name that its legend gives it, and times in milliseconds."""
    found: list[Json] = []
    for target in cast(list[dict[str, object]], panel.get("targets", [])):
        query = Query(place=str(panel["title"]), expression=str(target["expr"])).runnable
        if target["range"]:  # the rate interval of so short a time
            step, query = (end - began) / _POINTS, query.replace("[5m]", "[1m]")
            series = prometheus.range(query, began=began, end=end, step=step)
        else:
            series = prometheus.now(query, at=end)
        found += [_named(str(target["legendFormat"]), *labeled) for labeled in series]
    return found


def _named(legend: str, labels: Mapping[str, str], samples: Sequence[tuple[float, float]]) -> Json:
    return {
        "name": re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend),
        "times": [1000 * at for at, _ in samples],
        "values": [None if math.isnan(value) else value for _, value in samples],
    }


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.time()))


if __name__ == "__main__":
    sys.exit(main())
