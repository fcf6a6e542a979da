"""The results of one study as a folder (DESIGN.md 8): report.json, report.txt, sr.dcm, and per film its overlay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.errors import InvalidDicomError

from node.domain import Film, JsonObject, Report
from node.outputs import document, overlay, record, text

_RESULTS: Final = ("*.gsps.dcm", "*.overlay.png", "sr.dcm")


def write_folder(
    out: Path,
    report: Report,
    objects: Sequence[tuple[str, Dataset]],
    pictures: Mapping[str, NDArray[np.uint8]],
    *,
    left_alone: Sequence[Film] = (),
) -> JsonObject:
    """Write `out/<StudyInstanceUID>/` and return the content of its report.json.

    objects: kind and dataset of every DICOM object of the report; one that lies there already under its UID stays
    pictures: [row, column] as displayed, by source, of every film that was read
    left_alone: objects that got no answer, for report.json only
    """
    folder = out / report.study_uid
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for kind, dataset in objects:
        names.append("sr.dcm" if kind == "sr" else f"{_referenced_film(dataset)}.{kind}.dcm")
        _keep(folder / names[-1], dataset)
    for film in report.read_films:
        names.append(f"{film.source}.overlay.png")
        overlay.draw(pictures[film.source], film).save(folder / names[-1])
    for stale in {path.name for pattern in _RESULTS for path in folder.glob(pattern)} - set(names):
        (folder / stale).unlink()
    content = record.report_to_json(report, names, left_alone=left_alone)
    (folder / "report.json").write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    (folder / "report.txt").write_text(text.render(report), encoding="utf-8")
    return content


def _referenced_film(state: Dataset) -> str:
    """The one film a presentation state is for."""
    return str(state.ReferencedSeriesSequence[0].ReferencedImageSequence[0].ReferencedSOPInstanceUID)


def _keep(path: Path, dataset: Dataset) -> None:
    """Write an object unless it lies there whole: the same UID never gets other bytes."""
    with suppress(FileNotFoundError, InvalidDicomError, EOFError):
        lying = dcmread(path)
        if lying.SOPInstanceUID == dataset.SOPInstanceUID and document.save_bytes(lying) == path.read_bytes():
            return
    aside = path.with_name(path.name + ".part")
    aside.write_bytes(document.save_bytes(dataset))
    aside.replace(path)
