"""What stays of a result when the program gets another version."""

from __future__ import annotations

import re
from uuid import UUID

from node.dicom import identity

_MADE = re.compile(r"2\.25\.(\d{10,})|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def lasting(text: str) -> str:
    """Return a text without what another version of the program changes: its number, and the UIDs that it makes.

    The UIDs are numbered in the order in which they come, also where they stand as UUIDs.
    """
    numbers = dict[int, int]()

    def number(found: re.Match[str]) -> str:
        made = int(found[1]) if found[1] else UUID(found[0]).int
        return f"uid {numbers.setdefault(made, len(numbers) + 1)}"

    return re.sub(rf'(?<=["|]){re.escape(identity.VERSION)}(?=["|])', "its version", _MADE.sub(number, text))
