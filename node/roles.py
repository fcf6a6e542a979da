"""Which of the service's work one process does: all of it, or one role of three beside others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from node.config import StorageSettings
from node.errors import InputError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Role(StrEnum):
    """What a process is for when it does not do everything."""

    LISTENER = "listener"
    WORKER = "worker"
    SENDER = "sender"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the service; no role means every role.

    executor: its name, the same after every start: what it had in hand when it was killed comes back to it
    """

    only: Role | None = None
    executor: str = "node"

    @property
    def receives(self) -> bool:
        """Whether it takes films and orders."""
        return self.only in (None, Role.LISTENER)

    @property
    def reads(self) -> bool:
        """Whether it holds the model, and cleans up."""
        return self.only in (None, Role.WORKER)

    @property
    def sends(self) -> bool:
        """Whether it delivers results."""
        return self.only in (None, Role.SENDER)


def process_of(storage: StorageSettings, *, only: Role | None, executor: str | None) -> Process:
    """Say what a process does and how it is called. Raises InputError when that cannot be."""
    if only is not None and not storage.database_url:
        raise InputError(
            f"--only {only}: set storage.database_url; with SQLite one process does everything, without --only"
        )
    name = executor if executor is not None else (only or "node")
    if not _NAME.fullmatch(name):
        raise InputError(f"--executor {name!r}: use 1 to 64 letters, digits, dots, dashes and underscores")
    return Process(only=only, executor=str(name))
