"""Data sets, from their official layouts to the lines that training and evaluation read; what is wrong is told.

The miniatures of tests/lab/datasets.py have what is odd in the published ones.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from pydicom import dcmread

from models.errors import ModelError
from models.lab.datasets.imagenome import joined
from models.lab.datasets.mimic import places_of
from models.lab.datasets.nih import halves
from models.lab.datasets.preparation import Published, table, text
from models.lab.datasets.reports import clean, section_named, sections_of, sentences_of
from models.lab.datasets.tables import rows_of
from models.lab.datasets.vindr import fused
from models.lab.evaluation.command import evaluate
from models.lab.evaluation.request import Request
from models.prepare import main
from models.progress import quiet
from models.reading.tokenizers import VOCABULARIES
from tests.lab.datasets import (
    REPORT,
    chest_imagenome,
    chest_xray_14,
    dicom_id,
    draw,
    lines,
    mimic_cxr,
    ms_cxr,
    vindr_cxr,
)
from tests.paths import REPOSITORY
from tests.support import recorded

MODEL = VOCABULARIES.parent
EFFUSION = "cig/af/pleural effusion"
LABORATORY = pytest.mark.drill(part="laboratory")
GZIPPED = gzip.compress(b"a,b\n" + b"1,2\n" * 99, mtime=0)
FURTHER: list[dict[str, object]] = [
    {"file": "1_000.png", "det10": [{"label": "Consolidation", "xyxy": [8, 8, 24, 24]}], "google": {"fracture": True}},
    {
        "file": "2_000.png",
        "det10": [],
        "google": {"pneumothorax": False, "airspace_opacity": True},
        "chexnet": {"effusion": 0.9, "edema": 0.5},
    },
    {"file": "3_000.png", "google": {"airspace_opacity": True, "nodule_or_mass": False}},
    {
        "file": "4_000.png",
        "det10": [{"label": label, "xyxy": [8, 8, 24, 24]} for label in ("Fibrosis", "Mass")],
        "google": {"nodule_or_mass": False},
    },
    {"file": "5_000.png", "chexnet": {"effusion": 0.25, "mass": 0.125, "nodule": 0.5, "hernia": 0.75}},
]


def with_readings(source: Path) -> Path:
    films = [{"file": f"{patient}_000.png", "nih_labels": ["Effusion"]} for patient in range(1, 6)]
    films[2]["rsna"] = "No Lung Opacity / Not Normal"
    for number, film in enumerate(films):
        draw(source / str(film["file"]), number)
    for name, rows in (("nih_512.jsonl", films), ("nih_512_readings.jsonl", FURTHER)):
        (source / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return source


SOURCES: dict[str, Callable[[Path], Path]] = {
    "nih": chest_xray_14,
    "vindr": vindr_cxr,
    "mimic": mimic_cxr,
    "mscxr": ms_cxr,
    "imagenome": chest_imagenome,
    "readings": with_readings,
}
ON_MIMIC = ("mscxr", "imagenome")


def prepare(data_set: str, source: Path, out: Path, *more: str) -> int:
    return main([data_set, str(source), str(out), "--processes", "1", *more])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each data set, and what was prepared of it."""
    folder = tmp_path_factory.mktemp("data")
    for data_set, make in SOURCES.items():
        on_mimic = ("--mimic", str(folder / "mimic-out")) if data_set in ON_MIMIC else ()
        assert prepare(data_set, make(folder / data_set), folder / f"{data_set}-out", *on_mimic) == 0
    return folder


def counts_of(out: Path) -> dict[str, int]:
    return {row["what"]: row["count"] for row in json.loads((out / "summary.json").read_text())}


@pytest.mark.parametrize("data_set", SOURCES)
def test_prepared_files_are_as_recorded(prepared: Path, data_set: str) -> None:
    out = prepared / f"{data_set}-out"
    files = {
        path.name: [
            line | ({"region_known": len(line["region_known"])} if "region_known" in line else {})
            for line in lines(path)
        ]
        for path in sorted(out.glob("*.jsonl"))
    }
    rows = json.loads((out / "summary.json").read_text())
    published = {row["what"]: [row["published"], row["by"]] for row in rows if "published" in row}
    recorded.check(f"prepared_{data_set}", {"counts": counts_of(out), "published": published, **files})


