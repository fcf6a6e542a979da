"""The file with users, the argon2id hashes of their passwords (RFC 9106), and roles: lines `USER:HASH:ROLE`.

A line without a role, as all were once, is of an administrator: then every user could do everything.

A running node reads the file again when it has changed. A missing file and a line that cannot be understood let nobody
in. A hash with other parameters than the library's present ones is replaced at the next correct password.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from node import log
from node.config import Settings
from node.errors import ConfigError, InputError
from node.store import files
from node.web.users import Role, is_user_name

_FEWEST_CHARACTERS: Final = 12
_MOST_BYTES: Final = 1024
_FORM: Final = f"is not USER:HASH or USER:HASH:ROLE, with the role {' or '.join(Role)}"
_MOST_FILE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the file says of a user; named_role: None if its line names none."""

    hash: str
    named_role: Role | None = None

    @property
    def role(self) -> Role:
        """The user's role."""
        return self.named_role or Role.ADMINISTRATOR

    @property
    def text(self) -> str:
        """The line, after the user's name."""
        return self.hash if self.named_role is None else f"{self.hash}:{self.named_role}"


class PasswordFile:
    """The users of one file; used by several threads."""

    def __init__(self, path: Path) -> None:
        self._path, self._changing = path, threading.Lock()
        self._hasher = PasswordHasher()
        self._nobody = _hash_of_nobody(self._hasher)
        self._stamp: files.Stamp = None
        self._entries: Mapping[str, Entry] = {}
        self._read()

    @property
    def is_empty(self) -> bool:
        """Whether nobody can sign in: the file has no user, or cannot be read."""
        return not self._known()

    def credential(self, user: str) -> str | None:
        """Return a text that changes when the user's password does; None for an unknown user."""
        found = self._known().get(user)
        return None if found is None else hashlib.sha256(found.hash.encode()).hexdigest()[:16]

    def role(self, user: str) -> Role:
        """Return the role of a user; an unknown user has the lesser one."""
        found = self._known().get(user)
        return Role.READER if found is None else found.role

    def verify(self, user: str, password: str) -> bool:
        """Say whether a password is right; an unknown user takes the same time. Needs 64 MiB, and 0.1 s or so."""
        found = self._known().get(user) if _is_short(password) else None
        try:
            self._hasher.verify(self._nobody if found is None else found.hash, _normalized(password[:_MOST_BYTES]))
        except (VerificationError, InvalidHashError):
            return False
        if found is None:
            return False
        if self._hasher.check_needs_rehash(found.hash):
            with suppress(OSError):  # the file may be read-only
                set_password(self._path, user, password, hasher=self._hasher)
        return True

    def _known(self) -> Mapping[str, Entry]:
        with self._changing:
            if files.stamp(self._path) != self._stamp and self._read():
                log.get().info("passwords.reloaded")
            return self._entries

    def _read(self) -> bool:
        """Read the file; returns whether all of it was understood."""
        self._stamp = files.stamp(self._path)
        try:
            self._entries, wrong = _parse(_text(self._path))
        except (OSError, UnicodeDecodeError) as error:
            self._entries, wrong = {}, [_complaint(error)]
        if wrong:
            log.get().error("passwords.refused", reason=", ".join(wrong[:10]))
        return not wrong


def check_file(settings: Settings) -> None:
    """Check that the file of the settings can be read. Raises ConfigError."""
    if settings.http.password_file is not None:
        users_in(settings.http.password_file)


def users_in(path: Path) -> Mapping[str, Role]:
    """Return the users of a file of passwords with their roles.

    Raises ConfigError if it cannot be read, or has a wrong line.
    """
    try:
        users, wrong = _parse(_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"http.password_file: {path}: {_complaint(error)}; make it by `node password`"]) from error
    if wrong:
        raise ConfigError([f"http.password_file: {path}: {', '.join(wrong)} {_FORM}; run `node password`"])
    return {user: entry.role for user, entry in users.items()}


