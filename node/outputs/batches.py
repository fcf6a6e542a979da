"""Write objects from values to bytes: what a process needs that writes for the one which keeps all state.

A batch has what is written of one part of a study at a time. What numbers an object of a series got is known to the
next batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

from pydicom.dataset import Dataset

from node.domain import OutputObject, Report
from node.outputs import document, writers
from node.outputs.source import from_files
from node.read.thumbnail import Thumbnail


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """What is to be written.

    headers, files, thumbnails: of films, as `from_files` takes them
    known: all outputs that were written of the study before
    wanted: of a round that is written again, what it wrote: no other object is wanted
    destinations: as `writers.with_receivers` takes them
    """

    report: Report
    kinds: tuple[str, ...]
    headers: Mapping[str, Dataset]
    files: Mapping[str, Path]
    thumbnails: Mapping[str, Thumbnail]
    zone: ZoneInfo
    known: tuple[OutputObject, ...]
    wanted: frozenset[OutputObject] | None
    destinations: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedObject:
    """An object in bytes; empty if it is not wanted. is_copy: as `writers.first_of_series` makes them."""

    output: OutputObject
    content: bytes
    is_copy: bool = False


def write(batch: Batch) -> tuple[EncodedObject, ...]:
    """Write the objects of a batch, in order."""
    return tuple(_written(batch))


def _written(batch: Batch) -> Iterator[EncodedObject]:
    known = list(batch.known)
    sources = from_files(batch.headers, batch.files, batch.thumbnails)
    made = writers.write_kinds(batch.report, sources, zone=batch.zone, kinds=batch.kinds)
    receivers = writers.with_receivers(map(writers.output_of, made), batch.destinations)
    for written, given in zip(made, receivers, strict=True):
        writers.replace_what_all_have(written, batch.report.predecessors, given.receivers)
        output = writers.numbered(written, known)
        first = writers.first_of_series(written, known)
        known.append(output)
        yield EncodedObject(output=output, content=_content(written.dataset, output, batch.wanted))
        if first is not None:
            known.append(copied := writers.output_of(first))
            content = _content(first.dataset, copied, batch.wanted)
            yield EncodedObject(output=copied, content=content, is_copy=True)


def _content(dataset: Dataset, output: OutputObject, wanted: Collection[OutputObject] | None) -> bytes:
    return document.save_bytes(dataset) if wanted is None or output in wanted else b""
