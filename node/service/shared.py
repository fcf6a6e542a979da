"""Shared parts of receiving, reading and sending in one process of the service, and its memory settings.

Films are large and are read by changing threads. As glibc comes, each thread takes its memory for a film from the
system and gives it back, and the pages are made again for the next film. In a virtual machine, whose new pages may come
from the host, that cost more than the decoding itself. With one arena for all threads the next film finds the memory of
the last one, and less of it is held.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

from node.config import Settings
from node.jobs.processes import Process
from node.metrics import Metrics
from node.orders.store import OrderStore
from node.prompt_set import PromptsInUse
from node.settings.destinations import DestinationTable
from node.store.spool import Spool

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # numbers of mallopt(3)
_LARGEST_BYTES: Final = 32 * 2**20
"""Allocations above this size are returned to the system at once; the largest value that glibc takes."""
_KEPT_BYTES: Final = 128 * 2**20
"""How much free memory is kept for the next film."""


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


def keep_between_films() -> None:
    """Keep the memory of a film for the next one; call it before threads start. Does nothing without glibc."""
    options = getattr(ctypes.CDLL(None), "mallopt", None)
    if options is None:
        return
    for option, value in (
        (_ARENA_MAX, 1),
        (_MMAP_THRESHOLD, _LARGEST_BYTES),
        (_TRIM_THRESHOLD, _KEPT_BYTES),
    ):
        options(option, value)
