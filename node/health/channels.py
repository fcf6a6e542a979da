"""Sends an alert to a webhook or a mail server; to no other peer, and by no proxy of the environment."""

from __future__ import annotations

import smtplib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from functools import partial
from typing import Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from node.codec import encode
from node.errors import RetryLater
from node.health.alerts import Alert, Channel
from node.net import tls
from node.settings.alerts import AlertsSettings, MailSettings, WebhookSettings

_LIMIT_SECONDS: Final = 5.0
_LONGEST_SUBJECT: Final = 200
_PORTS: Final = {"http": 80, "https": 443}

Send = Callable[[Alert], None]
"""Sends one alert. Raises RetryLater, whose text says why."""


def senders(alerts: AlertsSettings, *, node: str, zone: ZoneInfo) -> Mapping[Channel, Send]:
    """Return how the channels of the settings are used; node: what the messages call this node."""
    found: dict[Channel, Send] = {}
    if alerts.webhook is not None:
        found["webhook"] = partial(_post, settings=alerts.webhook, node=node)
    if alerts.mail is not None:
        found["mail"] = partial(_mail, settings=alerts.mail, node=node, zone=zone)
    return found


def probes(alerts: AlertsSettings) -> Mapping[Channel, Callable[[], None]]:
    """Return how to find out whether the channels can be reached, without an alert. Each raises RetryLater."""
    found: dict[Channel, Callable[[], None]] = {}
    if alerts.webhook is not None:
        found["webhook"] = partial(_reach_webhook, alerts.webhook)
    if alerts.mail is not None:
        found["mail"] = partial(_reach_mail_server, alerts.mail)
    return found


def _post(alert: Alert, *, settings: WebhookSettings, node: str) -> None:
    """POST an alert as JSON; `text` is for chat programs. Every answer of 2xx takes it. Raises RetryLater."""
    import httpx  # takes a tenth of a second, which a node without a webhook saves

    content = {"version": 1, "node": node, **encode(alert), "text": f"{_subject(alert, node)}. {alert.message}"}
    try:
        headers = {"User-Agent": "ChEX-Node", **_token(settings)}
        with (
            httpx.Client(verify=_context(settings.ca), timeout=_LIMIT_SECONDS, trust_env=False) as client,
            client.stream("POST", settings.url, json=content, headers=headers) as answer,
        ):
            answer.close()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise RetryLater(f"the webhook takes nothing ({_why(error)})") from error
    if not answer.is_success:  # a redirect may lead to a peer that the settings do not name
        raise RetryLater(f"the webhook answered with the status {answer.status_code}")


def _token(settings: WebhookSettings) -> Mapping[str, str]:
    if settings.token_file is None:
        return {}
    return {"Authorization": f"Bearer {settings.token_file.read_text(encoding='utf-8').strip()}"}


def _reach_webhook(settings: WebhookSettings) -> None:
    """Connect, with TLS where the settings have it, and send no request. Raises RetryLater."""
    url = urlsplit(settings.url)
    try:
        _token(settings)
        with socket.create_connection((url.hostname, url.port or _PORTS[url.scheme]), _LIMIT_SECONDS) as connection:
            if url.scheme == "https":
                _context(settings.ca).wrap_socket(connection, server_hostname=url.hostname).close()
    except (OSError, ValueError) as error:
        raise RetryLater(f"the webhook cannot be reached ({_why(error)})") from error


def _mail(alert: Alert, *, settings: MailSettings, node: str, zone: ZoneInfo) -> None:
    """Send an alert by mail. Raises RetryLater."""
    message = EmailMessage()
    message["Subject"] = _subject(alert, node)[:_LONGEST_SUBJECT]
    message["From"], message["To"] = settings.sender, ", ".join(settings.recipients)
    message["Date"], message["Message-ID"] = format_datetime(datetime.now(zone)), make_msgid(domain=_domain(settings))
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_body(alert, node, zone))
    with _signed_in(settings) as session:
        session.send_message(message)


def _reach_mail_server(settings: MailSettings) -> None:
    """Connect as for a mail, sign in where the settings have a user, and send no mail. Raises RetryLater."""
    with _signed_in(settings) as session:
        session.ehlo_or_helo_if_needed()


@contextmanager
def _signed_in(settings: MailSettings) -> Iterator[smtplib.SMTP]:
    """Open a session with the mail server. Raises RetryLater, also for what happens in it."""
    try:
        with _session(settings) as session:
            if settings.password_file is not None:
                session.login(settings.user, settings.password_file.read_text(encoding="utf-8").strip())
            yield session
    except smtplib.SMTPResponseException as error:
        raise RetryLater(f"the mail server answered with the code {error.smtp_code}") from error
    except (OSError, ValueError) as error:  # smtplib.SMTPException is an OSError
        raise RetryLater(f"the mail server takes nothing ({_why(error)})") from error


def _session(settings: MailSettings) -> smtplib.SMTP:
    """Raises OSError (smtplib.SMTPException is one) or ValueError."""
    domain = _domain(settings)
    if settings.security == "tls":
        return smtplib.SMTP_SSL(
            settings.host,
            settings.port,
            local_hostname=domain,
            timeout=_LIMIT_SECONDS,
            context=_context(settings.ca),
        )
    session = smtplib.SMTP(settings.host, settings.port, local_hostname=domain, timeout=_LIMIT_SECONDS)
    try:
        if settings.security == "starttls":
            session.starttls(context=_context(settings.ca))
    except (OSError, ValueError):
        session.close()
        raise
    return session


def _domain(settings: MailSettings) -> str:
    """Return the name by which the node greets: the mail program would ask the name server for one otherwise."""
    return settings.sender.rpartition("@")[2]


def _context(ca: object) -> ssl.SSLContext:
    context = tls.system_context()
    if ca is not None:
        context.load_verify_locations(str(ca))
    return context


def _subject(alert: Alert, node: str) -> str:
    is_over = "over: " if alert.status == "ended" else ""
    return f"ChEX Node {node}: {is_over}{alert.title}"


def _body(alert: Alert, node: str, zone: ZoneInfo) -> str:
    lines = [f"It is over: {alert.title}." if alert.status == "ended" else alert.message]
    if alert.since is not None:
        lines.append(f"It began {datetime.fromisoformat(alert.since).astimezone(zone):%Y-%m-%d %H:%M:%S} {zone.key}.")
    lines.append(f"Node {node}. See its page /system, or `node status` and `node doctor`.")
    return "\n\n".join(lines) + "\n"


def _why(error: Exception) -> str:
    """Say why without the text of a peer."""
    while isinstance(error.__cause__, Exception):  # httpx's errors are of other errors
        error = error.__cause__
    if isinstance(error, OSError | ValueError) and not isinstance(error, smtplib.SMTPException):
        known = tls.complaint(error)
        return known if known != "unreadable" else type(error).__name__
    return type(error).__name__
