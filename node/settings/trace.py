"""Where traces are sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from node.settings.file import WEB_URL, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSettings:
    """The collector that gets traces by OTLP over HTTP.

    endpoint: as `http://127.0.0.1:4318/v1/traces`; None: nothing is traced
    ca: the authority of its certificate; without it those of the system
    """

    endpoint: str | None = setting(WEB_URL, default=None)
    ca: Path | None = None
