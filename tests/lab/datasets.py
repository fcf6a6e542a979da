"""Miniatures of public data sets, in their official layouts, with made-up films and labels."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import imagecodecs
import numpy as np
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    generate_uid,
)

from models.lab.evaluation.cases import EvaluationCase
from models.lab.phantoms.picture import phantom


class Films(list[EvaluationCase]):
    """A source of films that are at hand already."""

    def load(self, index: int) -> EvaluationCase:
        return self[index]


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


def wordnet(folder: Path) -> Path:
    """A WordNet of one set of nouns: fog and haze mean the same; NLTK looks up stems, which these are."""
    place = folder / "nltk" / "corpora" / "wordnet"
    place.mkdir(parents=True)
    kinds = ["noun", "verb", "adj", "adv"]
    for name in ("cntlist.rev", "index.sense", *(f"{kind}.exc" for kind in kinds)):
        (place / name).write_text("")
    for kind in kinds:
        (place / f"data.{kind}").write_text("")
        (place / f"index.{kind}").write_text("")
    (place / "data.adj").write_text("  1 WordNet 3.0 Copyright 2006 by Princeton University.  \n")
    (place / "lexnames").write_text("00\tadj.all\t3\n01\tadj.pert\t3\n02\tadv.all\t4\n03\tnoun.Tops\t1\n")
    (place / "data.noun").write_text("00000000 03 n 02 fog 0 haze 0 000 | not clear  \n")
    (place / "index.noun").write_text("".join(f"{word} n 1 0 1 0 00000000  \n" for word in ("fog", "haze")))
    return folder


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file, as JSON."""
    return [json.loads(line) for line in path.read_text().splitlines()]


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


VINDR_LOCAL = (
    "Aortic enlargement|Atelectasis|Calcification|Cardiomegaly|Clavicle fracture|Consolidation|Edema|Emphysema|"
    "Enlarged PA|ILD|Infiltration|Lung Opacity|Lung cavity|Lung cyst|Mediastinal shift|Nodule/Mass|Pleural effusion|"
    "Pleural thickening|Pneumothorax|Pulmonary fibrosis|Rib fracture|Other lesion"
).split("|")


def vindr_cxr(folder: Path, *, train: int = 4, test: int = 5) -> Path:
    """VinDr-CXR: three readers a film of `train`, a consensus in `test`.

    As published: "Other diseases" in one table and "Other disease" in the other, a reader's column in one alone, rows
    of "No finding" without a box, an empty cell beside two votes that differ, MONOCHROME1, a film of 8 bits, one in
    lossless JPEG 2000.
    """
    names = {"train": [f"train{number:02}" for number in range(train)], "test": [f"test{n:02}" for n in range(test)]}
    for split, films in names.items():
        for number, name in enumerate(films):
            vindr_film(folder / split / f"{name}.dicom", number)
        others = ["COPD", "Lung tumor", "Pneumonia", "Tuberculosis", f"Other disease{'s' * (split == 'train')}"]
        readers = ["R8", "R9", "R10"] if split == "train" else [""]
        header = ["image_id", *["rad_id"] * (split == "train"), *VINDR_LOCAL, *others, "No finding"]
        labels: list[list[object]] = []
        boxes: list[list[object]] = []
        for number, name in enumerate(films):
            for place, reader in enumerate(readers):
                own = [name, *[reader] * (split == "train")]
                sees = number % 2 == 0 and place < 2
                found = [int(sees and label in ("Cardiomegaly", "Nodule/Mass")) for label in VINDR_LOCAL]
                divided = "" if place == 2 else int(sees and place == 1)
                labels.append([*own, *found, divided, 0, int(sees), 0, 0, int(not sees)])
                shift = 2 * place
                if sees:
                    boxes.append([*own, "Cardiomegaly", 20 + shift, 30, 44 + shift, 50])
                    boxes.append([*own, "Nodule/Mass", 12 if place == 0 else 40, 12, 18 if place == 0 else 46, 20])
                elif number % 2 == 0:
                    boxes.append([*own, "Rib fracture", 50, 10, 56, 14])
                else:
                    boxes.append([*own, "No finding", "", "", "", ""])
        write_table(folder / "annotations" / f"image_labels_{split}.csv", header, labels)
        edges = ["image_id", *["rad_id"] * (split == "train"), "class_name", "x_min", "y_min", "x_max", "y_max"]
        write_table(folder / "annotations" / f"annotations_{split}.csv", edges, boxes)
    return folder


