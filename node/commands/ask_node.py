"""Asks a running node about a film that it has received. Connects to that node alone, through no proxy."""

from __future__ import annotations

import getpass
import ssl
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2

from models.contract import Question
from node.dicom import header_reading
from node.domain import Box, Json, JsonObject, is_uid
from node.errors import InputError, NodeError, Undecodable

_PATIENCE_SECONDS: Final = 60.0
_THIS_MACHINE: Final = ("127.0.0.1", "::1", "localhost")


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
