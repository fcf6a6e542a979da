"""What a client needs for TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS 1.2 or newer: the trusted authority, and the node's own certificate if the other side requires one."""

    ca: Path
    certificate: Path | None = None
    key: Path | None = None
