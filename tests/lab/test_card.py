"""A model card with figures that were made up: what it shows, what it keeps, and that the directory still opens."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from models.checkpoint.card import section
from models.checkpoint.files import CARD, verify
from models.decisions import ThresholdChange
from models.lab.evaluation.card import PLOTS, main
from models.lab.evaluation.document import read_evaluation
from models.lab.evaluation.request import SHARES
from models.manifest import WEIGHTS, read_manifest, write_manifest
from models.reading.tokenizers import VOCABULARIES


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("onnx", "parity.json")
    return Path(shutil.copytree(VOCABULARIES.parent, tmp_path / "model", ignore=ignored))


def test_the_shipped_model_forbids_use_for_patients(model: Path) -> None:
    card = " ".join((model / CARD).read_text(encoding="utf-8").split())

    assert "A demonstration, not a medical device." in card
    assert "must never be used for a patient" in card
    assert "never any clinical use" in read_manifest(model).intended_use


def test_the_shipped_card_is_short() -> None:
    assert (VOCABULARIES.parent / CARD).stat().st_size <= 15_000


def test_the_shipped_card_shows_the_evaluations_beside_it() -> None:
    """All figures, places too, byte for byte as the template writes them."""
    shown = (VOCABULARIES.parent / CARD).read_text(encoding="utf-8")
    paths = sorted((VOCABULARIES.parent / "card").glob("*.json"))
    documents = [read_evaluation(path) for path in paths]

    films = [
        section(
            "films",
            document=document,
            shares=SHARES,
            pictures=re.findall(rf"!\[(.+)\]\((card/{path.name[0]}-.+)\)", shown),
            figures=f"card/{path.name}",
        )
        for path, document in zip(paths, documents, strict=True)
    ]

    assert len(films) == 4
    assert shown.endswith("\n" + section("measured", films=films, documents=documents, plots=PLOTS))


def evaluation(folder: Path, directory: Path, **changes: object) -> Path:
    """Write what `models.evaluate` would, with figures that nobody measured."""
    folder.mkdir()
    (folder / "failures.jpg").write_bytes(b"a picture")
    document = {
        "data": "phantoms:2000000:500",
        "count": 500,
        "model": {
            "name": "m",
            "version": "2",
            "engine": "onnx",
            "weights_sha256": read_manifest(directory).files[WEIGHTS],
        },
        "tasks": {
            "detection": {
                "map": 0.4567,
                "per_class": {"cardiomegaly": 0.91, "fracture": 0.012, "edema": None},
                "deviations": {"map": 0.0123},
                "references": {"constant_box": {"map": 0.0424}},
            },
            "anatomy": {
                "miou": 0.8,
                "per_region": {"right lung": 0.93},
                "references": {"best_constant_box": {"miou": 0.5, "per_region": {"right lung": 0.7}}},
            },
            "report": {
                "ce_micro_f1": 0.61,
                "ce_micro_precision": 0.59,
                "per_class": {"edema": 0.5},
                "reliability": [[0.1, 0.2, 30], [0.8, 0.9, 10]],
            },
        },
        "pictures": ["failures.jpg"],
    }
    path = folder / "evaluation.json"
    path.write_text(json.dumps(document | changes))
    return path


def test_a_card_shows_the_main_figures_has_all_beside_it_and_the_directory_opens(model: Path, tmp_path: Path) -> None:
    kept = (model / CARD).read_text().splitlines()[0]
    drawn = evaluation(tmp_path / "drawn", model)
    points = [[0.1, 0.2, 30], [0.8, 0.9, 10]]
    group = {"films": 20, "macro_auroc": 0.7123, "intervals": {"macro_auroc": [0.65, 0.77]}}
    counts = {"positives": {"edema": 12}, "known": {"edema": 40}}
    films = {"per_class": {"edema": 0.8}, "reliability": points, "by_group": {"sex F": group}, **counts}
    real = evaluation(tmp_path / "real", model, tasks={"films": films}, data="boxes:films/hospital.jsonl")

    assert main(["--model", str(model), str(drawn), str(real)]) == 0

    card = (model / CARD).read_text()
    assert card.startswith(kept)
    for text in (
        "| 0.457 +/- 0.012 | constant box 0.042 |",
        "500 films",
        "the lowest: Average precision by finding: fracture 0.01, cardiomegaly 0.91.",
        "| sex F | 20 | 0.712 (0.650 to 0.770) |",
        "| edema | 12 | 40 | 0.800 |",
    ):
        assert text in card, text
    assert (model / "card" / "1-evaluation.json").read_bytes() == drawn.read_bytes()
    shown = re.findall(r"\]\((card/[^)]+)\)", card)
    assert sorted(shown) == sorted(f"card/{file.name}" for file in (model / "card").iterdir())
    for name in shown:
        if name.endswith(".svg"):
            ElementTree.parse(model / name)
    assert set(shown) <= read_manifest(model).files.keys()
    verify(model, read_manifest(model))


def test_a_card_begins_with_ten_lines_and_three_figures(model: Path, tmp_path: Path) -> None:
    """Those of films of people come before those of phantoms; of decisions, what a node does by default."""
    films = {"macro_auroc": 0.75, "false_findings": 0.2, "intervals": {"macro_auroc": [0.7, 0.8]}}
    sentences = {"false_findings": 0.3, "by_default": {"false_findings": 0.1}}
    drawn = evaluation(tmp_path / "drawn", model)
    real = evaluation(
        tmp_path / "real",
        model,
        data="boxes:films/hospital.jsonl",
        tasks={"films": films, "sentences": sentences},
        count=90,
    )

    for _ in range(2):
        assert main(["--model", str(model), str(drawn), str(real)]) == 0

    manifest = read_manifest(model)
    lines = (model / CARD).read_text().splitlines()
    assert lines[:4] == [f"# {manifest.name} {manifest.version}", "", "## In ten lines", ""]
    assert lines[4] == f"- For: {manifest.intended_use}." and lines[5].startswith("- Not for: ")
    assert [line for line in lines if line.startswith("- Figure: ")] == [
        "- Figure: AUROC, mean of findings with 15 positives: 0.750 (0.700 to 0.800), 90 films, `hospital.jsonl`.",
        "- Figure: findings called present on a normal film: 0.100, 90 films, `hospital.jsonl`.",
        "- Figure: mAP, IoU 0.1 to 0.7: 0.457 +/- 0.012, 500 films, `phantoms:2000000:500`.",
    ]
    assert all(line.startswith("- ") for line in lines[4:14]) and lines[14] == ""


def test_what_training_wrote_and_a_calibration_are_kept(model: Path, tmp_path: Path) -> None:
    calibrated = "## Calibrated\n\nOn `hospital`.\n"
    (model / CARD).write_text(f"# m 2\n\n- Performance: not measured\n  yet.\n- Other: x\n\n{calibrated}")
    change = ThresholdChange(finding="edema", before=0.5, after=0.6, reason="x", by="anna", at="2026-01-01T00:00:00Z")
    write_manifest(model, replace(read_manifest(model), history=(change,)))

    for number in "12":
        assert main(["--model", str(model), str(evaluation(tmp_path / number, model))]) == 0

    card = (model / CARD).read_text()
    assert "not measured" not in card and "yet" not in card
    assert "- Performance: below, under Measured.\n- Other: x\n" in card
    assert card.index("## Measured") < card.index(calibrated) < card.index("| edema | 0.5 | 0.6 | x | anna |")
    assert card.count("## Calibrated") == 1


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": {"weights_sha256": "0" * 64}}, "did not measure the model"),
        ({"analysis": {"name": "report_regions"}}, "did not measure the model"),
        ({"pictures": ["gone.jpg"]}, "gone.jpg is missing"),
    ],
)
def test_wrong_input_is_exit_2_and_leaves_the_card(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], complaint: str
) -> None:
    card = (model / CARD).read_bytes()

    assert main(["--model", str(model), str(evaluation(tmp_path / "one", model, **changes))]) == 2

    assert complaint in capsys.readouterr().err
    assert (model / CARD).read_bytes() == card
    verify(model, read_manifest(model))
