"""The conformance statement: its tables are what the code does."""

from __future__ import annotations

import pytest

from docs.statement import objects, tables, written

pytestmark = pytest.mark.drill(part="conformance")

TEXT = tables.PATH.read_text(encoding="utf-8")


def test_every_table_says_what_the_code_does() -> None:
    made = tables.rendered(TEXT)

    wrong = [line for line in TEXT.splitlines() if line not in set(made.splitlines())]
    missing = [line for line in made.splitlines() if line not in set(TEXT.splitlines())]
    assert (wrong, missing) == ([], []), "make them anew: python -m docs.statement"
    assert made == TEXT


def test_no_object_has_a_private_attribute() -> None:
    objects_written = written.study().objects()

    assert objects_written
    assert [
        element.tag for _, dataset in objects_written for element in dataset.iterall() if element.tag.is_private
    ] == []


def test_the_statement_lists_every_state_and_finding() -> None:
    listed = {row[0] for row in objects.private_codes()} | {row[1] for row in objects.standard_codes()[1:]}
    codes = {f"`{prompt.finding.value}`" for prompt in written.PATHOLOGIES if prompt.finding}

    assert codes | {"`NOTCALIBRATED`", "`NOTREPORTED`", "`52101004`", "`82334004`"} <= listed
