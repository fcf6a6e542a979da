"""The settings of alerts without Prometheus: a webhook, a mail server of the house, or both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from node.settings.file import NOT_BLANK, WEB_URL, Rule, between, is_loopback, one_of, setting

SECURITIES: Final = ("none", "starttls", "tls")


def _is_mail_address(value: object) -> str | None:
    """RFC 5321 4.1.2, without quoted names and address literals."""
    address = str(value)
    if len(address) <= 254 and re.fullmatch(
        r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", address
    ):
        return None
    return f"{address!r} is not a mail address; use NAME@DOMAIN"


_MAIL_ADDRESS: Final[Rule] = _is_mail_address


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """An address that gets each alert as JSON by POST.

    token_file: holds a bearer token, and is read for each request; ca: trusted beside the authorities of the system
    """

    url: str = setting(WEB_URL)
    token_file: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSettings:
    """A mail server that takes each alert (RFC 5321).

    security: `none`, `starttls` or `tls`; ca: trusted beside the authorities of the system
    password_file: holds the password of `user`, and is read for each mail
    """

    host: str = setting(NOT_BLANK)
    port: int = setting(between(1, 65535), default=25)
    security: str = setting(one_of(*SECURITIES), default="starttls")
    sender: str = setting(_MAIL_ADDRESS)
    recipients: tuple[str, ...] = setting(_MAIL_ADDRESS)
    user: str = ""
    password_file: Path | None = None
    ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSettings:
    """Where alerts go; after_seconds: how long something must be wrong, or good again, before it is told."""

    after_seconds: float = setting(between(0.05, 86400.0), default=60.0)
    webhook: WebhookSettings | None = None
    mail: MailSettings | None = None

    @property
    def without_secrets(self) -> AlertsSettings:
        """The same for display: the path of a webhook is often a secret by which chat programs know who posts."""
        if self.webhook is None:
            return self
        url = urlsplit(self.webhook.url)
        shown = f"{url.scheme}://{url.netloc}/***" if url.path.strip("/") else self.webhook.url
        return replace(self, webhook=replace(self.webhook, url=shown))


def unusable_alerts(alerts: AlertsSettings) -> Iterator[str]:
    """Return a complaint for alerts that go nowhere, or whose secret would cross the network in clear."""
    webhook, mail = alerts.webhook, alerts.mail
    if webhook is None and mail is None:
        yield "alerts: go nowhere; add [alerts.webhook] or [alerts.mail], or remove the table"
    if webhook is not None:
        url = urlsplit(webhook.url)
        if url.scheme == "http" and webhook.token_file is not None and not is_loopback(url.hostname or ""):
            yield "alerts.webhook.token_file: a token is sent over TLS only; write https: in the url"
    if mail is not None:
        if bool(mail.user) != (mail.password_file is not None):
            yield "alerts.mail.password_file: a user needs a password and a password a user; set both or neither"
        if mail.user and mail.security == "none" and not is_loopback(mail.host):
            yield "alerts.mail.security: a password is sent over TLS only; write starttls or tls"
