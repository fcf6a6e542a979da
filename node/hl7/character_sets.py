r"""Character sets of HL7 table 0211: those that messages are written in, and those that are read.

Written are sets that leave frames and delimiters intact: a delimiter is one byte of ASCII there, and no other character
contains that byte. GB 18030, BIG-5 and sets that switch by escape sequences have `|` and `\` inside other characters;
of a received message they are decoded before it is split. UTF-16 and UTF-32 have the frame characters, and Python has
no CNS 11643. 8859/15 came with version 2.6 of the standard; receivers of older versions know it as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from node.character_sets import is_rather_utf_8, strictly, valid

DEFAULT: Final = "UNICODE UTF-8"
CODECS: Final[Mapping[str, str]] = MappingProxyType(
    {
        DEFAULT: "utf-8",
        "ASCII": "ascii",
        **{f"8859/{part}": f"iso8859-{part}" for part in (*range(1, 10), 15)},
        "KS X 1001": "euc_kr",
    }
)
"""What MSH-18 says of a message that is written, and Python's name of it."""

NAMES: Final = (*CODECS, *(f"8859/{part}" for part in (10, 11, 13, 14, 16)), "GB 18030-2000", "BIG-5", "ISO IR87")
"""The sets that a site may name for messages that name none."""

_JAPANESE: Final = frozenset(("ISOIR13", "ISOIR14", "ISOIR87", "ISOIR159"))
_JAPANESE_CODEC: Final = "iso2022_jp_ext"
_READ: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ASCII", "USASCII", "ISOIR6"), "ascii"),
    **dict.fromkeys(("UNICODEUTF8", "UTF8", "UNICODE"), "utf-8"),
    **dict.fromkeys(("GB180302000", "GB18030"), "gb18030"),
    **dict.fromkeys(("KSX1001", "EUCKR"), "euc_kr"),
    "BIG5": "big5",
}
"""Codecs by the name of a set without blanks and signs; those of ISO 8859 are matched by their number."""
_PART_OF_8859: Final = re.compile(r"(?:ISO)?(?:IEC)?8859([1-9]|1[013-6])")
_ESCAPE: Final = b"\x1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedMessage:
    """The text of a received message.

    doubt: why it may be wrong, in words without patient data; "" if it is in the set that the message names
    is_utf_8: whether a doubtful text is at least valid UTF-8
    """

    text: str
    doubt: str = ""
    is_utf_8: bool = False


def encode(text: str, character_set: str) -> bytes:
    r"""Encode a text; characters outside the set become `?`.

    An escape sequence (2.7.6) could carry them, but only if two sites agree on its meaning; otherwise it shows as
    `\XE281A5\` in the middle of a name. Everybody sees a question mark, and the message arrives.
    """
    return text.encode(CODECS[character_set], errors="replace")


def holds(text: str, character_set: str) -> bool:
    """Say whether a set has every character of a text."""
    try:
        text.encode(CODECS[character_set])
    except UnicodeEncodeError:
        return False
    return True


def decode(content: bytes, named: Sequence[str], *, default: str = "") -> DecodedMessage:
    """Decode a received message, in any case: by the set that it names, else as UTF-8, else as ISO 8859-1.

    Headers often name no character set, or a wrong one, and no order must be lost because of that.
    named: the repetitions of MSH-18, of which the first is active until an escape sequence (2.15.9.18)
    default: the set of a message that names none; "" for ASCII, as the standard has it
    """
    names = [re.sub("[^A-Z0-9]", "", name.upper()) for name in named]
    is_named = any(names)
    if not is_named:
        names = [re.sub("[^A-Z0-9]", "", default.upper())]
    codec = _codec(names)
    text = None if codec is None else strictly(content, codec)
    utf_8 = strictly(content, "utf-8")
    is_other = codec not in (None, "ascii", "utf-8") and not content.isascii()
    if codec is None:
        doubt = "MSH-18 names a character set that is not read here"
    elif _ESCAPE in content and codec != _JAPANESE_CODEC:
        doubt = "it switches character sets by escape sequences that are not read here"
    elif text is None and not is_named and not default:
        doubt = "it has characters beyond ASCII, and MSH-18 names no character set"
    elif text is None or (is_other and utf_8 is not None and is_rather_utf_8(utf_8, text, codec)):
        doubt = "it has bytes that do not fit the character set in MSH-18"
    else:
        return DecodedMessage(text=text)
    if utf_8 is not None:
        return DecodedMessage(text=utf_8, doubt=doubt, is_utf_8=True)
    return DecodedMessage(text=text or valid(content, codec or "utf-8") or content.decode("iso8859-1"), doubt=doubt)


def _codec(names: Sequence[str]) -> str | None:
    """Return the codec of a text in some sets; None if one is unknown."""
    if _JAPANESE.intersection(names):
        return _JAPANESE_CODEC if {*names} <= {*_JAPANESE, "", "ASCII", "ISOIR6"} else None
    codecs = [_codec_of(name) for name in names]
    return codecs[0] if None not in codecs else None


def _codec_of(name: str) -> str | None:
    if (part := _PART_OF_8859.fullmatch(name)) is not None:
        return f"iso8859-{part[1]}"
    return _READ.get(name) if name else "ascii"
