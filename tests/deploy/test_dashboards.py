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

NAMES = tuple(dashboards())


@pytest.mark.parametrize("name", NAMES)
def test_grafanas_own_types_hold_a_dashboard_whole_and_every_panel_explains_itself(name: str) -> None:
    register_default_plugins()
    content = dashboards()[name]

    assert f"{content['uid']}.json" == name, "its address"
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(content))) == content
    for panel in panels(content):
        defaults = cast(Json, cast(Json, panel["fieldConfig"])["defaults"])
        assert len(str(panel["description"])) > 20, panel["title"]
        assert defaults["unit"], panel["title"]
        assert cast(Json, defaults["thresholds"])["steps"], panel["title"]
        assert all(target["legendFormat"] for target in cast(list[Json], panel["targets"])), panel["title"]


def test_every_metric_of_a_panel_or_rule_is_exported_or_recorded_and_every_one_is_watched() -> None:
    """A metric that stands in no panel and no rule is one that nobody looks at."""
    known = set().union(*exported_families().values()) | {rule["record"] for rule in rules("recording.yml")}
    unknown = {query.place: query.names - known for query in [*panel_queries(), *event_queries(), *rule_queries()]}
    assert {place: names for place, names in unknown.items() if names} == {}

    named = {name for query in [*panel_queries(), *rule_queries()] for name in query.names}
    assert [family for family, samples in exported_families().items() if not samples & named] == []


def test_a_dead_node_shows_down_and_details_are_on_a_dashboard_that_exists() -> None:
    overview = panels(dashboards()["chex-overview.json"])
    (ready,) = (panel for panel in overview if panel["title"] == "Ready")
    defaults = cast(dict[str, list[dict[str, Json]]], cast(Json, ready["fieldConfig"])["defaults"])
    # the value for it: tests/deploy/test_alerts_live.py
    assert defaults["mappings"][0]["options"]["-1"] == {"text": "down"}
    links = [link["url"] for panel in overview for link in cast(list[dict[str, str]], panel.get("links", []))]
    assert links
    linked = {found and found[1] for found in (re.match(r"/d/([\w-]+)\?", link) for link in links)}
    assert linked <= {name.removesuffix(".json") for name in NAMES}
