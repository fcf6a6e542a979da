"""Decides who may associate, from the settings and the associations that are open at that moment. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from node.config import Caller, ListenerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a call is refused: one of `metrics.REFUSALS`, and result, source and reason for the caller (PS3.8 9.3.4)."""

    reason: str
    answer: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An association request: its AE titles and the address it came from."""

    calling_aet: str
    called_aet: str
    host: str


_CALLER_UNKNOWN: Final = Refusal(reason="caller", answer=(0x01, 0x01, 0x03))
_CALLED_UNKNOWN: Final = Refusal(reason="called_ae", answer=(0x01, 0x01, 0x07))
NO_ROOM: Final = Refusal(reason="disk", answer=(0x02, 0x03, 0x01))
_TOO_MANY: Final = Refusal(reason="limit", answer=(0x02, 0x03, 0x02))


def admit(
    call: Call, settings: ListenerSettings, *, may_report: bool, has_room: bool, open_callers: Sequence[Caller]
) -> Caller | Refusal:
    """Say as whom a call is let in, or why not.

    may_report: whether it comes from a destination, which may have an answer to a storage commitment request; reports
    let films leave the disk, and films of such a caller are refused one by one
    has_room: whether films can be kept
    open_callers: whose associations are open, one entry for each of them
    """
    caller = caller_of(call, settings.callers)
    if caller is None and may_report:
        caller = Caller(ae_title=call.calling_aet, hosts=(call.host,))
    if caller is None:
        return _CALLER_UNKNOWN
    if call.called_aet.strip() != settings.ae_title.strip():
        return _CALLED_UNKNOWN
    if not (has_room or may_report):
        return NO_ROOM
    if len(open_callers) >= settings.max_associations:
        return _TOO_MANY
    if caller.max_associations is not None and open_callers.count(caller) >= caller.max_associations:
        return _TOO_MANY
    return caller


def caller_of(call: Call, callers: Sequence[Caller]) -> Caller | None:
    """Find the caller in the settings with this title and address."""
    title = call.calling_aet.strip()
    titled = (caller for caller in callers if caller.ae_title.strip() == title)
    return next((caller for caller in titled if is_among(call.host, caller.hosts)), None)


def is_among(host: str, hosts: Iterable[str]) -> bool:
    """Say whether an address is one of several addresses and networks, in whatever notation each is written."""
    address = _address(host)
    return any(_is_in(address, known) for known in hosts)


@lru_cache(maxsize=4096)  # it is asked for every connection, before anything else is known of it
def _is_in(address: str, known: str) -> bool:
    if "/" not in known:
        return address == _address(known)
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(known)
    except ValueError:
        return False


@lru_cache(maxsize=1024)
def _address(text: str) -> str:
    """Normalize an address; an IPv4 address on an IPv6 socket becomes that IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
