"""A rate limiter: one token bucket per key, in bounded memory."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

MOST_KEYS: Final = 10_000
_NETWORK_BITS: Final = 64


class RateLimit:
    """Lets each key do something `burst` times at once, and once in `seconds` afterwards; used by several threads.

    Beyond 10,000 keys, the one that was used longest ago is forgotten. clock: returns seconds
    """

    def __init__(self, *, burst: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        """When each key has all of its tokens again."""
        self._changing = threading.Lock()

    def take(self, key: Hashable, count: int = 1) -> float:
        """Take tokens of a key: returns 0, or, if there are too few, the seconds to wait for them.

        count: how many; more than the burst count as the burst, since more are never there
        """
        wanted = min(count, self._burst)
        with self._changing:
            now = self._clock()
            wait = self._wait(key, wanted, now)
            if not wait:
                self._full_at[key] = max(self._full_at[key], now) + wanted * self._seconds
            return wait

    def seconds_left(self, key: Hashable) -> float:
        """Return the seconds until the next token of a key; 0 if it has one."""
        with self._changing:
            return self._wait(key, 1, self._clock())

    def _wait(self, key: Hashable, wanted: int, now: float) -> float:
        """Return the seconds until a key has so many tokens, and remember that it was asked for."""
        full_at = self._full_at.setdefault(key, now)
        self._full_at.move_to_end(key)
        if len(self._full_at) > MOST_KEYS:
            self._full_at.popitem(last=False)
        return max(0.0, full_at - now - (self._burst - wanted) * self._seconds)


def network_of(host: str) -> str:
    """Return the key of a client's address: one machine has all IPv6 addresses of a /64."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
