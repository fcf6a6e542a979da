r"""Character sets of HL7 table 0211, as far as a frame and its delimiters survive them.

A delimiter is one byte of ASCII in each of them, and no other character has that byte. GB 18030, BIG-5 and the sets
that switch by escape sequences have `|` and `\` inside of others, UTF-16 has the marks of a frame. 8859/15 came with
version 2.6 of the standard; receivers of older versions know it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

DEFAULT: Final = "UNICODE UTF-8"
CODECS: Final[Mapping[str, str]] = MappingProxyType(
    {
        DEFAULT: "utf-8",
        "ASCII": "ascii",
        **{f"8859/{part}": f"iso8859-{part}" for part in (*range(1, 10), 15)},
        "KS X 1001": "euc_kr",
    }
)
"""What MSH-18 says, and Python's name of it."""


def encode(text: str, character_set: str) -> bytes:
    r"""Encode a text; what the set does not have becomes `?`.

    An escape sequence (2.7.6) would carry it too, but its meaning is for two sites to agree on; else it shows as
    `\XE281A5\` in the middle of a name. A question mark is seen by everybody, and the message arrives.
    """
    return text.encode(CODECS[character_set], errors="replace")


def decode(content: bytes, character_set: str) -> str:
    """Decode what somebody sent, by what its header says if that is true, else as UTF-8, else as ISO 8859-1.

    A header often says nothing, or something that its sender does not keep to: no order must be lost to that.
    """
    for codec in (CODECS.get(character_set, "utf-8"), "utf-8"):
        try:
            return content.decode(codec)
        except UnicodeDecodeError:
            continue
    return content.decode("iso8859-1")
