"""What the tests of the store share: a database, in a file and on PostgreSQL, and the ledger in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.config import StorageSettings
from node.store.database import connect
from node.store.ledger import Ledger


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.drill(part="processes"))])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StorageSettings:
    """Where a node keeps its files and its database."""
    url = "" if request.param == "sqlite" else request.getfixturevalue("postgres").url
    return StorageSettings(directory=tmp_path, database_url=url)


@pytest.fixture
def ledger(storage: StorageSettings) -> Iterator[Ledger]:
    """An empty ledger."""
    ledger = Ledger(connect(storage.database_url or storage.directory / "ledger.sqlite"))
    yield ledger
    ledger.close()
