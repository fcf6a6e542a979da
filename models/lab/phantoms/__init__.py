"""Chest films generated from a random anatomy, with exact labels (docs/model/phantoms.md says what for).

`phantom(seed)` makes the film of a seed: the same bytes and labels on every machine. `plan` decides what a film shows,
`anatomy` makes its body, `scene`, `bones` and `findings` the material in the beam, `film` the picture of that,
`regions` and `report` the labels; `picture` joins them.
"""

from models.lab.phantoms.non_frontal import OTHER_KINDS, other_film
from models.lab.phantoms.picture import phantom
from models.lab.phantoms.report import hints_of
from models.lab.phantoms.sets import PhantomSet, parse_set, split_of
from models.lab.phantoms.truth import CIG_CLASSES, FINDINGS, FindingInstance, Hint, Phantom, PhantomSentence

__all__ = [
    "CIG_CLASSES",
    "FINDINGS",
    "OTHER_KINDS",
    "FindingInstance",
    "Hint",
    "Phantom",
    "PhantomSentence",
    "PhantomSet",
    "hints_of",
    "other_film",
    "parse_set",
    "phantom",
    "split_of",
]
