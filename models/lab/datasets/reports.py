"""Cuts a report of MIMIC-CXR into its sections, and findings and impression into sentences.

Sections are found by their headings in capitals, sentences by pysbd. The published code takes stanza, whose models have
to be downloaded, so a few sentences are cut in other places. As published, a sentence has at least two words, begins
with a capital, and stands once in its section; a report without findings and impression has no sentences.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypedDict, cast

from pysbd import Segmenter

Section = Literal["findings", "impression"]

_FILE: Final = Path(__file__).with_name("reports.toml")
_HEADING: Final = re.compile(r"^[ \t]*([A-Z][A-Z ()/,-]+):(?=\s)", re.MULTILINE)
_WET_READ: Final = re.compile(r"WET READ.*?(?:AM|PM)", re.DOTALL)
_INNER_HEADING: Final = re.compile(r"^(?:[A-Z][A-Z /,'()-]{3,}:\s*)+")
_NUMBER: Final = re.compile(r"^(?:#?\d{1,2}[.)]?|#\d)\s+(?=[A-Z])")
_DOTS: Final = re.compile(r"\.(?:\s?\.)+")
_LEAST_WORDS: Final = 2


class _Words(TypedDict):
    sections: dict[str, list[str]]
    words: dict[str, list[str]]
    views: dict[str, list[str]]
    misspelled: dict[str, list[str]]


def sections_of(report: str) -> dict[Section, str]:
    """Return the text of findings and impression; of several sections of one name the last that is not empty."""
    headings = list(_HEADING.finditer(report))
    ends = [*(heading.start() for heading in headings[1:]), len(report)]
    found: dict[Section, str] = {}
    for heading, end in zip(headings, ends, strict=True):
        section = section_named(heading[1])
        text = report[heading.end() : end].strip()
        if section is not None and text:
            found[section] = text
    return found


def section_named(heading: str) -> Section | None:
    """Return the section that a heading begins; None for one that is left out."""
    name, words = heading.lower().strip(), _words()
    for table in (words["sections"], words["misspelled"]):
        for section, names in table.items():
            if name in names:
                return cast("Section", section)
    for section, parts in words["words"].items():
        if any(part in name for part in parts):
            return None if section == "left_out" else cast("Section", section)
    return "findings" if any(view in name for view in words["views"]["findings"]) else None


def sentences_of(report: str) -> list[str]:
    """Return the sentences of findings and impression, in this order."""
    sections = sections_of(report)
    texts = [sections[name] for name in ("findings", "impression") if name in sections]
    return [sentence for text in texts for sentence in _split(text)]


def clean(sentence: str) -> str:
    """Remove headings and numbers of lists, and put blanks and dots in order; the first letter is a capital."""
    text = _WET_READ.sub(" ", sentence)
    text = _DOTS.sub(".", " ".join(text.split()))
    text = _NUMBER.sub("", _INNER_HEADING.sub("", text)).strip()
    return text[:1].upper() + text[1:]


def _split(text: str) -> list[str]:
    # pysbd takes a line's end for that of a sentence; reports are wrapped at 80 columns.
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", _WET_READ.sub(" ", text)))
    sentences = (clean(sentence) for paragraph in paragraphs for sentence in _segmenter().segment(paragraph))
    return list(dict.fromkeys(sentence for sentence in sentences if len(sentence.split()) >= _LEAST_WORDS))


@cache
def _segmenter() -> Segmenter:
    return Segmenter(language="en", clean=False)


@cache
def _words() -> _Words:
    return cast("_Words", tomllib.loads(_FILE.read_text(encoding="utf-8")))
