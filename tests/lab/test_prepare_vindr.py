"""VinDr-CXR, from its official layout to lines that training and evaluation read, and to a figure."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from pydicom import dcmread

from models.lab.datasets.vindr import fused
from models.prepare import main
from tests.lab.datasets import lines, vindr_cxr

pytestmark = pytest.mark.drill(part="laboratory")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vindr")
    assert main(["vindr", str(vindr_cxr(folder / "source")), str(folder / "out"), "--processes", "1"]) == 0
    return folder / "out"


def test_labels_are_the_majority_and_boxes_are_fused(prepared: Path) -> None:
    line = lines(prepared / "train.jsonl")[0]

    assert (line["file"], line["size"], line["patient"]) == ("pictures/train00.png", [72, 64], "train00")
    present = {name for name, there in line["labels"].items() if there}
    assert present == {"vindrcxr/Cardiomegaly", "vindrcxr/Nodule/Mass", "vindrcxr/Pneumonia"}
    assert len(line["labels"]) == 28 and len(line["located"]) == 22
    # The two boxes of the heart overlap and become their mean; those of nodules do not; one reader saw a fracture.
    assert line["boxes"] == [
        {"label": "vindrcxr/Cardiomegaly", "xyxy": [21.0, 30.0, 45.0, 50.0]},
        {"label": "vindrcxr/Nodule/Mass", "xyxy": [12.0, 12.0, 18.0, 20.0]},
        {"label": "vindrcxr/Nodule/Mass", "xyxy": [40.0, 12.0, 46.0, 20.0]},
        {"label": "vindrcxr/Rib fracture", "xyxy": [50.0, 10.0, 56.0, 14.0]},
    ]
    rows = {row["what"]: row for row in json.loads((prepared / "summary.json").read_text())}
    assert rows["boxes of classes that the majority did not see"]["count"] == 2
    assert rows["films in train.jsonl"] == {
        "what": "films in train.jsonl",
        "count": 4,
        "published": 15000,
        "by": "data set",
    }


def test_what_no_reader_said_is_no_label(tmp_path: Path) -> None:
    source = vindr_cxr(tmp_path / "source", train=1, test=1)
    boxes, labels = (source / "annotations" / f"{name}_test.csv" for name in ("annotations", "image_labels"))
    boxes.write_text(boxes.read_text().replace("test00,Cardiomegaly,20,30,44,50", "test00,Cardiomegaly,,,,"))
    labels.write_text(labels.read_text().replace("test00,0", "test00,"))

    assert main(["vindr", str(source), str(tmp_path / "out"), "--processes", "1"]) == 0

    (line,) = lines(tmp_path / "out" / "test.jsonl")
    assert [box["label"] for box in line["boxes"]] == ["vindrcxr/Nodule/Mass"]
    assert "vindrcxr/Aortic enlargement" not in line["labels"] and len(line["labels"]) == 27
    counts = {row["what"]: row["count"] for row in json.loads((tmp_path / "out" / "summary.json").read_text())}
    assert counts["boxes without edges, left out"] == counts["labels without a vote, left out"] == 1


def test_the_test_set_is_halved_as_published(prepared: Path) -> None:
    validate, test = ([line["patient"] for line in lines(prepared / f"{name}.jsonl")] for name in ("validate", "test"))

    # pandas' sample(frac=1, random_state=12345) of five rows, cut in the middle.
    assert (validate, test) == (["test00", "test04"], ["test03", "test01", "test02"])
    boxed = [line for line in lines(prepared / "test.jsonl") if line["boxes"]]
    assert [box["label"] for line in boxed for box in line["boxes"]] == [
        "vindrcxr/Cardiomegaly",
        "vindrcxr/Nodule/Mass",
    ]


@pytest.mark.parametrize("name", ["train00", "train01", "train02", "train03"])
def test_gray_values_are_those_of_the_published_training(prepared: Path, name: str) -> None:
    film = dcmread(prepared.parent / "source" / "train" / f"{name}.dicom")
    stored = film.pixel_array.astype(np.float64)
    if film.PhotometricInterpretation == "MONOCHROME1":
        stored = stored.max() - stored
    eight = (
        stored if film.BitsAllocated == 8 else np.floor((stored - stored.min()) / (stored.max() - stored.min()) * 255)
    )
    # By sorting, on the whole picture: the share of pixels that are not brighter.
    share = np.searchsorted(np.sort(eight, axis=None), eight, side="right") / eight.size

    picture = cv2.imread(str(prepared / "pictures" / f"{name}.png"), cv2.IMREAD_UNCHANGED)

    assert picture is not None and picture.dtype == np.uint8
    # scikit-image interpolates between the middles of 256 bins, so a value differs by up to a bin.
    assert np.abs(picture - 255 * share).max() < 256 * np.bincount(eight.astype(int).ravel()).max() / eight.size + 1
    assert abs(np.median(picture) - 127) < 25


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("image_labels_train.csv", "Other diseases", "Others", "line 2, column 'Other disease': is missing"),
        (
            "image_labels_train.csv",
            "train00,R8,0",
            "train00,R8,2",
            "column 'Aortic enlargement': '2' is neither 0 nor 1",
        ),
        ("annotations_train.csv", "Rib fracture", "Rib", "line 6, column 'class_name': 'Rib' is none of"),
        (
            "annotations_test.csv",
            "test00,Card",
            "test77,Card",
            "line 2, column 'image_id': test77 has no row of labels",
        ),
        ("annotations_test.csv", "20,30", "x,30", "line 2, column 'x_min': 'x' is no number"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, complaint: str
) -> None:
    path = vindr_cxr(tmp_path / "source", train=2, test=2) / "annotations" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))

    assert main(["vindr", str(tmp_path / "source"), str(tmp_path / "out"), "--processes", "1"]) == 2

    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: {path}, ") and complaint in said


@pytest.mark.parametrize(("content", "complaint"), [(None, "is missing, which"), (b"DICM", "can be decoded")])
def test_a_film_that_is_missing_or_damaged_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, complaint: str
) -> None:
    film = vindr_cxr(tmp_path / "source", train=2, test=2) / "train" / "train01.dicom"
    film.unlink()
    if content is not None:
        film.write_bytes(content)

    assert main(["vindr", str(tmp_path / "source"), str(tmp_path / "out"), "--processes", "1"]) == 2
    assert f"error: {film} " in (said := capsys.readouterr().err) and complaint in said


def test_boxes_of_one_class_never_fuse_with_those_of_another() -> None:
    found = {"a": [[0, 0, 10, 10], [0, 0, 10, 12]], "b": [[0, 0, 10, 10], [90, 90, 100, 100]], "c": [[1, 1, 2, 2]]}

    assert {name: sorted(boxes) for name, boxes in fused(found).items()} == {
        "a": [[0.0, 0.0, 10.0, 11.0]],
        "b": [[0.0, 0.0, 10.0, 10.0], [90.0, 90.0, 100.0, 100.0]],
        "c": [[1, 1, 2, 2]],
    }
