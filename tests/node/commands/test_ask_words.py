"""Questions in words about two files: what may be compared is checked before a model is opened."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest
from PIL import Image
from pydicom.dataset import Dataset

from node.commands.arguments import add_ask
from node.commands.ask import asked
from node.errors import InputError
from node.prompt_set import PromptSet
from node.read.model import RadiographReader
from tests.support import films


class Opened(Exception):
    """A model would be opened now."""


def opening(_options: Namespace, _prompts: PromptSet) -> RadiographReader:
    raise Opened


def ask(*arguments: object) -> None:
    parser = ArgumentParser()
    add_ask(parser, run=None)
    asked(parser.parse_args(list(map(str, arguments))), open_reader=opening)


def saved(path: Path, *, day: str, patient: str = "4711") -> Path:
    changes = {"PatientID": patient, "AcquisitionDate": day, "AcquisitionTime": "093000"}
    film: Dataset = films.changed(films.thumbnail(), changes)
    film.save_as(path)
    return path


@pytest.mark.parametrize(
    ("day", "patient", "words", "reason"),
    [
        ("20261109", "4711", ["--words", "what changed?"], "an earlier and a later one of one patient"),
        ("20261101", "4712", ["--words", "what changed?"], "an earlier and a later one of one patient"),
        ("20261101", "4711", ["--words", "any effusion?"], "for words on changes"),
        ("20261101", "4711", [], "ask by --words"),
    ],
)
def test_an_earlier_film_that_cannot_be_compared_is_refused(
    tmp_path: Path, day: str, patient: str, words: list[str], reason: str
) -> None:
    film = saved(tmp_path / "film.dcm", day="20261105")
    earlier = saved(tmp_path / "earlier.dcm", day=day, patient=patient)

    with pytest.raises(InputError, match=reason):
        ask(film, "--model", tmp_path, "--earlier", earlier, *words)


@pytest.mark.parametrize("is_picture", [False, True])
def test_an_earlier_film_of_the_patient_is_compared(tmp_path: Path, is_picture: bool) -> None:
    film, earlier = saved(tmp_path / "film.dcm", day="20261105"), saved(tmp_path / "earlier.dcm", day="20261101")
    if is_picture:
        earlier = tmp_path / "earlier.png"
        Image.new("L", (64, 64)).save(earlier)

    with pytest.raises(Opened):
        ask(film, "--model", tmp_path, "--earlier", earlier, "--words", "what changed?")
