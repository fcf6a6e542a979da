"""Decodes the text of a received header: as it says, or as its bytes are (PS3.3 C.12.1.1.2, PS3.5 6.1).

Headers name no character set, a misspelled one, or another one than their text is in. A text is decoded strictly by
the set that the header names; else as UTF-8, if it is that; else by the set of the site. C1 controls are no text: a set
of one byte a character makes them of UTF-8. What cannot be decoded has U+FFFD in place of each byte that is not ASCII:
routing finds the words between, and `attributes.text` and the outputs take it for empty.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydicom.charset import CODES_TO_ENCODINGS, python_encoding
from pydicom.datadict import dictionary_has_tag, dictionary_VR, keyword_for_tag
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag, Tag

from node.character_sets import LOST, UTF_8, is_rather_utf_8, strictly, valid
from node.dicom import attributes
from node.domain import Note

COPIED: Final = frozenset((*attributes.REQUIRED, *attributes.OPTIONAL, *attributes.REQUESTED, "CodeMeaning")) - {
    "PatientSex"
}
"""The texts that outputs copy; only these are worth a note. Of the sex they copy known codes alone."""

_CHARACTER_SET: Final = Tag("SpecificCharacterSet")
_TEXTS: Final = frozenset(("SH", "LO", "ST", "LT", "UC", "UT", "PN", "CS"))
_LONGEST: Final = 1024 * 1024
"""Longer texts and sequences are not read by anything here."""

_ESCAPE: Final = b"\x1b"
# The active set is reset at these (PS3.5 6.1.2.5.3).
_NAME_DELIMITERS: Final = re.compile(rb"[\^=\\]")
_TEXT_DELIMITERS: Final = re.compile(rb"[\t\n\f\r\\]")

_BY_NUMBER: Final[Mapping[str, str]] = {
    **{
        term.rpartition("IR ")[2]: codecs.lookup(codec).name for term, codec in python_encoding.items() if "IR " in term
    },
    "6": "ascii",  # pydicom has ISO 8859-1, which has more
    "203": "iso8859-15",
}
"""Python's codecs by the registration number of a character set (PS3.3 table C.12-2 to C.12-5)."""

_BY_NAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ASCII", "USASCII", "ISO646"), "ascii"),
    **dict.fromkeys(("UTF8", "UNICODE", "UNICODEUTF8", "ISO10646", "ISO10646UTF8"), "utf-8"),
    **dict.fromkeys(("GB18030", "GB180302000", "ISO2022GB18030"), "gb18030"),
    **dict.fromkeys(("GBK", "CP936", "ISO2022GBK"), "gbk"),
    **dict.fromkeys(("GB2312", "EUCCN"), "gb2312"),
    **dict.fromkeys(("EUCKR", "KSX1001", "KSC5601"), "euc_kr"),
    **dict.fromkeys(("SHIFTJIS", "SJIS"), "shift_jis"),
    "BIG5": "big5",
    "EUCJP": "euc_jp",
    "KOI8R": "koi8-r",
    "LATIN1": "iso8859-1",
}
_NUMBERED: Final = re.compile(r"(?:ISO)?(?:2022)?(?:IR)?0*([0-9]+)")
_PART_OF_8859: Final = re.compile(r"(?:ISO)?(?:IEC)?8859([1-9]|1[013-6])")
_OF_WINDOWS: Final = re.compile(r"(?:WINDOWS|CP)(125[0-8])")

