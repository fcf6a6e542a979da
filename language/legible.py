"""Whether a generated text is one that a person can read, and whether it speaks of an earlier film."""

from __future__ import annotations

import re
import string
from typing import Final

from language.cues import cues

LONGEST: Final = 60
"""The most words of a sentence."""
_LONGEST_WORD: Final = 28
_WORD = re.compile(r"[a-z0-9']+")
_DANGLING: Final = frozenset(
    "a an and at by for from in into is of on or the to which with without no nor not are than may be as its there "
    "this these that has have but very".split()
)
_LONG_WORDS: Final = (
    "abnormality atelectasis bibasilar bilateral calcification cardiac cardiomegaly cardiomediastinal catheter "
    "clavicle consolidation costophrenic demonstrates effusion effusions endotracheal enlarged enlargement fracture "
    "granuloma hemidiaphragm hemithorax infiltrate interstitial mediastinal mediastinum moderate nasogastric "
    "nodular opacification opacities opacity pacemaker perihilar pleural pneumonia pneumothorax prominence "
    "pulmonary radiograph retrocardiac silhouette sternotomy thickening unremarkable vascular ventricular"
).split()
"""Words that a sentence which was cut off may end in the middle of."""
_NO_TEXT = re.compile(r"<[^>]*>|\[[a-z]+\]|##|\ufffd|\u0120|\u00e2\u20ac|_{2,}|[\x00-\x08\x0b-\x1f]")
_LETTERS_ALONE = re.compile(r"(?<![\w'])[a-z](?: [a-z](?![\w'])){2,}")
_NOT_A_WORD = re.compile(r"[bcdfghjklmnpqrstvwxz]{6,}|([a-z])\1{3,}")


def is_legible(text: str) -> bool:
    """Return whether a text reads as a sentence: whole words, an end, no repetition."""
    lower = " ".join(text.lower().split())
    words = _WORD.findall(lower)
    return not (
        not any(letter in string.ascii_lowercase for letter in lower)
        or len(words) > LONGEST
        or any(len(word) > _LONGEST_WORD for word in words)
        or any(pattern.search(lower) for pattern in (_NO_TEXT, _LETTERS_ALONE, _NOT_A_WORD))
        or _repeats(words)
        or _is_cut_off(lower, words)
    )


def speaks_of_an_earlier_film(text: str) -> bool:
    """Return whether a text compares with an earlier film, or knows what no single film shows."""
    lower = cues().not_earlier.sub(" ", " ".join(text.lower().split()))
    return bool(cues().earlier.search(lower))


def _repeats(words: list[str]) -> bool:
    """Find words that stand twice in a row; no report needs that, except for numbers."""
    return any(
        words[place : place + size] == words[place + size : place + 2 * size]
        and any(word.isalpha() for word in words[place : place + size])
        for size in range(1, len(words) // 2 + 1)
        for place in range(len(words) - 2 * size + 1)
    )


def _is_cut_off(lower: str, words: list[str]) -> bool:
    if words[-1] in _DANGLING or lower[-1] in ",-([/" or lower.count("(") != lower.count(")"):
        return True
    ended = lower[-1] in ".!?)"
    return not ended and any(long.startswith(words[-1]) and long != words[-1] for long in _LONG_WORDS)
