"""The lines of a file of films: training and evaluation read the same, and what neither can use is counted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.errors import ModelError
from models.lab.evaluation.boxes_file import FileFilms, read_films
from models.lab.evaluation.cases import Truth
from models.lab.lines import read_line
from models.lab.training.catalog import catalog_of
from models.lab.training.films import find_films
from models.lab.training.films import read_films as read_for_training
from models.lab.training.labels import FilmLabels, Line, count_unused, labels_of
from models.lab.training.runfile import FilmSource
from models.manifest import read_manifest
from models.phantoms import main as make_phantoms
from models.reading.tokenizers import VOCABULARIES

MANIFEST = read_manifest(VOCABULARIES.parent)
LUNG = {"label": "Right Lung", "xyxy": [20, 20, 100, 180]}
EFFUSION, HERNIA = "cig/af/pleural effusion", "cig/af/hernia"


def written(folder: Path, **known: object) -> Path:
    """A file with one film of 200 x 200 pixels, of which this is known."""
    cv2.imwrite(str(folder / "a.png"), np.full((200, 200), 90, dtype=np.uint8))
    path = folder / "films.jsonl"
    path.write_text(json.dumps({"file": "a.png", "patient": "p"} | known) + "\n")
    return path


def evaluated(path: Path) -> tuple[FileFilms, Truth]:
    films = read_films(path, MANIFEST)
    return films, films.load(0).truth


def trained(path: Path) -> Line:
    (film,) = read_for_training(path, find_films(FilmSource(file=str(path))), side=50)
    return film.line


@pytest.mark.parametrize(
    ("known", "unmeasured"),
    [
        ({"boxes": [{"label": "vindrcxr/Rib fracture", "xyxy": [1, 2, 30, 40]}]}, ["boxes of vindrcxr/Rib fracture"]),
        ({"boxes": [{"label": "mscxr/Pneumonia", "xyxy": [1, 2, 30, 40]}] * 2}, ["boxes of mscxr/Pneumonia"] * 2),
        ({"boxes": [{"label": "Infiltrate", "xyxy": [1, 2, 30, 40]}]}, ["boxes of nih/Infiltration"]),
        ({"boxes": [{"label": "Pneumonia", "xyxy": [1, 2, 30, 40]}]}, ["boxes of pneumonia"]),
        ({"boxes": [{"label": "Lungs", "xyxy": [1, 2, 30, 40]}]}, ["boxes of Lungs"]),
        ({"nih_labels": ["Hernia", "Edema"]}, ["labels of Hernia"]),
        ({"labels": {"vindrcxr/COPD": True, "edema": False}}, ["labels of vindrcxr/COPD"]),
        ({"phrases": [{"text": "Small effusion."}]}, ["located phrases"]),
        (
            {"boxes": [LUNG], "region_findings": {"right lung": [HERNIA]}, "region_known": [HERNIA]},
            [f"findings of regions, {HERNIA}"],
        ),
        (
            {"region_findings": {"right lung": [EFFUSION]}, "region_known": [EFFUSION]},
            ["findings of regions without a box"],
        ),
        ({"truth": {"present": {"edema": True}, "mined": []}}, ["mined of truth, which training alone reads"]),
        (
            {"size": [200, 200], "boxes": [LUNG | {"xyxy": [210, 10, 250, 49]}, LUNG]},
            ["boxes outside the square that the network sees"],
        ),
        (
            {"size": [200, 200], "phrases": [{"text": "Small effusion.", "boxes": [[1, -9, 30, 0]]}]},
            ["located phrases", "boxes of phrases outside the square that the network sees"],
        ),
    ],
)
def test_what_no_task_measures_is_counted(tmp_path: Path, known: dict[str, object], unmeasured: list[str]) -> None:
    films, _ = evaluated(written(tmp_path, **known))

    assert films.unmeasured() == Counter(unmeasured)


def test_a_finding_that_regions_are_not_judged_for_is_unknown(tmp_path: Path) -> None:
    _, truth = evaluated(
        written(
            tmp_path,
            boxes=[LUNG],
            region_findings={"right lung": [EFFUSION, HERNIA]},
            region_known=[EFFUSION, HERNIA, "cig/af/consolidation"],
        )
    )

    assert truth.region_findings == {"right lung": {"pleural_effusion"}}
    assert truth.judged == {"pleural_effusion", "consolidation"}
    assert truth.labels == {}, "nothing is said of the film as a whole"
    assert truth.located == frozenset()


def test_gray_values_of_a_prepared_film_stay_as_stored(tmp_path: Path) -> None:
    wants = replace(MANIFEST, gray="mimic_jpg")
    stored = cv2.imread(str(written(tmp_path).parent / "a.png"), cv2.IMREAD_GRAYSCALE)
    assert stored is not None
    stored[:50] = 30
    path = written(tmp_path, gray="as stored")
    cv2.imwrite(str(tmp_path / "a.png"), stored)

    assert read_films(path, wants).load(0).gray == pytest.approx(stored / np.float32(255))
    assert read_films(written_beside(path), wants).load(0).gray.max() == 1.0


def written_beside(path: Path) -> Path:
    other = path.with_name("others.jsonl")
    other.write_text('{"file": "a.png"}\n')
    return other


def test_training_reads_what_regions_hold(tmp_path: Path) -> None:
    line = trained(
        written(
            tmp_path,
            boxes=[LUNG],
            region_findings={"right lung": [EFFUSION], "left lung": [HERNIA]},
            region_known=[EFFUSION, HERNIA],
            sentences=[{"text": "Effusion.", "positive": True, "regions": ["right lung"], "boxes": [LUNG["xyxy"]]}],
            labels={"vindrcxr/COPD": True, "pneumonia": False},
            mined=["pneumonia"],
            located=["vindrcxr/ILD"],
        )
    )

    catalog = catalog_of(["chexpert", "cig"])
    labels = labels_of(line, catalog)
    place, names = catalog.regions.index("right lung"), [phrases.name for phrases in catalog.classes]
    assert labels.region_present[place, names.index(EFFUSION)] and not labels.region_present[place, names.index(HERNIA)]
    assert labels.region_known[place].sum() == 2
    assert [sentence.regions for sentence in labels.said] == [(place,)]
    assert labels.said[0].boxes[0] == pytest.approx([0.3, 0.5, 0.4, 0.8])
    assert labels.known[names.index("pneumonia")] and labels.mined[names.index("pneumonia")]
    assert line["located"] == ["vindrcxr/ILD"]
    assert line["unused"] == {"findings of regions without a box": 1}
    assert count_unused([(line, 3)], catalog) == {
        "findings of regions without a box": 1,
        "labels of vindrcxr/COPD": 1,
    }


def test_training_and_evaluation_know_the_same_of_a_phantom(tmp_path: Path) -> None:
    assert make_phantoms(["phantoms:2000003:1", "--out", str(tmp_path), "--truth", "--side", "50"]) == 0
    films, truth = evaluated(tmp_path / "truth.jsonl")
    catalog = catalog_of(["chexpert"])

    labels: FilmLabels = labels_of(trained(tmp_path / "truth.jsonl"), catalog)

    names = [phrases.name for phrases in catalog.classes]
    assert films.unmeasured() == {}
    assert {names[number]: bool(labels.present[number]) for number in np.flatnonzero(labels.known)} == truth.labels
    assert {names[number] for number in np.flatnonzero(labels.located)} == truth.located
    for region, found in truth.region_findings.items():
        held = labels.region_present[catalog.regions.index(region)]
        assert {names[number] for number in np.flatnonzero(held)} == found
    assert " ".join(sentence.text for sentence in labels.said) == truth.report


def test_training_counts_boxes_that_are_cut_off(tmp_path: Path) -> None:
    beside = [210, 10, 250, 49]

    line = trained(
        written(
            tmp_path,
            boxes=[LUNG | {"xyxy": beside}],
            sentences=[{"text": "Effusion.", "boxes": [beside, LUNG["xyxy"], beside]}],
        )
    )

    assert line["unused"] == {
        "boxes outside the central square": 1,
        "boxes of sentences outside the central square": 2,
    }


@pytest.mark.parametrize(
    ("known", "complaint"),
    [
        ({"region_findings": {"right lung": [EFFUSION]}}, "add region_known"),
        (
            {"region_findings": {"right lung": [EFFUSION]}, "region_known": [HERNIA]},
            f"'{EFFUSION}', which region_known does not name",
        ),
        ({"region_findings": {"right lung": ["vindrcxr/ILD"]}}, "'vindrcxr/ILD' is no class of Chest ImaGenome"),
        ({"region_findings": {}, "region_known": ["pneumonia"]}, "'pneumonia' is no class of Chest ImaGenome"),
        ({"region_findings": {"right lung": ["cig/af/efusion"]}}, "no catalog has the class 'cig/af/efusion'"),
        ({"labels": {"vindrcxr/Copd": True}}, "no catalog has the class 'vindrcxr/Copd'; did you mean 'vindrcxr/COPD'"),
        ({"located": ["edem"]}, "no catalog has the class 'edem'"),
        ({"labels": {"edema": True}, "mined": ["fracture"]}, "mined names 'fracture', of which labels says nothing"),
        ({"phrases": [{"text": "?", "findings": ["edem"]}]}, "no catalog has the class 'edem'"),
        ({"phrases": [{"text": "?", "regions": ["liver"]}]}, "no catalog has the region 'liver'"),
        ({"phrases": [{"text": "?", "boxes": [[1, 2, 3]]}]}, "must be four numbers"),
        ({"phrases": [{"words": "?"}]}, "not a film as expected"),
        ({"size": [200]}, "must be two whole numbers, columns and rows"),
        ({"size": [200, 0]}, "must be two whole numbers, columns and rows"),
        ({"gray": "equalized"}, "gray must be 'as stored', or left out"),
        ({"age": 57}, '"age" must be text'),
    ],
)
def test_a_mistake_in_a_line_is_told_with_its_place(known: dict[str, object], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint) as refused:
        read_line(json.dumps({"file": "a.png"} | known), where="films.jsonl, line 7")

    assert str(refused.value).startswith("films.jsonl, line 7: ")
