"""A rate limiter: one token bucket per key, in bounded memory."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

MOST_KEYS: Final = 10_000
_NETWORK_BITS: Final = 64


@dataclass(slots=True, kw_only=True)
class _Bucket:
    """tokens: how many there were at the time `at`."""

    tokens: float
    at: float


class RateLimit:
    """Lets each key do something `burst` times at once, and once in `seconds` afterwards; used by several threads.

    Beyond 10,000 keys, the one that was used longest ago is forgotten. clock: returns seconds
    """

    def __init__(self, *, burst: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()
        self._changing = threading.Lock()

    def take(self, key: Hashable, count: int = 1) -> float:
        """Take tokens of a key: returns 0, or, if there are too few, the seconds to wait for them.

        count: how many; more than the burst count as the burst, since more are never there
        """
        wanted = min(count, self._burst)
        with self._changing:
            bucket = self._filled(key)
            if bucket.tokens < wanted:
                return (wanted - bucket.tokens) * self._seconds
            bucket.tokens -= wanted
            return 0.0

    def seconds_left(self, key: Hashable) -> float:
        """Return the seconds until the next token of a key; 0 if it has one."""
        with self._changing:
            return max(0.0, 1 - self._filled(key).tokens) * self._seconds

    def _filled(self, key: Hashable) -> _Bucket:
        """Return the bucket of a key with the tokens that it has now."""
        now = self._clock()
        bucket = self._buckets.setdefault(key, _Bucket(tokens=self._burst, at=now))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        bucket.tokens = min(bucket.tokens + (now - bucket.at) / self._seconds, self._burst)
        bucket.at = now
        return bucket


def network_of(host: str) -> str:
    """Return the key of a client's address: one machine has all IPv6 addresses of a /64."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
