"""Writes the password file of the pages: adds a user, changes a password or a role; lists users."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path

from node.errors import InputError
from node.web import passwords
from node.web.users import Role


def change(path: Path, user: str, *, role: Role | None = None) -> str:
    """Set a password, typed twice or from the first line of piped standard input.

    role: the role of a new user; for a known one only the role changes
    Returns a message. Raises InputError.
    """
    if role is not None and path.exists() and user in passwords.users_in(path):
        passwords.set_role(path, user, role)
        return f"{user} is {_called(role)} now"
    password = _typed() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    given = passwords.set_password(path, user, password, role=role)
    return f"{user} has a new password, and is {_called(given)}"


def listed(path: Path) -> list[str]:
    """Return a line for each user. Raises ConfigError for a file that cannot be read."""
    return [f"{user}: {entry.role}" for user, entry in sorted(passwords.users_in(path).items())]


def _called(role: Role) -> str:
    return "an administrator" if role is Role.ADMINISTRATOR else "a reader"


def _typed() -> str:
    password = getpass.getpass("Password: ")
    if getpass.getpass("The same again: ") != password:
        raise InputError("the two passwords differ; nothing was changed")
    return password
