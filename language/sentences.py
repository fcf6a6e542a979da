"""A sentence made by rule, for a finding whose generated sentence has a fault; and the state before a generated one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from models.contract import FindingState, Side

_COUNTED: Final = ("hernia", "lesion", "effusion", "pneumothorax")
_MASS: Final = re.compile(r"(tion|ema|aly|sis|nia|ology|disease|ment|ing|pathy|itis|loss|air|fluid)$")
"""Endings of words without an article, such as "edema", "cardiomegaly" and "consolidation"."""
_PLURAL: Final = re.compile(r"(?<![siu])s$")  # "devices", and neither "mass" nor "atelectasis"
_ZONE: Final = re.compile(r"\bzones?$")
_SPOTS: Final = ("apex", "hilum")
_TO_REVIEW: Final = "Possible, please review"
_NOT_SEEN: Final = "Not seen by the network: "
_STATE: Final = re.compile(rf"^({_TO_REVIEW}( \([^)]*\))?: |{_NOT_SEEN})")
_REVIEWED: Final[tuple[FindingState, ...]] = (FindingState.INDETERMINATE, FindingState.UNCALIBRATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noun:
    """A finding's name as the subject of a sentence, with its article."""

    words: str
    is_plural: bool


def by_rule(*, name: str, state: FindingState, side: Side | None, zone: str | None) -> str:
    """Return a template sentence on a finding by its decision.

    name: the finding's name, such as "Pleural effusion"; side: the patient's side, None if it is not known
    zone: the lung's zone, such as "lower" or "lower zone"; or its "apex" or "hilum"
    Raises ValueError for what is not reported, because nobody may say that there is none, and for a blank name.
    """
    if not state.is_reported:
        raise ValueError("no sentence says that a finding is absent: it may have been missed")
    if not name.strip():
        raise ValueError("a sentence needs a name")
    noun = _noun(_in_a_sentence(name.strip()), side, _place(zone, side))
    be = "are" if noun.is_plural else "is"
    if state is FindingState.PRESENT:
        return f"There {be} {noun.words}."
    return f"{noun.words[0].upper()}{noun.words[1:]} {be} possible; please review."


def of_words(state: FindingState) -> str:
    """Return a template sentence on a question whose words must not be repeated.

    Raises ValueError for what is not reported.
    """
    if not state.is_reported:
        raise ValueError("no sentence says that something is absent: it may have been missed")
    if state is FindingState.PRESENT:
        return "What was asked for is above the threshold."
    return "What was asked for is possible; please review."


def stated(text: str, asserted: Mapping[str, FindingState]) -> str:
    """Put the state before a sentence of the network, whose words are never changed, if it asserts what is in review.

    asserted: the state of each reported finding that the sentence asserts, by name. If only some of them are to be
    reviewed, these are named.
    """
    reviewed = [name for name, state in asserted.items() if state in _REVIEWED]
    if not reviewed:
        return text
    of_them = "" if len(reviewed) == len(asserted) else f" ({', '.join(map(_in_a_sentence, reviewed))})"
    return f"{_TO_REVIEW}{of_them}: {text}"


def not_seen(text: str) -> str:
    """Put before a sentence that denies something that the network did not see it, which is no proof."""
    return _NOT_SEEN + text


def is_not_seen(text: str) -> bool:
    """Return whether `not_seen` marked a sentence."""
    return text.startswith(_NOT_SEEN)


def unstated(text: str) -> str:
    """Return a sentence without the prefix of `stated` or `not_seen`."""
    return _STATE.sub("", text)


def is_plural(name: str) -> bool:
    """Return whether the name of a finding takes the plural, as "Support devices" does."""
    return bool(_PLURAL.search(name.partition(" of ")[0].split()[-1]))


def _in_a_sentence(name: str) -> str:
    """Begin a name in lower case, except for an abbreviation."""
    return name if name[1:2].isupper() else name[0].lower() + name[1:]


def _place(zone: str | None, side: Side | None) -> str:
    if zone is None or not zone.strip():
        return ""
    words = zone.strip().lower()
    if words in _SPOTS:
        return f" at the {words}"
    words = words if _ZONE.search(words) else f"{words} zone"
    return f" in the {words}s" if side is Side.BILATERAL and words.endswith("zone") else f" in the {words}"


def _noun(name: str, side: Side | None, place: str) -> _Noun:
    another = name.startswith("other ")
    name = name.removeprefix("other ")
    head = name.partition(" of ")[0]  # "fracture of bone"
    last = head.split()[-1]
    several = is_plural(name)
    is_counted = not several and not _is_mass(last)
    if side is Side.BILATERAL and is_counted and not _has_plural(name):
        return _Noun(words=f"{_article(name, another=another)} {name} on both sides{place}", is_plural=False)
    if side is Side.BILATERAL and is_counted:
        name = head.removesuffix(last) + _plural(last) + name.removeprefix(head)
        several, is_counted = True, False
    if side is not None:
        name = f"{side} {name}"
    article = f"{_article(name, another=another)} " if is_counted else "other " if another else ""
    return _Noun(words=article + name + place, is_plural=several)


def _is_mass(last: str) -> bool:
    """Return whether a word takes no article, as "edema" does; an abbreviation such as COPD takes none either."""
    return last.isupper() or (_MASS.search(last) is not None and last not in _COUNTED)


def _has_plural(name: str) -> bool:
    """Return whether adding an ending to the last word makes the plural; not for "mass or nodule" and "artery (PA)"."""
    return re.fullmatch(r"[A-Za-z -]+", name) is not None and " or " not in name and not name.endswith("um")


def _plural(word: str) -> str:
    if word.endswith("thorax"):
        return word.removesuffix("x") + "ces"
    if re.search(r"[^aeiou]y$", word):
        return word.removesuffix("y") + "ies"
    return word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) else "s")


def _article(name: str, *, another: bool) -> str:
    if another:
        return "another"
    return "an" if name[0].lower() in "aeiou" else "a"
