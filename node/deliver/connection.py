"""One TCP connection to a peer, with TLS if its settings ask for it, and the reason when it fails."""

from __future__ import annotations

import socket
import ssl
from typing import Final, Protocol

from node.errors import DestinationDown
from node.net.tls import client_context, complaint, system_context
from node.settings.destinations import DicomwebDestination
from node.settings.tls import TlsSettings

START: Final = "start it, or correct host, port and tls of this destination"
"""What `doctor` advises about a peer that cannot be reached."""
_ALERT_SECONDS: Final = 1.0


class Peer(Protocol):
    """A destination."""

    @property
    def name(self) -> str:
        """Its name in log lines."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def port(self) -> int:
        """Its port."""

    @property
    def tls(self) -> TlsSettings | None:
        """Its TLS table."""


def connect(peer: Peer, *, limit_seconds: float) -> socket.socket:
    """Open a connection. Raises DestinationDown."""
    context = tls_context(peer)
    try:
        plain = socket.create_connection((peer.host, peer.port), timeout=limit_seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return plain if context is None else context.wrap_socket(plain, server_hostname=peer.host)
        except BaseException:
            plain.close()
            raise
    except ssl.SSLCertVerificationError as error:
        raise DestinationDown(f"{peer.name}: its certificate is refused ({error.verify_message})") from error
    except OSError as error:
        where = f"{peer.host}:{peer.port}"
        reason = complaint(error) if isinstance(error, ssl.SSLError) else error.strerror or type(error).__name__
        raise DestinationDown(f"{peer.name} cannot be reached at {where} ({reason})") from error


def tls_context(peer: Peer) -> ssl.SSLContext | None:
    """Make a new TLS context, so that renewed files are used at once; None without TLS. Raises DestinationDown."""
    if peer.tls is None:
        is_web = isinstance(peer, DicomwebDestination) and peer.is_secured
        return system_context() if is_web else None
    try:
        return client_context(peer.tls)
    except OSError as error:
        raise DestinationDown(f"{peer.name}: the files of its tls table cannot be used ({complaint(error)})") from error


def explain(peer: Peer, *, limit_seconds: float) -> None:
    """Find out why a peer with TLS ended a connection; the DICOM library does not say.

    In TLS 1.3 a client learns only after its handshake that its own certificate was refused (RFC 8446 4.4.2.4).
    Raises DestinationDown; returns when the connection itself is fine.
    """
    with connect(peer, limit_seconds=limit_seconds) as connection:
        connection.settimeout(_ALERT_SECONDS)
        try:
            connection.recv(1)
        except TimeoutError:
            return  # as expected: a DICOM peer waits for the first request
        except ssl.SSLError as error:
            raise DestinationDown(f"{peer.name} refuses the node's certificate ({complaint(error)})") from error
        except OSError:
            return
