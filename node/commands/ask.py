"""Answers questions about one film: here by a model, or by a running node that has received it; and says them in words.

A question in words is answered by rule from the film's report, or by the network, as a running node does. A node alone
is connected to, through no proxy. `--json` prints the answer itself (design §8).
"""

from __future__ import annotations

import getpass
import ssl
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httpx2

from models.contract import Box, FindingState, Question
from node.answers.comparison import FilmComparison, ReadFilm, compare
from node.answers.questions import Query, Topic, is_plain_prompt, understand
from node.answers.replies import Reply, answer, answer_by, for_network
from node.character_sets import visible
from node.config import SiteSettings
from node.dicom import header_reading
from node.domain import Film, Json, JsonObject, Note, derive_uid, is_uid
from node.errors import InputError, NodeError, Undecodable
from node.jobs.patients import NOT_IN_ORDER, files_are_in_order, obstacle_of
from node.outputs import wording
from node.outputs.asked_question import answer_to_json
from node.prompt_set import PromptSet
from node.read import open_film, prompts
from node.read.film import answer_film, answer_picture
from node.read.manifest import read_change_error
from node.read.model import RadiographReader

_PATIENCE_SECONDS: Final = 60.0
_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")


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
        film, login = film_address(options.film), login_of(options.user, options.password_file)
        earlier = None if options.earlier is None else film_address(options.earlier)
        return ask_in_words(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user of a node, with the password."""

    user: str
    password: str = field(repr=False)


def login_of(user: str | None, password_file: Path | None) -> Login | None:
    """Return the login of a user: the password is the first line of a file, or is typed. Raises InputError."""
    if user is None:
        if password_file is not None:
            raise InputError("--password-file is for a user; name one by --user NAME")
        return None
    if password_file is None:
        return Login(user=user, password=_typed(user))
    try:
        password = password_file.read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{password_file}: cannot be read ({type(error).__name__}); name a file with a password"
        ) from error
    return Login(user=user, password=password.removesuffix("\r"))


def _typed(user: str) -> str:
    """Ask for a password without showing it. Raises InputError where there is no terminal."""
    try:
        with warnings.catch_warnings(action="error", category=getpass.GetPassWarning):
            return getpass.getpass(f"password of {user}: ")
    except (EOFError, getpass.GetPassWarning) as error:
        raise InputError(
            f"--user {user}: there is no terminal to type the password in; name a file with it by --password-file FILE"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmAddress:
    """Which film of a node is meant; study: None if the SOP Instance UID alone is known."""

    study: str | None
    uid: str

    @property
    def path(self) -> str:
        """The part of a path that names the film."""
        return f"films/{self.uid}" if self.study is None else f"studies/{self.study}/films/{self.uid}"


def film_address(what: Path) -> FilmAddress:
    """Return the film that a SOP Instance UID, STUDY/UID or a DICOM file names. Raises InputError for anything else."""
    *studies, uid = str(what).split("/")
    if len(studies) < 2 and all(map(is_uid, (*studies, uid))):
        return FilmAddress(study=next(iter(studies), None), uid=uid)
    if not what.is_file():
        raise InputError(f"{what}: is neither a DICOM file nor a SOP Instance UID, alone or as STUDY/UID")
    try:
        known = header_reading.read_identity(what)
    except Undecodable as error:
        raise InputError(f"{what}: is no DICOM file, so the node cannot know it; ask with --model instead") from error
    return FilmAddress(study=str(known.StudyInstanceUID), uid=str(known.SOPInstanceUID))


def ask(
    node: str, film: FilmAddress, *, questions: Sequence[Question], login: Login | None = None, ca: Path | None = None
) -> list[JsonObject]:
    """Ask a node, and return the entries of `questions` in its answer.

    node: its address, such as http://127.0.0.1:8080
    ca: certificates to trust, in PEM; those of this machine if None
    Raises InputError for an address or question that cannot be used, NodeError if the node does not answer.
    """
    asked: list[Json] = [
        {"prompt": question.prompt, "box": None if question.box is None else list(question.box.edges)}
        for question in questions
    ]
    answered = _post(node, f"{film.path}/questions", {"questions": asked}, login=login, ca=ca)
    match answered.get("questions"):
        case [*entries]:
            return [entry for entry in entries if isinstance(entry, dict)]
    raise _no_node(node, KeyError())


def ask_in_words(
    node: str,
    film: FilmAddress,
    *,
    words: str,
    box: Box | None = None,
    earlier: FilmAddress | None = None,
    login: Login | None = None,
    ca: Path | None = None,
) -> JsonObject:
    """Ask a node in words, and return its reply; earlier: the film to compare with; the rest as in `ask`."""
    content: JsonObject = {"text": words, "box": None if box is None else list(box.edges)}
    if earlier is not None:
        content |= {"earlier": earlier.uid, "earlier_study": earlier.study}
    return _post(node, f"{film.path}/replies", content, login=login, ca=ca)


def _post(node: str, route: str, content: JsonObject, *, login: Login | None, ca: Path | None) -> JsonObject:
    """Post to a node, and return its answer; parameters and errors as in `ask`."""
    address = urlsplit(node)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InputError(f"--node {node}: is no address of a node; write http://HOST:PORT")
    if login is not None and address.scheme == "http" and address.hostname not in _THIS_MACHINE:
        raise InputError(f"--node {node}: a password is sent to another machine by https:// only")
    try:
        with httpx2.Client(
            auth=None if login is None else (login.user, login.password),
            headers={"X-Requested-From": "command"},
            verify=_trusting(ca),
            trust_env=False,
            timeout=_PATIENCE_SECONDS,
        ) as client:
            answer = client.post(f"{address.scheme}://{address.netloc}/api/v1/{route}", json=content)
        if not answer.is_success:
            raise (InputError if answer.status_code < 500 else NodeError)(f"{node}: {_detail(answer)}")
        answered = answer.json()
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise _no_node(node, error) from error
    if not isinstance(answered, dict):
        raise _no_node(node, TypeError())
    return answered


def _no_node(node: str, error: Exception) -> NodeError:
    return NodeError(f"{node}: does not answer as a node ({type(error).__name__}); check the address")


def _trusting(ca: Path | None) -> ssl.SSLContext:
    """Make a context that checks certificate and name of a server. Raises InputError."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise InputError(
            f"--ca {ca}: cannot be used ({type(error).__name__}); name a PEM file of certificates"
        ) from error


