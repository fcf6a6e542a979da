"""A study with known faults, to prove that they are seen: a box off its place, a tick, a missing report."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Final

from pydicom import dcmread
from pydicom.dataset import Dataset

from node.outputs import document
from tests.conformance import cases, studies, viewing
from tests.conformance.cases import Case
from tests.conformance.ohif import Ohif
from tests.documents import contents, groups

FAULTS: Final = (
    "film 1: the box of Pleural effusion is 5.0% off",
    "1 films are ticked as measured",
    "draws boxes on the films [1, 2], findings are on [1, 2, 3]",
)


def missed(viewer: Ohif, folder: Path, *, pictures: Path) -> list[str]:
    """Show the study in OHIF. Returns the faults that were not seen."""
    exposures = tuple(cases.shown(cases.chest, cases.EFFUSION) for _ in range(3))
    study = studies.write(cases.with_identity(Case(name="control", about="known faults", exposures=exposures)), folder)
    by_film = {document.film_of(dataset): _as_read(dataset) for dataset in study.objects["sr"]}
    first, second, third = (str(film.SOPInstanceUID) for film in study.films)
    _shift(by_film[first], 0.05 * int(study.films[0].Columns))
    _make_editable(by_film[second])
    del by_film[third]
    faulty = replace(study, objects={**study.objects, "sr": tuple(by_film.values())})
    seen = viewing.view_in_ohif(viewer, faulty, kind="sr", folder=pictures)
    return [fault for fault in FAULTS if not any(fault in complaint for complaint in seen.faults)]


def _as_read(dataset: Dataset) -> Dataset:
    """Return a report as pydicom reads it; highdicom's own classes refuse to be damaged."""
    return dcmread(BytesIO(document.save_bytes(dataset)))


def _shift(report: Dataset, columns: float) -> None:
    """Move every box to the right."""
    for group in groups(report):
        for region in contents(group, "111030"):
            points = list(region.GraphicData)
            region.GraphicData = [value + columns * (index % 2 == 0) for index, value in enumerate(points)]


def _make_editable(report: Dataset) -> None:
    """Remove the numbers: OHIF takes a region without one for a measurement of its own."""
    for group in groups(report):
        group.ContentSequence = [item for item in group.ContentSequence if item.ValueType != "NUM"]
