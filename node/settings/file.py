"""Reads TOML tables into frozen dataclasses and writes them back; each field carries the rule for its value.

A rule gets a value, and returns a complaint that says what to do, or None. Every mistake is collected. No setting is
known here by name. A field's type hint says what its value must be. A tuple is a list of values or of tables.
`T | None` is an optional table or value. A field's `form` chooses the dataclass of a table that has several.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Rule = Callable[[object], str | None]
Form = Callable[[Mapping[str, object]], type]
"""Returns the dataclass that a table fits."""

_OF_BROWSERS: Final = ("authorization", "cookie", "forwarded", "host", "origin", "referer", "x-forwarded-for")


def setting(rule: Rule, *, default: object = dataclasses.MISSING) -> Any:  # noqa: ANN401  # as dataclasses.field
    """Declare a field with its rule; if it holds several values, the rule applies to each."""
    return dataclasses.field(default=default, metadata={"rule": rule})


def ruled(item: dataclasses.Field[object], value: object) -> Iterator[str]:
    """Return the complaints of a field's rule about a value; none for a missing value."""
    rule: Rule | None = item.metadata.get("rule")
    if rule is not None and value is not None:
        for part in value if isinstance(value, tuple) else (value,):
            complaint = rule(part)
            if complaint is not None:
                yield complaint


def between(lowest: float, highest: float) -> Rule:
    """Require a number in a range, ends included."""

    def rule(value: object) -> str | None:
        good = isinstance(value, int | float) and math.isfinite(value) and lowest <= value <= highest
        return None if good else f"must be between {lowest:g} and {highest:g}, got {value}"

    return rule


def one_of(*names: str) -> Rule:
    """Require one of some names."""

    def rule(value: object) -> str | None:
        return None if value in names else f"{value!r} is unknown; use {' or '.join(names)}"

    return rule


def _is_ae_title(value: object) -> str | None:
    """PS3.5 6.2, AE: 1 to 16 characters, printable ASCII without a backslash, not only blanks."""
    title = str(value)
    good = 1 <= len(title.strip()) <= len(title) <= 16 and title.isascii() and title.isprintable()
    if good and "\\" not in title:
        return None
    return f"{title!r} is not an AE title; use 1 to 16 printable ASCII characters without a backslash"


def _is_address(value: object) -> str | None:
    try:
        ipaddress.ip_address(str(value))
    except ValueError:
        return f"{value!r} is not an IP address; host names and networks are not supported"
    return None


def _is_host_name(value: object) -> str | None:
    """RFC 1123 2.1: the name or address of a host, as a Host header has it without its port."""
    name = str(value)
    if _is_address(name) is None or re.fullmatch(r"(?!-)[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", name):
        return None
    return f"{name!r} is not a host name; write a name or an IP address, without a scheme or port"


def _is_caller_host(value: object) -> str | None:
    """An address, or a network without bits of a host."""
    text = str(value)
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return f"{text!r} is not an IP address or a network; names are not looked up, so write its address"
    written = text.partition("/")[0]
    if ipaddress.ip_address(written) == network.network_address:
        return None
    return f"{text!r} is an address and a network; did you mean {network}?"


def _is_header_name(value: object) -> str | None:
    """RFC 9110 5.6.2: a token; may be empty. Headers that browsers set are refused."""
    name = str(value)
    if name == "" or (re.fullmatch(r"[A-Za-z0-9-]+", name) and name.lower() not in _OF_BROWSERS):
        return None
    return f"{name!r} is not the name of a header for users; use a name such as X-Remote-User"


def _is_database_url(value: object) -> str | None:
    """Require what libpq understands. The complaint does not repeat the value: it may contain a password."""
    if value == "":
        return None
    try:
        url = urlsplit(str(value))
        good = url.scheme == "postgresql" and url.path.strip("/") != "" and (url.port is None or url.port > 0)
    except ValueError:
        good = False
    return None if good else "must be postgresql://USER@HOST:PORT/DATABASE, or empty for SQLite"


def _is_web_url(value: object) -> str | None:
    """Require the base of a web service. The complaint does not repeat the value: it may contain a password."""
    try:
        url = urlsplit(str(value))
        good = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
        good = good and not (url.query or url.fragment or "@" in url.netloc) and str(value).isprintable()
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