def _detail(answer: httpx2.Response) -> str:
    """Return what a problem document says, or the status; a redirect is not followed, as to another machine."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"answers {answer.status_code}; check the address"


def in_words(document: JsonObject) -> str:
    """Return what was asked of a film, and the answers, as lines."""
    lines = [f"{document['film']}"]
    if text := document.get("text"):
        lines.append(str(text))
    for question in cast(list[JsonObject], document["questions"]):
        lines += ["", *_answer(question)]
    return "\n".join([*lines, "", "For research use; not for diagnosis."])


def _answer(question: JsonObject) -> Iterator[str]:
    said = [text for text in (_state(question), _probability(question)) if text]
    yield f"{_asked(question)}{': ' if said else ''}{', '.join(said)}"
    for key in ("sentence", "reason"):
        if question[key]:
            yield f"    {question[key]}"
    for place in cast(list[JsonObject], question["boxes"]):
        score = "" if place["score"] is None else f", score {place['score']:.2f}"
        yield f"    at {_edges(place['box'])}{score}"
    for note in cast(list[str], question["notes"]):
        yield f"    Note: {wording.NOTES[Note(note)]}."


def _asked(question: JsonObject) -> str:
    prompt, box = question["prompt"], question["box"]
    where = "" if box is None else f"the box {_edges(box)}"
    return " in ".join(str(part) for part in (prompt, where) if part)


def _state(question: JsonObject) -> str:
    if "message" in question:
        return str(question["message"])
    if question["state"] is None:
        return ""
    state = FindingState(str(question["state"]))
    names = {
        FindingState.PRESENT: "present",
        FindingState.ABSENT: wording.HEADINGS[FindingState.ABSENT].lower(),
        FindingState.LEFT_OUT: "not assessed",
    }
    return names.get(state) or wording.MARKS[state]


def _probability(question: JsonObject) -> str:
    score = question["score"]
    return f"AI probability {wording.percent(score)}" if isinstance(score, float) else ""


def _edges(box: Json) -> str:
    """Return left, top, right and bottom in whole pixels of the stored film."""
    return ", ".join(f"{edge:.0f}" for edge in cast(list[float], box))
