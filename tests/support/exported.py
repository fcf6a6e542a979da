"""What a node exports, without a node: the registry with every metric in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from node.metrics import Metrics, Snapshot, SnapshotCollector
from node.store.ledger_queries import Overview, Pause

_AT = datetime(2026, 11, 2, 14, 30, tzinfo=UTC)
SNAPSHOT = Snapshot(
    at=_AT,
    overview=Overview(
        reviews={"contradicted": 3},
        studies={"finished": 2, "reading": 1},
        deliveries={("archive", "waiting"): 3, ("removed", "abandoned"): 1},
        pauses={"archive": Pause(since=0.0, reason="")},
        oldest=_AT - timedelta(seconds=1.5),
        oldest_deliveries={"archive": _AT - timedelta(seconds=8)},
        uncommitted={"archive": (2, _AT - timedelta(seconds=90))},
    ),
    destinations=("archive", "second"),
    spool_free_bytes=1024,
    spool_capacity_bytes=4096,
    spool_reserve_bytes=512,
    ready={"listener": True, "disk": False},
)


def whole_registry(metrics: Metrics | None = None) -> CollectorRegistry:
    """Every metric, those of a snapshot included."""
    metrics = metrics or Metrics()
    metrics.registry.register(SnapshotCollector(lambda: SNAPSHOT))
    return metrics.registry


def exported_families() -> dict[str, set[str]]:
    """The names of the series of each metric of ours, by the metric's own name."""
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    families = whole_registry().collect()
    return {
        family.name: {family.name + ending for ending in endings[family.type]}
        for family in families
        if family.name.startswith("cxr_")
    }
