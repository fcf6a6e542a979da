"""The tables of the paper: our figures beside the published ones, and what sets them apart."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from models.errors import ModelError
from models.lab.evaluation.paper import NONE, main, markdown, read_models, read_paper
from models.lab.evaluation.request import CHOOSING, PUBLISHED_TASKS
from tests.drills.paper_small import go, without_figure
from tests.paths import REPOSITORY

GIVEN = REPOSITORY.parent / "shared" / "paper" / "tables.toml"
"""The numbers as somebody else read them in the paper; not a part of this repository."""
NUMBER = r"\d+(\.\d+)?(±\d+\.\d+)?"
GROUNDING: dict[str, Any] = {
    "mask_miou": 0.4852,
    "mask_miou_pooled": 0.52,
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


def evaluated(folder: Path, tasks: dict[str, Any], *, data: str = "prepared/mscxr/test.jsonl", **more: object) -> Path:
    """Write an evaluation; returns its folder."""
    model = {"name": "ours", "version": "2", "weights_sha256": "ab"}
    folder.mkdir(parents=True)
    document = {"data": f"boxes:{data}", "count": 1, "tasks": tasks, "model": model} | more
    (folder / "evaluation.json").write_text(json.dumps(document))
    return folder


def page(*results: Path) -> str:
    paper = read_paper()
    return markdown(paper, read_models(results, paper)[0]).replace(NONE, "none")


def table(number: int, *results: Path) -> list[str]:
    """The rows of a table."""
    start = page(*results).partition(f"### Table {number}.")[2]
    return [row for row in start.partition("###")[0].splitlines() if row.startswith("|")]


def remarks(*results: Path) -> set[str]:
    return {line.partition("] ")[2] for line in page(*results).splitlines() if line.startswith("    [")}


@pytest.mark.skipif(not GIVEN.parent.parent.is_dir(), reason="the numbers of another reader are not at hand")
def test_every_cell_is_that_of_the_paper() -> None:
    given = {table["number"]: table for table in tomllib.loads(GIVEN.read_text(encoding="utf-8"))["tables"]}
    own = {table.number: table for table in read_paper().tables}

    assert list(own) == list(given) == list(range(2, 15))
    cells = []
    for number, table in own.items():
        assert list(table.columns) == given[number]["columns"]
        theirs = [(row["name"], row["values"]) for row in given[number]["rows"]]
        assert [(row.name, list(row.values)) for row in table.rows] == theirs
        cells += [value for row in table.rows for value in row.values if value != "-" and number > 2]
    assert (len(cells), sum(len(value.split("±")) for value in cells)) == (555, 726)


def test_our_figures_stand_beside_the_published_ones(tmp_path: Path) -> None:
    result = evaluated(tmp_path / "a", {"grounding_mscxr": GROUNDING})

    assert table(7, result)[-4:] == [
        "| **ours 2** | 48.52 ± 1.31 | 40.10 |",
        "| difference from ChEX | +1.00 (+0.7 sd) | -4.37 (-2.0 sd) |",
        "| **ours 2, as in the published code** | 52.00 | none |",
        "| difference from ChEX | +4.48 (+3.1 sd) | none |",
    ]
    of_kinds = table(2, result)
    assert of_kinds[0].endswith(
        "| **ours 2** | difference from ChEX | **ours 2, as in the published code** | difference from ChEX |"
    )
    assert of_kinds[3].endswith("| 18.62 ± 1.37 | none | 40.10 | -4.37 (-2.0 sd) | none | none |")
    assert remarks(result) == set()
    assert main([str(result), "--out", str(tmp_path / "out")]) == 0
    assert "| **ours 2** | 48.52 ± 1.31 | 40.10 |" in (tmp_path / "out" / "paper.md").read_text()


@pytest.mark.parametrize(
    ("task", "changes", "data", "remark"),
    [
        ("grounding_mscxr", {"settings": {"chosen_on": None}}, "mscxr/test", " with settings as published, not chosen"),
        ("grounding_mscxr", {"films": 12}, "mscxr/test", " on 12 films; the paper has 169"),
        ("grounding_mscxr", {}, "mscxr/validate", " on mscxr/validate.jsonl, not on mscxr/test.jsonl"),
        ("report_mimic", {"meteor": 0.1}, "imagenome/test", " on imagenome/test.jsonl, not on mimic/test.jsonl"),
        ("report_mimic", {"labeler": "rules", "meteor": 0.1}, "mimic/test", "classes of texts found by rules"),
    ],
)
def test_what_is_unlike_the_paper_is_marked(
    tmp_path: Path, task: str, changes: dict[str, Any], data: str, remark: str
) -> None:
    made = {"grounding_mscxr": GROUNDING, "report_mimic": REPORT}[task] | changes

    [said] = remarks(evaluated(tmp_path / "a", {task: made}, data=f"prepared/{data}.jsonl"))
    assert said.removeprefix(task).startswith(remark)


def test_each_model_and_each_analysis_has_a_row(tmp_path: Path) -> None:
    other = {"name": "theirs", "version": "1", "weights_sha256": "cd"}
    changes: list[dict[str, Any]] = [{}, {"analysis": {"name": "one_box"}}, {"model": other}]
    results = [
        evaluated(tmp_path / str(number), {"grounding_mscxr": GROUNDING}, **own) for number, own in enumerate(changes)
    ]

    named = [row.split("|")[1].strip(" *") for row in table(7, *results) if row.startswith("| **")]

    assert named[::2] == ["ours 2", "ours 2, asked by one_box", "theirs 1"]


def test_a_task_counts_on_its_own_films(tmp_path: Path) -> None:
    half = REPORT | {"ce_14_micro_f1": 0.25}
    own = evaluated(tmp_path / "own", {"report_mimic": REPORT}, data="prepared/mimic/test.jsonl")
    other = evaluated(tmp_path / "other", {"report_mimic": half}, data="prepared/imagenome/test.jsonl")

    assert page(own, other) == page(other, own) == page(own)


def test_two_figures_of_one_task_and_what_is_no_evaluation_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [evaluated(tmp_path / name, {"grounding_mscxr": GROUNDING}) for name in "ab"]
    with pytest.raises(ModelError, match="both measure grounding_mscxr of the same model; name one of them"):
        page(*results)

    wrong = tmp_path / "some.json"
    for content, complaint in (("{", "cannot be read as an evaluation"), ("[]", "is no evaluation"), ("{}", "is no")):
        wrong.write_text(content)
        assert main([str(wrong), "--out", str(tmp_path / "out")]) == 2
        assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_every_number_of_the_file_has_a_row_a_column_and_a_figure() -> None:
    paper = read_paper()

    assert paper.films.keys() == paper.sets.keys() == {*PUBLISHED_TASKS}
    for table in paper.tables:
        assert {len(row.values) for row in table.rows} == {len(table.columns)}
        assert all(value == "-" or re.fullmatch(NUMBER, value) for row in table.rows for value in row.values)
        assert len(table.keys) == len(table.names)
        assert {name for keys in table.other.values() for name in keys} <= {*table.names}
        every = [*table.keys, *(key for keys in table.other.values() for key in keys.values())]
        assert {key.partition(".")[0] for key in every} <= {*PUBLISHED_TASKS}


@pytest.mark.drill(part="paper")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.timeout(900)
def test_raw_data_becomes_the_tables_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = go(tmp_path)

    assert figures.keys() == {*PUBLISHED_TASKS}
    assert without_figure(figures) == [], "every cell of the tables has a figure"
    assert without_figure(figures | {"detection_nih8": {"map": None}}) == ["detection_nih8.map"]
    for task in CHOOSING:
        assert figures[task]["settings"]["chosen_on"] == "validate.jsonl"
    told = [line.split()[3] for line in capsys.readouterr().out.splitlines() if line.startswith("$ ")]
    trained = ["models.train"] * 3 + ["models.join", "models.train"]
    assert told == ["models.prepare"] * 5 + trained + ["models.evaluate"] * 5 + ["models.lab.evaluation.paper"]
    tables = (tmp_path / "tables" / "paper.md").read_text()
    rows = [row for row in tables.splitlines() if row.startswith("| **chex-published-3 1** |")]
    for task, key in (("grounding_mscxr", "map"), ("detection_vindr", "map_nms_fixed")):
        assert any(f"{100 * figures[task][key]:.2f}" in row for row in rows)
    assert "report_mimic on 2 films; the paper has 3,082" in tables, "films of mimic, not of imagenome or mscxr"
    assert "not chosen on other films" not in tables
