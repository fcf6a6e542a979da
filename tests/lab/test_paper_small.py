"""The short form of `make paper-small`: from raw data to the tables of the paper, with a small network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models.lab.training.runfile import read_run
from tests.drills.paper_small import CHOSEN, RUNS, SHORT, TASKS, Failed, go, run, run_file
from tests.lab.published import small_sizes

pytestmark = [pytest.mark.drill(part="paper"), pytest.mark.usefixtures("one_thread")]

FIGURES = {
    "detection": "map",
    "grounding": "mask_miou",
    "region_classification": "auroc",
    "region_explanation": "bleu",
    "report": "ce_micro_f1",
}
"""A figure of every task, by how the task's name begins."""
UNKNOWN = "region_classification_imagenome"
"""Has no area under a curve here: the regions of all scene graphs of the miniature hold the same."""


@pytest.mark.timeout(900)
def test_raw_data_becomes_the_tables_of_the_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = go(tmp_path, SHORT)

    for name, tasks in TASKS.items():
        for task in tasks:
            figure = figures[task][FIGURES[task.rpartition("_")[0]]]
            assert figure is None if task == UNKNOWN else 0 <= figure <= 1
            if name in CHOSEN and task.startswith(("detection", "grounding")):
                assert figures[task]["settings"]["chosen_on"] == "validate.jsonl"
    told = [line.split()[3] for line in capsys.readouterr().out.splitlines() if line.startswith("$ ")]
    trained = ["models.train"] * 3 + ["models.join", "models.train"]
    assert told == ["models.prepare"] * 5 + trained + ["models.evaluate"] * 5 + ["models.lab.evaluation.paper"]
    tables = (tmp_path / "tables" / "paper.md").read_text()
    grounding, detection = (f"{100 * figures[task]['map']:.2f}" for task in ("grounding_mscxr", "detection_vindr"))
    rows = [row for row in tables.splitlines() if row.startswith("| **chex-published-3 1** |")]
    assert grounding in rows[0] and detection in rows[1]
    assert "report_mimic on 2 films; the paper has 3,082" in tables, "films of mimic, not of imagenome or mscxr"
    assert "not chosen on other films" not in tables


@pytest.mark.parametrize("name", ["published_1", "published_2", "published_text", "published_3"])
def test_the_small_runs_keep_what_is_published(name: str, tmp_path: Path) -> None:
    published, small = read_run(RUNS / f"{name}.toml"), read_run(run_file(tmp_path, name, steps=3))

    [theirs], [ours] = published.stages, small.stages
    assert ours == replace(theirs, epochs=0, steps=3, batch=4, accumulation=2, warm_up=0)
    assert small.network == small_sizes(published.network)
    assert small.data.classes == published.data.classes and not small.data.jpeg
    assert [Path(source.file).relative_to(tmp_path) for source in small.data.films] == [
        Path(source.file) for source in published.data.films
    ]


def test_a_command_that_fails_ends_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failed, match=r"exit code 2 of python -m models\.prepare nih"):
        run("models.prepare", lambda arguments: 2, ["nih"])

    assert capsys.readouterr().out == "$ python -m models.prepare nih\n"
