"""Every PromQL expression that is shipped: of dashboards, recording rules and alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import yaml

from tests.paths import REPOSITORY

DEPLOY = REPOSITORY / "deploy"

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One expression and where it stands."""

    place: str
    expression: str

    @property
    def runnable(self) -> str:
        """With Grafana's variables filled in: everything chosen, over five minutes."""
        filled = re.sub(r"\$(instance|prompt)\b", ".*", self.expression)
        return filled.replace("$__rate_interval", "5m").replace("$__range", "5m")

    @property
    def names(self) -> set[str]:
        """The names of our metrics in it, recorded ones included."""
        without_texts = re.sub(r'"[^"]*"', "", self.expression)
        return {name for name in re.findall(r"[a-zA-Z_:][\w:]*", without_texts) if "cxr_" in name}


def dashboards() -> dict[str, Json]:
    """The committed dashboards, by file name."""
    return {path.name: json.loads(path.read_bytes()) for path in sorted((DEPLOY / "grafana").glob("*.json"))}


def panels(dashboard: Json) -> list[Json]:
    """The panels of a dashboard, without its rows."""
    return [panel for panel in cast(list[Json], dashboard["panels"]) if panel["type"] != "row"]


def panel_queries() -> Iterator[Query]:
    """Every query of every panel."""
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in cast(list[dict[str, str]], panel["targets"]):
                yield Query(place=f"{name}: {panel['title']}", expression=target["expr"])


def event_queries() -> Iterator[Query]:
    """Every query of what the dashboards mark on their time axis."""
    for name, dashboard in dashboards().items():
        for event in cast(list[dict[str, str]], cast(Json, dashboard["annotations"])["list"]):
            yield Query(place=f"{name}: {event['name']}", expression=event["expr"])


def rules(file: str) -> list[dict[str, str]]:
    """The rules of one file."""
    content = yaml.safe_load((DEPLOY / "prometheus" / file).read_text(encoding="utf-8"))
    return [rule for group in content["groups"] for rule in group["rules"]]


def rule_queries() -> Iterator[Query]:
    """Every expression of the recording rules and alerts."""
    for file in ("recording.yml", "alerts.yml"):
        for rule in rules(file):
            yield Query(place=rule.get("alert") or rule["record"], expression=rule["expr"])
