"""The list of shown texts has those of reports, pages, scripts and commands, each with its place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.paths import REPOSITORY

pytestmark = pytest.mark.drill(part="conformance")


@pytest.fixture(scope="module")
def listed() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.drills.shown_texts"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("node/outputs/", "Not a report of a normal film."),
        ("node/outputs/", "columns {} to {}, rows {} to {}"),
        ("node/web/templates/", "Look at a film"),
        ("node/web/static/", "Nothing is asked: type a finding or a question, or draw a box."),
        ("node/commands/", "{} is not a number of threads; 0 means all cores"),
    ],
)
def test_a_text_is_listed_with_its_place(listed: list[str], place: str, text: str) -> None:
    assert [line for line in listed if line.startswith(place) and line.partition(": ")[2] == text]


def test_each_text_is_listed_once_and_no_docstring(listed: list[str]) -> None:
    texts = [line.partition(": ")[2] for line in listed]

    assert len(texts) == len(set(texts)) > 1000
    assert not [text for text in texts if text.startswith("What the node")]
