"""The destinations in force. A reload of the settings replaces all of them while other threads look them up."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView

from node.output_kinds import DEFAULT_OUTPUTS
from node.settings.destinations import DestinationSettings


class DestinationTable(Mapping[str, DestinationSettings]):
    """Destinations by name. What one call returns is whole, whichever thread replaces the destinations meanwhile."""

    def __init__(self, destinations: Iterable[DestinationSettings]) -> None:
        self.replace(destinations)

    def replace(self, destinations: Iterable[DestinationSettings]) -> None:
        """Put other destinations in force."""
        self._by_name = {destination.name: destination for destination in destinations}

    def __getitem__(self, name: str) -> DestinationSettings:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def items(self) -> ItemsView[str, DestinationSettings]:
        """Return the destinations of this moment with their names."""
        return self._by_name.items()

    def values(self) -> ValuesView[DestinationSettings]:
        """Return the destinations of this moment."""
        return self._by_name.values()


def kinds_of(destinations: Iterable[DestinationSettings]) -> frozenset[str]:
    """Return the kinds of objects that destinations get; without destinations, those that pages offer."""
    named = [destination.outputs for destination in destinations] or [DEFAULT_OUTPUTS]
    return frozenset(kind for outputs in named for kind in outputs)
