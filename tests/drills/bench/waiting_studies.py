"""Puts studies into a node's queue that wait behind all others, and counts those that wait; for `make bench`.

They have the last place, so the node begins none while others wait, and they have no films, so one that it does begin
ends at once.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

from node.config import StorageSettings
from node.domain import derive_uid
from node.jobs import executor
from node.jobs.executor import Client
from node.jobs.workflows import STUDIES
from node.store import database
from node.store.database import EXECUTOR, LEDGER

_LAST_PLACE = 2**31 - 1


def queue(storage: StorageSettings, count: int) -> None:
    """Queue studies to be read, each with its state in the ledger; ten thousand take minutes."""
    studies = [derive_uid("waiting", str(number)) for number in range(count)]
    with closing(Client(database.open_executor_database(storage))) as client:
        for study in studies:
            client._client.enqueue(
                {
                    "workflow_name": "study",
                    "workflow_id": str(uuid4()),
                    "queue_name": STUDIES,
                    "app_version": executor._APPLICATION_VERSION,
                    "priority": _LAST_PLACE,
                },
                study,
            )
    with _opened(storage.directory / LEDGER) as ledger:
        ledger.executemany(
            "INSERT OR REPLACE INTO studies (uid, state, changed_at) VALUES (?, 'receiving', ?)",
            [(study, time.time()) for study in studies],
        )


def waiting(directory: Path) -> int:
    """Count the studies that wait in the queue."""
    with _opened(directory / EXECUTOR) as engine:
        (count,) = engine.execute(
            "SELECT count(*) FROM workflow_status WHERE queue_name = ? AND status = 'ENQUEUED'", (STUDIES,)
        ).fetchone()
    return int(count)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database that a node writes to; what the block does is one transaction."""
    with closing(sqlite3.connect(path, timeout=60.0)) as connection, connection:
        yield connection
