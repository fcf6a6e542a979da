"""The kinds of objects and messages that the node writes, an entry each, and a writer's facts of each object.

The settings name kinds, and stand below the writers; so an entry says where its writer stands, and the writer is
imported when it writes first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from node.domain import About, Subject
from node.plugins import Table, is_added

if TYPE_CHECKING:  # pydicom takes long to import, and the settings name kinds
    from pydicom.dataset import Dataset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Written:
    """An object that a writer wrote, with its subject.

    template: root template of a structured report (PS3.16), as 1500; "" for other kinds
    part: name of the part of the study that a report on it is about, as `Report.part`
    voids, receivers: see `OutputObject`; of a rejection note alone
    """

    kind: str
    dataset: Dataset
    subject: Subject
    template: str = ""
    part: str = ""
    voids: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()


def file_name(written: Written, films_read: int) -> str:
    """Name a file by what it is about; the only report of a study with one read film, or none, by its kind alone."""
    film, name = written.subject.film, f"{written.kind}.dcm"
    match written.subject.about:
        case About.RATIO:
            return f"{film}.ratio.dcm"
        case About.STUDY if written.part:
            return f"study.{written.part}.{name}"
        case About.STUDY:
            return f"study.{name}" if films_read else name
        case _:
            return name if written.template and films_read == 1 else f"{film}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputKind:
    """A kind of DICOM object that the node writes.

    title: its name on the pages
    writer: where its `outputs.writers.Writer` stands, as MODULE:FUNCTION; that of `sr3d` writes objects of `sr` too
    needs_picture: whether its objects say something of one film alone and need its picture: they are written film by
        film
    """

    title: str
    sop_class: str
    writer: str
    needs_picture: bool = False


OUTPUTS: Final = Table(
    group="chex_node.outputs",
    kind=OutputKind,
    own={
        "sr": OutputKind(
            title="structured report",
            sop_class="1.2.840.10008.5.1.4.1.1.88.33",
            writer="node.outputs.sr.report:write",
        ),
        "sr3d": OutputKind(
            title="structured report, 3D form",
            sop_class="1.2.840.10008.5.1.4.1.1.88.34",
            writer="node.outputs.sr.report:write_3d",
        ),
        "text": OutputKind(
            title="report as text",
            sop_class="1.2.840.10008.5.1.4.1.1.88.11",
            writer="node.outputs.sr.report:write_text",
        ),
        "gsps": OutputKind(
            title="presentation state",
            sop_class="1.2.840.10008.5.1.4.1.1.11.1",
            writer="node.outputs.gsps:write",
            needs_picture=True,
        ),
        "sc": OutputKind(
            title="picture with boxes",
            sop_class="1.2.840.10008.5.1.4.1.1.7",
            writer="node.outputs.secondary_capture:write",
            needs_picture=True,
        ),
    },
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MessageKind:
    """A kind of message on a part of a study; it is no DICOM object.

    title: its name on the pages
    ending: the ending of its files; media_type: the media type over HTTP
    writer: where its `outputs.messages.MessageWriter` stands, as MODULE:NAME
    """

    title: str
    ending: str
    media_type: str
    writer: str


MESSAGES: Final = {
    "oru": MessageKind(
        title="HL7 message",
        ending="hl7",
        media_type="x-application/hl7-v2+er7",
        writer="node.outputs.oru:WRITER",
    ),
    "fhir": MessageKind(
        title="FHIR bundle",
        ending="json",
        media_type="application/fhir+json",
        writer="node.outputs.fhir:WRITER",
    ),
}

DEFAULT_OUTPUTS: Final = ("sr", "gsps")


def in_order(names: Collection[str]) -> tuple[str, ...]:
    """Return the kinds of DICOM objects among some names, as they are written: the node's own first."""
    own = [name for name in OUTPUTS.own if name in names]
    return (*own, *sorted(filter(is_added, names)))


def messages_in(names: Collection[str]) -> tuple[str, ...]:
    """Return the kinds of messages among some names, in the order in which they are written."""
    return tuple(name for name in MESSAGES if name in names)
