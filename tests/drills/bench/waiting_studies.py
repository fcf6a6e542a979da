"""Puts studies into a node's queue that wait behind all others, and counts those that wait; for `make bench`.

Their rows are copies of one that the node's own client queued, because ten thousand calls of it take minutes. They have
the last place, so the node begins none while others wait, and they have no films, so one that it does begin ends at
once.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
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
_EXAMPLE = derive_uid("waiting", "example")


def queue(storage: StorageSettings, count: int) -> None:
    """Queue studies to be read, each with its state in the ledger."""
    example = str(uuid4())
    with closing(Client(database.open_executor_database(storage))) as client:
        client._client.enqueue(
            {
                "workflow_name": "study",
                "workflow_id": example,
                "queue_name": STUDIES,
                "app_version": executor._APPLICATION_VERSION,
                "priority": _LAST_PLACE,
            },
            _EXAMPLE,
        )
    names = [(str(uuid4()), derive_uid("waiting", str(number))) for number in range(1, count)]
    with _opened(storage.directory / EXECUTOR) as engine:
        for table in ("workflow_status", "workflow_input"):
            _copy(engine, table, example, names)
    with _opened(storage.directory / LEDGER) as ledger:
        ledger.executemany(
            "INSERT OR REPLACE INTO studies (uid, state, changed_at) VALUES (?, 'receiving', ?)",
            [(uid, time.time()) for uid in (_EXAMPLE, *(uid for _, uid in names))],
        )


def _copy(engine: sqlite3.Connection, table: str, example: str, names: Sequence[tuple[str, str]]) -> None:
    """Copy the row of a workflow; names: of each copy its id and its study."""
    (row,) = engine.execute(f"SELECT * FROM {table} WHERE workflow_uuid = ?", (example,)).fetchall()
    changes = [{example: workflow, _EXAMPLE: study} for workflow, study in names]
    engine.executemany(
        f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})",
        [[_replaced(value, change) for value in row] for change in changes],
    )


def _replaced(value: object, change: Mapping[str, str]) -> object:
    if isinstance(value, str):
        for old, new in change.items():
            value = value.replace(old, new)
    return value


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
