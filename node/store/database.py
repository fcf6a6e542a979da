"""Opens the databases: SQLite files of the node, or schemas in one PostgreSQL; holds what differs between the two.

SQLite is set so that a commit survives a power cut (WAL, synchronous FULL) and writers wait in line. On PostgreSQL our
tables are in the schema `chex`, those of the durable executor in `dbos`. Several processes may create the tables at the
same time.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import sqlalchemy as sa

from node import log
from node.config import StorageSettings
from node.errors import InputError, NodeError, Stopped
from node.store import files

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql.dml import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite.dml import Insert as SqliteInsert

Database: TypeAlias = sa.Engine

SCHEMA: Final = "chex"
_DURABLE_SCHEMA: Final = "dbos"

LEDGER, EXECUTOR = "ledger.sqlite", "engine.sqlite"
"""The SQLite files: the ledger's, and the durable executor's."""
_DAMAGED: Final = ".damaged-"
FAILURES: Final = (OSError, sqlite3.Error, sa.exc.SQLAlchemyError)
"""Errors of a disk, and of a database on it."""
_UNWRITABLE: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_UNREADABLE: Final = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
"""SQLite's codes for a damaged file. Other disk errors, such as a full disk, do not imply damage."""

_UNKNOWN: Final = ("42P01", "42703")
"""PostgreSQL's errors for a missing table and a missing column. SQLite has one error for all wrong statements."""

