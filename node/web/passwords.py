"""The users of the password file: lines `USER:HASH:ROLE`, with argon2id hashes (RFC 9106), and checks of passwords.

A running node reads the file again when it has changed. A missing file and a line that cannot be understood let nobody
in.

A check takes 64 MiB and 0.1 s of a processor, so one runs at a time, and wrong passwords are limited for each user at
an address, and for each address. Programs send a password with every request; each user's last right one is remembered.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from node import log
from node.errors import ConfigError, InputError
from node.store import files
from node.web.rate_limit import RateLimit, network_of
from node.web.users import Role, is_user_name

_FEWEST_CHARACTERS: Final = 12
_MOST_BYTES: Final = 1024
_MOST_WAITING: Final = 16
_FORM: Final = f"is not USER:HASH:ROLE, with the role {' or '.join(Role)}"
_HASHER: Final = PasswordHasher()
_NOBODY: Final = "$argon2id$v=19$m=65536,t=3,p=4$5dxUk0fpFhh5vm47QF09QQ$fSojmZx+xipySLjNVNp6SikQuA2q7mCSdniIWNxGlyU"
"""The hash of a random password: a comparison for an unknown user takes as long as for a known one."""


class Busy(Exception):
    """Too many wrong passwords, or too many at once. `seconds`: when to try again."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = max(1, math.ceil(seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The file's entry of a user."""

    hash: str
    role: Role

    @property
    def credential(self) -> str:
        """A text that changes when the user's password or role does."""
        return hashlib.sha256(f"{self.hash}:{self.role}".encode()).hexdigest()[:16]


class Passwords:
    """The users of one file. Only the thread of the server checks passwords; the rest is used by several threads."""

    def __init__(self, path: Path) -> None:
        self._path, self._reading = path, threading.Lock()
        self._by_user = RateLimit(burst=5, seconds=60.0)
        self._by_address = RateLimit(burst=20, seconds=15.0)
        self._turn = anyio.CapacityLimiter(1)
        self._thread = anyio.CapacityLimiter(1)  # apart from the threads that make pages, which may all be busy
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[str, tuple[Entry, bytes]] = {}
        self._read()

    @property
    def users(self) -> Mapping[str, Entry]:
        """The users who can sign in; none while the file cannot be read."""
        with self._reading:
            if files.stamp(self._path) != self._stamp and self._read():
                log.get().info("passwords.reloaded")
            return self._users

    async def check(self, user: str, password: str, *, host: str) -> Entry | None:
        """Return the user if the password is right, else None; a right one is remembered. Raises Busy."""
        address = network_of(host)
        self._require_patience(user, address)  # first: a guesser must not reach the cached passwords
        if (found := self._recall(user, password)) is not None:
            return found
        if self._turn.statistics().tasks_waiting >= _MOST_WAITING:
            raise Busy(1.0)
        async with self._turn:
            if (found := self._recall(user, password)) is not None:  # by a request that was before this one
                return found
            self._require_patience(user, address)
            found = await anyio.to_thread.run_sync(self.verify, user, password, limiter=self._thread)
            if found is not None:
                self._remembered[user] = found, self._mark(password)
            else:
                self._by_address.take(address)
                self._by_user.take((address, user))
            return found

    def _require_patience(self, user: str, address: str) -> None:
        """Raises Busy after too many wrong passwords."""
        if wait := self._by_address.seconds_left(address) or self._by_user.seconds_left((address, user)):
            raise Busy(wait)

    def verify(self, user: str, password: str) -> Entry | None:
        """Return the user if the password is right, else None; an unknown user takes the same time."""
        found = self.users.get(user) if _is_short(password) else None
        try:
            _HASHER.verify(_NOBODY if found is None else found.hash, _normalized(password[:_MOST_BYTES]))
        except (VerificationError, InvalidHashError):
            return None
        return found

    def _recall(self, user: str, password: str) -> Entry | None:
        """Return the user if this password was right for the present line of the file."""
        found = self.users.get(user)
        is_right = found is not None and self._remembered.get(user) == (found, self._mark(password))
        return found if is_right else None

    def _mark(self, password: str) -> bytes:
        """Return the digest of a password for the cache in memory."""
        return hashlib.blake2b(password.encode(errors="replace"), key=self._secret).digest()

    def _read(self) -> bool:
        """Read the file; returns whether all of it was understood."""
        self._stamp = files.stamp(self._path)
        try:
            self._users, wrong = _parse(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            self._users, wrong = {}, [_complaint(error)]
        if wrong:
            log.get().error("passwords.refused", reason=", ".join(wrong[:10]))
        return not wrong


def users_in(path: Path) -> Mapping[str, Entry]:
    """Return the users of a password file. Raises ConfigError if it cannot be read, or has a wrong line."""
    try:
        users, wrong = _parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"http.password_file: {path}: {_complaint(error)}; make it by `node password`"]) from error
    if wrong:
        raise ConfigError([f"http.password_file: {path}: {', '.join(wrong)} {_FORM}; run `node password`"])
    return users


