"""The lines of a file of films: both sides read the same, a radiologist comes first, and what is lost is told."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Literal, cast

import cv2
import numpy as np
import pytest

from models.engines import FloatArray
from models.errors import ModelError
from models.lab.evaluation import anatomy
from models.lab.evaluation.boxes_file import read_films
from models.lab.evaluation.cases import truth_of_phantom
from models.lab.film_lines import read_line
from models.lab.phantoms import phantom
from models.lab.training.catalog import catalog_of
from models.lab.training.films import find_films
from models.lab.training.films import read_films as read_for_training
from models.lab.training.labels import FilmLabels, Line, count_unused, labels_of
from models.lab.training.loop import train_by
from models.lab.training.model_writer import TABLE
from models.lab.training.runfile import FilmSource, read_run
from models.manifest import read_manifest
from models.phantoms import main as make_phantoms
from models.reading.tokenizers import VOCABULARIES
from tests.support import recorded
from tests.support.training import write_run

MANIFEST = read_manifest(VOCABULARIES.parent)
LUNG = {"label": "Right Lung", "xyxy": [20, 20, 100, 180]}
EFFUSION, HERNIA = "cig/af/pleural effusion", "cig/af/hernia"


def written(folder: Path, **known: object) -> Path:
    """A file with one film of 200 x 200 pixels, of which this is known."""
    cv2.imwrite(str(folder / "a.png"), np.full((200, 200), 90, dtype=np.uint8))
    path = folder / "films.jsonl"
    path.write_text(json.dumps({"file": "a.png", "patient": "p"} | known) + "\n")
    return path


def trained(path: Path) -> list[Line]:
    return [film.line for film in read_for_training(path, find_films(FilmSource(file=str(path))), side=50)]


LEFT_LUNG = {"label": "left lung", "xyxy": [100, 30, 180, 150]}
SAID = {"text": "Edema.", "positive": True, "findings": [], "regions": [], "boxes": []}
SIDE = {"finding": "edem", "side": "right", "zone": None, "box": [0.5, 0.5, 0.1, 0.1]}
SOFT = {"present": {"edema": True}, "mined": ["edema"]}
SIDED = [
    {"label": "Effusion", "side": "right", "xyxy": [30, 100, 80, 150]},
    {"label": "Effusion", "side": "left", "xyxy": [120, 90, 170, 150]},
    {"label": "Effusion", "side": "left", "xyxy": [110, 20, 130, 60]},
    {"label": "Mass", "xyxy": [195, 10, 260, 60]},
    {"label": "Nodule", "xyxy": [230, 10, 260, 60]},
]
VARIED: tuple[dict[str, object], ...] = (
    {"nih_labels": ["Effusion", "Pneumonia"], "rsna": "Lung Opacity", "boxes": SIDED, "sex": "M", "age": "39"},
    {"nih_labels": ["No Finding"], "rsna": "Normal", "view": "PA", "age": "40"},
    {"nih_labels": ["No Finding"], "view": "AP", "sex": "F", "age": "59"},
    {"nih_labels": ["No Finding"], "rsna": "Lung Opacity", "view": "LATERAL", "age": "60"},
    {"nih_labels": ["Infiltration"], "rsna": "No Lung Opacity / Not Normal", "age": "unknown"},
    {
        "labels": {"edema": True, "no_finding": False, "fracture": False, "vindrcxr/COPD": True},
        "mined": ["edema", "no_finding"],
        "probabilities": {"edema": 0.5, "fracture": 0.9},
        "located": ["edema", "vindrcxr/ILD"],
        "report": "Edema.",
    },
    {"labels": {"edema": True, "no_finding": True}, "mined": ["no_finding"], "truth": {"present": {"edema": False}}},
    {
        "boxes": [LUNG, LEFT_LUNG, *SIDED],
        "region_findings": {"right lung": ["pleural_effusion"], "left lung": [], "spine": ["fracture"]},
        "cardiothoracic_ratio": 0.52,
        "sentences": [{"text": "Effusion.", "positive": True, "findings": ["pleural_effusion"]}, {"text": "Else."}],
        "hints": [
            {"text": "Effusion on the right?", "finding": "pleural_effusion", "side": "right"},
            {"text": "Effusion on the left?", "finding": "pleural_effusion", "side": "left"},
        ],
    },
    {
        "boxes": [LUNG, SIDED[0]],
        "located": ["edema", "vindrcxr/ILD"],
        "region_findings": {"right lung": [EFFUSION, HERNIA], "left lung": [EFFUSION]},
        "region_known": [EFFUSION, HERNIA, "cig/af/consolidation"],
        "sentences": [{"text": "Effusion.", "regions": ["right lung"], "boxes": [LUNG["xyxy"], [230, 1, 240, 9]]}],
        "phrases": [{"text": "Small effusion.", "boxes": [[30, 100, 80, 150]]}],
    },
    {"nih_labels": ["Effusion", "Infiltration"]},
    # A reading goes before a mined label, and places or says nothing that it denies.
    {"nih_labels": ["Pneumonia"], "rsna": "Normal", "view": "AP"},
    {"nih_labels": ["Pneumonia"], "rsna": "No Lung Opacity / Not Normal"},
    {"nih_labels": ["Pneumonia"], "labels": {"no_finding": False}},
    {"nih_labels": ["Effusion"], "labels": {"pleural_effusion": False, "consolidation": True}},
    {"nih_labels": ["No Finding"], "labels": {"fracture": True, "no_finding": False}},
    {"nih_labels": ["No Finding"], "labels": {"pneumonia": True, "edema": True}, "mined": ["edema"]},
    {"rsna": "Normal", "labels": {"edema": True, "fracture": True}, "mined": ["edema"]},
    # What no task measures.
    {
        "boxes": [
            {"label": label, "xyxy": [1, 2, 30, 40]}
            for label in ("vindrcxr/Rib fracture", *["mscxr/Pneumonia"] * 2, "Infiltrate", "Pneumonia", "Lungs")
        ]
    },
    {"nih_labels": ["Hernia", "Edema"], "truth": {"present": {"edema": True}, "mined": []}},
    {
        "size": [240, 200],
        "boxes": [LUNG | {"xyxy": [232, 10, 239, 49]}, LUNG],
        "phrases": [{"text": "Small effusion.", "boxes": [[1, -9, 30, 0]]}],
    },
)
"""Films of 240 x 200 pixels."""


def told(known: object) -> dict[str, object]:
    """What is known of a film, without what is empty."""
    fields = cast("dict[str, object]", recorded.plain(known))
    return {name: value for name, value in fields.items() if value not in (None, "", [], {})}


def test_what_lines_say_is_as_recorded(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "1_2.png"), np.full((200, 240), 90, dtype=np.uint8))
    path = tmp_path / "films.jsonl"
    path.write_text("".join(json.dumps({"file": "1_2.png"} | known) + "\n" for known in VARIED))
    films = read_films(path, MANIFEST)

    recorded.check(
        "film_lines",
        {
            "tasks": films.tasks,
            "unmeasured": films.unmeasured(),
            "evaluated": [told(films.load(number).truth) for number in range(len(films))],
            "trained": [told(film) for film in trained(path)],
        },
    )


def test_gray_values_of_a_prepared_film_stay_as_stored(tmp_path: Path) -> None:
    stored = np.full((200, 200), 90, dtype=np.uint8)
    stored[:50] = 30

    def seen(wanted: Literal["voi", "mimic_jpg"], **known: object) -> FloatArray:
        path = written(tmp_path, **known)
        cv2.imwrite(str(tmp_path / "a.png"), stored)
        return read_films(path, replace(MANIFEST, gray=wanted)).load(0).gray

    for kept in (seen("mimic_jpg", gray="as stored"), seen("voi")):
        assert kept == pytest.approx(stored / np.float32(255))
    equalized = seen("mimic_jpg")
    assert (equalized.min(), equalized.max()) == (0.0, 1.0)


def test_training_reads_what_regions_hold(tmp_path: Path) -> None:
    [line] = trained(
        written(
            tmp_path,
            boxes=[LUNG],
            region_findings={"right lung": [EFFUSION], "left lung": [HERNIA]},
            region_known=[EFFUSION, HERNIA],
            sentences=[{"text": "Effusion.", "positive": True, "regions": ["right lung"], "boxes": [LUNG["xyxy"]]}],
            labels={"vindrcxr/COPD": True, "pneumonia": False},
            mined=["pneumonia"],
        )
    )

    catalog = catalog_of(["chexpert", "cig"])
    labels = labels_of(line, catalog)
    place, names = catalog.regions.index("right lung"), [phrases.name for phrases in catalog.classes]
    there, known = (np.flatnonzero(own[place]) for own in (labels.region_present, labels.region_known))
    assert ([names[n] for n in there], {names[n] for n in known}) == ([EFFUSION], {EFFUSION, HERNIA})
    assert [(sentence.regions, sentence.boxes.tolist()) for sentence in labels.said] == [
        ((place,), [pytest.approx([0.3, 0.5, 0.4, 0.8])])
    ]
    assert labels.known[names.index("pneumonia")] and labels.mined[names.index("pneumonia")]
    assert count_unused([line], catalog) == {"findings of regions without a box": 1, "labels of vindrcxr/COPD": 1}


def test_training_and_evaluation_know_the_same_of_a_phantom(tmp_path: Path) -> None:
    assert make_phantoms(["phantoms:2000003:1", "--out", str(tmp_path), "--truth", "--side", "320"]) == 0
    path = tmp_path / "truth.jsonl"
    films = read_films(path, MANIFEST)
    truth = films.load(0).truth
    catalog = catalog_of(["chexpert"])

    labels: FilmLabels = labels_of(trained(path)[0], catalog)

    names = [phrases.name for phrases in catalog.classes]
    assert films.unmeasured() == {}
    assert {names[number]: bool(labels.present[number]) for number in np.flatnonzero(labels.known)} == truth.labels
    assert {names[number] for number in np.flatnonzero(labels.located)} == truth.located
    for region, found in truth.region_findings.items():
        held = labels.region_present[catalog.regions.index(region)]
        assert {names[number] for number in np.flatnonzero(held)} == found
    assert " ".join(sentence.text for sentence in labels.said) == truth.report
    drawn = truth_of_phantom(phantom(2_000_003, side=320))
    assert anatomy.true_ratio(truth) == pytest.approx(drawn.cardiothoracic_ratio, abs=0.001)
    taught = {hint.text: hint for hint in drawn.hints if hint.taught}
    assert taught and [hint.text for hint in truth.hints] == list(taught)
    for hint in truth.hints:
        for own, expected in ((hint.boxes, taught[hint.text].boxes), (hint.others, taught[hint.text].others)):
            assert sorted(own.tolist()) == pytest.approx(np.array(sorted(expected.tolist())), abs=0.002)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cardiothoracic_ratio": None}))
    by_boxes = anatomy.true_ratio(read_films(path, MANIFEST).load(0).truth)
    assert by_boxes == pytest.approx(drawn.cardiothoracic_ratio, abs=0.03)


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
        ({"labels": {"edema": True}, "mined": ["fracture"]}, "mined: names 'fracture', of which labels says nothing"),
        ({"phrases": [{"text": "?", "findings": ["edem"]}]}, "no catalog has the class 'edem'"),
        ({"phrases": [{"text": "?", "regions": ["liver"]}]}, "no catalog has the region 'liver'"),
        ({"phrases": [{"text": "?", "boxes": [[1, 2, 3]]}]}, "must be four numbers"),
        ({"phrases": [{"words": "?"}]}, r"phrases\[1\]\.text: is missing"),
        ({"file": 3}, "file: must be a text"),
        ({"boxes": [{"label": "Right Lung", "xyxy": [1, 2, 3]}]}, r"boxes\[1\]\.xyxy: must be four numbers"),
        ({"boxes": [{"label": "Efusion", "xyxy": [1, 2, 3, 4]}]}, "the label 'Efusion'; did you mean 'Effusion'"),
        ({"nih_labels": ["Efusion"]}, "no catalog has the label 'Efusion'; did you mean 'Effusion'"),
        ({"region_findings": {"liver": []}}, "no catalog has the region 'liver'"),
        ({"size": [200]}, "must be two whole numbers, columns and rows"),
        ({"size": [200, 0]}, "must be two whole numbers, columns and rows"),
        ({"gray": "equalized"}, "gray: 'equalized' is unknown; use 'as stored'"),
        ({"rsna": "Fine"}, "rsna: 'Fine' is unknown; use 'Normal'"),
        ({"age": 57}, "age: must be a text"),
        ({"truth": {"present": {"vindrcxr/Cardiomegly": True}}}, "did you mean 'vindrcxr/Cardiomegaly'"),
        ({"truth": {"boxes": {"Edema": []}}}, "no catalog has the class 'Edema'; did you mean 'edema'"),
        ({"truth": {"located": ["cig/af/edema"]}}, "no catalog has the class 'cig/af/edema'"),
        ({"truth": {"region_known": ["edem"]}}, "no catalog has the class 'edem'"),
        ({"truth": {"region_present": {"right lung": ["edem"]}}}, "no catalog has the class 'edem'"),
        ({"truth": {"regions": {"right lungs": [0, 0, 1, 1]}}}, "the region 'right lungs'; did you mean 'right lung'"),
        ({"truth": {"regions": {"lungs": [0, 0, 1, 1]}}}, "name right lung and left lung instead"),
        ({"truth": {"region_present": {"liver": []}}}, "no catalog has the region 'liver'"),
        ({"truth": {"said": [SAID | {"findings": ["edem"]}]}}, "no catalog has the class 'edem'"),
        ({"truth": {"said": [SAID | {"regions": ["liver"]}]}}, "no catalog has the region 'liver'"),
        ({"truth": {"sides": [SIDE]}}, "no catalog has the class 'edem'"),
        ({"truth": {"regions": {"right lung": [0, 0, 1]}}}, "truth.regions.right lung: must be four numbers"),
        ({"truth": {"present": {"edema": True}, "soft": {"edema": 0.5}}}, "of classes that mined names"),
        ({"truth": SOFT | {"soft": {"edema": 1.5}}}, "edema: must lie in 0..1"),
        ({"hints": [{"text": "?", "finding": "edem", "side": "left"}]}, "hints.*: no catalog has the class 'edem'"),
    ],
)
def test_a_mistake_in_a_line_is_told_with_its_place(known: dict[str, object], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint) as refused:
        read_line(json.dumps({"file": "a.png"} | known), where="films.jsonl, line 7")

    assert str(refused.value).startswith("films.jsonl, line 7: ")


def test_a_run_says_which_labels_it_does_not_use_and_logs_all_its_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, boxes=[{"label": "Infiltrate", "xyxy": [90, 90, 130, 140]}], nih_labels=["Edema"])
    run = read_run(write_run(tmp_path / "run.toml", store=tmp_path / "store", stages=("look", "joint"), steps=1))
    data = replace(run.data, phantoms=4, films=(FilmSource(file=str(path)),))

    assert train_by(replace(run, data=data), Event()) is not None

    assert "not used by this run: 1 boxes of nih/Infiltration\n" in capsys.readouterr().err
    with (Path(run.output) / TABLE).open(newline="") as file:
        assert [(row["stage"], row["step"]) for row in csv.DictReader(file)] == [("look", "1"), ("joint", "1")]
