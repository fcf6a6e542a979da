"""The index of patients' numbers: which studies have films of a patient, without reading them again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.jobs.patient_numbers import PatientNumbers
from node.store.spool import Spool
from tests.node.jobs.test_rounds import STUDY
from tests.node.orders.test_patient_updates import old
from tests.support import films


def test_studies_of_a_patient_are_known_without_reading_films(tmp_path: Path) -> None:
    spool, index = Spool(tmp_path), tmp_path / "index" / "patients.json"
    film = films.keep(spool, old()).instance
    os.utime(film.path.parent, (0, 0))  # it did not change a moment ago
    assert PatientNumbers(spool).studies_of(["P-1"]) == [STUDY]
    film.path.write_bytes(b"no film")  # in place: nothing came to the folder

    again = PatientNumbers(Spool(tmp_path))

    assert (again.studies_of(["P-1"]), again.studies_of(["P-2"])) == ([STUDY], [])
    assert "P-1" not in index.read_text(encoding="utf-8")
    films.keep(spool, old("late", PatientID="P-2"))
    assert again.studies_of(["P-2", "P-3"]) == [STUDY]


def test_a_study_that_has_just_changed_is_looked_at_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    folder = films.keep(spool, old()).instance.path.parent
    numbers = PatientNumbers(spool)
    assert numbers.studies_of(["P-2"]) == []
    changed = folder.stat().st_mtime_ns
    films.keep(spool, old("late", PatientID="P-2"))
    os.utime(folder, ns=(changed, changed))  # within the same tick of the file system's clock

    assert numbers.studies_of(["P-2"]) == [STUDY]


@pytest.mark.parametrize("content", ["", "[]", '{"1.2": 3}', '{"1.2": [1, "x"]}'])
def test_a_damaged_index_of_patients_is_made_anew(tmp_path: Path, content: str) -> None:
    spool, index = Spool(tmp_path), tmp_path / "index" / "patients.json"
    films.keep(spool, old())
    index.write_text(content, encoding="utf-8")

    assert PatientNumbers(spool).studies_of(["P-1"]) == [STUDY]
    assert PatientNumbers(spool).studies_of(["P-9"]) == []
