r"""The text of HL7 version 2 messages (HL7 2.5.1 chapter 2): escape sequences, and reading received messages.

Messages are written with hl7apy, which does not escape everything: it leaves `\F\` as it is, even if the text contains
these characters. So each text is escaped here before hl7apy gets it. Received messages are only split at their
delimiters, for hl7apy refuses or misreads what real systems send (docs/develop/decisions.md).

Character sets are those of HL7 table 0211. Written are sets that leave frames and delimiters intact: a delimiter is one
byte of ASCII there, and no other character contains that byte. GB 18030, BIG-5 and sets that switch by escape sequences
have `|` and `\` inside other characters; of a received message they are decoded before it is split. UTF-16 and UTF-32
have the frame characters, and Python has no CNS 11643. 8859/15 came with version 2.6 of the standard; receivers of
older versions know it as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from node.character_sets import is_rather_utf_8, strictly, valid

SEGMENT_END: Final = "\r"
HEADER: Final = "MSH"
_BATCH: Final = (b"FHS", b"BHS", b"BTS", b"FTS")

MOST_REPETITIONS: Final = 200
_CHARACTER_SET: Final = 18  # MSH-18 (2.15.9.18)

_LETTERS: Final = {"|": "F", "^": "S", "&": "T", "~": "R", "\\": "E"}
_TO_ESCAPE: Final = re.compile(r"[|^&~\\\x00-\x1f\x7f-\x9f]")
_NOT_PRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_HEXADECIMAL: Final = re.compile(r"X(?:[0-9A-Fa-f]{2})+")
DEFAULT: Final = "UNICODE UTF-8"
CODECS: Final[Mapping[str, str]] = MappingProxyType(
    {
        DEFAULT: "utf-8",
        "ASCII": "ascii",
        **{f"8859/{part}": f"iso8859-{part}" for part in (*range(1, 10), 15)},
        "KS X 1001": "euc_kr",
    }
)
"""The character set in MSH-18 of written messages, and Python's name of it."""
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


def escape(text: str) -> str:
    r"""Make a text safe inside a field (2.7): `\F\` for a field separator ... `\X0D\` for a control character."""
    return _TO_ESCAPE.sub(lambda found: f"\\{_name(found[0])}\\", text)


def printable(text: str) -> str:
    """Replace control characters and lone surrogates, which our fields never contain, by blanks."""
    return _NOT_PRINTABLE.sub(" ", text).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delimiters:
    """The delimiters of a message (2.5.4), from its header."""

    field: str = "|"
    component: str = "^"
    repetition: str = "~"
    escape: str = "\\"
    subcomponent: str = "&"


