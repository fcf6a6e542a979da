"""What receiving, reading and sending share in one process of the service."""

from __future__ import annotations

from dataclasses import dataclass

from node.config import Settings
from node.deliver.destination_table import DestinationTable
from node.jobs.processes import Process
from node.metrics import Metrics
from node.orders.store import OrderStore
from node.prompt_set import PromptsInUse
from node.store.spool import Spool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The settings and role of a process, the folders of its films and orders, and its metrics.

    They are open before any port, database or model, and outlive all of them. A reload of the settings changes the
    destinations and prompts: look them up there when they are needed.
    """

    settings: Settings
    prompts: PromptsInUse
    destinations: DestinationTable
    process: Process
    spool: Spool
    orders: OrderStore
    metrics: Metrics
