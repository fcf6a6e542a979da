"""Read the header of a stored DICOM object, with its text decoded; every error of the parser becomes `Undecodable`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.tag import Tag
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from node.dicom import attributes, film_text, header
from node.domain import Note, Reason
from node.errors import Undecodable, is_of_disk, is_of_file

_LONG_BYTES: Final = 4096
_STUDY_INSTANCE_UID: Final = Tag("StudyInstanceUID")


def read_header(path: Path, *, character_set: str = "") -> Dataset:
    """Read the header of one DICOM file, with or without preamble and file meta information; its text is decoded.

    character_set: a defined term, for text that is neither in the header's own set nor UTF-8; "" for none
    The dataset has PixelData if the file has it, as `routing.choose` needs; long values are read from the file on first
    access. Raises Undecodable if the file names no SOP class or no valid SOP instance, and OSError for an error of the
    disk.
    """
    return read_noted_header(path, character_set=character_set)[0]


def read_noted_header(path: Path, *, character_set: str = "") -> tuple[Dataset, tuple[Note, ...]]:
    """Read a header like `read_header`, with notes on its text and on the order of its elements."""
    order = header.Order()
    dataset = read(path, order=order)
    if not attributes.uid(dataset, "SOPInstanceUID"):
        raise Undecodable(Reason.UNDECODABLE, "its SOP Instance UID is none (PS3.5 9.1); correct it at the sender")
    notes = film_text.settle(dataset, site=character_set)
    return dataset, (*notes, Note.HEADER_DISORDERED) if order.is_broken else notes


def header_of(path: Path, *, character_set: str = "") -> Dataset | None:
    """Read the header of a received object; None if it is damaged, or no DICOM object.

    Raises OSError for an error of the disk, and for an object that is removed.
    """
    try:
        return read_header(path, character_set=character_set)
    except Undecodable:
        return None
    except OSError as error:
        if is_of_file(error):
            return None
        raise


def read_identity(path: Path) -> Dataset:
    """Read SOP class, SOP instance and study of a DICOM file; raises the errors of `read_header`."""
    dataset = read(path, stop_when=lambda tag, _vr, _length: tag > _STUDY_INSTANCE_UID)
    header.require_order(path)
    identity = Dataset()
    with attributes.quiet():
        for keyword in ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID"):
            setattr(identity, keyword, attributes.text(dataset, keyword))
    return identity


def read(
    path: Path,
    *,
    longest_bytes: int = _LONG_BYTES,
    stop_when: header.StopWhen | None = None,
    order: header.Order | None = None,
) -> Dataset:
    """Read a header or a part of it, with its text undecoded. Arguments of `header.read`, errors of `read_header`."""
    try:
        with attributes.quiet():
            dataset = header.read(path, longest_bytes=longest_bytes, stop_when=stop_when, order=order)
            if not dataset:
                # pydicom 3.0.2 discards everything it has read when an encapsulated value has no end.
                dataset = header.read(path, longest_bytes=longest_bytes, stop_when=header.at_pixels)
                if dataset:
                    dataset.add_new("PixelData", "OB", b"")
                    dataset["PixelData"].is_undefined_length = True
    except (Undecodable, MemoryError):  # lack of memory is no fault of the film
        raise
    except Exception as error:  # the boundary to pydicom's parser, which documents no set of exceptions
        if is_of_disk(error):
            raise
        raise Undecodable(Reason.UNDECODABLE, f"not readable as DICOM ({type(error).__name__})") from error
    if not (attributes.uid(dataset, "SOPClassUID") and attributes.text(dataset, "SOPInstanceUID")):
        raise Undecodable(Reason.UNDECODABLE, "no DICOM object: it names no SOP class or no SOP instance")
    _complete_meta(dataset)
    return dataset


def _complete_meta(dataset: Dataset) -> None:
    """Add the transfer syntax that pydicom detected to a file without file meta information."""
    meta = getattr(dataset, "file_meta", None) or FileMetaDataset()
    if not meta.get("TransferSyntaxUID"):
        is_implicit, is_little_endian = dataset.original_encoding
        explicit = ExplicitVRLittleEndian if is_little_endian else ExplicitVRBigEndian
        meta.TransferSyntaxUID = ImplicitVRLittleEndian if is_implicit else explicit
    dataset.file_meta = meta
