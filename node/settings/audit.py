"""The settings of the audit trail (PS3.15 A.5): a file, a collector that takes syslog, or both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from node.settings.file import NOT_BLANK, between, is_loopback, setting
from node.settings.tls import TlsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Where audit messages are sent; its name is that of log lines."""

    host: str
    port: int
    tls: TlsSettings | None
    name: str = "the audit collector"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """Where audit messages go: lines of a file, a collector (RFC 5425; without TLS on this machine only), or both.

    max_waiting_mib: how much waits on disk for a collector that does not answer; what comes then is lost, and counted
    """

    file: Path | None = None
    host: str | None = setting(NOT_BLANK, default=None)
    port: int = setting(between(1, 65535), default=6514)
    max_waiting_mib: int = setting(between(1, 10**6), default=256)
    tls: TlsSettings | None = None

    @property
    def collector(self) -> Collector | None:
        """The collector; None if messages go to a file only."""
        return None if self.host is None else Collector(host=self.host, port=self.port, tls=self.tls)


def unusable_audit(audit: AuditSettings) -> Iterator[str]:
    """Return a complaint for an audit trail that goes nowhere, or that others on the network could read or change."""
    if audit.host is None:
        if audit.file is None:
            yield "audit.file: messages have no place to go; name a file, or a collector in audit.host, or both"
        if audit.tls is not None:
            yield "audit.tls: is for a collector; name it in audit.host, or remove the table"
    elif audit.tls is None and not is_loopback(audit.host):
        yield "audit.host: messages would cross the network in clear; add [audit.tls] with the collector's ca"
