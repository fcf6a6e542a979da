"""The settings of alerts without Prometheus: a webhook."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated
from urllib.parse import urlsplit

from node.settings.rules import FilePath, WebUrl, between, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """An address that gets each alert as JSON by POST.

    token_file: holds a bearer token, and is read for each request; ca: trusted beside the authorities of the system
    """

    url: WebUrl
    token_file: FilePath | None = None
    ca: FilePath | None = None

    def __post_init__(self) -> None:
        url = urlsplit(self.url)
        if url.scheme == "http" and self.token_file is not None and not is_loopback(url.hostname or ""):
            raise ValueError("token_file: a token is sent over TLS only; write https: in the url")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSettings:
    """Where alerts go; after_seconds: how long something must be wrong, or good again, before it is told."""

    after_seconds: Annotated[float, between(0.05, 86400.0)] = 60.0
    webhook: WebhookSettings

    @property
    def without_secrets(self) -> AlertsSettings:
        """The same for display: the path of a webhook is often a secret by which chat programs know who posts."""
        url = urlsplit(self.webhook.url)
        shown = f"{url.scheme}://{url.netloc}/***" if url.path.strip("/") else self.webhook.url
        return replace(self, webhook=replace(self.webhook, url=shown))