def vindr_film(path: Path, number: int) -> None:
    """A DICOM film of 72 x 64 pixels: 12 bits, 8 bits, inverted, or compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shown = film(2_000_200 + number, columns=72, rows=64)
    kind = number % 4
    stored = shown if kind == 1 else (shown.astype(np.uint16) * 13 + 100)
    bits = 8 if kind == 1 else 16
    made = Dataset()
    made.SOPClassUID, made.SOPInstanceUID = (
        DigitalXRayImageStorageForPresentation,
        generate_uid(entropy_srcs=[path.stem]),
    )
    made.Rows, made.Columns = stored.shape
    made.SamplesPerPixel, made.PixelRepresentation, made.NumberOfFrames = 1, 0, 1
    made.PhotometricInterpretation = "MONOCHROME1" if kind == 2 else "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit = bits, min(bits, 12), min(bits, 12) - 1
    is_compressed = kind == 3
    pixels = bytes(imagecodecs.jpeg2k_encode(stored, level=0, codecformat="j2k")) if is_compressed else stored.tobytes()
    made.PixelData = encapsulate([pixels]) if is_compressed else pixels
    made["PixelData"].VR = "OB" if is_compressed or bits == 8 else "OW"
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = JPEG2000Lossless if is_compressed else ExplicitVRLittleEndian
    made.save_as(path, enforce_file_format=True)


REPORT = """                                 FINAL REPORT
 EXAMINATION:  CHEST (PA AND LAT)

 INDICATION:  ___ year old woman with cough

 COMPARISON:  None.

 FINDINGS:

 The heart is mildly
 enlarged.  There is a small left pleural effusion..  WET READ: ___ ___ 8:19 AM
 No pneumothorax.

 IMPRESSION:

 1. Small left pleural effusion.
 2. Clear.

 NOTIFICATION: Dr. ___ was told at 3 p.m.
