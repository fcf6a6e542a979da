"""The page of a run file's keys has every key, default and loss that the program knows, and its example is one."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

from models.lab.training.runfile import Run, read_run
from models.lab.training.stages import OBJECTIVES
from models.lab.training.view_run import ViewRun, is_view_run
from tests.repository.test_docs import DOCS, code_spans, flat

PAGE = (DOCS / "model" / "run-file.md").read_text(encoding="utf-8")
EXAMPLE = DOCS / "model" / "two-minutes.toml"
INLINE = {"ages"}
"""Tables that the page explains in the row of their own name."""


def tables_of(kind: type, where: str = "") -> dict[str, set[str]]:
    """Give the keys of each table of a run file: "" for the keys before the first table."""
    found: dict[str, set[str]] = {where: set()}
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        inner = [hint for hint in flat(hints[field.name]) if dataclasses.is_dataclass(hint)]
        if not inner or field.name in INLINE:
            found[where].add(field.name)
        else:
            found |= tables_of(inner[0], f"{where}.{field.name}".removeprefix("."))
    return {table: keys for table, keys in found.items() if keys}


def sections() -> dict[str, set[str]]:
    """Give the keys of each table that the page documents."""
    page = PAGE.replace("## The file's first keys", "## `[]`").partition("## The run file of a view head")[0]
    parts = re.split(r"^##+ `\[+([\w.]*)\]+`$", page, flags=re.MULTILINE)
    found: dict[str, set[str]] = {}
    for table, text in zip(parts[1::2], parts[2::2], strict=True):
        rows = re.findall(r"^\| (`[^|]*) \|", text.partition("### Losses")[0], re.MULTILINE)
        if rows:
            found[table] = {key for row in rows for key in code_spans(row)}
    return found


def test_the_page_has_every_key_of_a_run_file_and_no_other() -> None:
    program = tables_of(Run)
    program.pop("network.views")  # refused in a run file: a view head has a file of its own

    assert sections() == program


def test_the_page_has_every_loss() -> None:
    losses = PAGE.partition("### Losses\n")[2].partition("\n## ")[0]

    assert {span for row in re.findall(r"^\| (`[^|]*) \|", losses, re.MULTILINE) for span in code_spans(row)} == set(
        OBJECTIVES
    )


def test_the_page_has_every_key_of_a_view_head() -> None:
    rows = re.findall(
        r"^\| (?:`\[(\w+)\]`)? ?\| (`[^|]*) \|", PAGE.partition("## The run file of a view head")[2], re.MULTILINE
    )
    listed = {(table, key) for table, keys in rows for key in code_spans(keys)}
    program = {(table, key) for table, keys in tables_of(ViewRun).items() for key in keys}

    assert listed == {(table, key) for table, key in program if table not in ("data.films", "augmentation")}


def test_the_example_is_a_run_file_without_real_films() -> None:
    run = read_run(EXAMPLE)

    assert not is_view_run(EXAMPLE)
    assert (run.data.films, run.start) == ((), "")
    assert run.output == "train-out/two-minutes"
    assert f"models.train {EXAMPLE.relative_to(Path(DOCS).parent)}" in PAGE
