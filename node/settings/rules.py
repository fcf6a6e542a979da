"""The rules for the values of settings: each gets a value, and returns its fault with the remedy, or None.

A complaint about an address that may hold a password does not repeat it.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from annotated_types import MinLen

from models.documents import Rule

_T = TypeVar("_T")
_OF_BROWSERS: Final = ("authorization", "cookie", "forwarded", "host", "origin", "referer", "x-forwarded-for")


def between(lowest: float, highest: float) -> Rule:
    """Require a number in a range, ends included."""

    def complaint(value: float) -> str | None:
        return None if lowest <= value <= highest else f"must be between {lowest:g} and {highest:g}, got {value}"

    return Rule(complaint)


def one_of(*names: str) -> Rule:
    """Require one of some names."""
    return Rule(lambda name: None if name in names else f"{name!r} is unknown; use {' or '.join(names)}")


def _ae_title(title: str) -> str | None:
    """PS3.5 6.2, AE: 1 to 16 characters, printable ASCII without a backslash, not only blanks."""
    good = 1 <= len(title.strip()) <= len(title) <= 16 and title.isascii() and title.isprintable()
    if good and "\\" not in title:
        return None
    return f"{title!r} is not an AE title; use 1 to 16 printable ASCII characters without a backslash"


def _address(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return f"{text!r} is not an IP address; host names and networks are not supported"
    return None


def _host_name(name: str) -> str | None:
    """RFC 1123 2.1: the name or address of a host, as a Host header has it without its port."""
    if _address(name) is None or re.fullmatch(r"(?!-)[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", name):
        return None
    return f"{name!r} is not a host name; write a name or an IP address, without a scheme or port"


def caller_host(text: str) -> str | None:
    """Require an address, or a network without bits of a host."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f"{text!r} is not an IP address or a network; names are not looked up, so write its address"
    written = text.partition("/")[0]
    if ipaddress.ip_address(written) == network.network_address:
        return None
    return f"{text!r} is an address and a network; did you mean {network}?"


def _header_name(name: str) -> str | None:
    """RFC 9110 5.6.2: a token; may be empty. Headers that browsers set are refused."""
    if name == "" or (re.fullmatch(r"[A-Za-z0-9-]+", name) and name.lower() not in _OF_BROWSERS):
        return None
    return f"{name!r} is not the name of a header for users; use a name such as X-Remote-User"


def _database_url(text: str) -> str | None:
    """Require a URL that libpq accepts."""
    if text == "":
        return None
    try:
        url = urlsplit(text)
        good = url.scheme == "postgresql" and url.path.strip("/") != "" and (url.port is None or url.port > 0)
    except ValueError:
        good = False
    return None if good else "must be postgresql://USER@HOST:PORT/DATABASE, or empty for SQLite"


def _web_url(text: str) -> str | None:
    """Require the base of a web service."""
    try:
        url = urlsplit(text)
        good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
        good = good and not (url.query or url.fragment or "@" in url.netloc) and text.isprintable()
    except ValueError:
        good = False
    return None if good else "must be https://HOST:PORT/PATH or http://..., without user, password, ? and #"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine; other names may resolve to any address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_password(url: str) -> str:
    """Return a database URL without its password."""
    return re.sub(r"([?&]password=)[^&]*", r"\1***", re.sub(r"(://[^/@]*?:)[^/]*@", r"\1***@", url))


def _not_blank(text: str) -> str | None:
    return None if text.strip() and text.isprintable() else f"{text!r} must be a printable text that is not blank"


def _hl7_name(name: str) -> str | None:
    """HL7 2.5.1 2.A, HD.1: a namespace of at most 20 characters; may be empty."""
    return None if len(name) <= 20 and name.isprintable() else f"{name!r} must be at most 20 printable characters"


def _time_zone(name: str) -> str | None:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{name!r} is not a time zone; use a name such as Europe/Berlin"
    return None


Several = Annotated[tuple[_T, ...], MinLen(1)]
"""A list; an empty one is refused, because it has no effect."""

Address = Annotated[str, Rule(_address)]
AeTitle = Annotated[str, Rule(_ae_title)]
CallerHost = Annotated[str, Rule(caller_host)]
DatabaseUrl = Annotated[str, Rule(_database_url)]
FilePath = Annotated[Path, Rule(lambda text: None if text else "must be a path in quotes, got ''")]
HeaderName = Annotated[str, Rule(_header_name)]
Hl7Name = Annotated[str, Rule(_hl7_name)]
HostName = Annotated[str, Rule(_host_name)]
NotBlank = Annotated[str, Rule(_not_blank)]
Port = Annotated[int, between(0, 65535)]
"""Of a listener; 0 takes any free port."""
TimeZone = Annotated[str, Rule(_time_zone)]
WebUrl = Annotated[str, Rule(_web_url)]
