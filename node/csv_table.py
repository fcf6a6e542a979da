"""Tables as comma-separated text (RFC 4180) without cells that a spreadsheet would run as formulas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

_SIGNS: Final = r"=+\-@\u2212\uff1d\uff0b\uff0d\uff20\ufe62-\ufe66\ufe6b"
"""First characters of a formula, also as a minus, full-width or small."""
_FORMULA: Final = re.compile(rf'((?:^|[;\t\r\n])[\s"]*)(?=[{_SIGNS}])')
"""At the beginning of a cell; in some countries a semicolon ends the one before."""


def write(names: Collection[str], lines: Iterable[Mapping[str, object]]) -> str:
    """Return a table with a line of its names; every cell is quoted.

    An apostrophe stands before each text that a spreadsheet would take for a formula. Numbers stay as they are.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, names, quoting=csv.QUOTE_ALL)
    table.writerow({name: _plain(name) for name in names})
    table.writerows({name: _plain(value) for name, value in line.items()} for line in lines)
    return text.getvalue()


def _plain(value: object) -> object:
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else value
