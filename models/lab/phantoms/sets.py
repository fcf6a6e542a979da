"""Named sets of phantoms: `phantoms:SEED:COUNT` has the films of COUNT seeds, beginning at SEED.

The seed alone decides whether a film is for training, validation or test, so the three never mix, whatever sets are
named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "validate", "test"]

VALIDATE_FROM = 1_000_000
TEST_FROM = 2_000_000
_LAST = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomSet:
    """Films with consecutive seeds; film i has seed first + i."""

    first: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.first <= _LAST - self.count:
            raise ValueError(f"{self} is not a set: name at least 1 film, with seeds from 0 to {_LAST - 1}")
        if self.split != split_of(self.first + self.count - 1):
            raise ValueError(
                f"{self} reaches from one split into the next; seeds below {VALIDATE_FROM} train, those "
                f"below {TEST_FROM} validate, the others test"
            )

    def __str__(self) -> str:
        return f"phantoms:{self.first}:{self.count}"

    def __len__(self) -> int:
        return self.count

    @property
    def seeds(self) -> range:
        """The seeds of its films, in order."""
        return range(self.first, self.first + self.count)

    @property
    def split(self) -> Split:
        """The permitted use of its films."""
        return split_of(self.first)


def split_of(seed: int) -> Split:
    """Return the permitted use of the film of a seed."""
    if seed < VALIDATE_FROM:
        return "train"
    return "validate" if seed < TEST_FROM else "test"


def parse_set(text: str) -> PhantomSet:
    """Parse the name of a set. Raises ValueError that says how to write one."""
    match = re.fullmatch(r"phantoms:(\d{1,10}):(\d{1,10})", text)
    if match is None:
        raise ValueError(f"{text!r} names no phantoms; write phantoms:SEED:COUNT, such as phantoms:2000000:500")
    return PhantomSet(first=int(match[1]), count=int(match[2]))
