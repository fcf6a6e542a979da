"""A listener with its spool and metrics, without the rest of the node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from node.config import Caller, ListenerSettings
from node.deliver.commitment import Commitments
from node.metrics import Metrics
from node.receive.listener import Listener
from node.store.files import TEMPORARY
from node.store.spool import Spool
from tests.support.peers import LOOPBACK, wait_until

TESTER = Caller(ae_title="TESTER", hosts=(LOOPBACK,))


@dataclass
class Node:
    listener: Listener
    spool: Spool
    metrics: Metrics
    told: list[str]

    def count(self, metric: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(metric, labels) or 0.0

    def wait_for_refusal(self, reason: str, *, count: int = 1) -> None:
        """Wait until so many associations were refused for a reason."""
        wait_until(
            lambda: self.count("cxr_associations_refused_total", reason=reason) >= count,
            what=f"{count} refused: {reason}",
            limit_seconds=60.0,
        )

    def wait_for_abort(self, reason: str) -> None:
        """Wait until an association was aborted for a reason, and nothing half-written is left."""
        wait_until(
            lambda: self.count("cxr_associations_aborted_total", reason=reason) >= 1,
            what=f"an association is aborted: {reason}",
            limit_seconds=60.0,
        )
        self.wait_until_clean()

    def wait_until_clean(self) -> None:
        """Wait until nothing half-written is left."""
        wait_until(lambda: is_clean(self), what="nothing is left of any object", limit_seconds=60.0)


@contextmanager
def listening(
    folder: Path,
    *,
    settings: ListenerSettings | None = None,
    min_free_mib: int = 0,
    request_seconds: float = 10.0,
    commitments: Commitments | None = None,
) -> Iterator[Node]:
    """Listen on a free port until the block ends; TESTER may call unless the settings name others."""
    settings = replace(settings or ListenerSettings(), port=0)
    settings = settings if settings.callers else replace(settings, callers=(TESTER,))
    spool, metrics, told = Spool(folder, min_free_mib=min_free_mib), Metrics(), list[str]()
    listener = Listener(
        settings, spool, metrics, on_kept=told.append, commitments=commitments, request_seconds=request_seconds
    )
    try:
        yield Node(listener, spool, metrics, told)
    finally:
        listener.close()


def connect(port: int) -> socket.socket:
    """Open a connection and say nothing."""
    return socket.create_connection((LOOPBACK, port), timeout=60)


def is_clean(node: Node) -> bool:
    """Whether nothing half-written is left."""
    return not [*node.spool.directory.rglob(f"{TEMPORARY}*")]
