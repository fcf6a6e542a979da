"""Checks the audit trail: whether its file can be written, and the collector answers. Sends no message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from node.audit import syslog
from node.checks import Check, fault, ok
from node.config import Settings
from node.errors import DestinationDown
from node.settings.audit import Collector

_NAME: Final = "audit"
_CONNECT_SECONDS: Final = 5.0


def check_audit(settings: Settings) -> Iterator[Check]:
    """Check both places that messages may go to; nothing without the table [audit]."""
    if settings.audit is None:
        return
    if settings.audit.file is not None:
        yield _check_file(settings.audit.file)
    if settings.audit.collector is not None:
        yield _check_collector(settings.audit.collector)


def _check_file(path: Path) -> Check:
    """Do not create the file: this command may run as another user than the node."""
    place = path if path.exists() else path.parent
    if place.is_dir() == path.exists() or not os.access(place, os.W_OK):
        return fault(_NAME, f"audit.file {path} cannot be written; create its folder, or choose another file")
    return ok(_NAME, f"{path} can be written")


def _check_collector(collector: Collector) -> Check:
    try:
        syslog.probe(collector, limit_seconds=_CONNECT_SECONDS)
    except DestinationDown as error:
        return fault(_NAME, f"{error}; messages wait on disk; start it, or correct host, port and tls of [audit]")
    secured = " and TLS" if collector.tls is not None else ""
    return ok(_NAME, f"{collector.host}:{collector.port} accepts a connection{secured}; no message was sent")
