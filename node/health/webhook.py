"""Posts an alert to the webhook of `[alerts]`; to no other peer, and by no proxy of the environment."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from models.documents import encode
from node.errors import RetryLater
from node.health.alerts import Alert
from node.net import tls
from node.settings.alerts import WebhookSettings

_LIMIT_SECONDS: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}


def post(alert: Alert, *, settings: WebhookSettings, node: str) -> None:
    """POST an alert as JSON; every answer of 2xx takes it. Raises RetryLater, whose text says why.

    node: what the message calls this node; `text` of the message is for chat programs
    """
    import httpx  # takes a tenth of a second, which a node without a webhook saves

    subject = f"ChEX Node {node}: {'over: ' if alert.status == 'ended' else ''}{alert.title}"
    content = {"version": 1, "node": node, **encode(alert), "text": f"{subject}. {alert.message}"}
    try:
        headers = {"User-Agent": "ChEX-Node", **_token(settings)}
        with (
            httpx.Client(verify=_context(settings), timeout=_LIMIT_SECONDS, trust_env=False) as client,
            client.stream("POST", settings.url, json=content, headers=headers) as answer,
        ):
            answer.close()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise RetryLater(f"the webhook takes nothing ({_why(error)})") from error
    if not answer.is_success:  # a redirect may lead to a peer that the settings do not name
        raise RetryLater(f"the webhook answered with the status {answer.status_code}")


def reach(settings: WebhookSettings) -> None:
    """Connect, with TLS where the settings have it, and send no request. Raises RetryLater."""
    url = urlsplit(settings.url)
    try:
        _token(settings)
        with socket.create_connection((url.hostname, url.port or _PORTS[url.scheme]), _LIMIT_SECONDS) as connection:
            if url.scheme == "https":
                _context(settings).wrap_socket(connection, server_hostname=url.hostname).close()
    except (OSError, ValueError) as error:
        raise RetryLater(f"the webhook cannot be reached ({_why(error)})") from error


def _token(settings: WebhookSettings) -> Mapping[str, str]:
    if settings.token_file is None:
        return {}
    return {"Authorization": f"Bearer {settings.token_file.read_text(encoding='utf-8').strip()}"}


def _context(settings: WebhookSettings) -> ssl.SSLContext:
    context = tls.system_context()
    if settings.ca is not None:
        context.load_verify_locations(str(settings.ca))
    return context


def _why(error: Exception) -> str:
    """Say why without the text of a peer."""
    while isinstance(error.__cause__, Exception):  # httpx's errors are of other errors
        error = error.__cause__
    known = tls.complaint(error) if isinstance(error, OSError | ValueError) else "unreadable"
    return known if known != "unreadable" else type(error).__name__
