"""Decodes bytes strictly, and distinguishes UTF-8 from character sets in which the same bytes are valid.

The settings need the names of sets, and commands ask for settings before anything large is imported: pydicom is not
needed here.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

LOST: Final = "\ufffd"
"""Replacement for undecodable bytes in a text."""

UTF_8: Final = "ISO_IR 192"
TERMS: Final = (
    *(f"ISO_IR {number}" for number in (13, 100, 101, 109, 110, 126, 127, 138, 144, 148, 166, 203)),
    *("ISO 2022 IR 58", "ISO 2022 IR 87", "ISO 2022 IR 149", "GB18030", "GBK", UTF_8),
)
"""The defined terms (PS3.3 C.12.1.1.2) that a site may name as its character set."""

DIRECTING: Final = "\u202a-\u202e\u2066-\u2069"
"""For a class of a pattern: embeddings, overrides and isolates (Unicode 15.1, 23.2).

They show what follows in another order than it is stored in, so a person reads another value.
"""
_UNSEEN: Final = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that join, separate or turn around others and are not seen themselves (Unicode 15.1, 23.2, 23.3)."""
_SEPARATING: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_TEXT: Final = re.compile(f"[\x80-\x9f{LOST}]")
_BETWEEN_LETTERS: Final = re.compile(r"[A-Za-z][^\x00-\x7f]|[^\x00-\x7f][A-Za-z]")
_OF_MANY_BYTES: Final = frozenset(("shift_jis", "gb2312", "gbk", "gb18030", "euc_kr", "euc_jp", "big5"))


def valid(value: bytes, codec: str) -> str | None:
    """Decode bytes; None if they are not valid in the set."""
    try:
        return value.decode(codec)
    except UnicodeDecodeError:
        return None


def strictly(value: bytes, codec: str) -> str | None:
    """Decode bytes as text; None if they are not valid in the set, or no text.

    C1 controls are no text: a set of one byte a character makes them of UTF-8.
    """
    text = valid(value, codec)
    return None if text is None or _NOT_TEXT.search(text) else text


def is_rather_utf_8(utf_8: str, text: str, codec: str) -> bool:
    """Return whether bytes that are valid in a set and in UTF-8, where they are these texts, are rather UTF-8.

    A set of many bytes a character is for scripts that take three bytes in UTF-8; a few of its names are valid in UTF-8
    with two. So are a few in sets of one byte: in Latin-2 an upper-case `Ó` before `Ł`. Then what UTF-8 makes of them
    is no letter, or none of the set.
    """
    if codec in _OF_MANY_BYTES:
        return any(character >= "\u0800" for character in utf_8) or _BETWEEN_LETTERS.search(text) is not None
    try:
        utf_8.encode(codec)
    except UnicodeEncodeError:
        return _has_letters_alone(utf_8) and not _has_letters_alone(text)
    return True


def _has_letters_alone(text: str) -> bool:
    """Return whether all characters beyond ASCII are letters, or marks on them."""
    return all(character.isascii() or unicodedata.category(character)[0] in "LM" for character in text)


def visible(text: str) -> str:
    """Remove invisible characters that make a text look like another, for example in text from a web page.

    Separators of lines and paragraphs (Unicode 15.1, 23.2), controls other than line breaks and tabs, and lone
    surrogates become blanks: to programs that read an output some of them end its line, or are no text.
    For the node's own words and for what its users write; names of patients in Persian, Arabic and Hebrew need some.
    """
    return _UNSEEN.sub("", _SEPARATING.sub(" ", text))
