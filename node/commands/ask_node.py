"""Asks a running node about a film that it has received. Connects to that node alone, through no proxy."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Final, cast
from urllib.parse import urlsplit

from node.domain import JsonObject, is_uid
from node.errors import InputError, NodeError, Undecodable
from node.read import decoding
from node.read.model import FilmQuestion

_PATIENCE_SECONDS: Final = 60.0


def film_uid(what: Path) -> str:
    """Return the SOP Instance UID that a UID or a DICOM file names. Raises InputError for anything else."""
    if is_uid(str(what)):
        return str(what)
    if not what.is_file():
        raise InputError(f"{what}: is neither a DICOM file nor a SOP Instance UID")
    try:
        return str(decoding.read_identity(what).SOPInstanceUID)
    except Undecodable as error:
        raise InputError(f"{what}: is no DICOM file, so the node cannot know it; ask with --model instead") from error


def ask(node: str, uid: str, questions: Sequence[FilmQuestion]) -> list[JsonObject]:
    """Ask a node, and return the entries of `questions` in its answer.

    node: its address, such as http://127.0.0.1:8080
    Raises InputError for an address or question that cannot be used, NodeError if the node does not answer.
    """
    address = urlsplit(node)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InputError(f"--node {node}: is no address of a node; write http://HOST:PORT")
    asked = [
        {"prompt": question.prompt, "box": None if question.box is None else list(question.box.edges)}
        for question in questions
    ]
    request = urllib.request.Request(
        f"{address.scheme}://{address.netloc}/api/v1/films/{uid}/questions",
        data=json.dumps({"questions": asked}).encode(),
        headers={"Content-Type": "application/json", "X-Requested-From": "command"},
        method="POST",
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with direct.open(request, timeout=_PATIENCE_SECONDS) as answer:
            return cast(list[JsonObject], json.loads(answer.read())["questions"])
    except urllib.error.HTTPError as error:
        with error:
            detail = _detail(error)
        raise (InputError if error.code < 500 else NodeError)(f"{node}: {detail}") from error
    except (OSError, HTTPException, ValueError, KeyError) as error:
        raise NodeError(f"{node}: does not answer as a node ({type(error).__name__}); check the address") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could lead to another machine."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        """Refuse."""


def _detail(error: urllib.error.HTTPError) -> str:
    """Return what a problem document says, or the status."""
    try:
        return str(json.loads(error.read())["detail"])
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return f"answers {error.code}; check the address"
