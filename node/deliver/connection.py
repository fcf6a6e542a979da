"""One TCP connection to a destination, with TLS if its settings ask for it, and the reason when it fails."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from node.config import DestinationSettings
from node.errors import DestinationDown
from node.net.tls import client_context, complaint

_ALERT_SECONDS: Final = 1.0


def connect(destination: DestinationSettings, *, limit_seconds: float) -> socket.socket:
    """Open a connection. Raises DestinationDown."""
    context = tls_context(destination)
    try:
        plain = socket.create_connection((destination.host, destination.port), timeout=limit_seconds)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return plain if context is None else context.wrap_socket(plain, server_hostname=destination.host)
        except BaseException:
            plain.close()
            raise
    except ssl.SSLCertVerificationError as error:
        raise DestinationDown(f"{destination.name}: its certificate is refused ({error.verify_message})") from error
    except OSError as error:
        where = f"{destination.host}:{destination.port}"
        reason = complaint(error) if isinstance(error, ssl.SSLError) else error.strerror or type(error).__name__
        raise DestinationDown(f"{destination.name} cannot be reached at {where} ({reason})") from error


def tls_context(destination: DestinationSettings) -> ssl.SSLContext | None:
    """Make a new TLS context, so that renewed files are used at once; None without TLS. Raises DestinationDown."""
    if destination.tls is None:
        return None
    try:
        return client_context(destination.tls)
    except OSError as error:
        raise DestinationDown(
            f"{destination.name}: the files of destinations.tls cannot be used ({complaint(error)})"
        ) from error


def explain(destination: DestinationSettings, *, limit_seconds: float) -> None:
    """Find out why a peer with TLS ended a connection; the DICOM library does not say.

    In TLS 1.3 a client learns only after its handshake that its own certificate was refused (RFC 8446 4.4.2.4).
    Raises DestinationDown; returns when the connection itself is fine.
    """
    with connect(destination, limit_seconds=limit_seconds) as connection:
        connection.settimeout(_ALERT_SECONDS)
        try:
            connection.recv(1)
        except TimeoutError:
            return  # as expected: a DICOM peer waits for the first request
        except ssl.SSLError as error:
            raise DestinationDown(f"{destination.name} refuses the node's certificate ({complaint(error)})") from error
        except OSError:
            return