def _is_not_blank(value: object) -> str | None:
    text = str(value)
    return None if text.strip() and text.isprintable() else f"{text!r} must be a printable text that is not blank"


def _is_hl7_name(value: object) -> str | None:
    """HL7 2.5.1 2.A, HD.1: a namespace of at most 20 characters; may be empty."""
    name = str(value)
    return None if len(name) <= 20 and name.isprintable() else f"{name!r} must be at most 20 printable characters"


def _is_time_zone(value: object) -> str | None:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{value!r} is not a time zone; use a name such as Europe/Berlin"
    return None


AE_TITLE: Final[Rule] = _is_ae_title
ADDRESS: Final[Rule] = _is_address
CALLER_HOST: Final[Rule] = _is_caller_host
DATABASE_URL: Final[Rule] = _is_database_url
HEADER_NAME: Final[Rule] = _is_header_name
HL7_NAME: Final[Rule] = _is_hl7_name
HOST_NAME: Final[Rule] = _is_host_name
NOT_BLANK: Final[Rule] = _is_not_blank
TIME_ZONE: Final[Rule] = _is_time_zone
WEB_URL: Final[Rule] = _is_web_url


_T = TypeVar("_T")

_WANTED = {Path: "a path in quotes", float: "a number", int: "a whole number", str: "a text in quotes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReader:
    """Reads the tables of one file and collects the mistakes.

    removed: by full key, what serves instead of a key that is gone
    """

    removed: Mapping[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def table(self, kind: type[_T], table: object, *, where: str) -> _T | None:
        """Make a dataclass from a table; None when a value is missing or has the wrong type."""
        if not isinstance(table, Mapping):
            self.mistakes.append(f"{where}: must be a table, write [{where}] and its keys below")
            return None
        hints = typing.get_type_hints(kind)
        fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
        for key in sorted(table.keys() - fields.keys()):
            name = f"{where}.{key}".lstrip(".")
            self.mistakes.append(f"{name}: {self._complaint(name, key, fields)}")
        values: dict[str, object] = {}
        for key, item in fields.items():
            name = f"{where}.{key}".lstrip(".")
            if key in table:
                values[key] = self._value(hints[key], table[key], where=name, form=item.metadata.get("form"))
                self.mistakes.extend(f"{name}: {complaint}" for complaint in ruled(item, values[key]))
            elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
                self.mistakes.append(f"{name}: is missing; add it")
                values[key] = None
        return None if None in values.values() else kind(**values)

    def _complaint(self, name: str, key: str, known: Iterable[str]) -> str:
        """Return what to say of an unknown key; name: with its table, known: the keys of that table."""
        instead = self.removed.get(re.sub(r"\[\d+\]", "", name))
        if instead is not None:
            return f"removed; use {instead}"
        near = difflib.get_close_matches(key, known, 1)
        return "unknown key; " + (f"did you mean {near[0]}?" if near else "remove it or correct its spelling")

    def _value(self, hint: object, value: object, *, where: str, form: Form | None = None) -> object:
        """Convert a TOML value to a field's type; None, with a mistake recorded, when it does not fit."""
        if isinstance(hint, UnionType):
            hint = next(kind for kind in typing.get_args(hint) if kind is not NoneType)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.table(hint, value, where=where)
        if typing.get_origin(hint) is tuple:
            return self._values(typing.get_args(hint)[0], value, where=where, form=form)
        if form is not None and isinstance(value, Mapping):
            return self.table(form(value), value, where=where)
        if hint is Path and isinstance(value, str) and value:
            return Path(value)
        if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if isinstance(hint, type) and type(value) is hint:
            return value
        self.mistakes.append(f"{where}: must be {_WANTED.get(hint, 'true or false')}, got {value!r}")  # type: ignore[call-overload]  # hint is a type
        return None

    def _values(self, hint: object, value: object, *, where: str, form: Form | None) -> tuple[object, ...] | None:
        """Convert a list; if it has several items, mistakes name the item."""
        if not isinstance(value, list) or not value:
            self.mistakes.append(f"{where}: must be a list that is not empty")
            return None
        places = [f"{where}[{number}]" if len(value) > 1 else where for number in range(1, len(value) + 1)]
        items = [self._value(hint, item, where=at, form=form) for at, item in zip(places, value, strict=True)]
        return None if None in items else tuple(items)
