"""ChestX-ray14, from its official layout to lines that training and evaluation read, and to a figure."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from models.errors import ModelError
from models.lab.datasets.nih import halves
from models.lab.evaluation.command import evaluate
from models.lab.evaluation.request import Request
from models.prepare import main
from models.progress import quiet
from models.reading.tokenizers import VOCABULARIES
from tests.lab.datasets import chest_xray_14, draw, lines, trained

MODEL = VOCABULARIES.parent


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nih")
    assert main(["nih", str(chest_xray_14(folder / "source")), str(folder / "out"), "--processes", "1"]) == 0
    return folder / "out"


def test_each_film_is_in_the_file_of_its_part(prepared: Path) -> None:
    files = {path.stem: {str(line["file"])[-16:] for line in lines(path)} for path in prepared.glob("*.jsonl")}

    assert {name: len(films) for name, films in files.items()} == {
        "train": 12,
        "validate": 3,
        "test": 3,
        "official_test": 12,
    }
    assert files["validate"] | files["test"] < files["official_test"]
    assert not files["validate"] & files["test"] and not files["train"] & files["official_test"]


def test_a_line_has_what_the_tables_say(prepared: Path) -> None:
    boxed = {
        str(line["file"])[-16:]: line for line in lines(prepared / "validate.jsonl") + lines(prepared / "test.jsonl")
    }

    line = boxed["00000002_001.png"]
    assert line | {"file": ""} == {
        "file": "",
        "size": [64, 64],
        "patient": "00000002",
        "gray": "as stored",
        "view": "AP",
        "sex": "F",
        "nih_labels": ["Effusion", "Infiltration"],
        "age": "23",
        "boxes": [
            {"label": "Effusion", "xyxy": [13.5, 12.25, 34.0, 28.25]},
            {"label": "Infiltration", "xyxy": [13.5, 12.25, 34.0, 28.25]},
        ],
    }
    old = [
        line
        for line in lines(prepared / "train.jsonl")
        if line["file"] == "../source/images_003/images/00000003_001.png"
    ]
    assert [("age" in line) for line in old] == [False], "nobody is 414 years old"


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ("test", "patients of {} are measured too; choose on films of other patients"),
        ("train", "{} has no labels for the task detection_nih8"),
        ("nowhere", "{} cannot be read"),
    ],
)
def test_settings_are_chosen_on_films_of_others(prepared: Path, others: str, complaint: str) -> None:
    path = prepared / f"{others}.jsonl"
    request = Request(
        model=MODEL, data=f"boxes:{prepared / 'test.jsonl'}", tasks=(), published=["detection_nih8"], choose_on=path
    )

    with pytest.raises(ModelError, match=re.escape(complaint.format(path))):
        evaluate(request, quiet)


def test_halves_divide_patients_and_boxes() -> None:
    names = [f"{patient:08}_{visit:03}.png" for patient in range(200) for visit in range(patient % 4 + 1)] * 2

    first, second = halves(names)

    assert {*first, *second} == {*names} and len(first) + len(second) == len(set(names))
    assert not {name[:8] for name in first} & {name[:8] for name in second}
    assert abs(len(first) - len(second)) <= 4
    assert halves(names) == (first, second)


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("Data_Entry_2017.csv", "Hernia", "Hernya", "line 12, column 'Finding Labels': 'Hernya' is no label"),
        ("Data_Entry_2017.csv", ",PA,", ",LL,", "line 2, column 'View Position': 'LL' is none of AP, PA"),
        (
            "Data_Entry_2017.csv",
            "00000001_000",
            "00000099_000",
            "line 2, column 'Image Index': 00000099_000.png is not in",
        ),
        ("Data_Entry_2017.csv", "Finding Labels", "Labels", "line 1, column 'Finding Labels': is missing"),
        ("BBox_List_2017.csv", "Infiltrate", "Infiltrat", "line 3, column 'Finding Label': 'Infiltrat' is none of"),
        ("BBox_List_2017.csv", "20.5,16", "20.5,-16", "line 2, column 'w': the box"),
        (
            "BBox_List_2017.csv",
            "00000002_001",
            "00000099_001",
            "line 2, column 'Image Index': 00000099_001.png has no row",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, complaint: str
) -> None:
    source = chest_xray_14(tmp_path / "source")
    text = (source / file).read_text()
    assert old in text
    (source / file).write_text(text.replace(old, new))

    assert main(["nih", str(source), str(tmp_path / "out"), "--processes", "1"]) == 2

    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: {source / file}, ") and complaint in said


@pytest.mark.parametrize("name", ["BBox_List_2017.csv", "Data_Entry_2017.csv", "test_list.txt", "train_val_list.txt"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    source = chest_xray_14(tmp_path / "source")
    (source / name).unlink()

    assert main(["nih", str(source), str(tmp_path / "out")]) == 2
    assert str(source / name) in capsys.readouterr().err


FURTHER: list[dict[str, object]] = [
    {"file": "1_000.png", "det10": [{"label": "Consolidation", "xyxy": [8, 8, 24, 24]}], "google": {"fracture": True}},
    {"file": "2_000.png", "det10": [], "google": {"pneumothorax": False, "airspace_opacity": True}},
    {"file": "3_000.png", "google": {"airspace_opacity": True, "nodule_or_mass": False}},
    {"file": "4_000.png", "det10": [{"label": "Fibrosis", "xyxy": [8, 8, 24, 24]}]},
]


def with_readings(source: Path, readings: list[dict[str, object]]) -> Path:
    films = [{"file": f"{patient}_000.png", "nih_labels": ["Effusion"]} for patient in range(1, 6)]
    films[2]["rsna"] = "No Lung Opacity / Not Normal"
    for number, film in enumerate(films):
        draw(source / str(film["file"]), number)
    for name, rows in (("nih_512.jsonl", films), ("nih_512_readings.jsonl", readings)):
        (source / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return source


def test_a_reading_goes_before_a_mined_label_and_an_empty_one_denies(tmp_path: Path) -> None:
    source = with_readings(tmp_path / "source", FURTHER)

    assert main(["readings", str(source), str(tmp_path / "out"), "--processes", "1"]) == 0
    boxed, empty, labelled, other, unread = (film.line for film in trained(tmp_path / "out" / "films.jsonl"))

    assert boxed["present"] | {"edema": False} == {
        **dict.fromkeys(("atelectasis", "edema", "lung_lesion", "pleural_effusion", "pneumothorax"), False),
        **dict.fromkeys(("cardiomegaly", "pleural_other", "pneumonia", "no_finding"), False),
        **dict.fromkeys(("consolidation", "fracture", "lung_opacity"), True),
    }
    assert "pleural_effusion" not in boxed["mined"] and "edema" in boxed["mined"]
    assert len(boxed["boxes"]["consolidation"]) == 1 and "pleural_effusion" in boxed["located"]
    assert empty["present"]["pleural_effusion"] is False and empty["present"]["lung_opacity"] is True
    assert labelled["present"]["lung_opacity"] is False, "the RSNA's radiologists saw no opacity"
    assert labelled["present"]["pleural_effusion"] is True and labelled["present"]["lung_lesion"] is False
    assert other["boxes"] == {} and other["present"]["consolidation"] is False
    assert unread["present"]["pleural_effusion"] is True and "pleural_effusion" in unread["mined"]


@pytest.mark.parametrize(
    ("reading", "complaint"),
    [
        ({"file": "1_000.png", "det10": [{"label": "Effusoin", "xyxy": [8, 8, 24, 24]}]}, "'Effusoin' is no label"),
        ({"file": "1_000.png", "google": {"opacity": True}}, "'opacity' is no label"),
        ({"file": "9_000.png", "det10": []}, "has a reading of 9_000.png, which nih_512.jsonl does not list"),
        ({"det10": []}, "nih_512_readings.jsonl, line 1: not a reading"),
    ],
)
def test_a_reading_that_fits_no_film_or_label_is_refused(
    reading: dict[str, object], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = with_readings(tmp_path / "source", [reading])

    assert main(["readings", str(source), str(tmp_path / "out"), "--processes", "1"]) == 2
    assert complaint in capsys.readouterr().err
