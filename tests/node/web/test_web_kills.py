"""kill -9 after a person asked, sent or corrected something over the web: it arrives at the archive exactly once."""

from __future__ import annotations

import http.client
import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from pydicom.dataset import Dataset

from models.documents import encode
from node.config import Settings
from node.store.correction import Correction, CorrectionKind
from node.store.spool import Spool
from tests.node.jobs.test_rounds import predecessor
from tests.support import films
from tests.support.peers import ReceivingArchive
from tests.support.service import Service, read_and_stop, settings_for

FILM = films.thumbnail()
PATH = f"/api/v1/films/{FILM.SOPInstanceUID}"
CORRECTION = {"kind": "reject", "prompt": "atelectasis", "id": "a" * 32}
# answer, queue, send, send: an SR and a GSPS, one destination
ANSWER_STEPS = 4
# place, ready, plan, write, queue, finish, send, send: the film is not read again
ROUND_STEPS = 8


@pytest.fixture
def archive() -> Iterator[ReceivingArchive]:
    with ReceivingArchive() as archive:
        yield archive


@pytest.fixture
def settings(tmp_path: Path, archive: ReceivingArchive) -> Settings:
    """Settings of a node that has read a film, and has ended."""
    settings = settings_for(tmp_path / "node", archive_port=archive.port)
    read_and_stop(settings, FILM)
    return settings


def ask_until_dead(service: Service, path: str, body: object) -> None:
    """Send a request to a node that dies, perhaps before its answer."""
    with suppress(OSError, http.client.HTTPException):
        assert service.ask("POST", path, body)[0] == 202
    assert service.wait_until_dead() == -9


def questions(service: Service) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", service.ask("GET", f"{PATH}/questions")[1]["questions"])


def asked(service: Service) -> str:
    """Ask about the film; the id of the question."""
    status, said = service.ask("POST", f"{PATH}/questions", {"questions": [{"prompt": "Edema"}]})
    assert status == 201
    (question,) = cast("list[dict[str, object]]", said["questions"])
    return str(question["id"])


def assert_each_came_once(archive: ReceivingArchive, *, pairs: int) -> None:
    """Check that so many pairs of SR and GSPS came, and each object once."""
    assert Counter(kept.dataset.Modality for kept in archive.kept) == {"SR": pairs, "PR": pairs}
    assert len({request.sop_instance_uid for request in archive.requests}) == len(archive.requests) == 2 * pairs


def reports(archive: ReceivingArchive) -> list[Dataset]:
    return [kept.dataset for kept in archive.kept if kept.dataset.Modality == "SR"]


@pytest.mark.drill(part="kills")
def test_an_answer_outlives_a_kill_right_after_it(settings: Settings, archive: ReceivingArchive) -> None:
    with Service(settings) as first:
        question = asked(first)
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait_until_dead() == -9

    with Service(settings) as second:
        assert [(known["id"], known["sent"]) for known in questions(second)] == [(question, False)]
        assert second.ask("POST", f"/api/v1/questions/{question}/send")[0] == 202
        archive.wait_for_kept(4)
        assert second.stop() == 0

    assert_each_came_once(archive, pairs=2)


@pytest.mark.drill(part="kills")
@pytest.mark.parametrize("die_at", range(1, ANSWER_STEPS + 1))
def test_a_kill_while_an_answer_is_sent_sends_it_once(
    settings: Settings, archive: ReceivingArchive, die_at: int
) -> None:
    with Service(settings, die_at=die_at) as first:
        question = asked(first)
        ask_until_dead(first, f"/api/v1/questions/{question}/send", None)

    with Service(settings) as second:
        archive.wait_for_kept(4)
        assert second.ask("POST", f"/api/v1/questions/{question}/send")[0] == 202  # the person presses again
        assert [known["sent"] for known in questions(second)] == [True]
        assert second.stop() == 0

    assert_each_came_once(archive, pairs=2)


@pytest.mark.drill(part="kills")
@pytest.mark.parametrize("die_at", range(1, ROUND_STEPS + 1))
def test_a_kill_after_a_correction_makes_one_new_version(
    settings: Settings, archive: ReceivingArchive, die_at: int
) -> None:
    with Service(settings, die_at=die_at) as first:
        ask_until_dead(first, f"{PATH}/corrections", CORRECTION)

    with Service(settings) as second:
        archive.wait_for_kept(4)
        assert second.ask("POST", f"{PATH}/corrections", CORRECTION)[0] == 202  # the person presses again
        made = cast("list[dict[str, object]]", second.ask("GET", f"{PATH}/corrections")[1]["corrections"])
        assert [known["id"] for known in made] == [CORRECTION["id"]]
        assert second.stop() == 0

    assert_each_came_once(archive, pairs=2)
    old, new = reports(archive)
    assert predecessor(new) == old.SOPInstanceUID


@pytest.mark.drill(part="kills")
def test_a_correction_that_was_stored_but_not_queued_counts(settings: Settings, archive: ReceivingArchive) -> None:
    made = Correction(
        id="a" * 32,
        study_uid=str(FILM.StudyInstanceUID),
        film=str(FILM.SOPInstanceUID),
        kind=CorrectionKind.REJECT,
        at=datetime.now(UTC),
        by="",
        source="page",
        prompt="atelectasis",
    )
    spool = Spool(settings.storage.directory)
    spool.keep_document(made.study_uid, "corrections", made.id, encode(made))  # as far as a process came

    with Service(settings) as service:
        archive.wait_for_kept(4)
        assert service.stop() == 0

    assert_each_came_once(archive, pairs=2)
