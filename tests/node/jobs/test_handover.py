import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from node.errors import Stopped
from node.jobs import lost_workflows
from node.jobs.lost_workflows import ExecutorLock, Takeover
from node.store.database import connect
from tests.support.peers import wait_until
from tests.support.postgres import Postgres

pytestmark = pytest.mark.drill(part="processes")

NEVER = threading.Event()
HELD = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"


@pytest.fixture
def engine(postgres: Postgres) -> Iterator[sa.Engine]:
    postgres.execute("CREATE SCHEMA dbos")
    postgres.execute("CREATE TABLE dbos.workflow_status (executor_id text, status text)")
    engine = connect(postgres.url)
    yield engine
    engine.dispose()


def test_a_name_that_is_taken_is_waited_for_and_no_other_unless_the_wait_is_stopped(engine: sa.Engine) -> None:
    first, stop, got = ExecutorLock(engine, "worker", stop=NEVER), threading.Event(), list[ExecutorLock]()
    ExecutorLock(engine, "worker-1", stop=NEVER).close()
    threading.Timer(0.2, stop.set).start()
    with pytest.raises(Stopped):
        ExecutorLock(engine, "worker", stop=stop)
    waiting = threading.Thread(target=lambda: got.append(ExecutorLock(engine, "worker", stop=NEVER)), daemon=True)

    with capture_logs() as said:
        waiting.start()
        wait_until(lambda: bool(said), what="it says that it waits")
        assert not got
        first.close()
        waiting.join(timeout=30)

    assert [line["event"] for line in said] == ["executor.waiting"]
    got[0].close()


def test_an_executor_hears_that_its_lock_is_lost(engine: sa.Engine, postgres: Postgres) -> None:
    lock, lost = ExecutorLock(engine, "worker", stop=NEVER), threading.Event()
    lock.watch(lambda _reason: lost.set())

    postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'", database="postgres")

    assert lost.wait(timeout=30)
    lock.close()


def test_an_executor_that_says_nothing_any_more_loses_its_lock(
    engine: sa.Engine, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_workflows, "_SILENCE_SECONDS", 1)
    lock = ExecutorLock(engine, "worker", stop=NEVER)  # not watched: as in a frozen process

    wait_until(lambda: not postgres.execute(HELD), what="the lock is free")

    ExecutorLock(engine, "worker", stop=NEVER).close()
    wait_until(lambda: not postgres.execute(HELD), what="the server has seen that the lock is given back")
    assert postgres.execute(HELD) == []
    lock.close()


def test_only_the_work_of_dead_executors_is_put_back_also_after_a_look_that_fails(
    engine: sa.Engine, postgres: Postgres
) -> None:
    living = ExecutorLock(engine, "living", stop=NEVER)
    living.watch(lambda _reason: None)
    for executor, status in (("living", "PENDING"), ("dead", "PENDING"), ("me", "PENDING"), ("done", "SUCCESS")):
        postgres.execute(f"INSERT INTO dbos.workflow_status VALUES ('{executor}', '{status}')")
    recovered, again = list[str](), threading.Event()

    def recover(executor: str) -> int:
        recovered.append(executor)
        if len(recovered) == 1:
            raise sa.exc.OperationalError("lost", None, Exception("lost"))
        if len(recovered) == 3:
            again.set()
        return 1

    takeover = Takeover(engine, "me", recover)
    assert again.wait(timeout=30)
    assert takeover.is_alive
    takeover.close()
    living.close()

    assert set(recovered) == {"dead"}


def test_no_executor_starts_while_its_work_is_put_back(engine: sa.Engine, postgres: Postgres) -> None:
    postgres.execute("INSERT INTO dbos.workflow_status VALUES ('dead', 'PENDING')")
    events: list[str] = []
    in_hand, go_on = threading.Event(), threading.Event()

    def recover(_executor: str) -> int:
        in_hand.set()
        go_on.wait(timeout=30)
        postgres.execute("DELETE FROM dbos.workflow_status")
        events.append("put back")
        return 1

    takeover = Takeover(engine, "me", recover)
    assert in_hand.wait(timeout=30)
    starting = threading.Thread(target=lambda: _start(engine, events), daemon=True)
    with capture_logs() as said:
        starting.start()
        wait_until(lambda: bool(said), what="it says that it waits")
        go_on.set()
        starting.join(timeout=30)
    takeover.close()

    assert events == ["put back", "started"]


def _start(engine: sa.Engine, events: list[str]) -> None:
    lock = ExecutorLock(engine, "dead", stop=NEVER)
    events.append("started")
    lock.close()
