import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from node.config import StorageSettings, parse
from node.errors import ConfigError, Stopped
from node.store import database
from node.store.ledger import Ledger
from tests.support.postgres import Postgres

SECRET = "correct-horse"


@pytest.fixture
def sql(storage: StorageSettings) -> Iterator[sa.Engine]:
    sql = database.open_ledger(storage)
    yield sql
    sql.dispose()


def films(*more: sa.schema.SchemaItem) -> sa.MetaData:
    tables = sa.MetaData()
    sa.Table("films", tables, sa.Column("uid", sa.String(64), primary_key=True), *more)
    return tables


@pytest.mark.drill(part="processes")
def test_tables_are_created_by_many_at_once(postgres: Postgres) -> None:
    barrier = threading.Barrier(8)

    def create(_number: int) -> None:
        with closing(Ledger(database.connect(postgres.url))) as ledger:
            barrier.wait(timeout=30)
            ledger.set_study("1", "receiving")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))

    assert postgres.execute("SELECT uid, state FROM chex.studies") == [("1", "receiving")]


@pytest.mark.drill(part="processes")
def test_an_engine_with_unfinished_tables_knows_no_queue(postgres: Postgres) -> None:
    postgres.execute("CREATE SCHEMA dbos")
    postgres.execute("CREATE TABLE dbos.workflow_status (workflow_uuid TEXT)")  # the first table of many
    sql = database.connect(postgres.url)

    assert database.queues(sql) == []
    assert not database.has_executor_tables(sql)
    sql.dispose()


def test_a_row_is_added_once_and_changed_only_where_it_is_wanted(sql: sa.Engine) -> None:
    tables = films(sa.Column("name", sa.Text))
    table = tables.tables["films"]
    database.create(sql, tables)

    with sql.begin() as connection:
        database.insert(connection, table, {"uid": "1", "name": "first"})
        database.insert(connection, table, {"uid": "1", "name": "second"})
        kept = connection.execute(sa.select(table.c.name)).scalars().all()
        database.upsert(connection, table, {"uid": "1", "name": "third"}, changed={"name": "third"})
        changed = connection.execute(sa.select(table.c.name)).scalars().all()

    assert (kept, changed) == (["first"], ["third"])


def test_a_start_waits_for_an_absent_server_until_it_is_stopped() -> None:
    stop = threading.Event()
    sql = database.connect(f"postgresql://node:{SECRET}@127.0.0.1:1/chex")

    with capture_logs() as said:
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        with pytest.raises(Stopped):
            database.wait_for(sql, stop=stop)

    assert time.monotonic() - began < 20
    assert [line["event"] for line in said] == ["database.waiting"]
    assert SECRET not in str(said)


@pytest.mark.drill(part="processes")
def test_a_start_waits_for_a_server_until_it_answers() -> None:
    with Postgres() as server:
        server.stop()
        sql = database.connect(server.url)
        with capture_logs() as said, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(database.wait_for, sql, stop=threading.Event())
            server.start()
            waiting.result(timeout=60)
        sql.dispose()

    assert {line["event"] for line in said} <= {"database.waiting"}


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://node:{SECRET}@db/chex",
        f"postgresql+psycopg://node:{SECRET}@db/chex",
        f"postgresql://node:{SECRET}@db",
        f"postgresql://node:{SECRET}@db:port/chex",
        "chex",
    ],
)
def test_a_wrong_database_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"storage": {"directory": "spool", "database_url": url}})

    mistakes = [mistake for mistake in caught.value.mistakes if mistake.startswith("storage.database_url:")]
    assert len(mistakes) == 1
    assert SECRET not in str(caught.value)
