"""Labels of texts from a file: texts are written, labeled elsewhere and read again; what is wrong is told."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.evaluate import main
from models.lab.evaluation.published.likeness import FIGURES
from models.lab.evaluation.published.marks import TextKey, Told, read_labels, start_texts, write_texts
from models.lab.tasks.labels import CHEXPERT, CHEXPERT_COLUMNS
from models.reading.tokenizers import VOCABULARIES

TOLD = [("a.png", Told(("Edema.", "Clear."), ("No edema.", "Line,\n“quoted”"))), ("b.png", Told(("Clear.",), ("",)))]
TASK = ["--task", "report_mimic"]
Row = dict[str, str]


def labeled(path: Path, change: Callable[[list[Row]], object] = lambda rows: None) -> Path:
    """The labels of a file of texts: edema is present in all, pneumonia uncertain and fracture absent."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    for row in rows:
        row |= dict.fromkeys(CHEXPERT_COLUMNS, "") | {"Edema": "1.0", "Pneumonia": "-1", "Fracture": "0"}
    change(rows)
    out = path.with_name("labels.csv")
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return out


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    start_texts(tmp_path / "texts.csv")
    write_texts(tmp_path / "texts.csv", "report_mimic", TOLD)
    return tmp_path / "texts.csv"


def films(folder: Path) -> list[str]:
    """Two films with reports, as arguments of the command."""
    lines = []
    for number, report in enumerate(("Pulmonary edema.", "The lungs are clear.")):
        name = f"film{number}.png"
        cv2.imwrite(str(folder / name), np.random.default_rng(number).integers(0, 255, (224, 224), dtype=np.uint8))
        lines.append(json.dumps({"file": name, "patient": str(number), "report": report}))
    (folder / "films.jsonl").write_text("\n".join(lines))
    model = ["--model", str(VOCABULARIES.parent), "--engine", "torch", "--resamples", "0"]
    return [*model, "--data", f"boxes:{folder / 'films.jsonl'}"]


def test_labels_come_back_by_task_film_number_and_kind(texts: Path) -> None:
    labels = read_labels(labeled(texts))

    marked = labels("report_mimic", TOLD)

    assert list(labels.rows)[2:4] == [
        TextKey("report_mimic", "a.png", 0, "generated"),
        TextKey("report_mimic", "a.png", 1, "generated"),
    ]
    assert marked.labeler == "labels of labels.csv" and marked.classes == CHEXPERT
    expected = {"edema": "positive", "pneumonia": "uncertain", "fracture": "negative"}
    assert list(marked.true) == list(marked.generated) == [expected] * 3


def test_texts_are_written_labeled_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = films(tmp_path)
    assert main([*arguments, *TASK, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "| classes of texts found by | rules |" in told
    assert "| METEOR | not computed: needs NLTK's wordnet.zip, unpacked; give it as DIR/nltk/corpora/wordnet, " in told
    made = json.loads((tmp_path / "out" / "evaluation.json").read_text())["tasks"]["report_mimic"]
    assert {name for name in FIGURES if made[name] is None} == set(made["not_computed"])

    other = {"task": "region_explanation_mscxr", "film": "x", "number": "0", "kind": "true", "Report Impression": ""}
    labels = labeled(tmp_path / "out" / "texts.csv", lambda rows: rows.append(rows[0] | other))
    labels = labels.replace(tmp_path / "out" / "texts.csv")
    content = labels.read_bytes()
    assert main([*arguments, *TASK, "--labels", str(labels), "--json", "--out", str(tmp_path / "out")]) == 0
    assert labels.read_bytes() == content, "labels are not written over"

    document = json.loads(capsys.readouterr().out)
    made = document["tasks"]["report_mimic"]
    assert made["labeler"] == "labels of texts.csv" and made["texts"] == 2
    # All texts have the same labels, of which one alone is found.
    assert made["ce_14_micro_f1"] == made["ce_5_plus_example_f1"] == 1
    assert made["ce_14_macro_f1"] == pytest.approx(1 / 14, abs=1e-5)
    assert document["not_measured"]["rows of texts.csv, of other texts"] == 1
    assert document["resamples"] == 0


def named(column: str, value: str, row: int = 0) -> Callable[[list[Row]], object]:
    return lambda rows: rows[row].update({column: value})


def without(column: str) -> Callable[[list[Row]], object]:
    return lambda rows: [row.pop(column) for row in rows]


def with_column(column: str) -> Callable[[list[Row]], object]:
    return lambda rows: [row.update({column: ""}) for row in rows]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (named("Edema", "2"), "labels.csv, line 2, column 'Edema': '2' is none of 1, 0, -1 and blank"),
        (named("kind", "said", 2), "line 4, column 'kind': 'said' is none of true, generated"),
        (named("task", "report", 1), "line 3, column 'task': 'report' is none of region_explanation_mscxr, "),
        (named("number", "-1", 1), "line 3, column 'number': '-1' is no whole number"),
        (named("number", "0", 1), "line 3, column 'film': the text has a row already, line 2; remove one of them"),
        (named("film", ""), "line 2, column 'film': is empty"),
        (without("Fracture"), "line 1, column 'Fracture': is missing"),
        (without("kind"), "line 1, column 'kind': is missing"),
        (with_column("Hernia"), "line 1, column 'Hernia': is no class of CheXpert; remove the column"),
    ],
)
def test_a_bad_file_of_labels_is_told_before_any_film_is_read(
    texts: Path, capsys: pytest.CaptureFixture[str], change: Callable[[list[Row]], object], complaint: str
) -> None:
    labels = labeled(texts, change)

    assert main([*films(texts.parent), *TASK, "--labels", str(labels)]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (named("film", "c.png"), "has no row with task report_mimic, film film0.png, number 0, kind true; label all"),
        (named("Report Impression", "Edema."), "line 2, column 'Report Impression': the text is another one than"),
    ],
)
def test_labels_of_other_texts_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[list[Row]], object], complaint: str
) -> None:
    start_texts(tmp_path / "texts.csv")
    write_texts(tmp_path / "texts.csv", "report_mimic", [("film0.png", Told(("Pulmonary edema.",), ("",)))])
    labels = labeled(tmp_path / "texts.csv", change)

    assert main([*films(tmp_path), *TASK, "--labels", str(labels)]) == 2
    assert complaint in capsys.readouterr().err
