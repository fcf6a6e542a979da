"""Checks whether the webhook and the mail server of [alerts] can be reached. Sends no alert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from node.checks import Check, fault, ok
from node.config import Settings
from node.errors import RetryLater
from node.health.channels import probes

_NAME: Final = "alerts"


def check_alerts(settings: Settings) -> Iterator[Check]:
    """Check each channel; nothing without the table [alerts]. The path of a webhook, often a secret, is not shown."""
    if settings.alerts is None:
        return
    for channel, reach in probes(settings.alerts).items():
        try:
            reach()
        except RetryLater as error:
            yield fault(_NAME, f"{error}; start it, or correct [alerts.{channel}]")
        else:
            yield ok(_NAME, f"[alerts.{channel}] can be reached; no alert was sent")
