"""Studies with known faults, to prove that they are seen: a box off its place, a tick, a missing report."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Final

from pydicom import dcmread
from pydicom.dataset import Dataset

from node.outputs import document
from tests.drills.conformance import cases, studies, viewing
from tests.drills.conformance.cases import Case
from tests.drills.conformance.ohif import Ohif
from tests.drills.conformance.studies import Study
from tests.support import documents
from tests.support.documents import contents, groups

OFF_AND_MISSING: Final = (
    "film 1: the box of Pleural effusion is 5.0% off",
    "draws boxes on the films [1], findings are on [1, 2]",
)
TICKED: Final = ("1 films are ticked as measured",)


def missed(viewer: Ohif, folder: Path, *, pictures: Path) -> list[str]:
    """Show the studies in OHIF. Returns the faults that were not seen."""
    wrong = []
    for study, faults in ((_off_and_missing(folder), OFF_AND_MISSING), (_ticked(folder), TICKED)):
        seen = viewing.view_in_ohif(viewer, study, kinds=("sr",), folder=pictures)
        wrong += [fault for fault in faults if not any(fault in complaint for complaint in seen.faults)]
    return wrong


def _off_and_missing(folder: Path) -> Study:
    """Move the box of the first film, and leave out the report of the second."""
    study, (first, _) = _study("control-off", folder, films=2)
    for group in groups(first):
        for region in contents(group, "111030"):
            points = list(region.GraphicData)
            columns = 0.05 * int(study.films[0].Columns)
            region.GraphicData = [value + columns * (index % 2 == 0) for index, value in enumerate(points)]
    return replace(study, objects={**study.objects, "sr": (first,)})


def _ticked(folder: Path) -> Study:
    """Remove the number: OHIF takes a region without one for a measurement of its own, and ticks the film."""
    study, (report,) = _study("control-tick", folder, films=1)
    for group in groups(report):
        group.ContentSequence = [item for item in group.ContentSequence if item.ValueType != "NUM"]
    return replace(study, objects={**study.objects, "sr": (report,)})


def _study(name: str, folder: Path, *, films: int) -> tuple[Study, list[Dataset]]:
    """Write a study and return its films' reports as pydicom reads them; highdicom's classes refuse to be damaged."""
    exposures = tuple(cases.shown(cases.chest, cases.EFFUSION) for _ in range(films))
    study = studies.write(cases.with_identity(Case(name=name, about="known faults", exposures=exposures)), folder)
    reports = {documents.film_of(dataset): dataset for dataset in study.objects["sr"]}
    of_films = [reports[str(film.SOPInstanceUID)] for film in study.films]
    return study, [dcmread(BytesIO(document.save_bytes(report))) for report in of_films]
