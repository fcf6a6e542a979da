import threading
from collections import Counter

from node.service.receiver import Submitter


class Engine:
    """Takes studies, after as many failures as a test asks for."""

    def __init__(self, failures: int = 0) -> None:
        self.taken: list[str] = []
        self._failures = failures
        self._changed = threading.Condition()

    def touch_study(self, study_uid: str, _is_new: bool) -> bool:
        with self._changed:
            if self._failures:
                self._failures -= 1
                raise OSError("the database is away")
            self.taken.append(study_uid)
            self._changed.notify_all()
            return True

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.taken) >= count, timeout=20)


def test_a_study_is_handed_on_at_most_once_a_second_and_waits_for_no_other() -> None:
    engine = Engine()
    submitter = Submitter(engine.touch_study)
    submitter.submit("1")
    assert not submitter.is_alive
    submitter.start()
    engine.wait_for(1)
    for _ in range(100):
        submitter.submit("1")
    submitter.submit("2")
    engine.wait_for(2)
    submitter.close()

    assert engine.taken == ["1", "2", "1"], "the last before the end"


def test_a_study_that_was_found_at_start_stays_new_once_a_film_came() -> None:
    handed = dict[str, bool]()
    submitter = Submitter(lambda study, is_new: bool(handed.setdefault(study, is_new)))
    submitter.submit("1")
    submitter.submit("1", is_new=False)
    submitter.submit("2", is_new=False)
    submitter.start()
    submitter.close()

    assert handed == {"1": True, "2": False}


def test_new_studies_are_no_reason_to_ask_a_closed_engine_again() -> None:
    engine, failed = Engine(failures=2), threading.Semaphore(0)
    submitter = Submitter(engine.touch_study, on_delayed=failed.release)
    submitter.start()
    submitter.submit("1")
    assert failed.acquire(timeout=20)

    for number in range(2, 20):
        submitter.submit(str(number))
    submitter.close()

    assert failed.acquire(blocking=False), "the second and last try is that of the end"
    assert engine.taken == []


def test_a_study_that_the_engine_did_not_take_is_handed_on_again() -> None:
    engine, delays = Engine(failures=1), Counter[str]()
    submitter = Submitter(engine.touch_study, on_delayed=lambda: delays.update(["delayed"]))
    submitter.start()

    submitter.submit("1")
    engine.wait_for(1)
    submitter.close()

    assert engine.taken == ["1"]
    assert delays == {"delayed": 1}
