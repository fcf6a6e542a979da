"""Tell which part of the body and which view the words of a header name, in the languages that modalities are set to.

People and vendors write "THORAX a.p.", "CHEST1V", "KLATKA PIERSIOWA" or 胸部. `words` folds case, accents and widths,
and splits a value into words; `header_words.toml` says what each means. A word that does not stand there says nothing:
it is no reason to call a film another part than the chest, nor to call it frontal.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_name("header_words.toml")
_PA, _AP = "POSTEROANTERIOR", "ANTEROPOSTERIOR"
_PLAIN: Final = str.maketrans(
    {"ł": "l", "ø": "o", "æ": "ae", "œ": "oe", "đ": "d", "\N{LATIN SMALL LETTER DOTLESS I}": "i"}
)
_OPEN_ENDED: Final = re.compile(r"(DECUB|LATERO)\w+")  # every word that begins so means the same
_INITIALS: Final = re.compile(r"\b[^\W\d_](?:\.[^\W\d_])+\b|\b(?:A[\s./-]{1,2}P|P[\s./-]{1,2}A)\b")  # "L.L.", "p-a"
_WRITTEN_OUT: Final = ((re.compile(r"POSTERO\W*ANTERI\w*"), _PA), (re.compile(r"ANTERO\W*POSTERI\w*"), _AP))
_WORD: Final = re.compile(r"[^\W\d_]+")
_LONGEST: Final = 1024  # a description has 64 characters (PS3.5 6.2)
_LONGEST_COMPOUND: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderWords:
    """The tables of `header_words.toml`, folded.

    known: every word that means something; fillers: words that compounds have beside those
    same: words that mean what another word means
    unspaced: terms of scripts without blanks, and what each means, in the order in which they are replaced
    """

    chest: frozenset[str]
    other_parts: frozenset[str]
    other_parts_as_code: frozenset[str]
    frontal: frozenset[str]
    slanted: frozenset[str]
    slanted_terms: frozenset[str]
    decubitus: frozenset[str]
    animals: frozenset[str]
    known: frozenset[str]
    fillers: frozenset[str]
    same: dict[str, str]
    unspaced: tuple[tuple[str, str], ...]


@cache
def vocabulary() -> HeaderWords:
    """Return the words of `header_words.toml`."""
    tables: dict[str, dict[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    sets = {name: frozenset(fold(" ".join(lines.values())).split()) for name, lines in tables.items()}
    meaningless = ("fillers", "animals", "unspaced", "posteroanterior", "anteroposterior")
    return HeaderWords(
        chest=sets["chest"],
        other_parts=sets["other_parts"],
        other_parts_as_code=sets["other_parts_as_code"],
        frontal=sets["frontal"] | {_PA, _AP},
        slanted=sets["slanted"],
        slanted_terms=sets["slanted_terms"],
        decubitus=sets["decubitus"],
        animals=sets["animals"],
        known=frozenset((_PA, _AP)).union(*(found for name, found in sets.items() if name not in meaningless)),
        fillers=sets["fillers"],
        same=dict.fromkeys(sets["posteroanterior"], _PA) | dict.fromkeys(sets["anteroposterior"], _AP),
        unspaced=tuple(
            (term, f" {word} ") for word, terms in tables["unspaced"].items() for term in fold(terms).split()
        ),
    )


def fold(text: str) -> str:
    """Return a text in upper case, without accents, and in letters of usual width.

    UTF-8 that was decoded as ISO 8859-1, because the header names no character set, is decoded again.
    """
    with suppress(UnicodeError):  # then it is taken literally
        text = text.encode("iso8859-1").decode("utf-8")
    decomposed = unicodedata.normalize("NFKD", text.lower().translate(_PLAIN))
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter)).upper()
    return unicodedata.normalize("NFC", plain)  # Korean syllables are whole again


def words(value: str) -> frozenset[str]:
    """Split a value, as vendors write it ("CHEST_PA", "Thorax a.p.", "CHEST1V"), into folded words.

    A compound of words that are known is split as well. Words of which only the beginning counts are cut to it.
    """
    known = vocabulary()
    text = fold(value[:_LONGEST]).replace("_", " ")
    for term, meaning in known.unspaced:
        text = text.replace(term, meaning)
    text = _INITIALS.sub(lambda found: f" {''.join(_WORD.findall(found[0]))} ", text)
    for pattern, written_out in _WRITTEN_OUT:
        text = pattern.sub(f" {written_out} ", text)
    found = (_OPEN_ENDED.sub(r"\1", word) for word in _WORD.findall(text))
    return frozenset(part for word in found for part in _parts(known.same.get(word, word)))


@lru_cache(maxsize=4096)
def _parts(word: str) -> tuple[str, ...]:
    """Return the known words that a compound is made of; the word itself if it is none."""
    known, fillers = vocabulary().known, vocabulary().fillers
    if word in known or len(word) > _LONGEST_COMPOUND:
        return (word,)
    for end in range(2, len(word)):
        if word[:end] in known:
            rest = _parts(word[end:])
            if all(part in known or part in fillers for part in rest):
                return (word[:end], *rest)
    return (word,)


def names_chest(found: frozenset[str]) -> bool:
    """Return whether words name the chest."""
    return not vocabulary().chest.isdisjoint(found)


def names_other_part(found: frozenset[str]) -> bool:
    """Return whether words name another part than the chest; "thorax face" names none."""
    known = vocabulary()
    others = known.other_parts - known.frontal if names_chest(found) else known.other_parts
    return not others.isdisjoint(found)


def names_frontal(found: frozenset[str]) -> bool:
    """Return whether words name a frontal view."""
    return not vocabulary().frontal.isdisjoint(found)


def names_decubitus(found: frozenset[str]) -> bool:
    """Return whether words mean that the patient lies on one side."""
    return not vocabulary().decubitus.isdisjoint(found)


def names_animal(found: frozenset[str]) -> bool:
    """Return whether words name an animal, such as "Canine" or "non-human primate"; an unknown word names none."""
    return not vocabulary().animals.isdisjoint(found) or found == {"NON", "HUMAN"}


def names_slant(found: frozenset[str]) -> bool:
    """Return whether words name a lateral or oblique view; a lateral decubitus view is frontal."""
    known = vocabulary()
    terms = known.slanted | known.slanted_terms if names_chest(found) else known.slanted
    return not terms.isdisjoint(found) and not names_decubitus(found)
