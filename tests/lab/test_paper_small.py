"""`make paper-small`: from raw data to the tables of the paper, with a small network."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.lab.evaluation.request import CHOOSING, PUBLISHED_TASKS
from tests.drills.paper_small import go, without_figure

pytestmark = [pytest.mark.drill(part="paper"), pytest.mark.usefixtures("one_thread")]


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
