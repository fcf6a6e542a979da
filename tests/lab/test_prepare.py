"""The command that prepares data sets: parallel and resumed it writes the same; mistakes are told with their place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.errors import ModelError
from models.lab.datasets.preparation import Published, picture_size, table, text
from models.lab.datasets.tables import rows_of
from models.prepare import main
from tests.lab.datasets import chest_xray_14, write_table
from tests.paths import REPOSITORY


def contents(out: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(out.iterdir()) if path.is_file()}


@pytest.mark.drill(part="laboratory")
def test_parallel_and_resumed_runs_write_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = chest_xray_14(tmp_path / "nih")

    assert main(["nih", str(source), str(tmp_path / "alone"), "--processes", "1"]) == 0
    assert main(["nih", str(source), str(tmp_path / "together"), "--processes", "2"]) == 0
    assert contents(tmp_path / "alone") == contents(tmp_path / "together")
    assert "prepare films: 100 %" in capsys.readouterr().err

    parts = sorted((tmp_path / "alone" / "parts").iterdir())
    ages = {path: path.stat().st_mtime_ns for path in parts[1:]}
    parts[0].unlink()
    assert main(["nih", str(source), str(tmp_path / "alone"), "--processes", "1"]) == 0
    assert contents(tmp_path / "alone") == contents(tmp_path / "together")
    assert {path: path.stat().st_mtime_ns for path in parts[1:]} == ages, "only the missing part was made"


def test_a_changed_data_set_replaces_its_parts(tmp_path: Path) -> None:
    source, out = chest_xray_14(tmp_path / "nih"), tmp_path / "out"
    assert main(["nih", str(source), str(out), "--processes", "1"]) == 0
    parts = {path.name for path in (out / "parts").iterdir()}
    entries = source / "Data_Entry_2017.csv"
    entries.write_text(entries.read_text().replace("Hernia", "Fibrosis"))

    assert main(["nih", str(source), str(out), "--processes", "1"]) == 0

    assert "Hernia" not in (out / "official_test.jsonl").read_text()
    assert len(parts) == len(list((out / "parts").iterdir()))
    assert parts != {path.name for path in (out / "parts").iterdir()}


@pytest.mark.drill(part="laboratory")
def test_a_stop_leaves_complete_parts_only(tmp_path: Path) -> None:
    source, out = chest_xray_14(tmp_path / "nih", patients=600), tmp_path / "out"
    command = [sys.executable, "-m", "models.prepare", "nih", str(source), str(out), "--processes", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True) as running:
        while not list(out.glob("parts/*.jsonl")) and running.poll() is None:
            time.sleep(0.001)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)

    assert running.returncode == 130
    assert said.splitlines()[-1] == "stopped; run python -m models.prepare as before to continue from here"
    assert not (out / "summary.json").exists()
    assert main(["nih", str(source), str(out), "--processes", "1"]) == 0
    counts = {row["what"]: row["count"] for row in json.loads((out / "summary.json").read_text())}
    assert counts["films"] == 1200


def test_counts_stand_beside_those_that_are_published() -> None:
    published = [Published(what="films", count=3, source="paper"), Published(what="boxes", count=2, source="data set")]

    said = text(table({"films": 3, "boxes": 1, "others": 4}, published)).splitlines()

    assert said == [
        "        3  films; published by the paper: 3",
        "        1  boxes; published by the data set: 2  (differs)",
        "        4  others",
    ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a,c\n1,2\n", "line 1, column 'b': is missing among a, c"),
        ("", "line 1, column 'a': is missing among "),
        ("a,b\n1\n", "line 2, column 'b': the row has 1 cells instead of 2"),
        ("a,b\n1,2\n1,2,3\n", "line 3, column 'b': the row has 3 cells instead of 2"),
        ("a,b\n,2\n", "line 2, column 'a': is empty"),
        ("a,b\n1,x\n", "line 2, column 'b': 'x' is no number"),
        ("a,b\n1,nan\n", "line 2, column 'b': 'nan' is no number"),
        ("a,b\n1,2.5\n", "line 2, column 'b': '2.5' is no number of pixels"),
        ("a,b\n3,2\n", "line 2, column 'a': '3' is none of 1, 2"),
    ],
)
def test_a_wrong_table_is_told_with_its_place(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)

    with pytest.raises(ModelError) as refused:
        for row in rows_of(path, ("a", "b")):
            row.one_of("a", ("1", "2"))
            row.size("b")

    assert str(refused.value).startswith(str(path)) and complaint in str(refused.value)


@pytest.mark.parametrize(
    ("edges", "column"), [((1, 2, 1, 4), "right"), ((5, 2, 4, 4), "right"), ((1, 4, 2, 4), "right")]
)
def test_a_box_without_area_is_refused(tmp_path: Path, edges: tuple[int, ...], column: str) -> None:
    names = ("left", "top", "right", "bottom")
    write_table(tmp_path / "boxes.csv", names, [edges])

    (row,) = rows_of(tmp_path / "boxes.csv", names)
    with pytest.raises(ModelError, match=r"line 2, column 'right': the box .* has no area"):
        row.box(*names)


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"nothing")

    with pytest.raises(ModelError, match=r"a\.png is no picture that can be read"):
        picture_size(tmp_path / "a.png")
    with pytest.raises(ModelError, match=r"b\.png cannot be read"):
        picture_size(tmp_path / "b.png")
