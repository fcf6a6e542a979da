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
from node.metrics import Metrics
from node.store import questions
from node.store.ledger import open_ledger
from node.store.rounds import RoundMark
from node.store.spool import Spool
from node.web import application
from node.web.dependencies import WebParts
from node.web.look_files import Looks
from tests.support import films, samples
from tests.support.service import settings_for
from tests.support.spoken import PROMPTS
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


class Removal:
    """Removes the study when somebody lists one of its folders: before the list is made, or right after it."""

    def __init__(self, spool: Spool, folder: str, *, is_after: bool) -> None:
        self._spool, self._is_after, self._scan = spool, is_after, os.scandir
        self._folder = spool.directory / "studies" / STUDY / folder
        self.is_done = False

    def scan(self, path: str | Path) -> AbstractContextManager[object]:
        """List a folder, in the place of `os.scandir`."""
        if self.is_done or path != self._folder:
            return self._scan(path)
        self.is_done = True
        with self._scan(path) as entries:
            listed = list(entries)
        assert self._spool.remove_study(STUDY)
        return nullcontext(listed) if self._is_after else self._scan(path)


@pytest.fixture(params=["before", "after"])
def removing(request: pytest.FixtureRequest, spool: Spool, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Removal]:
    def removing_at(folder: str) -> Removal:
        removal = Removal(spool, folder, is_after=request.param == "after")
        monkeypatch.setattr(os, "scandir", removal.scan)
        return removal

    return removing_at


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("look", list(LOOKS))
def test_a_look_at_a_study_that_goes_sees_less(
    spool: Spool, removing: Callable[[str], Removal], look: str, folder: str
) -> None:
    before = LOOKS[look](spool)
    removing(folder)

    assert LOOKS[look](spool) <= before


@pytest.mark.drill(part="objects")
@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_page_of_a_study_that_goes_is_answered(
    settings: Settings, spool: Spool, removing: Callable[[str], Removal], folder: str, path: str
) -> None:
    looks = Looks(spool.directory / "looks")
    looks.close()
    built = application.build(
        WebParts(in_force=lambda: settings, spool=spool, metrics=Metrics(), prompts=lambda: PROMPTS, looks=looks)
    )
    client = TestClient(as_user(built), raise_server_exceptions=False)
    assert client.get(path).status_code == 200
    removal = removing(folder)

    assert client.get(path).status_code in (200, 404, 410)

    assert removal.is_done or path.endswith("questions") or folder == "conflicts"
