"""What a node exports, without a node: the registry with every metric in it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from node.metrics import Counts, Metrics, Snapshot, SnapshotCollector

SNAPSHOT = Snapshot(
    counts=Counts(
        reviews={"contradicted": 3},
        studies={"finished": 2, "reading": 1},
        deliveries={("archive", "waiting"): 3},
        paused={"archive": True, "second": False},
        oldest_waiting_seconds={"studies": 1.5, "deliveries": 0.0},
        oldest_delivery_seconds={"archive": 8.0},
        uncommitted={"archive": (2, 90.0), "second": (0, 0.0)},
    ),
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
