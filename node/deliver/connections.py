"""Connections to destinations: one over TCP, with TLS if its settings ask for it, and associations that stay open.

Opening an association costs an archive more than the object that is stored over it: dcmtk's `storescp --fork` starts a
process, and the reply lists every presentation context. So an association is kept for a moment after an object. An
association that its peer has ended meanwhile is never used, and none is kept for long: a renewed certificate, or an
archive that was moved, is noticed within `_LONGEST_SECONDS`.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pydicom.uid import UID
from pynetdicom.association import Association

from node.errors import DestinationDown, GiveUp, RetryLater
from node.net.tls import client_context, complaint, system_context
from node.settings.destinations import DestinationSettings, DicomDestination, WebDestination

RELEASE_SECONDS: Final = 5  # answered requests are complete even if the release gets no answer (PS3.8 7.2)
IDLE_SECONDS: Final = 2.0
_LONGEST_SECONDS: Final = 60.0
_LAST_RELEASE_SECONDS: Final = 1  # the process is stopping
START: Final = "start it, or correct host, port and tls of this destination"
"""Advice of `doctor` for an unreachable peer."""
_ALERT_SECONDS: Final = 1.0


class Associations:
    """Keeps associations to DICOM destinations; used by several threads, each association by one at a time.

    A destination whose settings a reload has changed is another one: the old one's associations are soon released.
    idle_seconds: how long an unused association stays open; 0: every association ends at once
    """

    def __init__(self, *, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._changing = threading.Lock()
        self._kept: dict[DicomDestination, dict[Association, threading.Timer]] = {}  # with what releases each
        self._opened: dict[Association, float] = {}
        self._is_closed = False

    def take(self, destination: DicomDestination, *, sop_class: UID, syntax: UID) -> Association | None:
        """Return an open association on which such an object can be sent, which is the caller's now; None without one.

        Ends one that does not fit if none fits: no more are open at once than without keeping any.
        """
        while True:
            with self._changing:
                kept = self._kept.get(destination, {})
                fits = [association for association in kept if _accepts(association, sop_class, syntax)]
                if not kept:
                    return None
                association = (fits or list(kept))[-1]
                kept.pop(association).cancel()
            if not fits:
                self._end(association)
                return None
            if association.is_established:
                return association
            self._opened.pop(association, None)  # its peer has ended it

    @contextmanager
    def used(self, association: Association, destination: DicomDestination) -> Iterator[Association]:
        """Keep an association for the next object at the end of the block; end it if its peer gave no answer."""
        try:
            yield association
        except BaseException as error:
            if isinstance(error, RetryLater | GiveUp) and not isinstance(error, DestinationDown):
                self._give_back(association, destination)  # its peer has answered
            else:
                self._end(association, is_lost=True)
            raise
        self._give_back(association, destination)

    def close(self) -> None:
        """Release all open associations, and keep none from now on."""
        with self._changing:
            self._is_closed = True
            kept = [association for associations in self._kept.values() for association in associations]
            self._kept.clear()
        for association in kept:
            self._end(association, limit_seconds=_LAST_RELEASE_SECONDS)

    def _give_back(self, association: Association, destination: DicomDestination) -> None:
        now = time.monotonic()
        seconds = min(self._idle_seconds, self._opened.setdefault(association, now) + _LONGEST_SECONDS - now)
        if seconds > 0 and association.is_established:
            with self._changing, suppress(RuntimeError):  # no thread is left for the timer: the association ends
                if not self._is_closed:
                    timer = threading.Timer(seconds, self._release, (association, destination))
                    timer.daemon = True
                    timer.start()
                    self._kept.setdefault(destination, {})[association] = timer
                    return
        self._end(association)

    def _release(self, association: Association, destination: DicomDestination) -> None:
        """Release an association that nothing has used in time."""
        with self._changing:
            if self._kept.get(destination, {}).pop(association, None) is None:  # used, or ended, at this moment
                return
        self._end(association)

    def _end(self, association: Association, *, is_lost: bool = False, limit_seconds: float = RELEASE_SECONDS) -> None:
        self._opened.pop(association, None)
        end(association, is_lost=is_lost, limit_seconds=limit_seconds)


def _accepts(association: Association, sop_class: UID, syntax: UID) -> bool:
    return any(
        context.abstract_syntax == sop_class and syntax in context.transfer_syntax
        for context in association.accepted_contexts
    )


@contextmanager
def ended(association: Association) -> Iterator[Association]:
    """End an association after the block; DestinationDown in the block means that its peer gave no answer."""
    is_lost = False
    try:
        yield association
    except DestinationDown:
        is_lost = True
        raise
    finally:
        end(association, is_lost=is_lost)


def end(association: Association, *, is_lost: bool = False, limit_seconds: float = RELEASE_SECONDS) -> None:
    """Release an association that is still open, or abort it if its peer gives no answer.

    If the peer closes the connection during the release, pynetdicom 3.0.4 may wait for the whole ACSE timeout: another
    of its threads may take the event from the queue first. Once its release was seen to wait for another of its threads
    without an end, so it has a thread of its own and twice its time; the abort ends that wait.
    """
    if not association.is_established:
        return
    association.acse_timeout = limit_seconds
    if not is_lost:
        releasing = threading.Thread(target=association.release, name="release", daemon=True)
        releasing.start()
        releasing.join(2 * limit_seconds)
        is_lost = releasing.is_alive()
    if is_lost:
        association.abort()


def connect(peer: DestinationSettings, *, limit_seconds: float) -> socket.socket:
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


def tls_context(peer: DestinationSettings) -> ssl.SSLContext | None:
    """Make a new TLS context, so that renewed files are used at once; None without TLS. Raises DestinationDown."""
    if peer.tls is None:
        is_web = isinstance(peer, WebDestination) and peer.is_secured
        return system_context() if is_web else None
    try:
        return client_context(peer.tls)
    except OSError as error:
        raise DestinationDown(f"{peer.name}: the files of its tls table cannot be used ({complaint(error)})") from error


def explain(peer: DestinationSettings, *, limit_seconds: float) -> None:
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
