"""Examines all destinations at once, each as its type does it (`deliver.kinds.Sender`). Sends no object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from node import config
from node.checks import Check, fault, note, run_check
from node.config import Settings
from node.deliver.kinds import Calling, sender_of
from node.settings.destinations import DestinationSettings

_LIMIT_SECONDS: Final = 10.0


def check_destinations(settings: Settings, *, limit_seconds: float = _LIMIT_SECONDS) -> Iterator[Check]:
    """Ask every destination in a thread of its own; one that does not answer in time is a fault."""
    if not settings.destinations:
        yield note("destinations", config.NOTHING_IS_SENT)
        return
    yield from examine(settings.destinations, ae_title=settings.listener.ae_title, limit_seconds=limit_seconds)


def examine(
    destinations: Sequence[DestinationSettings], *, ae_title: str, limit_seconds: float = _LIMIT_SECONDS
) -> Iterator[Check]:
    """Ask destinations at once, called from an AE title; without an answer in time, each has a fault."""
    calling = Calling(ae_title=ae_title)
    pool = ThreadPoolExecutor(len(destinations), thread_name_prefix="examine")
    asked = [(destination, pool.submit(_ask, destination, calling)) for destination in destinations]
    wait([future for _, future in asked], timeout=limit_seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    for destination, future in asked:
        yield from _answer(destination, future, limit_seconds)


def _answer(
    destination: DestinationSettings, future: Future[tuple[Check, ...]], limit_seconds: float
) -> tuple[Check, ...]:
    if future.done():
        return future.result()
    address = f"{destination.host}:{destination.port}"
    return (fault(_name(destination), f"no answer from {address} in {limit_seconds:g} s; see its log and the network"),)


def _ask(destination: DestinationSettings, calling: Calling) -> tuple[Check, ...]:
    return run_check(_name(destination), lambda: sender_of(destination).examine(destination, calling))


def _name(destination: DestinationSettings) -> str:
    return f"destination {destination.name}"
