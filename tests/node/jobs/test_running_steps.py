import threading

import pytest

from node.errors import ModelLost
from node.jobs.running_steps import RunningSteps
from tests.support.peers import wait_until


class Stop(BaseException):
    """What an engine raises to end a workflow that is not its own any more."""


def test_a_workflow_without_its_database_breaks_the_gate() -> None:
    running, came_back = RunningSteps(), threading.Event()

    @running.guarded
    def body(_study_uid: str) -> None:
        raise OSError("the database is away")

    def run() -> None:
        body("1.2.3")
        came_back.set()

    threading.Thread(target=run, daemon=True).start()

    wait_until(lambda: running.is_broken, what="it is broken")
    assert not came_back.wait(timeout=0.2)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModelLost("NVIDIA L4 stopped computing"), "NVIDIA L4 stopped computing"),
        (KeyError("Doe"), "KeyError at test_"),
    ],
)
def test_the_process_ends_with_the_reason_of_its_own_errors(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    running = RunningSteps()

    def work() -> None:
        raise error

    threading.Thread(target=lambda: running.run(work), daemon=True).start()

    wait_until(lambda: running.is_broken, what="it is broken")
    line = capsys.readouterr().out
    assert told in line and "Doe" not in line


def test_what_an_engine_raises_to_stop_a_workflow_passes() -> None:
    running = RunningSteps()

    @running.guarded
    def body() -> None:
        raise Stop

    with pytest.raises(Stop):
        body()
    assert not running.is_broken


def test_nothing_begins_behind_a_broken_gate() -> None:
    running, begun = RunningSteps(), threading.Event()
    running.fail("the lock is lost")

    threading.Thread(target=lambda: running.run(begun.set), daemon=True).start()

    assert not begun.wait(timeout=0.2)
    running.close(limit_seconds=5)


def test_closing_waits_for_the_step_in_hand() -> None:
    running, in_hand, go_on, done = RunningSteps(), threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        in_hand.set()
        go_on.wait(timeout=30)
        done.set()

    threading.Thread(target=lambda: running.run(work), daemon=True).start()
    assert in_hand.wait(timeout=30)
    threading.Timer(0.1, go_on.set).start()

    running.close(limit_seconds=30)

    assert done.is_set()