def set_password(
    path: Path, user: str, password: str, *, role: Role | None = None, hasher: PasswordHasher | None = None
) -> Role:
    """Add a user or change the password; returns the user's role.

    role: None leaves it as it is; a new user is a reader then, but the first administrator if the file has none
    Raises InputError for a bad name or password, OSError for a bad file.
    """
    if not is_user_name(user):
        raise InputError(f"{user!r} is no user name; use 1 to 128 printable characters without a colon")
    if len(password) < _FEWEST_CHARACTERS or not _is_short(password):
        raise InputError(
            f"the password must have {_FEWEST_CHARACTERS} characters or more, and {_MOST_BYTES} bytes at most"
        )
    entry = (hasher or PasswordHasher()).hash(_normalized(password))
    with _changing_users(path) as users:
        known = users.get(user)
        named = role or (_first_role(users) if known is None else known.named_role)
        users[user] = Entry(hash=entry, named_role=named)
        return users[user].role


def set_role(path: Path, user: str, role: Role) -> None:
    """Change the role of a user. Raises InputError for an unknown one, OSError for a bad file."""
    with _changing_users(path) as users:
        if user not in users:
            raise InputError(f"{path}: there is no user {user}; see its lines")
        users[user] = replace(users[user], named_role=role)


def _first_role(users: Mapping[str, Entry]) -> Role:
    """Return the role of a new user: somebody must be an administrator."""
    has_administrator = any(entry.role is Role.ADMINISTRATOR for entry in users.values())
    return Role.READER if has_administrator else Role.ADMINISTRATOR


def remove_user(path: Path, user: str) -> None:
    """Remove a user. Raises InputError for an unknown one, OSError for a bad file."""
    with _changing_users(path) as users:
        if users.pop(user, None) is None:
            raise InputError(f"{path}: there is no user {user}; see its lines")


@contextmanager
def _changing_users(path: Path) -> Iterator[dict[str, Entry]]:
    """Read all users, and write them back when the block ends; one process at a time."""
    with files.lock(path.with_name(f".{path.name}.lock")):
        owner = path.stat() if path.exists() else None
        users, wrong = _parse(_text(path)) if owner is not None else ({}, [])
        if wrong:
            raise InputError(f"{path}: {', '.join(wrong)} {_FORM}; correct or remove it")
        yield users
        files.write(path, "".join(f"{user}:{entry.text}\n" for user, entry in users.items()).encode())
        if owner is not None and os.geteuid() == 0:  # the file stays readable for the user of the node
            os.chown(path, owner.st_uid, owner.st_gid)


def _hash_of_nobody(hasher: PasswordHasher) -> str:
    """Return a hash that no password has, and that takes as long to compare as those of users."""
    salt, result = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=") for size in (hasher.salt_len, hasher.hash_len)
    )
    return f"$argon2id$v=19$m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}${salt}${result}"


def _parse(text: str) -> tuple[dict[str, Entry], list[str]]:
    """Return the users, and which lines are wrong."""
    users, wrong = dict[str, Entry](), list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        user, colon, rest = line.strip().partition(":")
        if not user and not colon:
            continue
        hashed, has_role, role = rest.partition(":")
        is_good = hashed.startswith("$argon2id$") and (not has_role or role in tuple(Role))
        if is_user_name(user) and is_good and user not in users:
            users[user] = Entry(hash=hashed, named_role=Role(role) if has_role else None)
        else:
            wrong.append(f"line {number}")
    return users, wrong


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_MOST_FILE_BYTES)


def _normalized(password: str) -> bytes:
    """Keyboards differ in how they compose letters; NIST SP 800-63B asks for one form."""
    return unicodedata.normalize("NFKC", password).encode(errors="replace")


def _is_short(password: str) -> bool:
    return len(password.encode(errors="replace")) <= _MOST_BYTES


def _complaint(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "unreadable").lower() if isinstance(error, OSError) else "is no text"
