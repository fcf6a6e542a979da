"""What other packages add to the node: kinds of outputs and types of destinations, named by entry points.

The name of what a package adds has a hyphen, as `house-folder`, and nothing of the node's own has one. So a package
never takes the place of what the node has. It is imported only when the settings name what it adds.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeVar

from node.errors import InputError, where

OUTPUTS: Final = "chex_node.outputs"
DESTINATIONS: Final = "chex_node.destinations"
"""The groups of entry points."""

_MARK: Final = "-"
_T = TypeVar("_T")


def is_added(name: str) -> bool:
    """Say whether a name is one that another package adds."""
    return _MARK in name


@cache
def added(group: str, name: str, kind: type[_T]) -> _T | None:
    """Import what a package adds under a name; None if no package is installed that does, or it has no hyphen.

    Raises InputError if it cannot be imported, is of another kind, or if several packages add it.
    """
    found = tuple(entry_points(group=group, name=name)) if is_added(name) else ()
    if not found:
        return None
    if len(found) > 1:
        raise InputError(f"{name!r} is added by several packages; uninstall all but one of them")
    try:
        made = found[0].load()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the boundary to a package of somebody else
        raise InputError(f"the package that adds {name!r} cannot be imported: {where(error)}") from error
    if not isinstance(made, kind):
        raise InputError(f"the package that adds {name!r} has no {kind.__name__} under {found[0].value}")
    return made


def load(place: str, kind: type[_T]) -> _T:
    """Import what stands in a place, as MODULE:NAME. Raises InputError if it is of another kind."""
    made = EntryPoint(name="", value=place, group="").load()
    if not isinstance(made, kind):
        raise InputError(f"there is no {kind.__name__} under {place}")
    return made
