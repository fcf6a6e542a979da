"""MIMIC-CXR, Chest ImaGenome and MS-CXR, from their official layouts to lines, and to figures."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from models.lab.datasets.imagenome import joined
from models.lab.datasets.reports import clean, section_named, sections_of, sentences_of
from models.lab.evaluation.boxes_file import read_films
from models.manifest import read_manifest
from models.prepare import main
from models.reading.tokenizers import VOCABULARIES
from tests.lab.datasets import REPORT, chest_imagenome, dicom_id, figures, lines, mimic_cxr, ms_cxr

pytestmark = pytest.mark.drill(part="laboratory")

MODEL = VOCABULARIES.parent
EFFUSION = "cig/af/pleural effusion"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three sets, prepared."""
    folder = tmp_path_factory.mktemp("mimic")
    mimic = ["--mimic", str(folder / "mimic-out"), "--processes", "1"]
    assert main(["mimic", str(mimic_cxr(folder / "mimic")), str(folder / "mimic-out"), "--processes", "1"]) == 0
    assert main(["mscxr", str(ms_cxr(folder / "mscxr")), str(folder / "mscxr-out"), *mimic]) == 0
    assert main(["imagenome", str(chest_imagenome(folder / "cig")), str(folder / "cig-out"), *mimic]) == 0
    return folder


def test_films_of_ms_cxr_keep_their_regions(folder: Path, tmp_path: Path) -> None:
    """What Figures 4 to 8 are measured on: MS-CXR added to the lines of Chest ImaGenome, and not of MIMIC-CXR."""
    assert main(["mscxr", str(folder / "mscxr"), str(tmp_path), "--mimic", str(folder / "cig-out")]) == 0

    both, regions = lines(tmp_path / "test.jsonl")[0], lines(folder / "cig-out" / "validate.jsonl")[0]
    assert [box["label"] for box in both["boxes"][:3]] == ["mscxr/Pleural Effusion"] * 2 + ["mscxr/Cardiomegaly"]
    assert both["boxes"][3:] == regions["boxes"] and both["region_findings"] == regions["region_findings"]
    assert "labels" not in both and "report" not in both


def counts_of(out: Path) -> dict[str, int]:
    return {row["what"]: row["count"] for row in json.loads((out / "summary.json").read_text())}


def test_frontal_films_are_split_as_published(folder: Path) -> None:
    out = folder / "mimic-out"

    assert {name: len(lines(out / f"{name}.jsonl")) for name in ("train", "validate", "test")} == {
        "train": 8,
        "validate": 2,
        "test": 2,
    }
    assert {line["view"] for line in lines(out / "train.jsonl")} == {"AP", "PA"}
    counts = counts_of(out)
    assert (counts["films of all views"], counts["films that are not frontal, left out"]) == (16, 4)
    assert counts["films without findings and impression"] == counts["films without labels of CheXpert"] == 1
    assert counts["films of the split without metadata, left out"] == 1


def test_a_line_has_labels_report_and_metadata(folder: Path) -> None:
    first, silent, unlabeled = lines(folder / "mimic-out" / "train.jsonl")[:3]

    assert first["file"] == f"../mimic/files/p10/p10000000/s50000000/{dicom_id(0)}.jpg"
    assert (first["patient"], first["study"], first["size"]) == ("10000000", "50000000", [64, 80])
    assert first["labels"] == {"cardiomegaly": True, "pleural_effusion": True, "pneumothorax": False}
    assert sorted(first["mined"]) == sorted(first["labels"])
    assert [sentence["text"] for sentence in first["sentences"]] == [
        "The heart is mildly enlarged.",
        "There is a small left pleural effusion.",
        "No pneumothorax.",
        "Small left pleural effusion.",
    ]
    assert first["sentences"][1] == {
        "text": "There is a small left pleural effusion.",
        "positive": True,
        "findings": ["pleural_effusion"],
    }
    assert first["report"].startswith("The heart is mildly enlarged. There is")
    assert "report" not in silent and "labels" not in unlabeled


