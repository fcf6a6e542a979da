"""Which work is done first: places of studies in the queue for reading, and of outputs in destinations' queues."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from pydicom.dataset import Dataset

from node.dicom.header_reading import header_of
from node.domain import CRITICAL, OutputPriority
from node.hl7.order import Priority
from node.orders.store import OrderStore
from node.outputs.patient import said_of_request
from node.outputs.study_parts import patients_of
from node.store.spool import Spool
from node.store.study_facts import load

# Priorities of the executor's queue: 1 to 2^31 - 1, lowest first. Counting seconds from 2025, they last until 2093.
_FIRST, _LAST = 1, 2**31 - 1
_EPOCH: Final = datetime(2025, 1, 1, tzinfo=UTC).timestamp()

CRITICAL_SECONDS: Final = 86400.0
"""Head start of a critical output: it overtakes outputs for the same destination that are up to this much older."""


def queue_place(arrived_at: datetime, *, is_stat: bool, stat_seconds: float) -> int:
    """Return a study's place in the queue, 1 to 2^31 - 1; the lowest place is read first.

    The place is the second in which the study's oldest unread film arrived, so it stays the same when more films come.
    A STAT study has a head start of `stat_seconds`, so no later study overtakes a study that has waited longer. Among
    STAT studies, and among the others, the study that arrived first is read first.

    is_stat: whether a sender, a caller's setting or an order gives it priority
    """
    return _place(arrived_at.timestamp(), head_start_seconds=stat_seconds if is_stat else 0.0)


def delivery_place(written_at: float, priority: OutputPriority) -> int:
    """Return the place of a delivery in the queue of its destination, 1 to 2^31 - 1; the lowest place is sent first.

    The place is the second in which the output was written, so it stays the same when the delivery is queued again. A
    critical output has a head start of `CRITICAL_SECONDS`, so no later output overtakes one that has waited longer.
    written_at: seconds since the epoch
    """
    return _place(written_at, head_start_seconds=CRITICAL_SECONDS if priority == CRITICAL else 0.0)


def _place(moment: float, *, head_start_seconds: float) -> int:
    return min(max(math.floor(moment - _EPOCH) - math.floor(head_start_seconds), _FIRST), _LAST)


def study_place(spool: Spool, orders: OrderStore, study_uid: str, *, stat_seconds: float) -> int:
    """Return the place of a study, by its oldest film that no finished round covers."""
    facts = load(spool, study_uid)
    headers = (header_of(instance.path, character_set=spool.character_set) for instance in facts.unread)
    return queue_place(
        min((instance.received_at for instance in facts.unread), default=datetime.now(UTC)),
        is_stat=facts.is_stat or any(_is_ordered_stat(orders, study_uid, header or Dataset()) for header in headers),
        stat_seconds=stat_seconds,
    )


def _is_ordered_stat(orders: OrderStore, study_uid: str, header: Dataset) -> bool:
    accession, patients = said_of_request(header, "AccessionNumber"), patients_of([header])
    order = orders.find(study_uid=study_uid, accession=accession, patients=patients)
    return order is not None and order.priority is not Priority.ROUTINE