# ---- the command


def contents(out: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(out.iterdir()) if path.is_file()}


@LABORATORY
def test_parallel_and_resumed_runs_write_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = chest_xray_14(tmp_path / "nih")

    assert prepare("nih", source, tmp_path / "alone") == 0
    assert main(["nih", str(source), str(tmp_path / "together"), "--processes", "2"]) == 0
    assert contents(tmp_path / "alone") == contents(tmp_path / "together")
    assert "prepare films: 100 %" in capsys.readouterr().err

    parts = sorted((tmp_path / "alone" / "parts").iterdir())
    ages = {path: path.stat().st_mtime_ns for path in parts[1:]}
    parts[0].unlink()
    assert prepare("nih", source, tmp_path / "alone") == 0
    assert contents(tmp_path / "alone") == contents(tmp_path / "together")
    assert {path: path.stat().st_mtime_ns for path in parts[1:]} == ages, "only the missing part was made"


def test_a_changed_data_set_replaces_its_parts(tmp_path: Path) -> None:
    source, out = chest_xray_14(tmp_path / "nih"), tmp_path / "out"
    assert prepare("nih", source, out) == 0
    parts = {path.name for path in (out / "parts").iterdir()}
    entries = source / "Data_Entry_2017.csv"
    entries.write_text(entries.read_text().replace("Hernia", "Fibrosis"))

    assert prepare("nih", source, out) == 0

    assert "Hernia" not in (out / "official_test.jsonl").read_text()
    assert len(parts) == len(list((out / "parts").iterdir()))
    assert parts != {path.name for path in (out / "parts").iterdir()}


@LABORATORY
def test_a_stop_leaves_complete_parts_only(tmp_path: Path) -> None:
    source, out = chest_xray_14(tmp_path / "nih", patients=600), tmp_path / "out"
    command = [sys.executable, "-m", "models.prepare", "nih", str(source), str(out), "--processes", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True) as running:
        while not list(out.glob("parts/*.jsonl")) and running.poll() is None:
            time.sleep(0.001)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)

    assert running.returncode == 130
    assert said.splitlines()[-1] == "stopped; run python -m models.prepare as before to continue from here"
    assert not (out / "summary.json").exists()
    assert prepare("nih", source, out) == 0
    assert counts_of(out)["films"] == 1200


def test_counts_stand_beside_those_that_are_published() -> None:
    published = [Published(what="films", count=3, source="paper"), Published(what="boxes", count=2, source="data set")]

    said = text(table({"films": 3, "boxes": 1, "others": 4}, published)).splitlines()

    assert said == [
        "        3  films; published by the paper: 3",
        "        1  boxes; published by the data set: 2  (differs)",
        "        4  others",
    ]


