"""The dashboards in deploy/grafana: whole in Grafana's own types, and about real metrics."""

from __future__ import annotations

import json
import re
from typing import cast

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.expressions import Json, dashboards, event_queries, panel_queries, panels, rule_queries, rules
from tests.support.exported import exported_families

pytestmark = pytest.mark.drill(part="deployment")

NAMES = ("chex-model.json", "chex-network.json", "chex-overview.json", "chex-pipeline.json")


def test_a_dashboards_address_is_its_files_name() -> None:
    assert {name: f"{content['uid']}.json" for name, content in dashboards().items()} == {name: name for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_grafanas_own_types_hold_a_dashboard_whole(name: str) -> None:
    register_default_plugins()
    content = dashboards()[name]

    again = json.loads(JSONEncoder().encode(Dashboard.from_json(content)))

    assert again == content


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_explains_itself(name: str) -> None:
    for panel in panels(dashboards()[name]):
        defaults = cast(Json, cast(Json, panel["fieldConfig"])["defaults"])
        assert len(str(panel["description"])) > 20, panel["title"]
        assert defaults["unit"], panel["title"]
        assert cast(Json, defaults["thresholds"])["steps"], panel["title"]
        assert all(target["legendFormat"] for target in cast(list[Json], panel["targets"])), panel["title"]


def test_every_metric_of_a_panel_or_rule_is_exported_or_recorded() -> None:
    known = set().union(*exported_families().values()) | {rule["record"] for rule in rules("recording.yml")}

    queries = [*panel_queries(), *event_queries(), *rule_queries()]
    unknown = {query.place: query.names - known for query in queries}

    assert {place: names for place, names in unknown.items() if names} == {}


def test_every_metric_is_watched() -> None:
    """A metric that stands in no panel and no rule is one that nobody looks at."""
    named = {name for query in [*panel_queries(), *rule_queries()] for name in query.names}

    unseen = {family for family, samples in exported_families().items() if not samples & named}
    assert unseen == set()


def test_a_dead_node_shows_down() -> None:
    (ready,) = (panel for panel in panels(dashboards()["chex-overview.json"]) if panel["title"] == "Ready")
    defaults = cast(dict[str, list[dict[str, Json]]], cast(Json, ready["fieldConfig"])["defaults"])

    assert defaults["mappings"][0]["options"]["-1"] == {
        "text": "down"
    }  # the value for it: tests/deploy/test_alerts_live.py


def test_details_are_on_a_dashboard_that_exists() -> None:
    names = {name.removesuffix(".json") for name in NAMES}
    links = [
        re.match(r"/d/([\w-]+)\?", link["url"])
        for panel in panels(dashboards()["chex-overview.json"])
        for link in cast(list[dict[str, str]], panel.get("links", []))
    ]

    assert links
    assert {link and link[1] for link in links} <= names
