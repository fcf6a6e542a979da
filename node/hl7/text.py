r"""The text of HL7 version 2 messages (HL7 2.5.1 chapter 2): escape sequences, and reading received messages.

Messages are written with hl7apy, which does not escape everything: it leaves `\F\` as it is, even if the text contains
these characters. So each text is escaped here before hl7apy gets it. Received messages are only split at their
delimiters, for hl7apy refuses or misreads what real systems send (docs/develop/decisions/hl7-reading.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from node.character_sets import valid
from node.hl7.character_sets import decode

SEGMENT_END: Final = "\r"
HEADER: Final = "MSH"
_BATCH: Final = (b"FHS", b"BHS", b"BTS", b"FTS")

MOST_REPETITIONS: Final = 200
_CHARACTER_SET: Final = 18  # MSH-18 (2.15.9.18)

_LETTERS: Final = {"|": "F", "^": "S", "&": "T", "~": "R", "\\": "E"}
_TO_ESCAPE: Final = re.compile(r"[|^&~\\\x00-\x1f\x7f-\x9f]")
_NOT_PRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_HEXADECIMAL: Final = re.compile(r"X(?:[0-9A-Fa-f]{2})+")


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
    """A field that would cost seconds to read; nobody has so many names or numbers."""


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
    """A received message; its header comes first; doubt, is_utf_8: of its text, as in `DecodedMessage`."""

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
    """Split a message into segments and fields, in the character set that its header names; default: as in `decode`.

    Raises ValueError.
    """
    header = _lines(content.decode("iso8859-1"))[0]  # delimiters and MSH-18 are ASCII in every set that is read here
    delimiters = _delimiters(header)
    named = _character_sets(_segment(header, delimiters))
    decoded = decode(content, named, default=default)
    segments = tuple(_segment(line, delimiters) for line in _lines(decoded.text))
    doubt = decoded.doubt
    if _character_sets(segments[0]) != named:  # a delimiter was inside a character before MSH-18
        doubt = doubt or "its character set (MSH-18) cannot be found"
    if re.search(_switches(delimiters), decoded.text):
        doubt = doubt or "it switches character sets by escape sequences that are not read here"
    return Message(segments=segments, doubt=doubt, is_utf_8=decoded.is_utf_8)


def _character_sets(header: Segment) -> list[str]:
    return [alone.text(_CHARACTER_SET) for alone in header.repetitions(_CHARACTER_SET)]


def _switches(delimiters: Delimiters) -> str:
    r"""Return a pattern of the sequences that switch character sets (2.7.2): `\C2842\`, `\M2442\`."""
    mark = re.escape(delimiters.escape)
    return f"{mark}[CM](?:[0-9A-Fa-f]{{2}}){{2,3}}{mark}"


def is_batch(content: bytes) -> bool:
    """Say whether a content is a file or batch of messages (2.10.3), or has more messages than one."""
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

    What is not understood stays as it is written.
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
