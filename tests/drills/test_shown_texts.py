"""The list of shown texts has those of reports, pages, scripts and commands, each with its place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.paths import REPOSITORY

pytestmark = pytest.mark.drill(part="conformance")


def test_texts_of_reports_pages_scripts_and_commands_are_listed_once_with_their_places() -> None:
    command = [sys.executable, "-m", "tests.drills.shown_texts"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()

    texts = [line.partition(": ")[2] for line in listed]
    assert len(texts) == len(set(texts)) > 1000
    for folder in ("node/outputs/", "node/web/templates/", "node/web/static/", "node/commands/", "language/", "helm/"):
        assert any(line.startswith(folder) for line in listed), folder
