"""Checks passwords: one after the other in a thread of its own, and only so many wrong ones.

A check takes 64 MiB and much processor time, so a client must not cause many at once. Wrong passwords are limited for
each user at an address, and for each address. Programs send a password with every request; a right one is remembered.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from node.web.passwords import PasswordFile
from node.web.rate import RateLimit, network_of
from node.web.users import Role

_MOST_WAITING: Final = 16
_MOST_REMEMBERED: Final = 128


class Busy(Exception):
    """Too many wrong passwords, or too many at once. `seconds`: when to try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = max(1, math.ceil(seconds))


class SignIn:
    """The users of a password file, whose passwords are tried. Only the thread of the server calls it."""

    def __init__(self, path: Path) -> None:
        self._users = PasswordFile(path)
        self._by_user = RateLimit(burst=5, seconds=60.0)
        self._by_address = RateLimit(burst=20, seconds=15.0)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
        self._turn, self._waiting = asyncio.Lock(), 0
        self._secret = secrets.token_bytes(32)
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    @property
    def has_no_user(self) -> bool:
        """Whether nobody can sign in."""
        return self._users.is_empty

    def credential(self, user: str) -> str | None:
        """Return a text that changes when the user's password does; None for an unknown user."""
        return self._users.credential(user)

    def role(self, user: str) -> Role:
        """Return the role of a user."""
        return self._users.role(user)

    async def check(self, user: str, password: str, *, host: str, is_repeated: bool = False) -> str | None:
        """Return the user's credential if the password is right, else None.

        is_repeated: remember a right password, because it will be sent again
        Raises Busy.
        """
        if is_repeated and self._mark(user, password) in self._remembered:
            return self._users.credential(user)
        if self._waiting >= _MOST_WAITING:
            raise Busy(1.0)
        self._waiting += 1
        try:
            async with self._turn:
                return await self._check(user, password, network_of(host), is_repeated=is_repeated)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Stop checking."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _check(self, user: str, password: str, address: str, *, is_repeated: bool) -> str | None:
        if is_repeated and self._mark(user, password) in self._remembered:  # by a request that was checked meanwhile
            return self._users.credential(user)
        if wait := self._by_address.take(address):
            raise Busy(wait)
        if wait := self._by_user.take((address, user)):
            self._by_address.give_back(address)
            raise Busy(wait)
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._executor, self._users.verify, user, password):
            return None
        self._by_address.give_back(address)
        self._by_user.give_back((address, user))
        if is_repeated:
            self._remembered[self._mark(user, password)] = None
            if len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)
        return self._users.credential(user)

    def _mark(self, user: str, password: str) -> bytes:
        """Return what stands for a right password in memory; it changes with the file."""
        content = "\0".join((user, password, self._users.credential(user) or "")).encode(errors="replace")
        return hashlib.blake2b(content, key=self._secret).digest()
