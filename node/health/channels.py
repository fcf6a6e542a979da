"""Sends an alert to a webhook or a mail server; to no other peer, and by no proxy of the environment."""

from __future__ import annotations

import json
import smtplib
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime, make_msgid
from functools import partial
from http.client import HTTPException, HTTPMessage
from typing import IO, Final
from urllib.error import HTTPError, URLError
from zoneinfo import ZoneInfo

from node.codec import encode
from node.errors import RetryLater
from node.health.alerts import Alert, Channel
from node.net import tls
from node.settings.alerts import AlertsSettings, MailSettings, WebhookSettings

_LIMIT_SECONDS: Final = 5.0
_LONGEST_SUBJECT: Final = 200

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


def _post(alert: Alert, *, settings: WebhookSettings, node: str) -> None:
    """POST an alert as JSON; `text` is for chat programs. Every answer of 2xx takes it. Raises RetryLater."""
    content = {"version": 1, "node": node, **encode(alert), "text": f"{_subject(alert, node)}. {alert.message}"}
    headers = {"Content-Type": "application/json", "User-Agent": "ChEX-Node"}
    try:
        if settings.token_file is not None:
            headers["Authorization"] = f"Bearer {settings.token_file.read_text(encoding='utf-8').strip()}"
        asked = urllib.request.Request(settings.url, json.dumps(content).encode(), headers, method="POST")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=_context(settings.ca)),
            _NoRedirects(),
        )
        with opener.open(asked, timeout=_LIMIT_SECONDS) as answer:
            answer.read(1024)
    except HTTPError as error:
        error.close()
        raise RetryLater(f"the webhook answered with the status {error.code}") from error
    except (OSError, ValueError, HTTPException) as error:
        raise RetryLater(f"the webhook takes nothing ({_why(error)})") from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it may lead to a peer that the settings do not name."""

    def redirect_request(
        self, _req: urllib.request.Request, _fp: IO[bytes], _code: int, _msg: str, _headers: HTTPMessage, _newurl: str
    ) -> None:
        """Take the redirect as the answer."""


def _mail(alert: Alert, *, settings: MailSettings, node: str, zone: ZoneInfo) -> None:
    """Send an alert by mail. Raises RetryLater."""
    domain = settings.sender.rpartition("@")[2]  # the mail program would ask the name server for a name otherwise
    message = EmailMessage()
    message["Subject"] = _subject(alert, node)[:_LONGEST_SUBJECT]
    message["From"], message["To"] = settings.sender, ", ".join(settings.recipients)
    message["Date"], message["Message-ID"] = format_datetime(datetime.now(zone)), make_msgid(domain=domain)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(_body(alert, node, zone))
    try:
        with _session(settings, domain) as session:
            if settings.password_file is not None:
                session.login(settings.user, settings.password_file.read_text(encoding="utf-8").strip())
            session.send_message(message)
    except smtplib.SMTPResponseException as error:
        raise RetryLater(f"the mail server answered with the code {error.smtp_code}") from error
    except (OSError, ValueError) as error:  # smtplib.SMTPException is an OSError
        raise RetryLater(f"the mail server takes nothing ({_why(error)})") from error


def _session(settings: MailSettings, domain: str) -> smtplib.SMTP:
    """Raises OSError (smtplib.SMTPException is one) or ValueError."""
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
    reason = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
    if isinstance(reason, OSError | ValueError) and not isinstance(reason, smtplib.SMTPException):
        known = tls.complaint(reason)
        return known if known != "unreadable" else type(reason).__name__
    return type(reason).__name__