@pytest.mark.parametrize(
    ("heading", "section"),
    [
        ("FINDINGS", "findings"),
        ("FINIDNGS", "findings"),
        ("PORTABLE AP CHEST", "findings"),
        ("CHEST, TWO VIEWS", "findings"),
        ("IMPRESSION", "impression"),
        ("FINDINGS/IMPRESSION", "impression"),
        ("CONCLUSION", "impression"),
        ("REASON FOR EXAM", None),
        ("COMPARISON", None),
        ("CLINICAL HISTORY", None),
    ],
)
def test_headings_name_sections(heading: str, section: str | None) -> None:
    assert section_named(heading) == section


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("1. No pneumonia.", "No pneumonia."),
        ("#2 no change", "#2 no change"),
        ("AP CHEST: heart is normal..", "Heart is normal."),
        ("WET READ: ___ ___ 8:19 AM   Lungs\n are clear . .", "Lungs are clear ."),
        ("2.5 cm nodule", "2.5 cm nodule"),
        ("", ""),
    ],
)
def test_sentences_are_put_in_order(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_a_report_of_other_sections_has_no_sentences() -> None:
    assert list(sections_of(REPORT)) == ["findings", "impression"]
    assert sentences_of("INDICATION: Cough.\n\n COMPARISON: None.") == []
    assert sentences_of("FINDINGS: \n\n FINDINGS: The lungs are clear. The lungs are clear.") == [
        "The lungs are clear."
    ]


def test_phrases_are_tested_on_two_splits_of_mimic(folder: Path) -> None:
    out = folder / "mscxr-out"

    assert (len(lines(out / "validate.jsonl")), len(lines(out / "test.jsonl"))) == (8, 4)
    line = lines(out / "test.jsonl")[0]
    assert line["file"].startswith("../mimic/files/p10/p10000008/")
    assert "labels" not in line and "report" not in line
    assert line["phrases"] == [
        {
            "text": "small left effusion",
            "positive": True,
            "findings": ["mscxr/Pleural Effusion"],
            "regions": [],
            "boxes": [[40.0, 50.0, 56.0, 70.0], [4.0, 50.0, 20.0, 70.0]],
        },
        {
            "text": "the heart is enlarged",
            "positive": True,
            "findings": ["mscxr/Cardiomegaly"],
            "regions": [],
            "boxes": [[20.0, 40.0, 50.0, 64.0]],
        },
    ]
    counts = counts_of(out)
    assert counts["films that are no frontal film of MIMIC-CXR, left out"] == 1
    assert (counts["boxes"], counts["phrases of films"]) == (36, 24)


def test_regions_and_their_findings_are_read(folder: Path) -> None:
    line = lines(folder / "cig-out" / "validate.jsonl")[0]

    assert {box["label"]: box["xyxy"] for box in line["boxes"]}["left lung"] == [12.0, 8.0, 28.0, 80.0], "clipped"
    assert len(line["boxes"]) == 5 and len(line["region_known"]) == 53
    assert line["region_findings"] == {
        "right lung": [],
        "left lung": [EFFUSION],
        "cardiac silhouette": [],
        "trachea": [],
        "spine": [],
    }
    sentences = {sentence["text"]: sentence for sentence in line["sentences"]}
    assert sentences["There is a small left pleural effusion."] == {
        "text": "There is a small left pleural effusion.",
        "positive": True,
        "findings": [EFFUSION],
        "regions": ["left lung"],
        "boxes": [[12.0, 8.0, 28.0, 80.0]],
    }
    assert sentences["No pneumothorax."]["regions"] == ["left lung", "right lung"]
    assert sentences["No pneumothorax."]["boxes"] == [[4.0, 8.0, 28.0, 80.0]], "boxes that touch are joined"
    assert sentences["Small left pleural effusion."]["findings"] == ["pleural_effusion"], (
        "by rule, no scene graph has it"
    )
    assert list(sentences)[-2:] == ["The right lung is well aerated.", "Elsewhere pneumonia."]


def test_films_are_left_out_as_published(folder: Path) -> None:
    counts = counts_of(folder / "cig-out")

    # Of twelve films the last has no scene graph; of the others one has three boxes, one a box twice, one no report.
    assert {name: len(lines(folder / "cig-out" / f"{name}.jsonl")) for name in ("train", "validate", "test")} == {
        "train": 5,
        "validate": 2,
        "test": 1,
    }
    assert counts["films without a scene graph, left out"] == 1
    assert counts["films with fewer than 5 boxes, left out"] == counts["films with a box twice, left out"] == 1
    assert counts["films to train on without a report, left out"] == 1
    assert counts["boxes without area, left out"] == 11
    assert counts["boxes of objects that are no region of the paper, left out"] == 8
    assert counts["findings that are no class of the paper, left out"] == 8
    assert counts["findings of regions without a box, left out"] == 8
    assert counts["films in train.jsonl of patients of the gold set, as published"] == 1
    assert counts["scene graphs of no frontal film of MIMIC-CXR, left out"] == 1
    assert counts["phrases of fewer than 2 words, left out"] == 11
    assert counts["attributes of the category tubesandlines, left out"] == 11


@pytest.mark.parametrize(
    ("file", "task", "figure"),
    [
        ("mimic-out/test.jsonl", "report", "ce_micro_f1"),
        ("mscxr-out/test.jsonl", "sentences", "withheld_share"),
        ("cig-out/validate.jsonl", "anatomy", "miou"),
        ("cig-out/validate.jsonl", "region_classification", "auroc_pooled"),
    ],
)
def test_evaluation_measures_the_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], file: str, task: str, figure: str
) -> None:
    document = figures(folder / file, task, capsys)

    assert 0 <= document["tasks"][task][figure] <= 1
    assert document["not_measured"] == dict(read_films(folder / file, read_manifest(MODEL)).unmeasured())


