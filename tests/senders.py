"""The steps of a delivery with a real spool and ledger, for tests that call them one by one."""

from __future__ import annotations

from node.commitment import Commitments
from node.config import DestinationSettings
from node.ledger import Ledger
from node.metrics import Metrics
from node.sending import Sending
from node.spool import Spool


def sending(spool: Spool, ledger: Ledger, *destinations: DestinationSettings, report_seconds: float = 60.0) -> Sending:
    """Send from a spool to these destinations."""
    metrics = Metrics()
    return Sending(
        spool=spool,
        ledger=ledger,
        metrics=metrics,
        destinations={one.name: one for one in destinations},
        commitments=Commitments(ledger, destinations, metrics),
        calling_aet="CHEX",
        report_seconds=report_seconds,
    )