# The code element of each escape sequence of PS3.3 table C.12-3 and C.12-4 that is G1, and its codec.
_G1: Final[Mapping[bytes, str]] = {
    **{
        code[1:]: codecs.lookup(codec).name
        for code, codec in CODES_TO_ENCODINGS.items()
        if code.startswith((b"\x1b-", b"\x1b)", b"\x1b$)"))
    },
    b"-b": _BY_NUMBER["203"],
}
_G0: Final[Mapping[bytes, str]] = {b"$B": "iso2022_jp", b"$@": "iso2022_jp", b"$(D": "iso2022_jp_2"}
_G0_OF_ONE_BYTE: Final = (b"(B", b"(J")  # JIS X 0201 has a yen sign and an overline for `\` and `~`, which are kept
_FRAGMENTS: Final = re.compile(rb"(?:\x1b(\$[()]?[@-~]|[()-][@-~]))?([^\x1b]*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterSets:
    """The character sets of a text: codecs, none if unknown; the first is active until an escape sequence.

    may_switch: whether escape sequences are announced
    """

    codecs: tuple[str, ...] = ("ascii",)
    may_switch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedText:
    """A text; is_as_declared: whether it is in the set that its header names."""

    text: str
    is_as_declared: bool = True


def settle(dataset: Dataset, *, site: str = "") -> tuple[Note, ...]:
    """Decode all text of a header and replace it by UTF-8, so that all later readers get the same text.

    A header of ASCII alone stays as it is. site: a defined term, or ""
    Returns the notes on a film with this header.
    """
    found = _settled(dataset, declared_by(dataset), _sets((site,)))
    copied = {decoded for keyword, decoded in found if keyword in COPIED}
    notes = {
        Note.TEXT_RECODED: any(decoded is not None and not decoded.is_as_declared for decoded in copied),
        Note.TEXT_LEFT_OUT: None in copied,
    }
    return tuple(note for note, applies in notes.items() if applies)


def declared_by(dataset: Dataset, inherited: CharacterSets | None = None) -> CharacterSets:
    """Return the character sets that a header names; inherited: those of the parent, for an item that names none."""
    element = dataset.get_item(_CHARACTER_SET) if _CHARACTER_SET in dataset else None
    value = None if element is None else element.value
    if value is None and inherited is not None:
        return inherited
    if value is None and (known := dataset.original_character_set):  # an item that pydicom has read
        codecs = [known] if isinstance(known, str) else known
        return CharacterSets(codecs=tuple("ascii" if codec == "iso8859" else codec for codec in codecs))
    if isinstance(value, bytes):
        value = value.decode("ascii", errors="ignore")
    return _sets(value.split("\\") if isinstance(value, str) else [str(term) for term in value or ()])


def decode(
    value: bytes, declared: CharacterSets, *, is_name: bool, site: CharacterSets | None = None
) -> DecodedText | None:
    """Decode the values of an element as one text; None if they cannot be decoded; is_name: whether the VR is PN."""
    if _ESCAPE in value:
        first = next(iter(declared.codecs), "ascii")
        text = _switching(value, first, delimiters=_NAME_DELIMITERS if is_name else _TEXT_DELIMITERS)
        return None if text is None else DecodedText(text=text, is_as_declared=declared.may_switch)
    if value.isascii():
        return DecodedText(text=value.decode("ascii"))
    utf_8 = valid(value, "utf-8")
    if utf_8 is not None and LOST in utf_8:  # it was lost before it arrived, however its bytes decode
        return None
    utf_8 = strictly(value, "utf-8")
    if (text := _by_sets(value, declared, utf_8)) is not None:
        return DecodedText(text=text)
    text = utf_8 if site is None else _by_sets(value, site, utf_8) or utf_8
    return None if text is None else DecodedText(text=text, is_as_declared=False)


def _sets(terms: Sequence[str]) -> CharacterSets:
    squashed = [re.sub("[^A-Z0-9]", "", term.upper()) for term in terms] or [""]
    codecs = ("ascii" if not term else _codec(term) for term in squashed)
    return CharacterSets(
        codecs=tuple(filter(None, codecs)), may_switch=len(squashed) > 1 or squashed[0].startswith("ISO2022")
    )


def _codec(term: str) -> str:
    """Return the codec of a defined term without blanks and signs, also of a misspelled one; "" if it is unknown."""
    if term in _BY_NAME:
        return _BY_NAME[term]
    if (part := _PART_OF_8859.fullmatch(term)) is not None:
        return f"iso8859-{part[1]}"
    if (page := _OF_WINDOWS.fullmatch(term)) is not None:
        return f"cp{page[1]}"
    number = _NUMBERED.fullmatch(term)
    return "" if number is None else _BY_NUMBER.get(number[1], "")


def _by_sets(value: bytes, sets: CharacterSets, utf_8: str | None) -> str | None:
    """Decode by the first set that fits, unless the bytes are rather UTF-8."""
    for codec in sets.codecs:
        text = strictly(value, codec)
        if text is not None and not (utf_8 is not None and codec != "utf-8" and is_rather_utf_8(utf_8, text, codec)):
            return text
    return None


def _switching(value: bytes, first: str, *, delimiters: re.Pattern[bytes]) -> str | None:
    """Decode a text with escape sequences (PS3.5 6.1.2.5); first: the codec until the first one, and after a delimiter.

    Escape sequences say what they switch to, so any of the standard is followed. None if the text is not valid.
    """
    parts, high, wide = list[str | None](), first, b""
    for escape, part in _FRAGMENTS.findall(value.rstrip(b" \0")):
        if escape in _G1:
            high = _G1[escape]
        elif escape in _G0:
            wide = escape
        elif escape in _G0_OF_ONE_BYTE:
            wide = b""
        elif escape:
            return None
        if wide:
            parts.append(strictly(_ESCAPE + wide + part, _G0[wide]))
            continue
        end = found.start() if (found := delimiters.search(part)) is not None else len(part)
        parts += [strictly(part[:end], high), strictly(part[end:], first)]
        high = high if found is None else first
    known = [part for part in parts if part is not None]
    return "".join(known) if len(known) == len(parts) else None


def _settled(dataset: Dataset, declared: CharacterSets, site: CharacterSets) -> list[tuple[str, DecodedText | None]]:
    """Put the texts of a dataset and of its items back as UTF-8; returns those that are not ASCII, with keywords."""
    found = list[tuple[str, DecodedText | None]]()
    for element in _texts(dataset):
        value = element.value or b""
        decoded = decode(value, declared, is_name=element.VR == "PN", site=site)
        if decoded is None and element.VR == "CS":
            continue  # of these only words of ASCII are used
        text = _with_gaps(value) if decoded is None else decoded.text
        found.append((keyword_for_tag(element.tag), decoded))
        # pydicom decodes no CS by its character set, and this dataset is never written.
        vr, encoded = "LO" if element.VR == "CS" else element.VR, text.encode()
        dataset[element.tag] = element._replace(VR=vr, value=encoded, length=len(encoded))
    for sequence in _sequences(dataset):
        for item in sequence:
            found += _settled(item, declared_by(item, declared), site)
    if found:
        dataset.SpecificCharacterSet = UTF_8
        is_implicit, is_little_endian = dataset.original_encoding
        dataset.set_original_encoding(is_implicit, is_little_endian, ["utf8"])
    return found


def _with_gaps(value: bytes) -> str:
    return value.replace(_ESCAPE, b"\xff").decode("ascii", errors="replace")


def _texts(dataset: Dataset) -> Iterator[RawDataElement]:
    """Yield the texts that are not ASCII, as they are encoded, with their value representation."""
    for tag in list(dataset.keys()):
        vr = _vr(dataset, tag)
        element = attributes.raw(dataset, tag, longest=_LONGEST) if vr in _TEXTS else None
        if element is not None and _is_beyond_ascii(element.value or b""):
            yield element._replace(VR=vr)


def _sequences(dataset: Dataset) -> Iterator[tuple[Dataset, ...]]:
    for tag in list(dataset.keys()):
        element: object = dataset.get_item(tag, keep_deferred=True)
        is_long = isinstance(element, RawDataElement) and element.length > _LONGEST
        if _vr(dataset, tag) == "SQ" and not is_long:
            yield attributes.items(dataset, keyword_for_tag(tag))


def _vr(dataset: Dataset, tag: BaseTag) -> str:
    """Return the value representation of an element of the standard; "" for all others."""
    if tag.is_private or not dictionary_has_tag(tag):
        return ""
    vr = dataset.get_item(tag, keep_deferred=True).VR
    return dictionary_VR(tag) if vr in (None, "UN") else str(vr)


def _is_beyond_ascii(value: bytes) -> bool:
    return not value.isascii() or _ESCAPE in value
