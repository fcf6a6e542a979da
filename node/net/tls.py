"""TLS on both sides of a connection: trusted authorities, ciphers, and certificates that are renewed on disk.

PS3.15 B.12 (BCP 195 RFC 8996, 9325 TLS Secure Transport Connection Profile): TLS 1.2 and 1.3, and below 1.3 the four
cipher suites that RFC 9325 4.2 recommends. As a server the node requires a certificate of its own authority, except for
HTTPS, where users sign in.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from node import log
from node.config import ServerTlsTable, Settings, TlsTable, tls_tables
from node.errors import ConfigError
from node.settings.destinations import TlsSettings
from node.settings.http import HttpTlsSettings
from node.store.files import Stamp, stamp

_CIPHERS: Final = "ECDHE+AESGCM"
_DAY_SECONDS: Final = 86400.0
_UNREADABLE: Final = "unreadable"


class ServerTls:
    """The context of a server, renewed when one of its files has changed; `name` identifies it in log lines.

    New files that do not match, as in the middle of a renewal, are reported once, and the old ones stay in use.
    Raises OSError (ssl.SSLError is one) or ValueError when the first files cannot be used.
    """

    def __init__(self, name: str, files: ServerTlsTable) -> None:
        self._name, self._files = name, files
        self._changing = threading.Lock()
        self._stamps = self._look()
        self._context, self._expires = self._load()

    @property
    def days_left(self) -> float:
        """Days until the certificate for the next connection expires; negative when it has expired."""
        self.context()
        return _days_until(self._expires)

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        with self._changing:
            stamps = self._look()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._context, self._expires = self._load()
                except (OSError, ValueError) as error:
                    log.get().error("certificate.refused", name=self._name, reason=complaint(error))
                else:
                    log.get().info("certificate.reloaded", name=self._name)
            return self._context

    def _look(self) -> list[Stamp]:
        paths = (self._files.certificate, self._files.key, ca_of(self._files))
        return [stamp(path) for path in paths if path is not None]

    def _load(self) -> tuple[ssl.SSLContext, datetime]:
        """Require a certificate of the named authority from every client; without an authority, require none."""
        files, ca = self._files, ca_of(self._files)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
        context.verify_mode = ssl.CERT_NONE if ca is None else ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_RENEGOTIATION
        _modernize(context)
        _show(context, files.certificate, files.key)
        return context, _expires(files.certificate)


def ca_of(files: TlsTable) -> Path | None:
    """Return the authority that a table names; a table for HTTPS names none."""
    return None if isinstance(files, HttpTlsSettings) else files.ca


def client_context(tls: TlsSettings) -> ssl.SSLContext:
    """Trust only the named authority, check the host name, and present our own certificate if the settings name it.

    Raises OSError (ssl.SSLError is one) when the files cannot be used.
    """
    context = ssl.create_default_context(cafile=tls.ca)
    _modernize(context)
    if tls.certificate is not None:
        _show(context, tls.certificate, tls.key)
    return context


def system_context(ca: Path | None = None) -> ssl.SSLContext:
    """Trust the authorities of the system, and those of a file beside them; check the host name.

    Raises OSError (ssl.SSLError is one) when the file cannot be used.
    """
    context = ssl.create_default_context()
    _modernize(context)
    if ca is not None:
        context.load_verify_locations(str(ca))
    return context


def days_left(certificate: Path) -> float:
    """Return the days until the first certificate of a file, or an issuer of it there, expires; negative when past.

    Raises OSError or ValueError when the file cannot be read.
    """
    return _days_until(_expires(certificate))


def authorities_days_left(ca: Path) -> float:
    """Return the days until the last authority of a file expires; negative when all have expired.

    Raises OSError or ValueError when the file cannot be read.
    """
    return max(_days_until(authority.not_valid_after_utc) for authority in _certificates(ca))


def check_files(settings: Settings) -> None:
    """Check that the files of every TLS table exist and match.

    Raises ConfigError with one line per mistake.
    """
    mistakes = [mistake for table, tls in tls_tables(settings) for mistake in mistakes_in(table, tls)]
    if mistakes:
        raise ConfigError(mistakes)


def mistakes_in(table: str, tls: TlsTable) -> Iterator[str]:
    """Return the missing or contradictory keys of one TLS table, with the remedy."""
    files = {"ca": ca_of(tls), "certificate": tls.certificate, "key": tls.key}
    missing = {name: path for name, path in files.items() if path is not None and not path.is_file()}
    for name, path in missing.items():
        yield f"{table}.{name}: {path} does not exist; correct the path"
    if missing:
        return
    try:
        if isinstance(tls, TlsSettings):
            client_context(tls)
        else:
            ServerTls(table, tls)
    except (OSError, ValueError) as error:
        named = "certificate and key" if ca_of(tls) is None else "ca, certificate and key"
        yield f"{table}: {named} cannot be used together ({complaint(error)}); correct the files"


def complaint(error: OSError | ValueError) -> str:
    """Describe an error of certificate files without quoting their content."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "unusable").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or _UNREADABLE


def cause(error: Exception) -> str:
    """Return why a request to a peer failed, without the text of the peer: the errors of HTTP clients are of others."""
    chain = [error]
    while isinstance(inner := chain[-1].__cause__ or chain[-1].__context__, Exception):
        chain.append(inner)
    known = [complaint(error) for error in chain if isinstance(error, OSError | ValueError)]
    return next((text for text in known if text != _UNREADABLE), type(error).__name__)


def _modernize(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)  # those of TLS 1.3 are not concerned, and all permitted


def _show(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    """Load a certificate and its key; a key with a password is refused instead of asking on the terminal."""
    context.load_cert_chain(certificate, key, password="")


def _expires(certificate: Path) -> datetime:
    return min(part.not_valid_after_utc for part in _certificates(certificate))


def _certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def _days_until(moment: datetime) -> float:
    return (moment - datetime.now(UTC)).total_seconds() / _DAY_SECONDS
