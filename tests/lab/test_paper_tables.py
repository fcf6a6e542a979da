"""The tables of the paper: our figures beside the published ones, and what sets them apart."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from models.documents import from_file
from models.errors import ModelError
from models.lab.evaluation.paper import main, markdown
from models.lab.evaluation.paper_tables import NONE, Paper, Row, read_models, read_paper
from tests.paths import REPOSITORY

GROUNDING: dict[str, Any] = {
    "mask_miou": 0.4852,
    "map": 0.401,
    "films": 169,
    "deviations": {"mask_miou": 0.0131},
    "settings": {"chosen_on": "validate.jsonl"},
}
REPORT: dict[str, Any] = {
    "ce_14_micro_f1": 0.5,
    "meteor": None,
    "not_computed": {"meteor": "needs WordNet"},
    "ce_14_f1_edema": 0.25,
    "films": 3082,
    "labeler": "chexbert, weights.pth",
}
CHEXBERT = "classes of texts found by rules; the paper takes CheXbert"


def evaluated(folder: Path, tasks: dict[str, Any], *, data: str = "prepared/mscxr/test.jsonl", **more: object) -> Path:
    """Write an evaluation; returns its folder."""
    model = {"name": "ours", "version": "2", "weights_sha256": "ab"}
    folder.mkdir(parents=True)
    document = {"data": f"boxes:{data}", "count": 1, "tasks": tasks, "model": model, "ablations": []} | more
    (folder / "evaluation.json").write_text(json.dumps(document))
    return folder


def rows(*results: Path) -> list[str]:
    """The rows of all tables that are not published, with "none" for a cell without a number."""
    paper = read_paper()
    lines = markdown(paper, read_models(results, paper)[0]).replace(NONE, "none").splitlines()
    return [line for line in lines if line.startswith(("| **", "| difference"))]


def remarks(*results: Path) -> set[str]:
    paper = read_paper()
    lines = markdown(paper, read_models(results, paper)[0]).splitlines()
    return {line.partition("]")[2].strip() for line in lines if line.startswith("    [")}


def test_the_page_has_what_the_command_writes_without_figures(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path)]) == 0

    page = (REPOSITORY / "docs" / "model" / "paper.md").read_text()
    written = (tmp_path / "paper.md").read_text()
    assert page.endswith(f"\n{written}")
    assert written.count("| **measured** | ") == written.count("### ") == len(read_paper().tables)


def test_our_figures_stand_beside_the_published_ones(tmp_path: Path) -> None:
    result = evaluated(tmp_path / "a", {"grounding_mscxr": GROUNDING})

    assert rows(result)[:2] == [
        "| **ours 2** | 48.52 ± 1.31 | 40.10 |",
        "| difference from ChEX | +1.00 | -4.37 |",
    ]
    assert remarks(result) == set()


def test_a_figure_that_is_missing_is_a_dash_with_its_reason(tmp_path: Path) -> None:
    result = evaluated(tmp_path / "a", {"report_mimic": REPORT}, data="prepared/mimic/test.jsonl")

    shown = rows(result)

    assert shown[0] == "| **ours 2** | 50.00 | none | none | none | none | none | none |"
    assert shown[1] == "| difference from ChEX | -2.32 | none | none | none | none | none | none |"
    assert "| **ours 2** | none | none | none [1] | none | none |" in shown
    assert any("| **ours 2** | none | 25.00 | none" in row for row in shown)
    assert remarks(result) == {"METEOR: not computed: needs WordNet"}


@pytest.mark.parametrize(
    ("task", "changes", "data", "remark"),
    [
        (
            "grounding_mscxr",
            {"settings": {"chosen_on": None}},
            "prepared/mscxr/test.jsonl",
            "grounding_mscxr with settings as published, not chosen on other films (--choose-on)",
        ),
        (
            "grounding_mscxr",
            {"films": 12},
            "prepared/mscxr/test.jsonl",
            "grounding_mscxr on 12 films; the paper has 169",
        ),
        (
            "grounding_mscxr",
            {},
            "prepared/mscxr/validate.jsonl",
            "grounding_mscxr on mscxr/validate.jsonl, not on mscxr/test.jsonl of models.prepare",
        ),
        (
            "report_mimic",
            {},
            "prepared/imagenome/test.jsonl",
            "report_mimic on imagenome/test.jsonl, not on mimic/test.jsonl of models.prepare",
        ),
        ("report_mimic", {"labeler": "rules"}, "prepared/mimic/test.jsonl", CHEXBERT),
    ],
)
def test_what_is_unlike_the_paper_is_marked(
    tmp_path: Path, task: str, changes: dict[str, Any], data: str, remark: str
) -> None:
    made = {"grounding_mscxr": GROUNDING, "report_mimic": REPORT}[task] | changes
    result = evaluated(tmp_path / "a", {task: made}, data=data)

    assert remarks(result) - {"METEOR: not computed: needs WordNet"} == {remark}


def test_each_model_and_each_ablation_has_a_row(tmp_path: Path) -> None:
    other = {"name": "theirs", "version": "1", "weights_sha256": "cd"}
    results = [
        evaluated(tmp_path / "a", {"grounding_mscxr": GROUNDING}),
        evaluated(tmp_path / "b", {"grounding_mscxr": GROUNDING}, ablations=["no_region_filter"]),
        evaluated(tmp_path / "c", {"grounding_mscxr": GROUNDING}, ablations=["one_box"], analysis={"boxes": 1}),
        evaluated(tmp_path / "d", {"grounding_mscxr": GROUNDING}, model=other),
    ]

    named = [row.split("|")[1].strip(" *") for row in rows(*results)[:8:2]]

    assert named == ["ours 2", "ours 2, without no_region_filter", "ours 2, asked by one_box", "theirs 1"]


def test_an_analysis_is_compared_with_its_own_row(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"ablations": ["report_pathologies"], "analysis": {"prompts": "pathologies"}}
    result = evaluated(tmp_path / "a", {"report_mimic": REPORT}, data="prepared/mimic/test.jsonl", **asked)

    shown = rows(result)

    assert "| difference from all pathologies alone | -0.35 | none | none | none | none | none |" in shown
    assert "| difference from ChEX | -2.32 | none | none | none | none | none | none |" in shown, "a table without it"


def test_every_row_of_an_analysis_names_its_file() -> None:
    folder = REPOSITORY / "models" / "lab" / "evaluation" / "analyses"

    named = [row.analysis for table in read_paper().tables for row in table.rows if row.analysis]

    assert len(named) == 7 and set(named) <= {path.stem for path in folder.iterdir()}


def test_a_task_counts_on_its_own_films(tmp_path: Path) -> None:
    half = REPORT | {"ce_14_micro_f1": 0.25}
    own = evaluated(tmp_path / "own", {"report_mimic": REPORT}, data="prepared/mimic/test.jsonl")
    other = evaluated(tmp_path / "other", {"report_mimic": half}, data="prepared/imagenome/test.jsonl")

    assert rows(own, other) == rows(other, own) == rows(own)


def test_two_figures_of_one_task_are_refused(tmp_path: Path) -> None:
    results = [evaluated(tmp_path / name, {"grounding_mscxr": GROUNDING}) for name in "ab"]

    with pytest.raises(ModelError, match="both measure grounding_mscxr of the same model; name one of them"):
        rows(*results)


@pytest.mark.parametrize(
    ("content", "complaint"), [("{", "cannot be read as an evaluation"), ("[]", "is no evaluation"), ("{}", "is no")]
)
def test_what_is_no_evaluation_is_refused(
    tmp_path: Path, content: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.json").write_text(content)

    assert main([str(tmp_path / "some.json"), "--out", str(tmp_path / "out")]) == 2

    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tasks_of_no_table_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluated(tmp_path / "a", {"detection": {"map": 0.5}})

    assert main([str(result), "--out", str(tmp_path / "out")]) == 0

    assert "measures detection, which are no tasks of the paper" in capsys.readouterr().err


def test_every_cell_is_a_line_of_csv_and_every_model_a_plot(tmp_path: Path) -> None:
    result, out = evaluated(tmp_path / "a", {"grounding_mscxr": GROUNDING}), tmp_path / "out"

    assert main([str(result), "--out", str(out)]) == 0

    with (out / "grounding.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    of_chex, ours = lines[0], next(line for line in lines if line["kind"] == "measured")
    assert (of_chex["row"], of_chex["percent"], of_chex["deviation"]) == ("ChEX", "47.5200", "1.4500")
    assert all(line["source"] for line in lines if line["kind"] == "published")
    assert (ours["column"], ours["percent"], ours["deviation"], ours["source"]) == ("mIoU", "48.5200", "1.3100", "")
    assert [line["remarks"] for line in lines if (line["row"], line["column"]) == ("OmniFM-DR", "mAP")] == [NONE]
    # The ablation's table has a column of grounding, and no published number.
    assert sorted(path.name for path in out.glob("*.svg")) == ["grounding-1.svg", "supervision-1.svg"]
    assert "mIoU: 0.485" in (out / "grounding-1.svg").read_text()


def test_published_numbers_keep_their_form() -> None:
    with pytest.raises(ValueError, match=r"values has '1,2'"):
        Row(name="ChEX", source="extract", values=("1,2",))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("sources", {}, "sources lacks extract, note, overview, two"),
        ("sets", {}, "films and sets must each name every task of the paper"),
    ],
)
def test_a_published_number_without_a_source_is_refused(key: str, value: object, complaint: str) -> None:
    path = REPOSITORY / "models" / "lab" / "evaluation" / "paper.toml"
    table = tomllib.loads(path.read_text())

    with pytest.raises(ModelError, match=complaint):
        from_file(Paper, table | {key: value}, path=path)


def test_a_row_has_a_value_for_each_column() -> None:
    path = REPOSITORY / "models" / "lab" / "evaluation" / "paper.toml"
    table = tomllib.loads(path.read_text())
    table["tables"][0]["rows"][0]["values"] = ["1"]

    with pytest.raises(ModelError, match="ChEX must have a value for each of the 2 columns"):
        from_file(Paper, table, path=path)
