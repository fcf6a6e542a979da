"""Rules that a setting carries on its field: a value in, a complaint that says what to do out, or nothing."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

Rule = Callable[[object], str | None]


def setting(rule: Rule, *, default: object = dataclasses.MISSING) -> Any:  # noqa: ANN401  # as dataclasses.field
    """Declare a field with its rule; one that holds several values has the rule for each."""
    return dataclasses.field(default=default, metadata={"rule": rule})


def ruled(item: dataclasses.Field[object], value: object) -> Iterator[str]:
    """Name what a field's rule says against a value; nothing against one that is missing."""
    rule: Rule | None = item.metadata.get("rule")
    if rule is not None and value is not None:
        for one in value if isinstance(value, tuple) else (value,):
            complaint = rule(one)
            if complaint is not None:
                yield complaint


def between(lowest: float, highest: float) -> Rule:
    """Ask for a number in a range, ends included."""

    def rule(value: object) -> str | None:
        good = isinstance(value, int | float) and math.isfinite(value) and lowest <= value <= highest
        return None if good else f"must be between {lowest:g} and {highest:g}, got {value}"

    return rule


def one_of(*names: str, later: tuple[str, ...] = ()) -> Rule:
    """Ask for one of some names; `later` are those that a later version will have."""

    def rule(value: object) -> str | None:
        if value in names:
            return None
        known = "is not in this version" if value in later else "is unknown"
        return f"{value!r} {known}; use {' or '.join(names)}"

    return rule


def _is_ae_title(value: object) -> str | None:
    """PS3.5 6.2, AE: 1 to 16 characters, printable ASCII without a backslash, not only blanks."""
    title = str(value)
    good = 1 <= len(title.strip()) <= len(title) <= 16 and title.isascii() and title.isprintable()
    if good and "\\" not in title:
        return None
    return f"{title!r} is no AE title; use 1 to 16 printable ASCII characters without a backslash"


def _is_address(value: object) -> str | None:
    try:
        ipaddress.ip_address(str(value))
    except ValueError:
        return f"{value!r} is no IP address; names and networks are not looked up"
    return None


def _is_database_url(value: object) -> str | None:
    """Ask for what libpq understands; the complaint does not repeat it, for there may be a password in it."""
    if value == "":
        return None
    try:
        url = urlsplit(str(value))
        good = url.scheme == "postgresql" and url.path.strip("/") != "" and (url.port is None or url.port > 0)
    except ValueError:
        good = False
    return None if good else "must be postgresql://USER@HOST:PORT/DATABASE, or empty for SQLite"


def without_password(url: str) -> str:
    """Return a database URL as it may be shown."""
    return re.sub(r"([?&]password=)[^&]*", r"\1***", re.sub(r"(://[^/@]*?:)[^/]*@", r"\1***@", url))


def _is_not_blank(value: object) -> str | None:
    text = str(value)
    return None if text.strip() and text.isprintable() else f"{text!r} must be a printable text that is not blank"


def _is_hl7_name(value: object) -> str | None:
    """HL7 2.5.1 2.A, HD.1: a namespace of at most 20 characters; none is allowed."""
    name = str(value)
    return None if len(name) <= 20 and name.isprintable() else f"{name!r} must be at most 20 printable characters"


def _is_time_zone(value: object) -> str | None:
    try:
        ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{value!r} is no time zone; use a name such as Europe/Berlin"
    return None


AE_TITLE: Final[Rule] = _is_ae_title
ADDRESS: Final[Rule] = _is_address
DATABASE_URL: Final[Rule] = _is_database_url
HL7_NAME: Final[Rule] = _is_hl7_name
NOT_BLANK: Final[Rule] = _is_not_blank
TIME_ZONE: Final[Rule] = _is_time_zone
