"""Chest films made by a program from a random anatomy, with exact truth (README.md says what they are good for).

`phantom(seed)` makes the film of a seed: the same bytes and the same truth on every machine. `plan` says what a film
shows, `anatomy` makes its body, `scene`, `bones` and `findings` what the beam has to pass, `film` and `printing` the
picture of that, `regions` and `report` its truth; `picture` joins them.
"""

from models.phantoms.others import OTHER_KINDS, other_film
from models.phantoms.picture import phantom
from models.phantoms.report import hints_of
from models.phantoms.sets import PhantomSet, parse_set, split_of
from models.phantoms.truth import CIG_CLASSES, FINDINGS, Hint, Instance, Phantom, Sentence

__all__ = [
    "CIG_CLASSES",
    "FINDINGS",
    "OTHER_KINDS",
    "Hint",
    "Instance",
    "Phantom",
    "PhantomSet",
    "Sentence",
    "hints_of",
    "other_film",
    "parse_set",
    "phantom",
    "split_of",
]
