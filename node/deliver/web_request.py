"""One HTTP request to a destination, and the destination's state by its answer.

Nothing follows a redirection, and no setting of the environment is used, so a token goes nowhere but to the address in
the settings. An answer's body is read up to a limit.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from node.deliver import connections
from node.domain import Json
from node.errors import DestinationDown, RetryLater
from node.settings.destinations import DicomwebDestination, FhirDestination

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2

_Destination: TypeAlias = "DicomwebDestination | FhirDestination"

PROBE_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1 << 20
_NOT_ALLOWED: Final = frozenset((401, 403))
_AWAY: Final = frozenset((502, 503, 504))
BUSY: Final = frozenset((408, 429, 500))
WRONG_ADDRESS: Final = frozenset((301, 302, 303, 307, 308, 404, 405, 501))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAnswer:
    """Status and body of an answer; the body may be cut off."""

    status: int
    body: bytes = b""


def require_open(answer: WebAnswer, name: str) -> None:
    """Raise DestinationDown for an answer that every request would get now."""
    if answer.status in _NOT_ALLOWED:
        raise DestinationDown(
            f"{name} does not admit the node ({answer.status}); check token_file or login_file, and the rights there"
        )
    if answer.status in _AWAY:
        raise DestinationDown(f"{name} is not available ({answer.status})")


def ask(
    destination: _Destination,
    method: str,
    path: str,
    *,
    content: bytes | None = None,
    kind: str = "",
    accept: str = "application/dicom+json",
    seconds: float | None = None,
) -> WebAnswer:
    """Send one request and read its answer. Raises RetryLater, or DestinationDown when no connection can be made."""
    import httpx2  # takes a tenth of a second, which a node without such a destination saves

    headers = {"Accept": accept, **_authorization(destination)}
    if kind:
        headers["Content-Type"] = kind
    seconds = seconds or destination.answer_seconds
    limits = httpx2.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
    url = destination.url.rstrip("/") + path
    try:
        with (
            httpx2.Client(
                verify=connections.tls_context(destination) or False, timeout=limits, trust_env=False
            ) as client,
            client.stream(method, url, content=content, headers=headers) as answer,
        ):
            return WebAnswer(status=answer.status_code, body=_body(answer, end=time.monotonic() + seconds))
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        connections.connect(destination, limit_seconds=PROBE_SECONDS).close()  # raises the reason, if it fails as well
        raise DestinationDown(
            f"{destination.name} cannot be reached at {destination.host}:{destination.port}"
        ) from error
    except (httpx2.HTTPError, TimeoutError) as error:
        if destination.is_secured:
            connections.explain(destination, limit_seconds=PROBE_SECONDS)
        raise RetryLater(
            f"{destination.name} gave no whole answer ({type(error).__name__}); if it is slow, raise "
            "destinations.answer_seconds"
        ) from error


def _body(answer: httpx2.Response, *, end: float) -> bytes:
    """Read a body up to a limit of bytes. Raises TimeoutError after `end`, on the monotonic clock."""
    read = bytearray()
    for piece in answer.iter_bytes():
        read += piece
        if len(read) > _MOST_BYTES:
            break
        if time.monotonic() > end:
            raise TimeoutError
    return bytes(read[:_MOST_BYTES])


def _authorization(destination: _Destination) -> Mapping[str, str]:
    """Read token or login anew, so that a renewed one is used at once. Raises DestinationDown."""
    if destination.token_file is not None:
        return {"Authorization": f"Bearer {_line_of(destination.token_file, destination, 'token_file')}"}
    if destination.login_file is not None:
        login = _line_of(destination.login_file, destination, "login_file")
        return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    return {}


def _line_of(path: Path, destination: _Destination, key: str) -> str:
    try:
        line = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise DestinationDown(f"{destination.name}: destinations.{key} cannot be read") from error
    if not line or not line.isprintable():
        raise DestinationDown(f"{destination.name}: destinations.{key} does not hold one line of text")
    return line


def parsed(body: bytes) -> Json:
    """Read a body as JSON; None if it is none."""
    try:
        content: Json = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content
