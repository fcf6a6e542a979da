"""Finds the start of a DICOM file's dataset, and its identifiers, in the beginning of the file.

PS3.10 7.1 wants a preamble and file meta information that names the object and its encoding. dcmtk and Orthanc read
files without some of that, and so does this: what lacks is taken from the dataset. Only the native little-endian
syntaxes can be recognized from a dataset itself (PS3.5 7.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Final

from pydicom.filereader import read_dataset
from pydicom.tag import Tag
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)
from pydicom.valuerep import VR

from node.dicom import attributes
from node.dicom.header import read_meta
from node.domain import is_uid
from node.errors import Refused

SUFFICIENT: Final = 128 * 1024
"""Bytes of a file that hold its file meta information, and the first elements of its dataset, which name the object."""
_FIRST_GROUP: Final = b"\10\0"
_SOP_INSTANCE_UID: Final = Tag("SOPInstanceUID")
_VRS: Final = frozenset(str(vr).encode() for vr in VR if len(vr) == 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMeta:
    """The facts about a dataset that its file meta information has, or should have (PS3.10 7.1)."""

    sop_class_uid: str
    sop_instance_uid: str
    transfer_syntax_uid: str


def read_head(content: bytes) -> tuple[int, FileMeta]:
    """Return the start and the facts of a file's dataset.

    content: the first `SUFFICIENT` bytes of the file at least, or the whole file
    Raises Refused if it is no DICOM file, or one whose encoding cannot be known.
    """
    file = BytesIO(content)
    try:
        with attributes.quiet():
            meta = read_meta(file)
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        raise Refused("the file meta information cannot be read; correct it at the sender") from error
    start = file.tell()
    syntax = attributes.text(meta, "TransferSyntaxUID") or _syntax_of(content[start:])
    named = tuple(attributes.text(meta, f"MediaStorage{name}") for name in ("SOPClassUID", "SOPInstanceUID"))
    if not all(named):
        named = tuple(said or own for said, own in zip(named, _named_in(file, syntax), strict=True))
    if not all(map(is_uid, (*named, syntax))):
        raise Refused("the file names no object, or a UID that is not valid; correct it at the sender")
    sop_class_uid, sop_instance_uid = named
    return start, FileMeta(sop_class_uid=sop_class_uid, sop_instance_uid=sop_instance_uid, transfer_syntax_uid=syntax)


def _syntax_of(dataset: bytes) -> str:
    """Return the native syntax in which a dataset begins. Raises Refused."""
    if dataset[:2] != _FIRST_GROUP:
        raise Refused("this is no DICOM file (PS3.10), or names no transfer syntax; send it with its meta information")
    return str(ExplicitVRLittleEndian if dataset[4:6] in _VRS else ImplicitVRLittleEndian)


def _named_in(dataset: BytesIO, syntax: str) -> tuple[str, str]:
    """Return SOP Class and Instance UID of a dataset; "" if they are not in this part of it."""
    if syntax == DeflatedExplicitVRLittleEndian:
        return "", ""
    try:
        with attributes.quiet():
            found = read_dataset(
                dataset,
                is_implicit_VR=syntax == ImplicitVRLittleEndian,
                is_little_endian=syntax != ExplicitVRBigEndian,
                stop_when=lambda tag, _vr, _length: tag > _SOP_INSTANCE_UID,
            )
    except Exception:  # the boundary to pydicom's parser, which documents no set of exceptions
        return "", ""
    return attributes.text(found, "SOPClassUID"), attributes.text(found, "SOPInstanceUID")
