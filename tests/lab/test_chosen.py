"""Films that chose a model's decisions: reported on only by decisions that other patients' films chose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest

from models.errors import ModelError
from models.lab.evaluation.cases import CaseSource, EvaluationCase, Truth
from models.lab.evaluation.evaluated_model import EvaluatedModel, Weighed
from models.lab.evaluation.tuning import digest, for_each_film, require_others
from models.lab.training.split import folds_of
from models.manifest import Manifest, read_manifest
from models.progress import quiet
from models.reading.tokenizers import VOCABULARIES

MANIFEST = replace(read_manifest(VOCABULARIES.parent), chosen_on=())
FILMS = 200
PATIENTS = np.array([f"patient {number}" for number in range(FILMS)])
OF_FIRST = np.flatnonzero(folds_of(PATIENTS) == 0)


def case(number: int, *, there: bool) -> EvaluationCase:
    labels = {"edema": there, "lung_opacity": there, "no_finding": not there}
    gray = np.full((2, 2), number / FILMS, dtype=np.float32)
    return EvaluationCase(name=str(number), gray=gray, truth=Truth(labels=labels, patient=str(PATIENTS[number])))


@dataclass
class ListedFilms:
    """Films that are there already."""

    cases: list[EvaluationCase]

    def __len__(self) -> int:
        return len(self.cases)

    def load(self, index: int) -> EvaluationCase:
        return self.cases[index]


@dataclass
class Weighing:
    """A model that tells films apart as their gray values say."""

    manifest: Manifest

    def weigh(self, case: EvaluationCase) -> Weighed:
        score = float(case.gray[0, 0]) - 0.5
        return Weighed(differences={"edema": score, "lung_opacity": score, "no_finding": -score}, positiveness={})

    def deciding_by(self, manifest: Manifest) -> Weighing:
        return Weighing(manifest)


def source(there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> CaseSource:
    return cast(CaseSource, ListedFilms([case(number, there=bool(there[number])) for number in range(FILMS)]))


def chosen(films: CaseSource) -> list[EvaluatedModel]:
    model = cast(EvaluatedModel, Weighing(MANIFEST))
    return for_each_film(model, films, population="hospital", most_false=0.1, report=quiet)


def test_a_patient_has_no_say_in_the_decisions_for_their_films() -> None:
    there = np.arange(FILMS) >= FILMS // 2
    otherwise = there.copy()
    otherwise[OF_FIRST] = ~there[OF_FIRST]

    before, after = chosen(source(there)), chosen(source(otherwise))

    rest = np.setdiff1d(np.arange(FILMS), OF_FIRST)
    assert all(before[film].manifest == after[film].manifest for film in OF_FIRST)
    assert all(before[film].manifest != after[film].manifest for film in rest)
    assert before[OF_FIRST[0]].manifest.decisions.measurements["edema"].measured_on == "hospital"


def test_films_that_chose_are_counted_and_refused() -> None:
    films = source(np.arange(FILMS) >= FILMS // 2)
    chose = replace(MANIFEST, chosen_on=tuple(digest(films.load(number).gray) for number in (3, 8)))

    require_others(MANIFEST, films, quiet)
    with pytest.raises(ModelError, match=r"2 of 200 films chose the thresholds of this model.*--folds"):
        require_others(chose, films, quiet)
