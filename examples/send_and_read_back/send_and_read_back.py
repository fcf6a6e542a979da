"""Send a film to a node by C-STORE, wait for its structured reports, and print their findings as a table.

The reports come back by C-STORE, too: until the last one has come, this program is a small archive.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Final, cast

from highdicom.sr import (
    CodeContentItem,
    CodedConcept,
    ComprehensiveSR,
    ImageRegion,
    MeasurementReport,
    RelationshipTypeValues,
    TextContentItem,
)
from pydicom import Dataset, dcmread
from pydicom.errors import InvalidDicomError
from pydicom.sr.coding import Code
from pydicom.uid import ComprehensiveSRStorage, generate_uid
from pynetdicom import AE, evt
from pynetdicom.pdu import A_ASSOCIATE_RJ
from pynetdicom.presentation import build_context
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]

COLUMNS: Final = ("finding", "state", "probability", "side", "box: left, top, right, bottom")
EVALUATIONS: Final = Code("C0034375", "UMLS", "Qualitative Evaluations")
LATER_SECONDS: Final = 2.0
"""How long a further report is waited for: on the cardiothoracic ratio, or on a study of several films."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Send a film and print what comes back; returns the exit code."""
    options = _options(arguments)
    try:
        film = dcmread(options.film)
    except (OSError, InvalidDicomError) as error:
        return _failed(f"{options.film}: {error}; name a DICOM film")
    if options.copy:
        film.StudyInstanceUID, film.SeriesInstanceUID, film.SOPInstanceUID = (generate_uid() for _ in range(3))
    reports = Queue[Dataset]()
    me = AE(ae_title=options.ae_title)
    me.add_supported_context(ComprehensiveSRStorage)
    me.add_supported_context(Verification)
    try:
        me.start_server((options.host, options.listen), block=False, evt_handlers=[(evt.EVT_C_STORE, _keep, [reports])])
    except OSError as error:
        return _failed(f"port {options.listen} cannot be listened on ({error.strerror}); give another --listen")
    try:
        if (fault := _send(film, me, options)) is not None:
            return _failed(fault)
        is_answered = False
        for report in _arriving(reports, film.StudyInstanceUID, options.wait):
            _print(report)
            is_answered = True
    finally:
        me.shutdown()
    if is_answered:
        return 0
    return _failed(f"no report in {options.wait:g} s; a node answers a film once, --copy asks anew")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("film", type=Path, help="a DICOM file")
    parser.add_argument("--host", default="127.0.0.1", help="of the node, and to listen on")
    parser.add_argument("--port", type=int, default=11112, help="of the node")
    parser.add_argument("--called", default="CHEX", help="AE title of the node")
    parser.add_argument("--ae-title", default="READBACK", help="of this program, as caller and as destination")
    parser.add_argument("--listen", type=int, default=11113, help="port to which the node sends its reports")
    parser.add_argument("--copy", action="store_true", help="send the film under new UIDs, as a study of its own")
    parser.add_argument("--wait", type=float, default=120.0, help="seconds to wait for the first report")
    return parser.parse_args(arguments)


def _keep(event: evt.Event, reports: Queue[Dataset]) -> int:
    """Take a report. An archive that keeps objects answers Success (0000) only when they are on its disk."""
    report = event.dataset
    report.file_meta = event.file_meta  # says how it is encoded
    reports.put(report)
    return 0x0000


def _send(film: Dataset, me: AE, options: argparse.Namespace) -> str | None:
    """Send the film; returns what went wrong, and what to do."""
    node = f"{options.called} at {options.host}:{options.port}"
    contexts = [build_context(film.SOPClassUID, film.file_meta.TransferSyntaxUID)]
    rejections: list[A_ASSOCIATE_RJ] = []

    def keep_rejection(event: evt.Event) -> None:
        """Keep a rejection as it comes: pynetdicom 3.0.4 forgets one that comes before its thread waits for it."""
        if isinstance(event.pdu, A_ASSOCIATE_RJ):
            rejections.append(event.pdu)

    association = me.associate(
        options.host,
        options.port,
        contexts=contexts,
        ae_title=options.called,
        evt_handlers=[(evt.EVT_PDU_RECV, keep_rejection)],
    )
    if rejections:
        return f"{node} refuses {options.ae_title}; add it to [[listener.callers]], and reload the node"
    if not association.is_established:
        return f"{node} does not answer; start the node, or give --host, --port and --called"
    status = association.send_c_store(film).get("Status")
    association.release()
    return (
        None if status == 0x0000 else f"{node} did not take the film: " + (f"{status:04X}" if status else "no answer")
    )


def _arriving(reports: Queue[Dataset], study_uid: str, seconds: float) -> Iterator[ComprehensiveSR]:
    """Yield the reports on a study until no more come; seconds: how long the first is waited for."""
    with suppress(Empty):
        while True:
            report = reports.get(timeout=seconds)
            if report.StudyInstanceUID == study_uid:  # a node may still have an earlier one to send
                yield ComprehensiveSR.from_dataset(report)
                seconds = LATER_SECONDS


def _print(report: ComprehensiveSR) -> None:
    """Print a report: its title, its findings, and its texts, which also say what was not looked for."""
    print(report.SeriesDescription)
    if isinstance(report.content, MeasurementReport) and (rows := [*_reported(report.content), *_others(report)]):
        widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
        for row in (COLUMNS, *rows):
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for text in _texts(report.content[0]):
        print(*(f"  {line}" for line in text.splitlines()), sep="\n")


def _reported(content: MeasurementReport) -> Iterator[tuple[str, ...]]:
    """Yield a row for each box: its group (TID 1410) has finding, state, region, and a number with its sites."""
    for group in content.get_planar_roi_measurement_groups():
        finding, region, [number] = group.finding_type, group.roi, group.get_measurements()
        if finding is None or not isinstance(region, ImageRegion):
            continue
        [answer] = group.get_qualitative_evaluations(finding)
        state = cast(CodedConcept, answer.value)  # declared as a number by highdicom 0.28.2
        sites = number.finding_sites  # the finding's own, then the zone of the box
        side = sites[0].laterality if sites else None
        (left, top), (right, bottom) = region.value.min(axis=0), region.value.max(axis=0)
        box = f"{left:.0f}, {top:.0f}, {right:.0f}, {bottom:.0f}"
        percent = f"{number.value:g} {number.unit.value}"
        yield finding.meaning, state.meaning, percent, "-" if side is None else side.meaning, box


def _others(report: ComprehensiveSR) -> Iterator[tuple[str, ...]]:
    """Yield a row for each finding without a box: not reported, or without a place (TID 1500 row 12)."""
    for section in report.content[0].ContentSequence.find(EVALUATIONS):
        for item in section.ContentSequence:
            if isinstance(item, CodeContentItem):
                yield item.name.meaning, item.value.meaning, "-", "-", "-"


def _texts(item: Dataset) -> Iterator[str]:
    """Yield what a report says in words: its impression, what was analyzed, and its sentences."""
    if isinstance(item, TextContentItem) and item.relationship_type is RelationshipTypeValues.CONTAINS:
        yield item.value
    for inner in item.get("ContentSequence", ()):
        yield from _texts(inner)


def _failed(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
