"""Checks who can sign in: the file of passwords, by whom it can be read, and the provider of single sign-on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Final

from models.program import command_for
from node.checks import Check, fault, note, ok
from node.config import Settings
from node.web import passwords, single_sign_on
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
    count, administrators = len(users), sum(entry.role is Role.ADMINISTRATOR for entry in users.values())
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


def check_single_sign_on(settings: Settings) -> Iterator[Check]:
    """Ask the provider of `http.oidc` for its addresses and keys; signs nobody in. Raises ConfigError for bad files."""
    oidc, name = settings.http.oidc, "single sign-on"
    if oidc is None:
        return
    single_sign_on.check_files(oidc)
    try:
        asyncio.run(single_sign_on.SingleSignOn(oidc).examine())
    except single_sign_on.Refused as refused:
        yield fault(name, f"{oidc.issuer} cannot be used ({refused.why}); start it, or correct [http.oidc]")
    else:
        yield ok(name, f"{oidc.issuer} says where users sign in, and by which keys; nobody was signed in")
