"""Tables that other packages may add to: kinds of outputs and types of destinations.

A package adds an entry by an entry point. Its name has a hyphen, as `house-folder`, and no name of the node's own has
one, so a package never takes the place of what the node has. It is imported only when the settings name what it adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, Generic, TypeVar

from node.errors import InputError, where

_MARK: Final = "-"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[_T]):
    """The node's own entries by name, and those that packages add to a group of entry points; kind: type of entries."""

    group: str
    kind: type[_T]
    own: Mapping[str, _T]

    def find(self, name: str) -> _T | None:
        """Return an entry, None if there is none. Raises InputError if a package's entry is unusable."""
        if name in self.own:
            return self.own[name]
        place = installed(self.group, name)
        try:
            return None if place is None else load(place, self.kind)
        except (KeyboardInterrupt, SystemExit, InputError):
            raise
        except BaseException as error:  # the boundary to a package of somebody else
            raise InputError(f"the package that adds {name!r} cannot be imported: {where(error)}") from error

    def entry(self, name: str) -> _T:
        """Return an entry. Raises InputError if there is none any more."""
        found = self.find(name)
        if found is None:
            raise InputError(f"no installed package adds {name!r}; install the one that did")
        return found

    def complaint(self, value: object) -> str | None:
        """Return the fault of a name in the settings or at the command line; None if it is valid."""
        name = str(value)
        try:
            if self.find(name) is not None:
                return None
        except InputError as error:
            return str(error)
        install = ", or install the package that adds it" if is_added(name) else ""
        return f"{name!r} is unknown; use {' or '.join(self.own)}{install}"


def is_added(name: str) -> bool:
    """Return whether a name is one that another package adds."""
    return _MARK in name


@cache
def installed(group: str, name: str) -> str | None:
    """Return the place of a package's entry by name; None if no installed package has it.

    Raises InputError if several do.
    """
    found = tuple(entry_points(group=group, name=name)) if is_added(name) else ()
    if len(found) > 1:
        raise InputError(f"{name!r} is added by several packages; uninstall all but one of them")
    return found[0].value if found else None


def load(place: str, kind: type[_T]) -> _T:
    """Import an object by MODULE:NAME. Raises InputError if it is of another kind."""
    made = EntryPoint(name="", value=place, group="").load()
    if not isinstance(made, kind):
        raise InputError(f"there is no {kind.__name__} under {place}")
    return made
