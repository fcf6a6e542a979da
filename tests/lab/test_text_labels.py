"""Texts of the paper's tasks: written and measured, and options that cannot be used are refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from models.evaluate import main
from models.lab.evaluation.published.likeness import FIGURES
from models.reading.tokenizers import VOCABULARIES

TASK = ["--task", "report_mimic"]


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


def test_texts_are_written_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*films(tmp_path), *TASK, "--out", str(tmp_path / "out")]) == 0

    told = capsys.readouterr().out
    assert "| classes of texts found by | rules |" in told
    assert "| METEOR | not computed: needs NLTK's wordnet.zip, unpacked; give it as DIR/nltk/corpora/wordnet, " in told
    made = json.loads((tmp_path / "out" / "evaluation.json").read_text())["tasks"]["report_mimic"]
    assert {name for name in FIGURES if made[name] is None} == set(made["not_computed"])
    with (tmp_path / "out" / "texts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert [row[:4] for row in rows[1:]] == [
        ["report_mimic", f"film{number}.png", "0", kind] for number in (0, 1) for kind in ("true", "generated")
    ]
    assert (rows[0][4], rows[1][4], rows[3][4]) == ("Report Impression", "Pulmonary edema.", "The lungs are clear.")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--labeler", "rules", "--task", "report"], "--labeler is for the tasks region_explanation_mscxr, "),
        (["--metric-files", ".", "--task", "report"], "--metric-files is for the tasks"),
        (["--metric-files", "no-folder", *TASK], "no-folder has none of nltk/corpora/wordnet, bertscore;"),
        (["--task", "figure_4"], "no film has boxes of MS-CXR in regions of Chest ImaGenome that hold their class"),
        (["--labeler", "chexbert:no-file", *TASK], "no-file is missing; beside weights of CheXbert belong"),
    ],
)
def test_options_that_cannot_be_used_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main([*films(tmp_path), *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_a_labeler_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*films(tmp_path), *TASK, "--labeler", "chexbert"])
