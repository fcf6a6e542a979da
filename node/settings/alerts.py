"""The settings of alerts without Prometheus: a webhook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from node.settings.file import WEB_URL, between, is_loopback, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """An address that gets each alert as JSON by POST.

    token_file: holds a bearer token, and is read for each request; ca: trusted beside the authorities of the system
    """

    url: str = setting(WEB_URL)
    token_file: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSettings:
    """Where alerts go; after_seconds: how long something must be wrong, or good again, before it is told."""

    after_seconds: float = setting(between(0.05, 86400.0), default=60.0)
    webhook: WebhookSettings

    @property
    def without_secrets(self) -> AlertsSettings:
        """The same for display: the path of a webhook is often a secret by which chat programs know who posts."""
        url = urlsplit(self.webhook.url)
        shown = f"{url.scheme}://{url.netloc}/***" if url.path.strip("/") else self.webhook.url
        return replace(self, webhook=replace(self.webhook, url=shown))


def unusable_alerts(alerts: AlertsSettings) -> Iterator[str]:
    """Return a complaint for a token that would cross the network in clear."""
    url = urlsplit(alerts.webhook.url)
    if url.scheme == "http" and alerts.webhook.token_file is not None and not is_loopback(url.hostname or ""):
        yield "alerts.webhook.token_file: a token is sent over TLS only; write https: in the url"
