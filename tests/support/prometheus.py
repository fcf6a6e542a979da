"""A real Prometheus for tests: scrapes a node every three seconds, evaluates the shipped rules, and answers queries."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import yaml

from tests.paths import REPOSITORY
from tests.support.peers import LOOPBACK, free_port, require, responds, wait_until

SHIPPED = REPOSITORY / "deploy" / "prometheus"

Json = dict[str, object]
Series = tuple[dict[str, str], list[tuple[float, float]]]


class Prometheus:
    """One running Prometheus; `run_prometheus` starts and stops it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def values(self, expression: str) -> list[float]:
        """The values of an expression now; an expression that is wrong fails the test."""
        data = self._get("query", query=expression)
        result = cast(list[Json], data["result"])
        return [float(cast(list[str], sample["value"])[1]) for sample in result]

    def range(self, expression: str, *, began: float, end: float, step: float) -> list[Series]:
        """The values of an expression at every step between two times."""
        return _series(self._get("query_range", query=expression, start=str(began), end=str(end), step=str(step)))

    def now(self, expression: str, *, at: float) -> list[Series]:
        """The value of each series of an expression at a time."""
        return _series(self._get("query", query=expression, time=str(at)))

    def rules(self) -> list[Json]:
        """Every rule, with its health and its last error."""
        groups = cast(list[Json], self._get("rules")["groups"])
        return [rule for group in groups for rule in cast(list[Json], group["rules"])]

    def firing(self, service: str) -> set[str]:
        """The names of the alerts that fire now for a service."""
        alerts = cast(list[dict[str, dict[str, str]]], self._get("alerts")["alerts"])
        return {
            alert["labels"]["alertname"]
            for alert in alerts
            if str(alert["state"]) == "firing" and alert["labels"].get("service") == service
        }

    def _get(self, page: str, **query: str) -> Json:
        address = f"http://{LOOPBACK}:{self.port}/api/v1/{page}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return cast(Json, json.load(answer)["data"])
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{query}: {error.read().decode()}") from error


@contextmanager
def run_prometheus(folder: Path, **ports: Sequence[int]) -> Iterator[Prometheus]:
    """Run Prometheus with the shipped settings, but more often, and with alerts that fire after one second.

    ports: of the processes of each service, by its name
    A scrape may take as long as its interval; one that takes longer makes every series stale.
    """
    program, port = require("prometheus"), free_port()
    settings = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    settings["global"] = {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}
    del settings["alerting"]  # no alert of a test goes to an Alertmanager of this machine
    settings["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"{LOOPBACK}:{of_process}" for of_process in of_service], "labels": {"service": service}}
        for service, of_service in ports.items()
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for name in settings["rule_files"]:
        shipped = (SHIPPED / name).read_text(encoding="utf-8")
        (folder / name).write_text(re.sub(r"for: \w+", "for: 1s", shipped), encoding="utf-8")
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'storage'}",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--log.level=error",
    ]
    with subprocess.Popen(command, cwd=folder) as process:
        try:
            ready = f"http://{LOOPBACK}:{port}/-/ready"
            wait_until(lambda: responds(ready), what="Prometheus answers", limit_seconds=60)
            yield Prometheus(port)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def _series(answer: Json) -> list[Series]:
    """The series of an answer, with one sample or several."""
    return [
        (
            cast(dict[str, str], entry["metric"]),
            [
                (at, float(value))
                for at, value in cast(
                    list[tuple[float, str]], entry["values"] if "values" in entry else [entry["value"]]
                )
            ],
        )
        for entry in cast(list[Json], answer["result"])
    ]
