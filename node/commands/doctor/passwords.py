"""Checks the file of the users of the pages: can it be read, by whom, and is anybody in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from node import command_for
from node.checks import Check, fault, note, ok
from node.config import Settings
from node.web import passwords
from node.web.users import Role

_NAME: Final = "passwords"
_ADD: Final = f"{command_for('node')} password"
_OTHERS_WRITE, _OTHERS_READ = 0o022, 0o044


def check_passwords(settings: Settings) -> Iterator[Check]:
    """Check `http.password_file`; nothing is said if there is none. Raises ConfigError, whose text names the file."""
    path = settings.http.password_file
    if path is None:
        return
    users = passwords.users_in(path)
    count, administrators = len(users), sum(role is Role.ADMINISTRATOR for role in users.values())
    if not count:
        yield fault(_NAME, f"{path} has no user, so nobody can sign in; add one by {_ADD} {path} USER")
        return
    if not administrators:
        yield note(_NAME, f"{path} has no administrator; make one by {_ADD} {path} USER --role administrator")
    found = path.stat()
    mode = f"mode {found.st_mode & 0o7777:04o}"
    if found.st_mode & _OTHERS_WRITE:
        yield fault(_NAME, f"others may change {path} ({mode}), and so sign in as anybody; chmod 600 it")
    elif found.st_mode & _OTHERS_READ:
        yield note(_NAME, f"others may read the hashes in {path} ({mode}); chmod 600 it")
    if found.st_uid not in (0, os.geteuid()):
        yield note(
            _NAME,
            f"{path} belongs to user {found.st_uid}, and this command ran as {os.geteuid()}; run it as the user of the "
            "node to see whether the node may read it, and replace old hashes in it",
        )
    yield ok(
        _NAME, f"{path} has {count} user{'' if count == 1 else 's'}; with the role administrator: {administrators}"
    )
