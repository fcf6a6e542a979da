"""A study that retention removes at the moment in which somebody looks at it: the look sees less, and never fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from models.documents import encode
from node.config import Settings
from node.store import questions
from node.store.ledger import open_ledger
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.web import application
from tests.support import films, samples
from tests.support.finished import parts_of
from tests.support.service import settings_for
from tests.support.web_access import as_user

SEEN = films.thumbnail()
STUDY, FILM = str(SEEN.StudyInstanceUID), str(SEEN.SOPInstanceUID)
FOLDERS = ("received", "conflicts", "readings", "corrections", "questions", "rounds")

LOOKS: dict[str, Callable[[Spool], int]] = {
    "study": lambda spool: len(spool.instances(STUDY)),
    "versions": lambda spool: len(spool.versions(STUDY)),
    "conflicts": lambda spool: len(spool.conflicts(STUDY)),
    "readings": lambda spool: len(spool.readings(STUDY).intact),
    "corrections": lambda spool: len(spool.documents(STUDY, "corrections")),
    "questions": lambda spool: len(spool.documents(STUDY, "questions")),
    "rounds": lambda spool: len(spool.rounds(STUDY)),
    "begun readings": lambda spool: spool.count_begun_readings(STUDY),
    "sent answers": lambda spool: len(questions.answers_of(spool, STUDY)),
}
PAGES = ("/", f"/studies/{STUDY}", "/api/v1/studies", f"/api/v1/studies/{STUDY}", f"/api/v1/films/{FILM}/questions")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "node", archive_port=104)


@pytest.fixture
def spool(settings: Settings) -> Spool:
    """A spool with a study that has a file in every folder, and that may be removed."""
    spool = Spool(settings.storage.directory)
    instance = films.keep(spool, SEEN).instance
    answer = replace(samples.several(), source=FILM)
    spool.keep_reading(STUDY, "1", {**encode(answer), "file": instance.path.name})
    spool.mark_round(STUDY, RoundMark(number=1, created_at=datetime.now(UTC), files=(instance.path.name,), outputs=()))
    for folder in FOLDERS:
        (settings.storage.directory / "studies" / STUDY / folder).mkdir(exist_ok=True)
    with open_ledger(settings.storage) as ledger:
        ledger.set_study(STUDY, "finished")
    return spool


Removing = Callable[[str], Callable[[], bool]]
"""Has the study removed when somebody lists this folder of it; tells whether that has happened."""


@pytest.fixture(params=["before", "after"])
def removing(request: pytest.FixtureRequest, spool: Spool, monkeypatch: pytest.MonkeyPatch) -> Removing:
    """Remove the study before a folder is listed, or right after it."""
    scan, done = os.scandir, list[bool]()

    def removing_at(folder: str) -> Callable[[], bool]:
        def scan_and_remove(path: str | Path) -> AbstractContextManager[object]:
            if done or path != spool.directory / "studies" / STUDY / folder:
                return scan(path)
            done.append(True)
            with scan(path) as entries:
                listed = list(entries)
            assert spool.remove_study(STUDY)
            return nullcontext(listed) if request.param == "after" else scan(path)

        monkeypatch.setattr(os, "scandir", scan_and_remove)
        return lambda: bool(done)

    return removing_at


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("look", list(LOOKS))
def test_a_look_at_a_study_that_goes_sees_less(spool: Spool, removing: Removing, look: str, folder: str) -> None:
    before = LOOKS[look](spool)
    removing(folder)

    assert LOOKS[look](spool) <= before


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_page_of_a_study_that_goes_is_answered(
    settings: Settings, spool: Spool, removing: Removing, folder: str, path: str
) -> None:
    client = TestClient(as_user(application.build(parts_of(settings, spool))), raise_server_exceptions=False)
    assert client.get(path).status_code == 200
    is_removed = removing(folder)

    assert client.get(path).status_code in (200, 404, 410)

    assert is_removed() or path.endswith("questions") or folder == "conflicts"
