"""A certificate authority of a test's own, made with OpenSSL."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.peers import LOOPBACK, require

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_EXTENSIONS = f"""\
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:{LOOPBACK}, DNS:localhost
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Issues certificates; its own is what others believe."""

    folder: Path
    certificate: Path

    @classmethod
    def found(cls, folder: Path, *, days: int = 2) -> Self:
        """Make an authority that keeps its files in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        usage = "keyUsage = critical, keyCertSign, cRLSign"
        _openssl(
            folder, "req", "-x509", *_KEY, "-days", str(days), "-subj", f"/CN={folder.name}", "-addext", usage,
            "-keyout", "authority.key", "-out", "authority.pem",
        )  # fmt: skip
        return cls(folder=folder, certificate=folder / "authority.pem")

    def issue(self, name: str, *, days: int = 2) -> Identity:
        """Make a certificate for this machine; with negative `days` it has expired."""
        (self.folder / "extensions").write_text(_EXTENSIONS, encoding="utf-8")
        _openssl(self.folder, "req", *_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        _openssl(
            self.folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key",
            "-CAcreateserial", "-days", str(days), "-extfile", "extensions", "-out", f"{name}.pem",
        )  # fmt: skip
        return Identity(certificate=self.folder / f"{name}.pem", key=self.folder / f"{name}.key")


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run([require("openssl"), *arguments], cwd=folder, check=True, capture_output=True)
