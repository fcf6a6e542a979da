"""A reader's way over the pages of a node beside a real Orthanc: from the worklist to a corrected report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browsed import SIZES
from tests.web_journey import Room, reading_room, travel


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, phantom_model: Path, browser: Browser) -> Iterator[Room]:
    assert phantom_model.is_dir()
    with reading_room(tmp_path_factory.mktemp("journey"), browser) as opened:
        yield opened


@pytest.mark.parametrize("size", SIZES)
def test_a_film_is_asked_about_and_its_report_corrected(room: Room, size: str) -> None:
    pictures = travel(room, size=size).pictures

    assert list(pictures) == ["worklist", "study", "answers", "moving", "corrected", "upload"]
