"""Opens the databases: files of ours (SQLite), or schemas in one PostgreSQL. What differs between the two stands here.

SQLite is set so that a commit survives a power cut (WAL, synchronous FULL) and writers wait in line. On PostgreSQL our
tables have the schema `chex` and the durable engine keeps to its own. Several processes may create the tables at once;
a table that an older version made gets the columns that it lacks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql.dml import Insert as PostgresInsert
from sqlalchemy.dialects.sqlite.dml import Insert as SqliteInsert

from node import log
from node.config import StorageSettings
from node.errors import Stopped

Database: TypeAlias = sa.Engine

SCHEMA: Final = "chex"

_PAUSE_SECONDS: Final = 1.0
_TOLD_EVERY: Final = 60  # looks for a server that is away, between two lines that say so
_CREATING, _RESTORING = 6_201_102_417, 6_201_102_418  # locks: any numbers that nobody else uses
_QUEUE_DEPTH: Final = f"""
    CREATE OR REPLACE VIEW {SCHEMA}.queue_depth AS
    SELECT queues.name::text AS queue,
           count(works.workflow_uuid) AS depth,
           coalesce(extract(epoch FROM now()) - min(works.created_at) / 1000.0, 0)::float8 AS oldest_seconds
    FROM dbos.queues AS queues
    LEFT JOIN dbos.workflow_status AS works
        ON works.queue_name = queues.name AND works.status IN ('ENQUEUED', 'PENDING')
    GROUP BY queues.name
"""
_POOL: Final = {"pool_size": 10, "max_overflow": 10, "pool_pre_ping": True}
_SESSION: Final[Mapping[str, str | int]] = {
    "application_name": "chex-node",
    "connect_timeout": 5,
    # A server that went without a word is noticed within these, and not after the two hours of the system's default.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


def open_ledger(storage: StorageSettings) -> sa.Engine:
    """Open the database of our own tables."""
    return connect(storage.database_url or storage.directory / "ledger.sqlite")


def open_engine(storage: StorageSettings) -> sa.Engine:
    """Open the database of the durable engine."""
    return connect(storage.database_url or storage.directory / "engine.sqlite")


def connect(database: Path | str) -> sa.Engine:
    """Open an SQLite file, made where it is missing, or the PostgreSQL of a URL; both connect when first used."""
    return _open_file(database) if isinstance(database, Path) else _open_server(database)


def is_server(engine: sa.Engine | sa.Connection) -> bool:
    """Whether this is PostgreSQL, which several processes may share."""
    return engine.dialect.name == "postgresql"


def wait_for(engine: sa.Engine, *, stop: threading.Event) -> None:
    """Wait until PostgreSQL answers. Raises Stopped when asked to stop meanwhile."""
    looks = 0
    while True:
        try:
            with engine.connect():
                return
        except sa.exc.OperationalError as error:
            if looks % _TOLD_EVERY == 0:
                log.get().warning("database.waiting", message=str(error.orig).strip()[:300])
        looks += 1
        if stop.wait(timeout=_PAUSE_SECONDS):
            raise Stopped("asked to stop while the database was away")


@contextmanager
def restoring(engine: sa.Engine) -> Iterator[None]:
    """Be the only process that brings back what a lost database knew."""
    if not is_server(engine):  # where there is no other
        yield
        return
    with engine.begin() as connection:
        _lock(connection, _RESTORING)
        yield


def create(engine: sa.Engine, tables: sa.MetaData) -> None:
    """Create what is missing of our tables and their columns; several processes may do so at once."""
    with engine.begin() as connection:
        if is_server(connection):
            _open_schema(connection)
        tables.create_all(connection)
        for table in tables.sorted_tables:
            _add_missing_columns(connection, table)


def has_engine(engine: sa.Engine) -> bool:
    """Whether the durable engine has made its tables, one after the other: work and, much later, queues."""
    return sa.inspect(engine).has_table("queues", schema="dbos" if is_server(engine) else None)


def queues(engine: sa.Engine) -> list[str]:
    """The queues that the durable engine knows; none before its first start. On PostgreSQL."""
    if not has_engine(engine):
        return []
    with engine.connect() as connection:
        return list(connection.execute(sa.text("SELECT name FROM dbos.queues")).scalars())


def create_views(engine: sa.Engine) -> None:
    """Show how much waits in each queue of the durable engine, and for how long, to whoever scales the workers."""
    with engine.begin() as connection:
        _open_schema(connection)
        connection.execute(sa.text(_QUEUE_DEPTH))


def insert(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> None:
    """Add a row; one with the same key stays as it is."""
    connection.execute(_insert(connection, table, row).on_conflict_do_nothing())


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    row: Mapping[str, object],
    *,
    changed: Mapping[str, object],
    where: sa.ColumnElement[bool] | None = None,
) -> None:
    """Add a row, or change these values of the one with the same key, if it is one of `where`."""
    keys = [column.name for column in table.primary_key]
    insert = _insert(connection, table, row)
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=dict(changed), where=where))


def _open_file(database: Path) -> sa.Engine:
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = sa.create_engine(f"sqlite:///{database}", hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def _set_up(connection: sa.engine.interfaces.DBAPIConnection, _record: sa.pool.ConnectionPoolEntry) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _open_server(url: str) -> sa.Engine:
    """Open PostgreSQL; what the URL says of a session goes before our own wishes."""
    address = sa.make_url(url).set(drivername="postgresql+psycopg")
    session = {name: value for name, value in _SESSION.items() if name not in address.query}
    return sa.create_engine(address, hide_parameters=True, connect_args=session, **_POOL).execution_options(
        schema_translate_map={None: SCHEMA}
    )


def _insert(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> PostgresInsert | SqliteInsert:
    insert = postgresql.insert if is_server(connection) else sqlite.insert
    return insert(table).values(**row)


def _open_schema(connection: sa.Connection) -> None:
    """Have our schema, and be the only one that changes it until the transaction ends."""
    _lock(connection, _CREATING)
    connection.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))


def _lock(connection: sa.Connection, key: int) -> None:
    """Hold a lock until the transaction ends."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def _add_missing_columns(connection: sa.Connection, table: sa.Table) -> None:
    """Give an older table its new columns; each needs a default of the server's, or none of its rows a value."""
    schema = SCHEMA if is_server(connection) else None
    known = {column["name"] for column in sa.inspect(connection).get_columns(table.name, schema=schema)}
    for column in table.columns:
        if column.name not in known:
            definition = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
            name = f"{schema}.{table.name}" if schema else table.name
            connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {definition}")
