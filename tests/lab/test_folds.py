"""Folds of patients."""

from __future__ import annotations

from models.lab.evaluation.folds import folds

PATIENTS = [f"{number:08}" for number in range(200)]


def test_each_patient_is_in_one_fold() -> None:
    made = folds([*PATIENTS, *PATIENTS])

    assert len(made) == 5
    assert sorted(name for fold in made for name in fold) == PATIENTS
    assert min(map(len, made)) > 20


def test_a_patient_stays_in_its_fold_when_others_come() -> None:
    few, all_of_them = folds(PATIENTS[:50], count=4), folds(PATIENTS, count=4)

    assert all(own <= grown for own, grown in zip(few, all_of_them, strict=True))