def set_password(path: Path, user: str, password: str, *, role: Role | None = None) -> Role:
    """Add a user or change the password; returns the user's role.

    role: None leaves it as it is; a new user is a reader then, but the first administrator if the file has none
    Raises InputError for a bad name, password or file.
    """
    if not is_user_name(user):
        raise InputError(f"{user!r} is no user name; use 1 to 128 printable characters without a colon")
    if len(password) < _FEWEST_CHARACTERS or not _is_short(password):
        raise InputError(
            f"the password must have {_FEWEST_CHARACTERS} characters or more, and {_MOST_BYTES} bytes at most"
        )
    hashed = _HASHER.hash(_normalized(password))
    with _changing_users(path) as users:
        has_administrator = any(entry.role is Role.ADMINISTRATOR for entry in users.values())
        usual = users[user].role if user in users else Role.READER if has_administrator else Role.ADMINISTRATOR
        users[user] = Entry(hash=hashed, role=role or usual)
        return users[user].role


def set_role(path: Path, user: str, role: Role) -> None:
    """Change the role of a user. Raises InputError for an unknown one, or a bad file."""
    with _changing_users(path, known=user) as users:
        users[user] = replace(users[user], role=role)


def remove_user(path: Path, user: str) -> None:
    """Remove a user. Raises InputError for an unknown one, or a bad file."""
    with _changing_users(path, known=user) as users:
        del users[user]


@contextmanager
def _changing_users(path: Path, *, known: str | None = None) -> Iterator[dict[str, Entry]]:
    """Read all users, and write them back when the block ends; one process at a time. known: who must be there."""
    try:
        with files.lock(path.with_name(f".{path.name}.lock")):
            owner = path.stat() if path.exists() else None
            users, wrong = _parse(path.read_text(encoding="utf-8")) if owner is not None else ({}, [])
            if wrong:
                raise InputError(f"{path}: {', '.join(wrong)} {_FORM}; correct or remove it")
            if known is not None and known not in users:
                raise InputError(f"{path}: there is no user {known}; see its lines")
            yield users
            files.write(path, "".join(f"{user}:{entry.hash}:{entry.role}\n" for user, entry in users.items()).encode())
            if owner is not None and os.geteuid() == 0:  # the file stays readable for the user of the node
                os.chown(path, owner.st_uid, owner.st_gid)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another file or user") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a password file; choose another file") from error


def _parse(text: str) -> tuple[dict[str, Entry], list[str]]:
    """Return the users, and which lines are wrong."""
    users, wrong = dict[str, Entry](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        user, _, rest = line.strip().partition(":")
        hashed, _, role = rest.partition(":")
        if is_user_name(user) and hashed.startswith("$argon2id$") and role in tuple(Role) and user not in users:
            users[user] = Entry(hash=hashed, role=Role(role))
        elif line.strip():
            wrong.append(f"line {number}")
    return users, wrong


def _normalized(password: str) -> bytes:
    """Keyboards differ in how they compose letters; NIST SP 800-63B asks for one form."""
    return unicodedata.normalize("NFKC", password).encode(errors="replace")


def _is_short(password: str) -> bool:
    return len(password.encode(errors="replace")) <= _MOST_BYTES


def _complaint(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unreadable").lower() if isinstance(error, OSError) else "is no text"
