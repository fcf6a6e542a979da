"""Writes the password file of the pages: adds a user, changes a password, removes a user."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.errors import InputError
from node.web import passwords


def change(path: Path, user: str) -> None:
    """Set a password to what is typed twice, or to the first line of a standard input that is no terminal.

    Raises InputError.
    """
    password = _typed() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    with _naming(path):
        passwords.set_password(path, user, password)


def remove(path: Path, user: str) -> None:
    """Remove a user. Raises InputError."""
    with _naming(path):
        passwords.remove_user(path, user)


def _typed() -> str:
    password = getpass.getpass("Password: ")
    if getpass.getpass("The same again: ") != password:
        raise InputError("the two passwords differ; nothing was changed")
    return password


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); choose another file or user") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a password file; choose another file") from error