# ---- what is wrong


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a,c\n1,2\n", "line 1, column 'b': is missing among a, c"),
        (b"", "line 1, column 'a': is missing among "),
        (b"a,b\n1\n", "line 2, column 'b': the row has 1 cells instead of 2"),
        (b"a,b\n1,2\n1,2,3\n", "line 3, column 'b': the row has 3 cells instead of 2"),
        (b"a,b\n,2\n", "line 2, column 'a': is empty"),
        (b"a,b\n1,x\n", "line 2, column 'b': 'x' is no number"),
        (b"a,b\n1,nan\n", "line 2, column 'b': 'nan' is no number"),
        (b"a,b\n1,2.5\n", "line 2, column 'b': '2.5' is no number of pixels"),
        (b"a,b\n3,2\n", "line 2, column 'a': '3' is none of 1, 2"),
        (GZIPPED[:-12], "is damaged"),
        (GZIPPED[:10] + b"\xff" + GZIPPED[11:], "is damaged"),
        (gzip.compress(b"a,b\n\xff\n", mtime=0), "is damaged"),
    ],
)
def test_a_wrong_table_is_told_with_its_place(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / ("table.csv.gz" if content[:1] == GZIPPED[:1] else "table.csv")
    path.write_bytes(content)

    with pytest.raises(ModelError) as refused:
        for row in rows_of(path, ("a", "b")):
            row.one_of("a", ("1", "2"))
            row.size("b")

    assert str(refused.value).startswith(str(path)) and complaint in str(refused.value)


BOXES, PHRASES = "BBox_List_2017.csv", "MS_CXR_Local_Alignment_v1.0.0.csv"
READERS, CONSENSUS = "annotations/image_labels_train.csv", "annotations/annotations_test.csv"
SPLIT, MARKS = "mimic-cxr-2.0.0-split.csv.gz", "mimic-cxr-2.0.0-chexpert.csv.gz"
READINGS = "nih_512_readings.jsonl"
SCENE = f"silver_dataset/scene_graph/{dicom_id(0)}_SceneGraph.json"
WRONG: list[tuple[str, str, str, str | None, str]] = [
    ("nih", "Data_Entry_2017.csv", "Hernia", "Hernya", "line 12, column 'Finding Labels': 'Hernya' is no label"),
    ("nih", "Data_Entry_2017.csv", "00000001_000", "9_000", "line 2, column 'Image Index': 9_000.png is not in"),
    ("nih", BOXES, "Infiltrate", "Infiltrat", "line 3, column 'Finding Label': 'Infiltrat' is none of"),
    ("nih", BOXES, "20.5,16", "20.5,-16", "line 2, column 'w': the box"),
    ("nih", BOXES, "20.5,16", "0,16", "line 2, column 'w': the box"),
    ("nih", BOXES, "00000002_001", "9_001", "line 2, column 'Image Index': 9_001.png has no row"),
    ("nih", BOXES, "", None, BOXES),
    ("nih", "test_list.txt", "", None, "test_list.txt"),
    ("nih", "images_001/images/00000002_001.png", "", "nothing", "is no picture that can be read"),
    ("vindr", READERS, "Other diseases", "Others", "line 2, column 'Other disease': is missing"),
    ("vindr", READERS, "train00,R8,0", "train00,R8,2", "column 'Aortic enlargement': '2' is neither 0 nor 1"),
    ("vindr", "annotations/annotations_train.csv", "Rib fracture", "Rib", "'class_name': 'Rib' is none of"),
    ("vindr", CONSENSUS, "test00,Card", "test77,Card", "line 2, column 'image_id': test77 has no row of labels"),
    ("vindr", "train/train01.dicom", "", None, "train01.dicom is missing, which"),
    ("vindr", "train/train01.dicom", "", "DICM", "can be decoded"),
    ("mimic", SPLIT, ",train", ",training", "line 2, column 'split': 'training' is none of train, validate, test"),
    ("mimic", SPLIT, dicom_id(0), "x", "column 'dicom_id': "),
    ("mimic", MARKS, "1.0", "2.0", "line 2, column 'Cardiomegaly': '2.0' is none of"),
    ("mscxr", PHRASES, "Pleural Effusion", "Effusion", "line 2, column 'category_name'"),
    ("mscxr", PHRASES, "64,80", "65,80", "line 2, column 'image_width': (65, 80)"),
    ("imagenome", SCENE, "objects", "things", "KeyError"),
    ("imagenome", SCENE, "}", "", "is no scene graph"),
    ("readings", READINGS, '"Consolidation"', '"Effusoin"', "'Effusoin' is no label"),
    ("readings", READINGS, '"fracture"', '"opacity"', "'opacity' is no label"),
    ("readings", READINGS, '"effusion"', '"opacity"', "'opacity' is no label"),
    ("readings", READINGS, "1_000.png", "9_000.png", "has a reading of 9_000.png, which nih_512.jsonl does not list"),
    ("readings", READINGS, '"file": "1_000.png", ', "", "nih_512_readings.jsonl, line 1: not a reading"),
]
"""Of a data set: a file, what stands there (everything), what shall (None: no file), and what is said."""


@pytest.mark.parametrize(("data_set", "file", "old", "new", "complaint"), WRONG)
def test_what_is_wrong_with_a_data_set_is_told_with_its_place(
    prepared: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    data_set: str,
    file: str,
    old: str,
    new: str | None,
    complaint: str,
) -> None:
    path = SOURCES[data_set](tmp_path / "source") / file
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert old.encode() in content
    path.unlink()
    if new is not None:
        count = -1 if data_set in ("nih", "vindr") else 1
        content = content.replace(old.encode(), new.encode(), count) if old else new.encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    more = ("--mimic", str(prepared / "mimic-out")) if data_set in ON_MIMIC else ()

    assert prepare(data_set, tmp_path / "source", tmp_path / "out", *more) == 2

    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ") and str(tmp_path / "source") in said and complaint in said


@pytest.mark.parametrize("data_set", ["mscxr", "imagenome"])
def test_sets_on_mimic_need_it_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str], data_set: str) -> None:
    assert prepare(data_set, tmp_path, tmp_path / "out") == 2
    assert "prepare mimic, and give its OUT by --mimic" in capsys.readouterr().err
    assert prepare(data_set, tmp_path, tmp_path / "out", "--mimic", str(tmp_path)) == 2
    assert "prepare mimic to its end" in capsys.readouterr().err