_PAUSE_SECONDS: Final = 1.0
_ATTEMPTS_A_LOG_LINE: Final = 60
_CREATING, _RESTORING = 6_201_102_417, 6_201_102_418  # numbers of advisory locks, unused by other programs
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
_BEGUN: Final = """
    SELECT DISTINCT works.workflow_uuid
    FROM {schema}workflow_status AS works
    JOIN {schema}operation_outputs AS steps ON steps.workflow_uuid = works.workflow_uuid
    WHERE works.status IN ('PENDING', 'ENQUEUED', 'DELAYED')
"""
_SERVER: Final = """
    SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(),
           has_database_privilege(current_database(), 'CREATE')
"""
_SCHEMAS: Final = f"""
    SELECT nspname::text, has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE')
    FROM pg_namespace WHERE nspname IN (:ours, '{_DURABLE_SCHEMA}')
"""
_LOOK_MILLISECONDS: Final = 5000
_OVERWRITE: Final = "secure_delete=ON"
"""Deleted rows are overwritten with zeros: they may have named a patient."""
_POOL: Final = {"pool_size": 10, "max_overflow": 10, "pool_pre_ping": True}
_SESSION: Final[Mapping[str, str | int]] = {
    "application_name": "chex-node",
    "connect_timeout": 5,
    # Detects a dead server within these times; the system's default is two hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts that a PostgreSQL server reports; forbidden: schemas in which the node's user may not create tables."""

    version: str
    is_standby: bool
    now: datetime
    forbidden: tuple[str, ...]


def open_ledger(storage: StorageSettings) -> Database:
    """Open the database of the ledger's tables."""
    return connect(storage.database_url or storage.directory / LEDGER)


def open_executor_database(storage: StorageSettings) -> Database:
    """Open the database of the durable executor."""
    return connect(storage.database_url or storage.directory / EXECUTOR)


def connect(place: Path | str) -> Database:
    """Return a database: an SQLite file (created if missing) or a PostgreSQL URL; both connect on first use."""
    return _open_file(place) if isinstance(place, Path) else _open_server(place)


def open_ledger_for_reading(storage: StorageSettings) -> Database:
    """Open the ledger's database read-only; an empty one for a missing file."""
    if storage.database_url:
        return _open_server(storage.database_url).execution_options(postgresql_readonly=True)
    path = storage.directory / LEDGER
    if not path.exists():
        return sa.create_engine("sqlite://")
    creator = partial(_connect_for_reading, path, _mode_for_reading(path))
    return sa.create_engine("sqlite://", creator=creator, poolclass=sa.pool.NullPool, hide_parameters=True)


def complaint(error: sqlite3.Error | sa.exc.SQLAlchemyError) -> str:
    """Return a database's error message, in one line."""
    message = str(error.orig) if isinstance(error, sa.exc.DBAPIError) else type(error).__name__
    return " ".join(message.split())[:300]


def is_server(database: Database | sa.Connection) -> bool:
    """Whether this is PostgreSQL, which several processes may share."""
    return database.dialect.name == "postgresql"


def wait_for(database: Database, *, stop: threading.Event) -> None:
    """Wait until PostgreSQL answers. Raises Stopped when `stop` is set meanwhile."""
    looks = 0
    while True:
        try:
            with database.connect():
                return
        except sa.exc.OperationalError as error:
            if looks % _ATTEMPTS_A_LOG_LINE == 0:
                log.get().warning("database.waiting", message=complaint(error))
        looks += 1
        if stop.wait(timeout=_PAUSE_SECONDS):
            raise Stopped("stopped while waiting for the database")


def set_damaged_aside(storage: StorageSettings, name: str) -> Path | None:
    """Rename a damaged SQLite file of the node and its journal, so that a new one is made; return the new name.

    Call it only while no process has the file open. PostgreSQL repairs its own files. Reads the whole file: 0.3 GB in
    4 s. Raises InputError when the file cannot be opened.
    """
    path = storage.directory / name
    if storage.database_url or not path.exists() or is_whole(path):
        return None
    aside = path.with_name(f"{name}{_DAMAGED}{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def sqlite_files(storage: StorageSettings) -> list[Path]:
    """Return the paths of a node's SQLite files, which need not exist."""
    return [storage.directory / name for name in (LEDGER, EXECUTOR)]


def is_whole(path: Path) -> bool:
    """Whether a file and its indexes pass SQLite's integrity check; reads all of it. Raises InputError if it cannot.

    A file that looks damaged without SQLite's locks is checked again with them: a node may be writing to it.
    """
    modes = dict.fromkeys((_mode_for_reading(path), "mode=ro"))
    return any(_is_whole(path, mode) for mode in modes)


def _is_whole(path: Path, mode: str) -> bool:
    try:
        with closing(_connect_for_reading(path, mode)) as connection:
            return connection.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
    except sqlite3.Error as error:
        if is_damaged(error):
            return False
        raise InputError(f"storage.directory {path.parent}: {path.name} cannot be opened ({error})") from error


def ask_server(storage: StorageSettings) -> ServerFacts:
    """Query a PostgreSQL server for the facts that the node needs; changes nothing.

    Raises NodeError with the server's message when the query fails.
    """
    server = None
    try:
        server = _open_server(storage.database_url).execution_options(postgresql_readonly=True)
        with server.connect() as connection:
            connection.execute(sa.text(f"SET LOCAL statement_timeout = {_LOOK_MILLISECONDS}"))
            version, now, is_standby, may_create = connection.execute(sa.text(_SERVER)).one()
            schemas = connection.execute(sa.text(_SCHEMAS), {"ours": SCHEMA})
            usable: dict[str, bool] = {name: may_use for name, may_use in schemas}
    except sa.exc.SQLAlchemyError as error:
        raise NodeError(complaint(error)) from error
    finally:
        if server is not None:
            server.dispose()
    return ServerFacts(
        version=version,
        is_standby=is_standby,
        now=datetime.fromtimestamp(now, UTC),
        forbidden=tuple(name for name in (SCHEMA, _DURABLE_SCHEMA) if not usable.get(name, may_create)),
    )


def files_set_aside(storage: StorageSettings) -> list[Path]:
    """Return the damaged files that were set aside and still exist, without their journals."""
    found = [aside for path in sqlite_files(storage) for aside in storage.directory.glob(f"{path.name}{_DAMAGED}*")]
    return sorted(path for path in found if not path.name.endswith(("-wal", "-shm")))


def is_damaged(error: BaseException) -> bool:
    """Whether the error is SQLite's for a damaged file, which is permanent."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or code in _UNREADABLE


def is_not_writable(error: BaseException) -> bool:
    """Whether SQLite cannot write, because its disk is full, read-only or faulty."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF in _UNWRITABLE


def lacks_tables(error: BaseException) -> bool:
    """Whether a statement of the program uses a table or column that the database lacks."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    is_statement_wrong = getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    return is_statement_wrong or getattr(cause, "sqlstate", "") in _UNKNOWN


@contextmanager
def naming_damage(storage: StorageSettings) -> Iterator[None]:
    """Raise NodeError, with the remedy, instead of the error of a damaged database."""
    try:
        yield
    except sa.exc.DatabaseError as error:
        if not is_damaged(error):
            raise
        raise NodeError(
            f"a database in {storage.directory} is damaged; restart the node, which moves it aside and builds a new one"
        ) from error


@contextmanager
def restoring(database: Database) -> Iterator[None]:
    """Hold the lock of the only process that restores the content of a lost database."""
    if not is_server(database):  # SQLite has one process only
        yield
        return
    with database.begin() as connection:
        _lock(connection, _RESTORING)
        yield


def create(database: Database, tables: sa.MetaData) -> None:
    """Create missing tables; several processes may do so at once."""
    with database.begin() as connection:
        if is_server(connection):
            _open_schema(connection)
        tables.create_all(connection)


def has_executor_tables(database: Database) -> bool:
    """Whether the executor has created its tables; the table of queues is its last."""
    return sa.inspect(database).has_table("queues", schema="dbos" if is_server(database) else None)


def queues(database: Database) -> list[str]:
    """Return the queues that the executor has registered; empty before its first start. PostgreSQL only."""
    if not has_executor_tables(database):
        return []
    with database.connect() as connection:
        return list(connection.execute(sa.text("SELECT name FROM dbos.queues")).scalars())


def begun_workflows(database: Database) -> set[str]:
    """Return the open workflows with at least one recorded step."""
    with database.connect() as connection:
        return set(connection.execute(sa.text(_BEGUN.format(schema="dbos." if is_server(database) else ""))).scalars())


def create_views(database: Database) -> None:
    """Create the view with each queue's length and longest wait, which a cluster scales workers by."""
    with database.begin() as connection:
        _open_schema(connection)
        connection.execute(sa.text(_QUEUE_DEPTH))


def wipe(database: Database) -> None:
    """Checkpoint and empty SQLite's journal, so that no deleted row is left in the file or the journal."""
    if is_server(database):
        return  # PostgreSQL's own vacuum does this
    with database.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def insert(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> None:
    """Add a row; a row with the same key stays as it is."""
    connection.execute(_insert(connection, table, row).on_conflict_do_nothing())


def upsert(
    connection: sa.Connection,
    table: sa.Table,
    row: Mapping[str, object],
    *,
    changed: Mapping[str, object],
    where: sa.ColumnElement[bool] | None = None,
) -> bool:
    """Insert a row, or update values of the row with this key if it matches `where`; return whether either was done."""
    keys = [column.name for column in table.primary_key]
    insert = _insert(connection, table, row).on_conflict_do_update(index_elements=keys, set_=dict(changed), where=where)
    # Not `rowcount`, which is -1 for every insert into PostgreSQL.
    return connection.execute(insert.returning(*table.primary_key)).first() is not None


def _mode_for_reading(path: Path) -> str:
    """Return the open mode for an SQLite file that must not be changed.

    Without a journal beside it, the file is opened as immutable; otherwise SQLite would create a journal.
    """
    return "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"


def _connect_for_reading(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)


def _open_file(path: Path) -> Database:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.make_private(path)  # its journal gets the same mode
    database = sa.create_engine(f"sqlite:///{path}", hide_parameters=True)

    @sa.event.listens_for(database, "connect")
    def _set_up(connection: sa.engine.interfaces.DBAPIConnection, _record: sa.pool.ConnectionPoolEntry) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=30000", "foreign_keys=ON", _OVERWRITE):
            connection.execute(f"PRAGMA {pragma}")

    return database


def _open_server(url: str) -> Database:
    """Open PostgreSQL; session parameters in the URL override our own."""
    address = sa.make_url(url).set(drivername="postgresql+psycopg")
    session = {name: value for name, value in _SESSION.items() if name not in address.query}
    return sa.create_engine(address, hide_parameters=True, connect_args=session, **_POOL).execution_options(
        schema_translate_map={None: SCHEMA}
    )


def _insert(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> PostgresInsert | SqliteInsert:
    if is_server(connection):
        from sqlalchemy.dialects import postgresql  # a node with SQLite saves this import, a tenth of a second

        return postgresql.insert(table).values(**row)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table).values(**row)


def _open_schema(connection: sa.Connection) -> None:
    """Create our schema if needed, and lock it against other processes until the transaction ends."""
    _lock(connection, _CREATING)
    connection.execute(sa.schema.CreateSchema(SCHEMA, if_not_exists=True))


def _lock(connection: sa.Connection, key: int) -> None:
    """Hold a lock until the transaction ends."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))
