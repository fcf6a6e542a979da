"""Which tables there are, and how they stand in the document: between two marks, which name the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final

from docs.statement import messages, network, objects, orders
from tests.paths import REPOSITORY

PATH: Final = REPOSITORY / "docs" / "integrate" / "conformance.md"
TABLES: Final[Mapping[str, Callable[[], list[Sequence[str]]]]] = {
    "product": network.product,
    "created objects": objects.kinds,
    "root templates": objects.root_templates,
    "classes that are read": network.classes_read,
    "classes that are answered": network.classes_answered,
    "classes that are left alone": network.classes_left_alone,
    "accepted contexts": network.accepted_contexts,
    "transfer syntaxes": network.transfer_syntaxes,
    "proposed contexts": objects.proposed_contexts,
    "settings": network.settings,
    "web settings": network.web_settings,
    "accepting": network.accepting,
    "calling": network.calling,
    "rejections": network.rejections,
    "answers to C-STORE": network.store_answers,
    "answers from archives": network.store_outcomes,
    "answers to commitment requests": network.commitment_outcomes,
    "answers from web archives": network.web_outcomes,
    "failure reasons": network.failure_reasons,
    "answers to reports": network.report_answers,
    "attributes": objects.attributes,
    "content": objects.content,
    "AI Results": objects.for_ai_results,
    "private codes": objects.private_codes,
    "codes": objects.standard_codes,
    "messages": messages.fields,
    "observations": messages.observations,
    "abnormal flags": messages.abnormal_flags,
    "orders": orders.places,
}
"""The header of a table is its first row."""

_PLACE: Final = re.compile(r"(<!-- table: (?P<name>[^>]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def rendered(text: str) -> str:
    """Return the document with every table made anew. Raises KeyError for a mark that names no table."""
    return _PLACE.sub(lambda place: f"{place[1]}\n{_made(place['name'])}\n{place[3]}", text)


def places(text: str) -> list[str]:
    """Return the names of the tables that a document has, in its order."""
    return [place["name"] for place in _PLACE.finditer(text)]


@cache
def _made(name: str) -> str:
    first, *others = TABLES[name]()
    lines = [first, ["---"] * len(first), *others]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
