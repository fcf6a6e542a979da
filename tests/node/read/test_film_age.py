"""Films of patients of other ages than a model is for: they are answered, and no question about them is."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.contract import Question
from node.domain import Note, Reason
from node.errors import InputError
from node.outputs import wording
from node.read import open_film, prompts
from node.read.film import answer_film
from tests.support import films
from tests.support.fakes import ScriptedReader

PROMPTS = prompts.load("chexpert14")


class AdultReader(ScriptedReader):
    """Reads films of adults only."""

    ages = range(18, 200)


def film(folder: Path, **changes: object) -> Path:
    path = folder / "film.dcm"
    path.write_bytes(films.file_bytes(films.thumbnail(changes)))
    return path


def test_a_film_of_a_child_gets_an_answer_with_the_reason(tmp_path: Path) -> None:
    answered = answer_film(film(tmp_path, PatientAge="011Y"), AdultReader(), PROMPTS)

    assert answered.film is not None
    assert (answered.film.is_read, answered.film.reason) == (False, Reason.AGE)
    assert "age lies outside" in wording.not_processed(answered.film)


def test_a_film_of_unknown_age_is_read_and_the_report_says_so(tmp_path: Path) -> None:
    answered = answer_film(film(tmp_path, PatientBirthDate=""), AdultReader(), PROMPTS)

    assert answered.film is not None
    assert (answered.film.is_read, answered.film.notes) == (True, (Note.AGE_UNKNOWN,))
    assert "states no age that could be read" in wording.limits(answered.film)


def test_no_question_about_a_film_of_a_child_is_answered(tmp_path: Path) -> None:
    path, question = film(tmp_path, PatientAge="011Y"), Question(prompt="Edema")

    assert open_film.ask(path, [question], reader=ScriptedReader(), prompts=PROMPTS)
    with pytest.raises(InputError, match="age"):
        open_film.ask(path, [question], reader=AdultReader(), prompts=PROMPTS)
