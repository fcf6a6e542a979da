"""The steps of a delivery with a real spool and ledger, for tests that call them one by one."""

from __future__ import annotations

from collections.abc import Callable

from node.config import DestinationSettings
from node.deliver.commitment import Commitments
from node.deliver.delivery import Sending
from node.metrics import Metrics
from node.store.ledger import Ledger
from node.store.spool import Spool


def sending(
    spool: Spool,
    ledger: Ledger,
    *destinations: DestinationSettings,
    report_seconds: float = 60.0,
    rewrite: Callable[[str], None] = lambda _study: None,
) -> Sending:
    """Send from a spool to these destinations; nobody writes a lost output again unless `rewrite` does."""
    metrics = Metrics()
    return Sending(
        spool=spool,
        ledger=ledger,
        metrics=metrics,
        destinations={destination.name: destination for destination in destinations},
        commitments=Commitments(ledger, destinations, metrics),
        rewrite=rewrite,
        calling_aet="CHEX",
        report_seconds=report_seconds,
    )