def test_settings_are_chosen_on_films_of_others(prepared: Path) -> None:
    nih = prepared / "nih-out"
    complaints = {
        "test": "patients of {} are measured too; choose on films of other patients",
        "train": "{} has no labels for the task detection_nih8",
        "nowhere": "{} cannot be read",
    }
    for others, complaint in complaints.items():
        path = nih / f"{others}.jsonl"
        request = Request(model=MODEL, data=f"boxes:{nih / 'test.jsonl'}", tasks=["detection_nih8"], choose_on=path)
        with pytest.raises(ModelError, match=re.escape(complaint.format(path))):
            evaluate(request, quiet)


def test_halves_divide_patients_and_boxes() -> None:
    names = [f"{patient:08}_{visit:03}.png" for patient in range(200) for visit in range(patient % 4 + 1)] * 2

    first, second = halves(names)

    assert {*first, *second} == {*names} and len(first) + len(second) == len(set(names))
    assert not {name[:8] for name in first} & {name[:8] for name in second}
    assert abs(len(first) - len(second)) <= 4
    assert halves(names) == (first, second)


def test_what_no_reader_said_is_no_label(tmp_path: Path) -> None:
    source = vindr_cxr(tmp_path / "source", train=1, test=1)
    boxes, labels = (source / "annotations" / f"{name}_test.csv" for name in ("annotations", "image_labels"))
    boxes.write_text(boxes.read_text().replace("test00,Cardiomegaly,20,30,44,50", "test00,Cardiomegaly,,,,"))
    labels.write_text(labels.read_text().replace("test00,0", "test00,"))

    assert prepare("vindr", source, tmp_path / "out") == 0

    (line,) = lines(tmp_path / "out" / "test.jsonl")
    assert [box["label"] for box in line["boxes"]] == ["vindrcxr/Nodule/Mass"]
    assert "vindrcxr/Aortic enlargement" not in line["labels"] and len(line["labels"]) == 27
    counts = counts_of(tmp_path / "out")
    assert counts["boxes without edges, left out"] == counts["labels without a vote, left out"] == 1


@pytest.mark.parametrize("name", ["train00", "train01", "train02", "train03"])
def test_gray_values_are_those_of_the_published_training(prepared: Path, name: str) -> None:
    film = dcmread(prepared / "vindr" / "train" / f"{name}.dicom")
    stored = film.pixel_array.astype(np.float64)
    if film.PhotometricInterpretation == "MONOCHROME1":
        stored = stored.max() - stored
    eight = (
        stored if film.BitsAllocated == 8 else np.floor((stored - stored.min()) / (stored.max() - stored.min()) * 255)
    )
    # By sorting, on the whole picture: the share of pixels that are not brighter.
    share = np.searchsorted(np.sort(eight, axis=None), eight, side="right") / eight.size

    picture = cv2.imread(str(prepared / "vindr-out" / "pictures" / f"{name}.png"), cv2.IMREAD_UNCHANGED)

    assert picture is not None and picture.dtype == np.uint8
    # scikit-image interpolates between the middles of 256 bins, so a value differs by up to a bin.
    assert np.abs(picture - 255 * share).max() < 256 * np.bincount(eight.astype(int).ravel()).max() / eight.size + 1
    assert abs(np.median(picture) - 127) < 25


