import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from node.config import NotifySettings
from node.domain import Delivery, DeliveryState, StudyState
from node.health import notices
from node.orders.store import OrderStore
from node.service.retention import Retention, removable
from node.store import files, questions
from node.store.database import connect
from node.store.ledger import Ledger
from node.store.questions import SentAnswer
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.store.worklist import PatientRow, set_patients
from tests.node.jobs.test_processes import left_behind
from tests.support import films
from tests.support.ordered import find, ordered

STUDY = "1.2.3"
NOW = datetime.now(UTC)
MONTH = timedelta(days=30)


class Shelf:
    """One old study that was read and delivered."""

    def __init__(self, folder: Path) -> None:
        self.spool, self.ledger = Spool(folder), Ledger(connect(folder / "ledger.sqlite"))
        self.orders = OrderStore(folder)
        self.read(self.keep("1.2.3.4"))
        self.delivery = Delivery(destination="pacs", study_uid=STUDY, sop_instance_uid="1.9", kind="sr")
        self.ledger.add_delivery(self.delivery)
        self.ledger.set_delivery(self.delivery, DeliveryState.SENT, attempts=1)
        self.ledger.set_study(STUDY, "finished")
        self.forgotten = list[datetime]()
        """The times before which records of workflows were to be removed."""

    def keep(self, film: str) -> Path:
        """Keep a film as if it had come long ago."""
        kept = films.keep_bytes(self.spool, study_uid=STUDY, sop_instance_uid=film, meta=films.META, body=b"film")
        os.utime(kept.instance.path, (1, 1))
        return kept.instance.path

    def read(self, film: Path, *, number: int = 1) -> None:
        self.spool.mark_round(STUDY, RoundMark(number=number, created_at=NOW, files=(film.name,), outputs=()))

    def clean(self, *, keep_days: float) -> None:
        Retention(self.spool, self.ledger, self.orders, self._forget_older, keep_days=keep_days).close()

    def _forget_older(self, limit: datetime) -> int:
        self.forgotten.append(limit)
        return 0

    def removable(self, *, now: datetime = NOW) -> list[str]:
        return removable(self.spool, self.ledger, now=now, keep=MONTH)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path)
    yield shelf
    shelf.ledger.close()


def test_an_old_delivered_study_may_go_and_a_young_or_unfinished_one_stays(shelf: Shelf) -> None:
    assert shelf.removable() == [STUDY]
    assert shelf.removable(now=datetime.fromtimestamp(2, UTC) + MONTH / 2) == []
    unfinished: tuple[StudyState, ...] = ("receiving", "reading", "parked")
    for state in unfinished:
        shelf.ledger.set_study(STUDY, state)
        assert shelf.removable() == [], state


@pytest.mark.parametrize("state", [DeliveryState.WAITING, DeliveryState.SENDING, DeliveryState.PARKED])
def test_work_that_waits_or_is_parked_never_ages_out(shelf: Shelf, state: DeliveryState) -> None:
    shelf.ledger.set_delivery(shelf.delivery, state, attempts=1)
    assert shelf.removable() == []

    shelf.clean(keep_days=0)
    assert shelf.spool.remove_study(STUDY)
    shelf.clean(keep_days=0)
    assert shelf.ledger.study_state(STUDY) == "finished", "its rows stay until it is delivered"


def test_a_study_with_a_late_film_stays(shelf: Shelf) -> None:
    late = shelf.keep("1.2.3.5")
    assert shelf.removable() == [], "the film is not read"
    shelf.clean(keep_days=0)
    assert shelf.ledger.study_state(STUDY) == "finished", "its rows stay while it is on disk"

    shelf.read(late, number=2)
    assert shelf.removable() == [STUDY]

    os.utime(late)
    assert shelf.removable() == [], "the film is young"


def test_a_study_with_an_answer_to_be_sent_or_that_cannot_be_read_stays_alone(shelf: Shelf) -> None:
    other = films.keep(shelf.spool, films.thumbnail()).instance
    os.utime(other.path, (1, 1))
    mark = RoundMark(number=1, created_at=NOW, files=(other.path.name,), outputs=())
    shelf.spool.mark_round(other.study_uid, mark)
    shelf.ledger.set_study(other.study_uid, "finished")
    (shelf.spool.directory / "studies" / STUDY / "questions").mkdir()
    answer = SentAnswer(question="0" * 32, requested_at=NOW)
    questions.keep_answer(shelf.spool, STUDY, answer)
    assert shelf.removable() == [other.study_uid]

    questions.keep_answer(shelf.spool, STUDY, replace(answer, reason="another model"))
    assert sorted(shelf.removable()) == sorted([STUDY, other.study_uid])

    shelf.spool.keep_document(STUDY, "sent", "0" * 32, {"form": "another program's"})
    assert shelf.removable() == [other.study_uid]


def test_retention_removes_files_and_rows_and_a_patient_from_every_file_of_the_database(shelf: Shelf) -> None:
    said = {"issuer": "", "accession": "", "study_date": "", "modality": "DX", "station": "", "search": "qzvxwkjp"}
    row = PatientRow(study_uid=STUDY, number=0, name="Qzvxwkjp", patient_id="7", **said)
    set_patients(shelf.ledger.tables, STUDY, [row])

    def named() -> list[Path]:
        return [path for path in shelf.spool.directory.glob("*.sqlite*") if b"zvxwkjp" in path.read_bytes()]

    assert named()
    shelf.orders.keep(ordered(accession="A-17"))
    for path in shelf.spool.directory.glob("orders/*"):
        os.utime(path, (1, 1))
    ward = NotifySettings(name="ward", pages="https://a", url="https://b")
    notices.take(shelf.spool.directory, [ward], STUDY, {"edema": "Edema"})
    folder = shelf.spool.directory
    gone, there = (left_behind(folder, name, days_ago=days) for name, days in (("gone", 1.1), ("there", 0.9)))

    with files.lock(folder / "retention.lock"):  # as another process that cleans
        shelf.clean(keep_days=30)
    assert (shelf.forgotten, shelf.removable()) == ([], [STUDY])
    shelf.clean(keep_days=30)

    assert shelf.spool.instances(STUDY) == ()
    assert list(folder.glob("notices/*/*.json")) == []
    assert [path.exists() for path in (*gone, *there)] == [False, False, True, True]
    assert shelf.ledger.study_state(STUDY) is None
    assert find(shelf.orders, study_uid=STUDY, accession="A-17") is None
    assert [limit < NOW - timedelta(days=29) for limit in shelf.forgotten] == [True]
    assert named() == []


def test_rows_of_an_interrupted_removal_are_removed_later(shelf: Shelf) -> None:
    shelf.ledger.set_study("1.2.4", "receiving")
    assert shelf.spool.remove_study(STUDY)

    shelf.clean(keep_days=30)
    assert shelf.ledger.overview().studies == {"finished": 1, "receiving": 1}
    shelf.clean(keep_days=0)

    assert shelf.ledger.overview().studies == {"receiving": 1}
    assert shelf.ledger.overview().deliveries == {}
    assert len(shelf.spool.rounds(STUDY)) == 1
