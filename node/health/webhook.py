"""Posts an alert to the webhook of `[alerts]`; to no other peer, and by no proxy of the environment."""

from __future__ import annotations

import socket
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
    import httpx2  # takes a tenth of a second, which a node without a webhook saves

    subject = f"ChEX Node {node}: {'over: ' if alert.status == 'ended' else ''}{alert.title}"
    content = {"version": 1, "node": node, **encode(alert), "text": f"{subject}. {alert.message}"}
    try:
        headers = {"User-Agent": "ChEX-Node", **_token(settings)}
        with (
            httpx2.Client(verify=tls.system_context(settings.ca), timeout=_LIMIT_SECONDS, trust_env=False) as client,
            client.stream("POST", settings.url, json=content, headers=headers) as answer,
        ):
            answer.close()
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise RetryLater(f"the webhook takes nothing ({tls.cause(error)})") from error
    if not answer.is_success:  # a redirect may lead to a peer that the settings do not name
        raise RetryLater(f"the webhook answered with the status {answer.status_code}")


def reach(settings: WebhookSettings) -> None:
    """Connect, with TLS where the settings have it, and send no request. Raises RetryLater."""
    url = urlsplit(settings.url)
    try:
        _token(settings)
        with socket.create_connection((url.hostname, url.port or _PORTS[url.scheme]), _LIMIT_SECONDS) as connection:
            if url.scheme == "https":
                tls.system_context(settings.ca).wrap_socket(connection, server_hostname=url.hostname).close()
    except (OSError, ValueError) as error:
        raise RetryLater(f"the webhook cannot be reached ({tls.cause(error)})") from error


def _token(settings: WebhookSettings) -> Mapping[str, str]:
    if settings.token_file is None:
        return {}
    return {"Authorization": f"Bearer {settings.token_file.read_text(encoding='utf-8').strip()}"}