class TooManyRepetitions(ValueError):
    """A field that would take seconds to parse; no patient has so many names or numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One line of a message. Fields, components and subcomponents are numbered from 1, as in the standard."""

    fields: tuple[str, ...]
    delimiters: Delimiters

    @property
    def name(self) -> str:
        """The segment's three-letter name."""
        return self.fields[0]

    def text(self, field: int, component: int = 1, subcomponent: int = 1) -> str:
        """Return a value of a field's first repetition, unescaped and without surrounding blanks; "" if absent."""
        parts = self._components(field)
        whole = parts[component - 1] if component <= len(parts) else ""
        inner = whole.split(self.delimiters.subcomponent)
        return self._plain(inner[subcomponent - 1]) if subcomponent <= len(inner) else ""

    def components(self, field: int) -> tuple[str, ...]:
        """All components of a field's first repetition, unescaped, without empty ones at the end."""
        values = [self._plain(component) for component in self._components(field)]
        while values and not values[-1]:
            values.pop()
        return tuple(values)

    def repetitions(self, field: int) -> Iterator[Segment]:
        """Yield this segment up to a field, with each repetition of the field alone in its place.

        Raises TooManyRepetitions.
        """
        values = self.fields[field].split(self.delimiters.repetition) if field < len(self.fields) else []
        if len(values) > MOST_REPETITIONS:
            raise TooManyRepetitions(f"more than {MOST_REPETITIONS} repetitions of field {self.name}-{field}")
        for value in values:
            yield Segment(fields=(*self.fields[:field], value), delimiters=self.delimiters)

    def _components(self, field: int) -> list[str]:
        whole = self.fields[field] if field < len(self.fields) else ""
        if self.name == HEADER and field == 2:
            return [whole]
        return whole.split(self.delimiters.repetition)[0].split(self.delimiters.component)

    def _plain(self, value: str) -> str:
        return "" if value == '""' else unescape(value, self.delimiters).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A received message; its header comes first.

    doubt: why its text may be wrong, in words without patient data; "" if it is in the set that the message names
    is_utf_8: whether a doubtful text is at least valid UTF-8
    """

    segments: tuple[Segment, ...]
    doubt: str = ""
    is_utf_8: bool = False

    @property
    def header(self) -> Segment:
        """The MSH segment."""
        return self.segments[0]

    def named(self, *names: str) -> Iterator[Segment]:
        """Return the segments with these names, in order."""
        return (segment for segment in self.segments if segment.name in names)


def read(content: bytes, *, default: str = "") -> Message:
    """Split a message into segments and fields, in the character set that its header names; default: see `_decode`.

    Raises ValueError.
    """
    header = _lines(content.decode("iso8859-1"))[0]  # delimiters and MSH-18 are ASCII in every set that is read here
    delimiters = _delimiters(header)
    named = _character_sets(_segment(header, delimiters))
    text, doubt, is_utf_8 = _decode(content, named, default=default)
    segments = tuple(_segment(line, delimiters) for line in _lines(text))
    if _character_sets(segments[0]) != named:  # a delimiter was inside a character before MSH-18
        doubt = doubt or "its character set (MSH-18) cannot be found"
    if re.search(_switches(delimiters), text):
        doubt = doubt or "it switches character sets by escape sequences that are not read here"
    return Message(segments=segments, doubt=doubt, is_utf_8=is_utf_8)


def _character_sets(header: Segment) -> list[str]:
    return [alone.text(_CHARACTER_SET) for alone in header.repetitions(_CHARACTER_SET)]


def _switches(delimiters: Delimiters) -> str:
    r"""Return a pattern of the sequences that switch character sets (2.7.2): `\C2842\`, `\M2442\`."""
    mark = re.escape(delimiters.escape)
    return f"{mark}[CM](?:[0-9A-Fa-f]{{2}}){{2,3}}{mark}"


def is_batch(content: bytes) -> bool:
    """Return whether a content is a file or batch of messages (2.10.3), or has more messages than one."""
    names = [line[:3] for line in re.split(rb"[\r\n]+", content)]
    return not {*_BATCH}.isdisjoint(names) or names.count(HEADER.encode()) > 1


def _lines(text: str) -> list[str]:
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    if not lines or not lines[0].startswith(HEADER) or len(lines[0]) < len(HEADER) + 5:
        raise ValueError("the message does not begin with an MSH segment")
    return lines


def _delimiters(header: str) -> Delimiters:
    characters = tuple(header[3:8])
    if len(set(characters)) < 5 or any(character.isalnum() or character.isspace() for character in characters):
        raise ValueError("the header does not name five different delimiters")
    separator, component, repetition, escaping, subcomponent = characters
    return Delimiters(
        field=separator, component=component, repetition=repetition, escape=escaping, subcomponent=subcomponent
    )


def _segment(line: str, delimiters: Delimiters) -> Segment:
    fields = line.split(delimiters.field)
    if fields[0] == HEADER:  # the separator itself is the first field of a header (2.15.9)
        fields.insert(1, delimiters.field)
    return Segment(fields=tuple(fields), delimiters=delimiters)


def _name(character: str) -> str:
    """Return the name of a character in an escape sequence: its letter, or X and its UTF-8 bytes in hexadecimal."""
    return _LETTERS.get(character) or f"X{character.encode('utf-8').hex().upper()}"


def unescape(text: str, delimiters: Delimiters) -> str:
    r"""Undo `escape`, and read other systems' sequences: `\.br\` is a line break, highlighting is dropped (2.7).

    Unknown sequences stay as they are.
    """
    letters = {
        "F": delimiters.field,
        "S": delimiters.component,
        "T": delimiters.subcomponent,
        "R": delimiters.repetition,
        "E": delimiters.escape,
        ".br": "\n",
        "H": "",
        "N": "",
    }

    def value(found: re.Match[str]) -> str:
        name = found[1]
        text = valid(bytes.fromhex(name[1:]), "utf-8") if _HEXADECIMAL.fullmatch(name) else letters.get(name)
        return found[0] if text is None else text

    mark = re.escape(delimiters.escape)
    return re.sub(f"{mark}([^{mark}]*){mark}", value, text)


def encode(text: str, character_set: str) -> bytes:
    r"""Encode a text; characters outside the set become `?`.

    An escape sequence (2.7.6) could carry them, but only if two sites agree on its meaning; otherwise it shows as
    `\XE281A5\` in the middle of a name. Everybody sees a question mark, and the message arrives.
    """
    return text.encode(CODECS[character_set], errors="replace")


def holds(text: str, character_set: str) -> bool:
    """Return whether a set has every character of a text."""
    try:
        text.encode(CODECS[character_set])
    except UnicodeEncodeError:
        return False
    return True


def _decode(content: bytes, named: Sequence[str], *, default: str) -> tuple[str, str, bool]:
    """Decode a received message, in any case: by the set that it names, else as UTF-8, else as ISO 8859-1.

    Returns text, `doubt` and `is_utf_8` of a `Message`.
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
        return text, "", False
    if utf_8 is not None:
        return utf_8, doubt, True
    return text or valid(content, codec or "utf-8") or content.decode("iso8859-1"), doubt, False


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
