"""What findings and parts of the chest are, for a person who is no physician; the texts are in `glossary.toml`.

Only the page shows them: no output that leaves the node does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from models.documents import decode
from node.domain import Code

_FILE: Final = Path(__file__).with_name("glossary.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a coded concept is, in common words.

    source, link: where the facts stand
    caution: that only a physician can judge; shown with every text
    """

    name: str
    text: str
    source: str
    link: str
    caution: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    code: tuple[str, str]
    name: str
    text: str
    source: str
    link: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Glossary:
    caution: str
    terms: tuple[_Term, ...]


def explain(code: Code) -> Explanation | None:
    """Return what a finding or a part of the chest is; None if the glossary does not have it."""
    return explanations().get((code.value, code.scheme))


@cache
def explanations() -> Mapping[tuple[str, str], Explanation]:
    """Return the whole glossary, by value and scheme of the code."""
    file = decode(_Glossary, tomllib.loads(_FILE.read_text(encoding="utf-8")))
    return {
        term.code: Explanation(name=term.name, text=term.text, source=term.source, link=term.link, caution=file.caution)
        for term in file.terms
    }
