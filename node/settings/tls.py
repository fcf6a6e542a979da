"""What a client needs for TLS."""

from __future__ import annotations

from dataclasses import dataclass

from node.settings.rules import FilePath


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS 1.2 or newer: the trusted authority, and the node's own certificate if the other side requires one."""

    ca: FilePath
    certificate: FilePath | None = None
    key: FilePath | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("key: a certificate needs its key and a key its certificate; name both or neither")
