"""Answers a question in words about one file: by rule from its report, or by the network, as a running node does."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.contract import Question
from node.answers.comparison import FilmComparison, ReadFilm, compare
from node.answers.questions import Query, Topic, is_plain_prompt, understand
from node.answers.replies import Reply, answer, answer_by, for_network
from node.character_sets import visible
from node.commands import ask_node
from node.config import SiteSettings
from node.domain import Box, Film, Json, JsonObject, derive_uid
from node.errors import InputError
from node.jobs.patients import NOT_IN_ORDER, files_are_in_order, obstacle_of
from node.outputs.answer_wording import answer_to_json
from node.prompt_set import PromptSet
from node.read import open_film, prompts
from node.read.film import answer_film, answer_picture
from node.read.manifest import read_change_error
from node.read.model import RadiographReader


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenedModel:
    """A model that was opened to answer one question; model: its folder; name: of the network that reads with it."""

    model: Path
    name: str
    reader: RadiographReader
    prompts: PromptSet


def asked(options: Namespace, *, open_reader: Callable[[Namespace, PromptSet], RadiographReader]) -> JsonObject:
    """Answer `--words`, here or by a node, as its interface for programs does.

    Raises InputError when nothing or too much is asked, for a file that is no film that is read, and a box outside it.
    """
    if options.words is None:
        raise InputError('--earlier is the film to compare with; ask by --words "what changed?"')
    box = _only_box(options.prompt, options.box)
    if options.node:
        film, login = ask_node.film_address(options.film), ask_node.login_of(options.user, options.password_file)
        earlier = None if options.earlier is None else ask_node.film_address(options.earlier)
        return ask_node.ask_in_words(
            options.node, film, words=options.words, box=box, earlier=earlier, login=login, ca=options.ca
        )
    if not options.words.strip():
        raise InputError("nothing was asked; give --words TEXT")
    prompt_set = prompts.load(options.prompts)
    query = understand(options.words, prompt_set)
    open_film.check(options.film)
    if options.earlier is not None:
        _check_earlier(options.earlier, options.film, query)
    opened = _OpenedModel(
        model=options.model, name=options.reader, reader=open_reader(options, prompt_set), prompts=prompt_set
    )
    return _reply(options.film, options.words, query, box=box, earlier=options.earlier, opened=opened)


def _only_box(prompts: Sequence[str], boxes: Sequence[Box]) -> Box | None:
    """Return the box that words are about, if any. Raises InputError for several boxes, and for prompts."""
    if prompts or len(boxes) > 1:
        raise InputError("--words is a question of its own; give it alone, or with one --box L,T,R,B")
    return next(iter(boxes), None)


def _check_earlier(earlier: Path, film: Path, query: Query) -> None:
    """Check, before a model is opened, that two files may be compared; pictures name no patient and no time."""
    open_film.check(earlier)
    if query.topic is not Topic.COMPARE:
        raise InputError('--earlier is for words on changes, such as --words "what changed?"')
    are_pictures = open_film.is_picture(earlier) or open_film.is_picture(film)
    if not are_pictures and not files_are_in_order(earlier, film, nobodys=SiteSettings().nobodys):
        raise InputError(f"--earlier {earlier}: {NOT_IN_ORDER}")


def _reply(
    path: Path, words: str, query: Query, *, box: Box | None, earlier: Path | None, opened: _OpenedModel
) -> JsonObject:
    """Answer words about one file: the keys of the reply of a node that one file, or two of them, can have."""
    content: JsonObject = {"film": str(path), "text": None, "findings": [], "boxes": [], "questions": []}
    question: Question | None = Question(prompt=" ".join(visible(words).split()), box=box)
    if not is_plain_prompt(words, query, opened.prompts):
        film = _film(path, opened)
        if earlier is not None and film.is_read:
            return content | _compared(film, earlier, query, opened)
        said = answer(query, film, box=box)
        content |= _said(said)
        question = for_network(query, said, opened.prompts, box=box) if film.is_read else None
    if question is not None:
        answers = open_film.ask(path, [question], reader=opened.reader, prompts=opened.prompts)
        content["questions"] = [answer_to_json(each) for each in answers]
    return content


def _compared(film: Film, earlier: Path, query: Query, opened: _OpenedModel) -> JsonObject:
    """Answer a question on changes by two films."""
    model, error = opened.reader.identity, read_change_error(opened.model, reader=opened.name)
    if (obstacle := obstacle_of(error, model)) is not None:
        return _said(answer_by(obstacle, query))
    films = [
        ReadFilm(film=each, model=model, prompts_sha256=opened.prompts.sha256)
        for each in (_film(earlier, opened), film)
    ]
    compared = compare(films[0], films[1], error=error)
    said = answer_by(compared, query)
    return {
        **_said(said),
        "text": f"Compared with the film that was named. {said.text}",
        "compared_with": str(earlier),
        "changes": _changes(compared, said.findings),
    }


def _said(said: Reply) -> JsonObject:
    return {"text": said.text, "findings": list(said.findings), "boxes": list(said.boxes)}


def _changes(compared: FilmComparison, findings: Sequence[str]) -> list[Json]:
    return [
        {
            "finding": found.prompt,
            "change": found.change,
            "text": found.text,
            "boxes": list(found.later),
            "earlier_boxes": list(found.earlier),
        }
        for found in compared.findings
        if found.prompt in findings
    ]


def _film(path: Path, opened: _OpenedModel) -> Film:
    """Read a file as a film. Raises InputError if it is none."""
    open_film.check(path, opened.reader.ages)
    if open_film.is_picture(path):
        source = derive_uid("look", path.name)
        return answer_picture(open_film.load(path, opened.reader), opened.reader, opened.prompts, source=source)
    film = answer_film(path, opened.reader, opened.prompts).film
    if film is None:
        raise InputError(f"{path}: is not a film that is read; name another file")
    return film