def test_boxes_are_joined_as_published() -> None:
    boxes = [(0.0, 0.0, 2.0, 2.0), (5.0, 5.0, 6.0, 6.0), (2.0, 2.0, 5.0, 5.0)]

    # The third touches both and is joined with the first alone.
    assert joined(boxes) == [(0.0, 0.0, 5.0, 5.0), (5.0, 5.0, 6.0, 6.0)]


def change(path: Path, old: str, new: str) -> None:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    assert old in text
    changed = text.replace(old, new, 1)
    path.write_bytes(gzip.compress(changed.encode()) if path.suffix == ".gz" else changed.encode())


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("metadata.csv.gz", ",80,64,", ",80.5,64,", "line 2, column 'Rows': '80.5' is no number of pixels"),
        ("metadata.csv.gz", "ViewPosition", "View", "line 1, column 'ViewPosition': is missing"),
        ("split.csv.gz", ",train", ",training", "line 2, column 'split': 'training' is none of train, validate, test"),
        ("split.csv.gz", dicom_id(0), "x", "column 'dicom_id': "),
        ("chexpert.csv.gz", "1.0", "2.0", "line 2, column 'Cardiomegaly': '2.0' is none of"),
        ("chexpert.csv.gz", "Lung Lesion", "Lesion", "line 1, column 'Lung Lesion': is missing"),
    ],
)
def test_what_is_wrong_with_mimic_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, complaint: str
) -> None:
    source = mimic_cxr(tmp_path / "mimic", patients=5)
    change(source / f"mimic-cxr-2.0.0-{file}", old, new)

    assert main(["mimic", str(source), str(tmp_path / "out"), "--processes", "1"]) == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("data_set", "file", "old", "new", "complaint"),
    [
        (
            "mscxr",
            "MS_CXR_Local_Alignment_v1.0.0.csv",
            "Pleural Effusion",
            "Effusion",
            "line 2, column 'category_name'",
        ),
        ("mscxr", "MS_CXR_Local_Alignment_v1.0.0.csv", "64,80", "65,80", "line 2, column 'image_width': (65, 80)"),
        ("imagenome", f"silver_dataset/scene_graph/{dicom_id(0)}_SceneGraph.json", "objects", "things", "KeyError"),
        ("imagenome", f"silver_dataset/scene_graph/{dicom_id(0)}_SceneGraph.json", "}", "", "is no scene graph"),
        ("imagenome", "silver_dataset/splits/images_to_avoid.csv", "dicom_id", "x", "column 'dicom_id': is missing"),
    ],
)
def test_what_is_wrong_with_sets_on_mimic_is_told(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    data_set: str,
    file: str,
    old: str,
    new: str,
    complaint: str,
) -> None:
    source = (ms_cxr if data_set == "mscxr" else chest_imagenome)(tmp_path / "source")
    change(source / file, old, new)
    mimic = ["--mimic", str(folder / "mimic-out"), "--processes", "1"]

    assert main([data_set, str(source), str(tmp_path / "out"), *mimic]) == 2

    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"error: {source / file}") and complaint in said


@pytest.mark.parametrize("data_set", ["mscxr", "imagenome"])
def test_sets_on_mimic_need_it_prepared(tmp_path: Path, capsys: pytest.CaptureFixture[str], data_set: str) -> None:
    assert main([data_set, str(tmp_path), str(tmp_path / "out")]) == 2
    assert "prepare mimic, and give its OUT by --mimic" in capsys.readouterr().err
    assert main([data_set, str(tmp_path), str(tmp_path / "out"), "--mimic", str(tmp_path)]) == 2
    assert "prepare mimic to its end" in capsys.readouterr().err