def test_boxes_of_one_class_never_fuse_with_those_of_another() -> None:
    found = {"a": [[0, 0, 10, 10], [0, 0, 10, 12]], "b": [[0, 0, 10, 10], [90, 90, 100, 100]], "c": [[1, 1, 2, 2]]}

    assert {name: sorted(boxes) for name, boxes in fused(found).items()} == {
        "a": [[0.0, 0.0, 10.0, 11.0]],
        "b": [[0.0, 0.0, 10.0, 10.0], [90.0, 90.0, 100.0, 100.0]],
        "c": [[1, 1, 2, 2]],
    }


def test_reports_are_read_by_their_sections_and_sentences_put_in_order() -> None:
    sections = {"FINIDNGS": "findings", "PORTABLE AP CHEST": "findings", "CHEST, TWO VIEWS": "findings"}
    sections |= dict.fromkeys(("IMPRESSION", "FINDINGS/IMPRESSION", "CONCLUSION"), "impression")
    named = {heading: section_named(heading) for heading in (*sections, "REASON FOR EXAM", "COMPARISON")}
    assert named == sections | {"REASON FOR EXAM": None, "COMPARISON": None}

    cleaned = {
        "1. No pneumonia.": "No pneumonia.",
        "#2 no change": "#2 no change",
        "AP CHEST: heart is normal..": "Heart is normal.",
        "WET READ: ___ ___ 8:19 AM   Lungs\n are clear . .": "Lungs are clear .",
        "2.5 cm nodule": "2.5 cm nodule",
        "": "",
    }
    assert {text: clean(text) for text in cleaned} == cleaned

    assert list(sections_of(REPORT)) == ["findings", "impression"]
    assert sentences_of("INDICATION: Cough.\n\n COMPARISON: None.") == []
    twice = "FINDINGS: \n\n FINDINGS: The lungs are clear. The lungs are clear."
    assert sentences_of(twice) == ["The lungs are clear."]


def test_films_of_ms_cxr_keep_their_regions(prepared: Path, tmp_path: Path) -> None:
    """What Figures 4 to 8 are measured on: MS-CXR added to the lines of Chest ImaGenome, and not of MIMIC-CXR."""
    regions_of = prepared / "imagenome-out"
    assert prepare("mscxr", prepared / "mscxr", tmp_path, "--mimic", str(regions_of)) == 0

    both, regions = lines(tmp_path / "test.jsonl")[0], lines(regions_of / "validate.jsonl")[0]
    assert [box["label"] for box in both["boxes"][:3]] == ["mscxr/Pleural Effusion"] * 2 + ["mscxr/Cardiomegaly"]
    assert both["boxes"][3:] == regions["boxes"] and both["region_findings"] == regions["region_findings"]
    assert not both.keys() & {"labels", "report"}


def test_a_line_of_mimic_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    found = []
    for view in ("AP", "PA"):
        (tmp_path / "train.jsonl").write_text(json.dumps({"file": "a.jpg", "view": view}) + "\n")
        found += list(places_of(tmp_path))

    assert [name for _, name, _ in found] == ["a", "a"] and len({*found}) == 2


def test_boxes_are_joined_as_published() -> None:
    boxes = [(0.0, 0.0, 2.0, 2.0), (5.0, 5.0, 6.0, 6.0), (2.0, 2.0, 5.0, 5.0)]

    # The third touches both and is joined with the first alone.
    assert joined(boxes) == [(0.0, 0.0, 5.0, 5.0), (5.0, 5.0, 6.0, 6.0)]
