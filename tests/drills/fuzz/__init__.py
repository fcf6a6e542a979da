"""Bent bytes against the node: associations, requests, pixels, files; each part counts, and names what went wrong."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

_SECTOR: Final = 512
_HEAD: Final = 128
_WAYS: Final = (
    *["change"] * 3,
    *["change the head"] * 2,
    "zero a sector",
    "cut off",
    "remove",
    "insert",
    "double",
)


@dataclass(kw_only=True)
class Tally:
    """What came of the cases of a part; faults: the first words of each, by what tells how to make it again.

    measured: figures that are no counts
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether something was tried, and nothing went wrong."""
        return not self.faults and bool(self.counts)

    @property
    def figures(self) -> dict[str, object]:
        """The figures, for the last line."""
        return {
            "passed": self.passed,
            "counts": dict(sorted(self.counts.items())),
            "faults": dict([*self.faults.items()][:20]),
            **self.measured,
        }

    def lacks(self, *kinds: str) -> None:
        """Count it as a fault if nothing came of a kind: then the cases did not get as far as they should."""
        for kind in kinds:
            if not self.counts[kind]:
                self.faults[kind] = "came never"


def spoil(chance: random.Random, content: bytearray) -> None:
    """Change, cut off, insert or double some bytes in place, more often near the beginning, where the meaning is."""
    if not content:
        return
    at = chance.randrange(len(content))
    match chance.choice(_WAYS):
        case "change":
            for _ in range(chance.choice((1, 2, 8, 20))):
                content[chance.randrange(len(content))] = chance.randrange(256)
        case "change the head":
            for _ in range(chance.choice((1, 2, 4))):
                place = chance.randrange(min(len(content), _HEAD))
                content[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        case "zero a sector":
            begin = at // _SECTOR * _SECTOR
            content[begin : begin + _SECTOR] = bytes(len(content[begin : begin + _SECTOR]))
        case "cut off":
            del content[max(2, at) :]
        case "remove":
            del content[at : at + chance.choice((1, 1, 2, 4, 100))]
        case "insert":
            content[at:at] = chance.randbytes(chance.randrange(1, 64))
        case "double":
            content[at:at] = content[at : at + chance.randrange(1, 4096)] * chance.choice((1, 2, 50))