"""
CHEXPERT_COLUMNS = (
    "Atelectasis,Cardiomegaly,Consolidation,Edema,Enlarged Cardiomediastinum,Fracture,Lung Lesion,Lung Opacity,"
    "No Finding,Pleural Effusion,Pleural Other,Pneumonia,Pneumothorax,Support Devices"
).split(",")


def dicom_id(number: int) -> str:
    """The name of a film of MIMIC-CXR."""
    return "-".join(f"{number * 16 + part:08x}" for part in range(5))


def mimic_cxr(folder: Path, *, patients: int = 12) -> Path:
    """MIMIC-CXR-JPG with the reports beside it: a study a patient, every third with a lateral too.

    As published: tables compressed by gzip, labels as "1.0", "-1.0" or blank, a study without labels, reports wrapped
    at 80 columns, one without findings and impression; of twelve patients eight train, two validate and two test. The
    split names a film that is not there.
    """
    metadata: list[list[object]] = []
    split: list[list[object]] = []
    chexpert: list[list[object]] = []
    for number in range(patients):
        subject, study = 10_000_000 + number, 50_000_000 + number
        place = folder / "files" / "p10" / f"p{subject}"
        part = "train" if number < patients - 4 else "validate" if number < patients - 2 else "test"
        views = ["PA" if number % 2 else "AP", *["LATERAL"] * (number % 3 == 0)]
        for film_number, view in enumerate(views):
            name = dicom_id(2 * number + film_number)
            metadata.append([name, subject, study, "CHEST (PA AND LAT)", view, 80, 64, 21800506, "213014.531"])
            split.append([name, study, subject, part])
            draw(place / f"s{study}" / f"{name}.jpg", 2_000_300 + number, columns=64, rows=80)
        text = "EXAMINATION: CHEST\n\n Nothing was dictated." if number == 1 else REPORT
        (place / f"s{study}.txt").write_text(text)
        if number != 2:
            known = {"Cardiomegaly": "1.0", "Pleural Effusion": "-1.0", "Pneumothorax": "0.0"}
            chexpert.append([subject, study, *(known.get(column, "") for column in CHEXPERT_COLUMNS)])
    columns = ["dicom_id", "subject_id", "study_id", "PerformedProcedureStepDescription", "ViewPosition", "Rows"]
    tables: dict[str, tuple[list[str], list[list[object]]]] = {
        "metadata": ([*columns, "Columns", "StudyDate", "StudyTime"], metadata),
        "split": (["dicom_id", "study_id", "subject_id", "split"], [*split, [dicom_id(999), 1, 2, "train"]]),
        "chexpert": (["subject_id", "study_id", *CHEXPERT_COLUMNS], chexpert),
    }
    for name, (header, rows) in tables.items():
        path = folder / f"mimic-cxr-2.0.0-{name}.csv"
        write_table(path, header, rows)
        path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


def ms_cxr(folder: Path, *, patients: int = 12) -> Path:
    """MS-CXR on the films of `mimic_cxr`: two boxes of one phrase, one of another, and a film that is not there."""
    columns = ["category_name", "label_text", "path", "x", "y", "w", "h", "image_width", "image_height", "dicom_id"]
    rows: list[list[object]] = []
    for number in range(patients):
        name = dicom_id(2 * number)
        end = [64, 80, name]
        rows.append(["Pleural Effusion", "small left effusion", f"files/{name}.jpg", 40, 50, 16, 20, *end])
        rows.append(["Pleural Effusion", "small left effusion", f"files/{name}.jpg", 4, 50, 16, 20, *end])
        rows.append(["Cardiomegaly", "the heart is enlarged", f"files/{name}.jpg", 20, 40, 30, 24, *end])
    rows.append(["Edema", "edema", "files/x.jpg", 1, 1, 5, 5, 64, 80, dicom_id(999)])
    write_table(folder / "MS_CXR_Local_Alignment_v1.0.0.csv", columns, rows)
    return folder


CIG_REGIONS = ("right lung", "left lung", "cardiac silhouette", "trachea", "spine", "left cardiac silhouette")


def chest_imagenome(folder: Path, *, patients: int = 12) -> Path:
    """Chest ImaGenome on the films of `mimic_cxr`: scene graphs of all but one.

    As published: boxes on 224 pixels beside those of the film, objects beyond the 29, a box of no size, a region twice
    on one film, three boxes alone on another, "no" beside "yes", categories that are no findings, a phrase of one word,
    a scene graph of a film that is not there.
    """
    silver = folder / "silver_dataset"
    (silver / "scene_graph").mkdir(parents=True)
    for number in range(patients - 1):
        scene = scene_graph(number)
        (silver / "scene_graph" / f"{dicom_id(2 * number)}_SceneGraph.json").write_text(json.dumps(scene))
    (silver / "scene_graph" / f"{dicom_id(999)}_SceneGraph.json").write_text("{}")
    return folder


def scene_graph(number: int) -> dict[str, Any]:
    """The scene graph of a patient's frontal film."""
    regions = CIG_REGIONS[:3] if number == 4 else (*CIG_REGIONS, *["trachea"] * (number == 5))
    things = [
        {
            **{"x1": 10, "y1": 10, "x2": 100, "y2": 200, "width": 90, "height": 190, "bbox_name": region},
            **{"original_x1": 4 + 8 * place, "original_y1": 8, "original_x2": 20 + 8 * place, "original_y2": 90},
        }
        for place, region in enumerate(regions)
    ]
    things.append(things[0] | {"bbox_name": "svc", "width": 0})
    effusion = ["anatomicalfinding|yes|pleural effusion", "nlp|yes|abnormal", "anatomicalfinding|yes|skin fold"]
    return {
        "image_id": dicom_id(2 * number),
        "viewpoint": "AP",
        "objects": things,
        "attributes": [
            {
                "bbox_name": "left lung",
                "attributes": [effusion, ["anatomicalfinding|no|pneumothorax"], ["tubesandlines|yes|chest tube"]],
                "phrases": ["There is a small left pleural effusion.. ", "No pneumothorax.", "Tube."],
            },
            {
                "bbox_name": "right lung",
                "attributes": [
                    ["anatomicalfinding|no|pneumothorax", "technicalassessment|yes|rotated"],
                    ["nlp|yes|normal"],
                ],
                "phrases": ["No pneumothorax.", "The right lung is well aerated."],
            },
            {
                "bbox_name": "aortic arch",
                "attributes": [["disease|yes|pneumonia", "nlp|yes|abnormal"]],
                "phrases": ["Elsewhere pneumonia."],
            },
        ],
    }
