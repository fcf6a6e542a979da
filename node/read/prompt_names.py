"""Which prompt of a set a typed text names, and which texts are asked of no network; pure functions.

A text names a prompt if it has the words of one of its names: its key, a phrase, the meaning of its code, one of its
`names` in the prompt set, or the site of a region as outputs print it. Order, number and case of the words do not
count, and neither do words that make a question of a name ("is there any ...?"). A side beside the name of a paired
finding stays apart, because the report says on which side a finding lies.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Final

from language.question_check import Hindrance, hindered
from models.contract import PromptKind, Side
from node.prompt_set import Prompt, PromptSet

_FILLERS: Final = frozenset(
    "a about an and any are at can check could do does evidence find for has have if in is it locate mark me of on or "
    "patient please see seen show shown sign signs some tell that the there this what where you".split()
)
_SIDES: Final[Mapping[str, Side]] = {
    **dict.fromkeys(("left", "l", "lt"), Side.LEFT),
    **dict.fromkeys(("right", "r", "rt"), Side.RIGHT),
    **dict.fromkeys(("both", "bilateral", "bilaterally", "either"), Side.BILATERAL),
}
_OF_SIDES: Final = frozenset(("side", "sided", "lung"))
"""Words that go with a side: "on the left side", "in both lungs"."""
_PLACES: Final = frozenset(
    "abdomen apex apical base basal basilar cardiac chest clavicle diaphragm field heart hemidiaphragm hemithorax "
    "hilar hilum lobe lower lung mediastinum mid middle pleura region silhouette structure thorax upper zone".split()
)
"""Words that name a place alone."""
WITH_REGIONS: Final = "chexpert14"
"""A built-in prompt set that asks for regions."""
_PLURALS: Final = (
    ("thoraces", "thorax"),
    ("ectases", "ectasis"),
    ("apices", "apex"),
    ("hila", "hilum"),
    ("ies", "y"),
    ("sses", "ss"),
)
_SINGULAR: Final = re.compile(r"(ss|us|is)$")
_INSTEAD: Final = (
    'ask for the finding or the region itself, as in "pneumonia" or "left lower lung zone", and read whether it is '
    "reported"
)
REFUSALS: Final[Mapping[Hindrance, str]] = {
    Hindrance.DENIES: f"the network looks for what a text names, and nothing is ever called absent; {_INSTEAD}",
    Hindrance.TELLS: f"nobody tells the network what to leave out or what to say; {_INSTEAD}",
    Hindrance.GONE: f"one film does not show what became of something; {_INSTEAD}, or compare it with an earlier film",
}
"""Why a text is not asked, and what to do instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPrompt:
    """A prompt that a text names; side: that it names beside a paired finding, None if it names none."""

    prompt: Prompt
    side: Side | None = None


def named(text: str, prompts: PromptSet) -> NamedPrompt | None:
    """Return the prompt that a text names; None if it names none, or more than that.

    Only the exact words of that prompt ask whether a film is normal.
    """
    words, known = _words(text), _known(prompts)
    counted = [word for word in words if word not in _FILLERS]
    prompt = known.get(_key(counted))
    if prompt is not None:
        is_question = prompt.kind is PromptKind.NO_FINDING and counted != words
        return None if is_question else NamedPrompt(prompt=prompt)
    sides = {_SIDES[word] for word in counted if word in _SIDES}
    rest = [word for word in counted if word not in _SIDES and word not in _OF_SIDES]
    prompt = known.get(_key(rest)) or known.get(_key((*rest, "lung")))
    if not sides or prompt is None or not prompt.paired:
        return None
    return NamedPrompt(prompt=prompt, side=sides.pop() if len(sides) == 1 else Side.BILATERAL)


def refusal(text: str, prompts: PromptSet) -> str | None:
    """Return why a text is not asked, and what to do; None if it is, as every name of a prompt."""
    found = hindered(text)
    if found is None or named(text, prompts) is not None:
        return None
    return f'not asked, because of "{found.words}": {REFUSALS[found.why]}'


def unasked_place(text: str, prompts: PromptSet) -> str | None:
    """Return why a text that names a place, but no prompt of a set, is not asked, and what to do; None if it is.

    The network would compare such words with a threshold of findings.
    """
    counted = {word for word in _words(text) if word not in _FILLERS}
    if not counted or not counted <= _PLACES | _SIDES.keys() | _OF_SIDES or named(text, prompts) is not None:
        return None
    regions = [prompt for prompt in prompts.prompts if prompt.kind is PromptKind.REGION]
    parts = _with_words(counted, regions) or _with_words(counted - _SIDES.keys(), regions)
    names = [f'"{each.phrases[0].lower()}"' for each in parts or regions]
    instead = f"one of {', '.join(names)}" if len(names) > 1 else "".join(names)
    instead = instead or f"a region of the prompt set {WITH_REGIONS}"
    what = " ".join(text.split())
    return f'not asked: "{what}" is a place and no finding; ask for a finding, or for {instead}'


def _with_words(words: Set[str], regions: Iterable[Prompt]) -> list[Prompt]:
    """Return the regions that have all of these words in one of their names."""
    return [each for each in regions if any(words <= set(_words(name)) for name in names_of(each))]


@cache
def _known(prompts: PromptSet) -> Mapping[tuple[str, ...], Prompt]:
    """Return the prompt of each name, by its words; a name of two prompts is none."""
    found: dict[tuple[str, ...], Prompt | None] = {}
    for prompt in prompts.prompts:
        for name in {_key(_words(name)) for name in names_of(prompt)}:
            found[name] = None if found.get(name, prompt) is not prompt else prompt
    return {name: prompt for name, prompt in found.items() if prompt is not None and name}


def _key(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(word for word in words if word not in _FILLERS))


def names_of(prompt: Prompt) -> Iterator[str]:
    """Yield the names of a prompt."""
    yield prompt.key.replace("_", " ")
    yield from prompt.phrases
    yield from prompt.names
    if prompt.finding is not None:
        yield prompt.finding.meaning
    if prompt.kind is PromptKind.REGION and prompt.site is not None:
        yield f"{prompt.side or ''} {prompt.site.meaning}"


def _words(text: str) -> list[str]:
    """Return the words of a text: small, without accents and plurals."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    letters = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return [word if word in _FILLERS else _singular(word) for word in re.findall(r"[^\W_]+", letters)]


def _singular(word: str) -> str:
    for plural, singular in _PLURALS:
        if word.endswith(plural):
            return word.removesuffix(plural) + singular
    return word.removesuffix("s") if len(word) > len("gas") and not _SINGULAR.search(word) else word
