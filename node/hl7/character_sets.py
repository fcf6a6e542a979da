r"""Character sets of HL7 table 0211 that leave frames and delimiters intact.

In each of them a delimiter is one byte of ASCII, and no other character contains that byte. GB 18030, BIG-5 and sets
that switch by escape sequences have `|` and `\` inside other characters, UTF-16 has the frame characters. 8859/15 came
with version 2.6 of the standard; receivers of older versions know it as well.
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
    r"""Encode a text; characters outside the set become `?`.

    An escape sequence (2.7.6) could carry them, but only if two sites agree on its meaning; otherwise it shows as
    `\XE281A5\` in the middle of a name. Everybody sees a question mark, and the message arrives.
    """
    return text.encode(CODECS[character_set], errors="replace")


def decode(content: bytes, character_set: str) -> str:
    """Decode a received text: by its header if that works, else as UTF-8, else as ISO 8859-1.

    Headers often name no character set, or a wrong one, and no order must be lost because of that.
    """
    for codec in (CODECS.get(character_set, "utf-8"), "utf-8"):
        try:
            return content.decode(codec)
        except UnicodeDecodeError:
            continue
    return content.decode("iso8859-1")
