"""Finds the start of a DICOM file's dataset, and its identifiers, while the file arrives.

PS3.10 7.1 wants a preamble and file meta information that begins with its length and names the object and its encoding.
dcmtk and Orthanc read files without some of that, and so does this: what lacks is taken from the dataset. Only the
native little-endian syntaxes can be recognized from a dataset itself (PS3.5 7.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Final

from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset
from pydicom.tag import BaseTag, Tag
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian
from pydicom.valuerep import EXPLICIT_VR_LENGTH_32, VR

from node.dicom import attributes
from node.domain import is_uid
from node.errors import Refused

_PREAMBLE: Final = 128
_PREFIX: Final = b"DICM"
_START: Final = _PREAMBLE + len(_PREFIX)
_META_GROUP, _FIRST_GROUP = b"\2\0", b"\10\0"
_LENGTH_ELEMENT: Final = b"\2\0\0\0UL\4\0"
_ELEMENT_HEAD: Final = 8
_LONGEST: Final = 64 * 1024
"""Of the file meta information; and of what is looked at of a dataset, whose first elements name the object."""
_NAMES: Final = ("MediaStorageSOPClassUID", "MediaStorageSOPInstanceUID")
_SOP_INSTANCE_UID: Final = Tag("SOPInstanceUID")
_VRS: Final = frozenset(str(vr).encode() for vr in VR if len(vr) == 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMeta:
    """The facts about a dataset that its file meta information has, or should have (PS3.10 7.1)."""

    sop_class_uid: str
    sop_instance_uid: str
    transfer_syntax_uid: str


def read_head(content: bytes, *, is_whole: bool) -> tuple[int, FileMeta] | None:
    """Return the start and the facts of a file's dataset; None if more of the file is needed.

    content: the beginning of the file; is_whole: whether the file ends there
    Raises Refused if it is no DICOM file, or one whose encoding cannot be known.
    """
    if len(content) < _START and not is_whole:
        return None
    start = _START if content[_PREAMBLE:_START] == _PREFIX else 0
    end = _meta_end(content, start, is_whole=is_whole)
    if end is None:
        return None
    meta, dataset = _meta(content[start:end]), content[end:]
    syntax = attributes.text(meta, "TransferSyntaxUID") or _syntax_of(dataset)
    named = tuple(attributes.text(meta, keyword) for keyword in _NAMES)
    if not all(named):
        found = _named_in(dataset, UID(syntax))
        if found is None and not is_whole and len(dataset) < _LONGEST:
            return None
        named = tuple(said or own for said, own in zip(named, found or named, strict=True))
    if not all(map(is_uid, (*named, syntax))):
        raise Refused("the file names no object, or a UID that is not valid; correct it at the sender")
    sop_class_uid, sop_instance_uid = named
    return end, FileMeta(sop_class_uid=sop_class_uid, sop_instance_uid=sop_instance_uid, transfer_syntax_uid=syntax)


def _meta_end(content: bytes, start: int, *, is_whole: bool) -> int | None:
    """Return the end of the file meta information, without use of its length; None if more is needed.

    The length is believed if it is that of whole elements: a deflated dataset may begin like another element.
    """
    if not start and content[:2] not in (_META_GROUP, _FIRST_GROUP):
        raise Refused("this is not a DICOM file (PS3.10); send one, with preamble and file meta information")
    first = content[start : start + 12]
    declared = start + 12 + int.from_bytes(first[8:], "little") if first.startswith(_LENGTH_ELEMENT) else None
    at = start
    while at != declared and at - start <= _LONGEST:
        if len(content) < at + 12 and not is_whole:
            return None
        if content[at : at + 2] != _META_GROUP:
            return at
        is_long = content[at + 4 : at + 6].decode("ascii", "replace") in EXPLICIT_VR_LENGTH_32
        length = content[at + 8 : at + 12] if is_long else content[at + 6 : at + _ELEMENT_HEAD]
        at += _ELEMENT_HEAD + len(length) * is_long + int.from_bytes(length, "little")
    if at - start > _LONGEST or (is_whole and at > len(content)):
        raise Refused("the file meta information has no end; send the file again, or correct it at the sender")
    return at if at <= len(content) else None


def _meta(content: bytes) -> Dataset:
    """Parse file meta information. Raises Refused."""
    try:
        with attributes.quiet():
            return read_dataset(BytesIO(content), False, True)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        raise Refused("the file meta information cannot be read; correct it at the sender") from error


def _syntax_of(dataset: bytes) -> str:
    """Return the native syntax in which a dataset begins. Raises Refused."""
    if dataset[:2] != _FIRST_GROUP:
        raise Refused("the file names no transfer syntax; send it with its file meta information")
    return str(ExplicitVRLittleEndian if dataset[4:6] in _VRS else ImplicitVRLittleEndian)


def _named_in(dataset: bytes, syntax: UID) -> tuple[str, str] | None:
    """Return SOP Class and Instance UID of a dataset; None if they are not in this part of it."""
    is_found = False

    def is_behind(tag: BaseTag, _vr: str | None, _length: int) -> bool:
        nonlocal is_found
        is_found = bool(tag > _SOP_INSTANCE_UID)
        return is_found

    if not is_uid(syntax) or syntax == DeflatedExplicitVRLittleEndian:
        return None
    try:
        with attributes.quiet():
            found = read_dataset(
                BytesIO(dataset[:_LONGEST]),
                is_implicit_VR=syntax == ImplicitVRLittleEndian,
                is_little_endian=syntax.is_little_endian if syntax.is_transfer_syntax else True,
                stop_when=is_behind,
            )
            named = str(found.get("SOPClassUID", "")), str(found.get("SOPInstanceUID", ""))
    except Exception:  # the boundary to pydicom's parser, which documents no set of exceptions
        return None
    return named if is_found else None
