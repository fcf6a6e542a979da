"""A real Prometheus for tests: scrapes a node every three seconds, evaluates the shipped rules, and answers queries.

With a `Pace` it watches a node whose day takes minutes: every duration of the rules is as much shorter.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import yaml

from tests.paths import REPOSITORY
from tests.support.peers import LOOPBACK, free_port, require, responds, wait_until

SHIPPED = REPOSITORY / "deploy" / "prometheus"

Json = dict[str, object]
Series = tuple[dict[str, str], list[tuple[float, float]]]

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SCRAPES: Final = 4
_DURATION: Final = r"(?:\d+[smhd])+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a simulated day passes.

    scale: simulated seconds in a real one
    began: when it began, in real seconds since the epoch; first_hour: which hour of the day that was
    answered_within: the bucket of `cxr_turnaround_seconds`, in real seconds, that stands for the minute of the aim; a
        node's own work does not become faster
    """

    scale: float
    began: float
    first_hour: float = 0.0
    answered_within: float = 5.0

    @property
    def interval(self) -> float:
        """Real seconds between two scrapes, and for which one may last: a node's page does not come faster either."""
        return max(0.5, 96.0 / self.scale)

    def time_of(self, real: float) -> float:
        """Seconds from the simulated midnight at a real time."""
        return self.first_hour * 3600.0 + (real - self.began) * self.scale


class Prometheus:
    """One running Prometheus; `run_prometheus` starts and stops it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def values(self, expression: str) -> list[float]:
        """The values of an expression now; an expression that is wrong fails the test."""
        data = self._get("query", query=expression)
        result = cast(list[Json], data["result"])
        return [float(cast(list[str], sample["value"])[1]) for sample in result]

    def series(self, selector: str, *, seconds: float) -> list[Series]:
        """The samples of every series of the last so many seconds, as they were stored: labels, then time and value."""
        return _series(self._get("query", query=f"{selector}[{_milliseconds(seconds)}]"))

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
def run_prometheus(folder: Path, *, pace: Pace | None = None, **ports: Sequence[int]) -> Iterator[Prometheus]:
    """Run Prometheus with the shipped settings, but more often, and with alerts that fire after one second.

    pace: of a simulated day; then the rules keep their relation to it, and alerts fire as much sooner
    ports: of the processes of each service, by its name
    A scrape may take as long as its interval; one that takes longer makes every series stale.
    """
    program, port = require("prometheus"), free_port()
    settings = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    often = {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"}
    settings["global"] = often if pace is None else dict.fromkeys(often, _milliseconds(pace.interval))
    del settings["alerting"]  # no alert of a test goes to an Alertmanager of this machine
    settings["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"{LOOPBACK}:{of_process}" for of_process in of_service], "labels": {"service": service}}
        for service, of_service in ports.items()
    ]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    for name in settings["rule_files"]:
        shipped = (SHIPPED / name).read_text(encoding="utf-8")
        rules = re.sub(r"for: \w+", "for: 1s", shipped) if pace is None else at_pace(shipped, pace)
        (folder / name).write_text(rules, encoding="utf-8")
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


def at_pace(rules: str, pace: Pace) -> str:
    """Return rules of Prometheus with every duration and every limit in seconds as much shorter as the day is.

    The hour and the day of the week are those of the simulated day, which is a Thursday.
    """
    content = yaml.safe_load(rules)
    for rule in (rule for group in content["groups"] for rule in group["rules"]):
        rule["expr"] = _expression(rule["expr"], pace)
        if "for" in rule:  # one scrape that fails proves nothing, however short the day is
            rule["for"] = _milliseconds(max(_seconds(rule["for"]) / pace.scale, _SCRAPES * pace.interval))
    return yaml.safe_dump(content, sort_keys=False, width=10**6)


def _expression(expression: str, pace: Pace) -> str:
    now = f"vector((time() - {pace.began}) * {pace.scale} + {pace.first_hour * 3600})"
    expression = re.sub(rf"(\[|offset |:)({_DURATION})", lambda found: found[1] + _scaled(found[2], pace), expression)
    # A last sample outlives a scrape that fails, however short the day is.
    lasting = _milliseconds(_SCRAPES * pace.interval)
    expression = re.sub(r"(last_over_time\([^[]+\[)\w+", rf"\g<1>{lasting}", expression)
    expression = re.sub(
        r"(_seconds(?:\{[^}]*\})?(?:\[\w+\])?\)* [<>]=? )(\d+)",
        lambda found: f"{found[1]}{int(found[2]) / pace.scale}",
        expression,
    )
    expression = expression.replace('le="60.0"', f'le="{pace.answered_within}"')
    return expression.replace("hour()", f"hour({now})").replace("day_of_week()", f"day_of_week({now})")


def _scaled(duration: str, pace: Pace) -> str:
    return _milliseconds(_seconds(duration) / pace.scale)


def _seconds(duration: str) -> float:
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)([smhd])", duration))


def _milliseconds(seconds: float) -> str:
    return f"{round(1000 * seconds)}ms"
