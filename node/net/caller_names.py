"""The addresses of callers that the settings know by name, looked up every minute: no association waits for DNS.

A name must be one machine: at most one IPv4 and one IPv6 address. A name with more addresses is ambiguous, and nobody
is admitted by it. While a name server does not answer, the last addresses stay in use.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from node import log
from node.config import Caller
from node.net import admission
from node.periodic import Periodic

_PAUSE_SECONDS: Final = 60.0

Resolve = Callable[[str], frozenset[str]]


def addresses_of(name: str) -> frozenset[str]:
    """Return the IP addresses of a host name. Raises OSError or UnicodeError when it cannot be resolved now."""
    return frozenset(str(found[4][0]) for found in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))


class CallerNames:
    """Knows which names have an address, until closed. Asking never waits; `use` waits for the name server."""

    def __init__(
        self, callers: Iterable[Caller], *, resolve: Resolve = addresses_of, pause_seconds: float = _PAUSE_SECONDS
    ) -> None:
        self._resolve, self._refreshes = resolve, threading.Lock()
        self._known: Mapping[str, frozenset[str]] = {}
        self._complaints: Mapping[str, str] = {}
        self.use(callers)
        self._refreshing = Periodic(self._refresh, name="caller-names", pause_seconds=pause_seconds)

    def use(self, callers: Iterable[Caller]) -> None:
        """Resolve the names of these callers from now on."""
        with self._refreshes:
            self._names = sorted({host for caller in callers for host in caller.hosts if is_name(host)})
        self._refresh()

    def of(self, host: str) -> frozenset[str]:
        """Return the names whose address this is."""
        return frozenset(name for name, addresses in self._known.items() if admission.is_among(host, addresses))

    def close(self) -> None:
        """Resolve no more."""
        self._refreshing.close()

    def _refresh(self) -> None:
        with self._refreshes:
            self._look_up()

    def _look_up(self) -> None:
        known, complaints = {}, {}
        for name in self._names:
            try:
                found = self._resolve(name)
            except (OSError, UnicodeError):
                found, complaints[name] = self._known.get(name, frozenset()), "unknown"
            if is_ambiguous(found):
                found, complaints[name] = frozenset(), "ambiguous"
            known[name] = found
        for name, reason in complaints.items():
            if self._complaints.get(name) != reason:
                log.get().warning("caller.unresolved", name=name, reason=reason)
        self._known, self._complaints = known, complaints


def is_name(host: str) -> bool:
    """Say whether an entry of `listener.callers.hosts` is a name, not an address or a network."""
    try:
        ipaddress.ip_network(host)
    except ValueError:
        return True
    return False


def is_ambiguous(addresses: Iterable[str]) -> bool:
    """Say whether addresses are of several machines: two or more of one IP version."""
    versions = [ipaddress.ip_address(address).version for address in addresses]
    return len(set(versions)) < len(versions)
