"""Answers a question in words about one file: by rule from its report, or by the network, as a running node does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from node.answers.questions import is_plain_prompt, understand
from node.answers.replies import answer, for_network
from node.domain import Box, Film, JsonObject, derive_uid
from node.errors import InputError
from node.outputs.answer_json import answer_to_json
from node.prompt_set import PromptSet
from node.read import open_film
from node.read.film import answer_film, answer_picture
from node.read.model import FilmQuestion, Reader


def only_box(prompts: Sequence[str], boxes: Sequence[Box]) -> Box | None:
    """Return the box that words are about, if any. Raises InputError for several boxes, and for prompts."""
    if prompts or len(boxes) > 1:
        raise InputError("--words is a question of its own; give it alone, or with one --box L,T,R,B")
    return next(iter(boxes), None)


def check(film: Path) -> None:
    """Check that a question about a file may be asked, before a model is opened. Raises InputError."""
    open_film.check(film)


def reply(path: Path, words: str, *, box: Box | None, reader: Reader, prompts: PromptSet) -> JsonObject:
    """Answer words about one file: the keys of the reply of a node that one file can have.

    Raises InputError when nothing is asked, the file is not a film that is read, or the box leaves the film.
    """
    if not words.strip():
        raise InputError("nothing was asked; give --words TEXT")
    query = understand(words, prompts)
    content: JsonObject = {"film": str(path), "text": None, "findings": [], "boxes": [], "questions": []}
    question: FilmQuestion | None = FilmQuestion(prompt=" ".join(words.split()), box=box)
    if not is_plain_prompt(words, query, prompts):
        film = _film(path, reader, prompts)
        said = answer(query, film, box=box)
        content |= {"text": said.text, "findings": list(said.findings), "boxes": list(said.boxes)}
        question = for_network(query, said, prompts, box=box) if film.is_read else None
    if question is not None:
        answers = open_film.ask(path, [question], reader=reader, prompts=prompts)
        content["questions"] = [answer_to_json(each) for each in answers]
    return content


def _film(path: Path, reader: Reader, prompts: PromptSet) -> Film:
    """Read a file as a film. Raises InputError if it is none."""
    open_film.check(path, reader.ages)
    if open_film.is_picture(path):
        return answer_picture(open_film.load(path, reader), reader, prompts, source=derive_uid("look", path.name))
    film = answer_film(path, reader, prompts).film
    if film is None:
        raise InputError(f"{path}: is not a film that is read; name another file")
    return film
