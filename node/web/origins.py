"""Where a request comes from and whom it asks: addresses, names of the node, other sites. Pure functions.

Two attacks come through the browser of a user. A page of another site sends a form or a script to the node; browsers
say so in `Sec-Fetch-Site` and `Origin`. A name of another site is made to lead to the node's address (DNS rebinding);
then `Host` has that name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers

SAFE_METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing (RFC 9110 9.2.1)."""

PORTS: Final = {"http": 80, "https": 443}
"""The ports that an origin leaves out."""
_OF_PROXIES: Final = ("forwarded", "via", "x-real-ip")


class Place(NamedTuple):
    """A host and its port, as an origin or a Host header names them."""

    host: str
    port: int


def address(text: str) -> str:
    """Return an IP address in its shortest form, an IPv4 address also where IPv6 carries it; empty for other texts."""
    try:
        found = ipaddress.ip_address(text.strip().strip("[]"))
    except ValueError:
        return ""
    inner = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(inner or found)


def is_loopback(text: str) -> bool:
    """Say whether a text is a loopback address."""
    found = address(text)
    return bool(found) and ipaddress.ip_address(found).is_loopback


def is_unspecified(text: str) -> bool:
    """Say whether a text stands for all addresses of a machine."""
    found = address(text)
    return bool(found) and ipaddress.ip_address(found).is_unspecified


def place_of(authority: str, *, scheme: str) -> Place | None:
    """Return the host and port of a Host header; None for none or for anything else."""
    try:
        parts = urlsplit(f"//{authority}")
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.netloc != authority or "@" in authority or not authority.isprintable():
        return None
    host = parts.hostname.rstrip(".")
    return Place(address(host) or host, port or PORTS[scheme])


def is_own_name(host: str, *, local: str, names: Collection[str]) -> bool:
    """Say whether a host is the node: the address on which the request came, or one of its names.

    local: that address; on loopback, `localhost` is a name too
    """
    own = {address(name) or name.lower() for name in names} | {address(local)}
    if is_loopback(local):
        own |= {"localhost", "127.0.0.1", "::1"}
    return host in own


def is_of_other_site(headers: Headers, *, method: str, own: Collection[str]) -> bool:
    """Say whether a browser sent a request for a page of another site. A link to a page of the node is no such request.

    own: the origins of the node
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none"):
        is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return not (is_link and method in SAFE_METHODS)
    if origin is None or (origin == "null" and site is not None):
        return False  # `null` stands for our own origin where a form is sent with the policy `no-referrer`
    return origin.lower() not in own


def is_of_browser(headers: Headers) -> bool:
    """Say whether a browser may have sent a request: browsers add `Origin` to every request that changes something."""
    return any(name in headers for name in ("origin", "sec-fetch-site", "cookie"))


def is_forwarded(headers: Headers) -> bool:
    """Say whether a request came through a proxy that says so."""
    return any(name in _OF_PROXIES or name.startswith("x-forwarded-") for name in headers)


def client_of(peer: str, headers: Headers, *, proxies: Collection[str]) -> str:
    """Return the address of the client: the peer, or the last address in `X-Forwarded-For` that is no trusted proxy."""
    client = peer
    for text in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
        if client not in proxies or not (before := address(text)):
            return client
        client = before
    return client


def is_local_path(path: str) -> bool:
    """Say whether a text is a path on this server, and nothing that a browser takes for another server's address."""
    return path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
