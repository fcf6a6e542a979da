"""The table of what `read` has read: one line a film, and no state that says "normal"."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from node.commands import read_files
from node.errors import NodeError
from tests.node.commands.test_local import read, saved
from tests.support import films


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_has_a_line_for_each_film(tmp_path: Path) -> None:
    first = films.thumbnail()
    lateral = films.as_another(films.thumbnail({"ViewPosition": "LL"}), "lateral")
    paths = [saved(tmp_path / "in", name, film) for name, film in (("first", first), ("lateral", lateral))]
    reports = read(tmp_path / "out", *paths)

    read_files.write_table(tmp_path / "films.csv", reports)

    lines = {line["film"]: line for line in table(tmp_path / "films.csv")}
    assert lines.keys() == {first.SOPInstanceUID, lateral.SOPInstanceUID}
    found, other = lines[first.SOPInstanceUID], lines[lateral.SOPInstanceUID]
    assert (found["study"], found["status"], found["reason"]) == (first.StudyInstanceUID, "read", "")
    assert (found["atelectasis"], found["pneumothorax"]) == ("present", "not_reported")
    assert float(found["atelectasis_probability"]) > float(found["pneumothorax_probability"])
    assert found["impression"]
    assert (other["status"], other["reason"], other["atelectasis"]) == ("not_processed", "lateral", "")
    assert str(first.PatientID) not in (tmp_path / "films.csv").read_text(encoding="utf-8")


def test_a_table_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"cannot be written \(Is a directory\)"):
        read_files.write_table(tmp_path, [])
