"""The conformance statement: its tables are what the code does, and its headings are those of PS3.2 Annex N."""

from __future__ import annotations

import re

import pytest

from docs.statement import objects, tables, written

pytestmark = pytest.mark.drill(part="conformance")

TEXT = tables.PATH.read_text(encoding="utf-8")

# PS3.2 Annex N; a statement begins with 1 instead of N.1.
HEADINGS = (
    "1 Overview",
    "1.1 Content and transfer",
    "1.1.1 Root templates of structured reports",
    "1.2 DIMSE services",
    "1.3 DICOM Web Services",
    "1.4 Media services",
    "1.5 Real-Time Video services",
    "1.6 De-identification profiles",
    "1.7 Specific Character Sets",
    "2 Table of contents",
    "3 Introduction",
    "4 Implementation model",
    "5 Service and interoperability description",
    "6 Configuration",
    "7 Network and media communication details",
    "8 Security",
    "Annex A.A Information Object Definitions",
    "Annex A.B Structured report content",
    "Annex A.C Security details",
    "Annex A.D Mapping of attributes",
    "Annex A.E Code sets",
)


def test_every_table_says_what_the_code_does() -> None:
    made = tables.rendered(TEXT)

    wrong = [line for line in TEXT.splitlines() if line not in set(made.splitlines())]
    missing = [line for line in made.splitlines() if line not in set(TEXT.splitlines())]
    assert (wrong, missing) == ([], []), "make them anew: python -m docs.statement"
    assert made == TEXT


def test_the_headings_are_those_of_the_template() -> None:
    found = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)

    assert [heading for heading in found if heading in HEADINGS] == list(HEADINGS)


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
