"""Tables as text: what is written is read back, and no cell begins a formula."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import csv_table

SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20"


@given(st.lists(st.text(alphabet=f"{SIGNS};,\t\r\n\" 'a1", max_size=8), min_size=1, max_size=3))
def test_no_cell_begins_a_formula_whatever_separates_cells(texts: list[str]) -> None:
    written = csv_table.write(("name", "films"), [{"name": text, "films": 1} for text in texts])

    for separator in ",;\t":
        for cells in csv.reader(io.StringIO(written, newline=""), delimiter=separator):
            for cell in cells:
                for line in re.split("[\r\n]", cell):
                    assert not line.lstrip(' \t"').startswith(tuple(SIGNS)), (separator, cell)


@pytest.mark.parametrize(
    "text", ["", "Room 1", 'a "b", c', "2026-11-27", "anterior-posterior", "two\nlines", "Größe 胸"]
)
def test_a_harmless_text_is_read_back_as_it_is(text: str) -> None:
    written = csv_table.write(("name", "share"), [{"name": text, "share": 0.5}])

    assert [*csv.reader(io.StringIO(written, newline=""))] == [["name", "share"], [text, "0.5"]]
    assert written.splitlines()[0] == '"name","share"'
