"""The table of dashboards, and the files they become."""

from __future__ import annotations

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.dashboards import model, network, overview, pipeline
from deploy.dashboards.panels import build

DASHBOARDS = (overview.DASHBOARD, pipeline.DASHBOARD, model.DASHBOARD, network.DASHBOARD)


def render_all() -> dict[str, str]:
    """Every dashboard as JSON, by file name."""
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {f"{dashboard.name}.json": encoder.encode(build(dashboard)) + "\n" for dashboard in DASHBOARDS}
