"""Miniatures of public data sets, in their official layouts, with made-up films and labels."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from models.evaluate import main as evaluate
from models.lab.phantoms.picture import phantom
from models.lab.training.films import TrainingFilm, find_films, read_films
from models.lab.training.runfile import FilmSource
from models.reading.tokenizers import VOCABULARIES


def draw(path: Path, seed: int, *, columns: int = 64, rows: int = 64) -> None:
    """Write a drawn chest film as a picture; its square lies in the middle of gray margins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), film(seed, columns=columns, rows=rows))


def film(seed: int, *, columns: int, rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    side = min(columns, rows)
    shown = np.full((rows, columns), 40, dtype=np.uint8)
    top, left = (rows - side) // 2, (columns - side) // 2
    shown[top : top + side, left : left + side] = phantom(seed, side=side).pixels
    return shown


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]], *, separator: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, delimiter=separator)
        table.writerow(header)
        table.writerows(rows)


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, as JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(path: Path) -> list[TrainingFilm]:
    """The films of a file as training stores them, at 32 pixels."""
    return list(read_films(path, find_films(FilmSource(file=str(path))), side=32))


def figures(path: Path, task: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The document that the shipped model's evaluation of these films gives."""
    arguments = ["--model", str(VOCABULARIES.parent), "--data", f"boxes:{path}", "--task", task, "--json"]
    capsys.readouterr()
    assert evaluate([*arguments, "--engine", "torch", "--training-films", "3", "--resamples", "0"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


NIH_HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)


def chest_xray_14(folder: Path, *, patients: int = 12) -> Path:
    """ChestX-ray14: two films a patient, the even patients of the test list, a box on every second film of these.

    As published: brackets with commas in both headers, empty last columns, "Infiltrate" for "Infiltration" in the list
    of boxes, an age of 414 years.
    """
    names = [f"{patient:08}_{visit:03}.png" for patient in range(1, patients + 1) for visit in range(2)]
    findings = ("No Finding", "Effusion|Infiltration", "Mass", "Pneumonia|Edema", "Atelectasis", "Hernia")
    entries = [NIH_HEADER]
    boxes = ["Image Index,Finding Label,Bbox [x,y,w,h],,,"]
    for number, name in enumerate(names):
        patient, labels = int(name[:8]), findings[number // 2 % len(findings)]
        draw(folder / f"images_{number % 3 + 1:03}" / "images" / name, 2_000_100 + number)
        age, sex, view = 414 if number == 5 else 20 + number, "MF"[number % 2], ("PA", "AP")[number % 2]
        entries.append(f"{name},{labels},{number % 2},{patient},{age},{sex},{view},2682,2749,0.143,0.143,")
        if patient % 2 == 0 and number % 2:
            for label in labels.split("|"):
                found = {"Infiltration": "Infiltrate", "Edema": "Pneumonia", "Hernia": "Nodule"}.get(label, label)
                boxes.append(f"{name},{found},{10.5 + number % 5},12.25,20.5,16,,,")
    (folder / "Data_Entry_2017.csv").write_text("\n".join(entries) + "\n")
    (folder / "BBox_List_2017.csv").write_text("\n".join(boxes) + "\n")
    is_test = {name: int(name[:8]) % 2 == 0 for name in names}
    (folder / "test_list.txt").write_text("\n".join(name for name in names if is_test[name]))
    (folder / "train_val_list.txt").write_text("\n".join(name for name in names if not is_test[name]))
    return folder
