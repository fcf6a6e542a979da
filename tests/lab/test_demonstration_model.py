"""The model that the repository ships: small, calibrated, and on unseen films about what its card says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from models.checkpoint.files import verify
from models.lab.evaluation.cases import Phantoms
from models.lab.evaluation.command import evaluate
from models.lab.evaluation.evaluated_model import open_model, read_questions
from models.lab.evaluation.request import Request, Task
from models.lab.phantoms import FINDINGS, PhantomSet
from models.manifest import read_manifest
from models.progress import quiet
from models.reading.tokenizers import VOCABULARIES
from tests.paths import REPOSITORY
from tests.support.material import material

pytestmark = pytest.mark.drill(part="laboratory")

MODEL = VOCABULARIES.parent
MIB = 1 << 20
SPLITS = "models/lab/training/validation"

Figures = Mapping[str, Mapping[str, float]]


def measured(data: str, *tasks: Task, held_out: str | None = None) -> Figures:
    request = Request(model=MODEL, data=data, tasks=tasks, engine="torch", held_out=held_out, resamples=2, pictures=0)
    return cast("Figures", evaluate(request, quiet)["tasks"])


def test_it_is_whole_small_enough_for_version_control_and_leaves_out_what_it_does_not_recognize() -> None:
    manifest = read_manifest(MODEL)
    verify(MODEL, manifest)

    assert sum((MODEL / name).stat().st_size for name in manifest.files) < 40 * MIB
    assert set(manifest.decisions.left_out) == {"atelectasis", "fracture", "pneumonia", "support_devices"}
    assert manifest.on_phantoms().decisions.left_out == ("pneumonia",), "no phantom has it"


def test_lungs_heart_and_large_findings_of_phantoms_are_found() -> None:
    """Of phantoms that neither training nor tuning nor the card has seen; few, so bounds are wider than its figures."""
    figures = measured("phantoms:2900000:24", "anatomy", "detection", "region_classification", "report")

    assert figures["anatomy"]["lungs_and_heart"] > 0.83
    assert figures["detection"]["large_four"] > 0.6
    assert figures["region_classification"]["auroc_pooled"] > 0.9
    assert figures["report"]["ce_micro_f1"] > 0.6
    assert figures["report"]["large_four_f1"] > 0.75


def test_a_hint_of_a_side_is_followed() -> None:
    """On more phantoms than `figures` has, of which the first 24 have 84 such questions."""
    assert measured("phantoms:2900000:96", "hints")["hints"]["accuracy"] > 0.85


def test_lungs_of_patients_unseen_in_training_are_found() -> None:
    films = f"boxes:{material('data/lungs_640.jsonl')}"

    assert measured(films, "anatomy", held_out=f"{SPLITS}/lungs_640.txt")["anatomy"]["lungs"] > 0.8


def test_what_a_radiologist_saw_is_found_on_films_of_people() -> None:
    """Thresholds are chosen on four fifths of the patients, and scored on the fifth."""
    films = measured(f"boxes:{material('data/nih_512.jsonl')}", "films", held_out=f"{SPLITS}/nih_512.txt")["films"]

    assert films["macro_auroc"] >= 0.72
    assert films["opacity_against_normal"] > 0.9
    assert films["opacity_against_all_others"] > 0.85
    assert films["opacity_sensitivity"] >= 0.7
    assert films["false_findings"] <= 0.05
    assert films["calibration_error"] <= 0.083


def test_a_finding_on_both_sides_gets_a_box_on_each() -> None:
    """In chex-phantom 3.3 the three boxes of a prompt were the same, and of all figures only the mAP showed it."""
    questions = read_questions(REPOSITORY / "node" / "read" / "prompt_sets" / "chexpert14.toml")
    model = open_model(MODEL, engine="torch", questions=questions, trusted="phantoms")
    films = Phantoms(PhantomSet(first=2_900_000, count=60), model.manifest)
    found = []
    for film in map(films.load, range(len(films))):
        located = model.weigh(film, located=True).located
        assert located is not None
        for key in ("edema", "pleural_effusion"):
            if sides_of(film.truth.boxes.get(key, np.zeros((0, 4)))) == {"left", "right"}:
                place = list(FINDINGS).index(key)
                likely = located.scores[0, place] >= 0.5
                found.append(sides_of(located.boxes[0, place][likely].numpy()) == {"left", "right"})

    assert len(found) > 10
    assert sum(found) >= 0.8 * len(found)


def sides_of(boxes: NDArray[np.floating]) -> set[str]:
    """Return on which sides of the picture boxes [n, 4] have their centers."""
    return {"left" if x < 0.5 else "right" for x in boxes[:, 0]}
