"""Who may see patients on the pages, and how a page writes whom a study names.

No address contains a patient: a search is stored in memory under a random name, which the address contains.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request

from node.settings.http import HttpSettings
from node.store.worklist import PatientRow
from node.web.users import is_forwarded, name_of, user_of

LONGEST_SEARCH: Final = 100
_MOST_SEARCHES: Final = 500


class Searches:
    """The newest 500 searches of users, in memory only. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()

    def keep(self, text: str, *, user: str) -> str:
        """Store a user's search, and return its random name; "" for an empty search."""
        text = " ".join(text[:LONGEST_SEARCH].split())
        if not text:
            return ""
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._kept[user, name] = text
            while len(self._kept) > _MOST_SEARCHES:
                self._kept.popitem(last=False)
        return name

    def find(self, name: str, *, user: str) -> str | None:
        """Return a user's search; None if it is another user's, or has expired."""
        with self._lock:
            return self._kept.get((user, name))


def sees_patients(request: Request, settings: HttpSettings) -> bool:
    """Return whether who asks may see patients: a user whom the node knows, or anybody on this machine by the settings.

    A request with a proxy's header is not from this machine.
    """
    if name_of(request):
        return True
    return settings.show_patient and user_of(request).means == "local" and not is_forwarded(request.headers)


def are_of_one(rows: Sequence[PatientRow]) -> bool:
    """Return whether all films of a study are of one patient; rows: those of the study."""
    return len({(row.patient_id, row.issuer, "" if row.patient_id else row.name) for row in rows}) == 1


def readable(value: str, keyword: str) -> str:
    """Write a name without the marks between its parts (PS3.5 6.2.1), and a date as year, month, day."""
    if keyword.endswith("Name"):
        groups = (", ".join(filter(None, group.split("^"))) for group in value.split("="))
        return " / ".join(filter(None, groups))
    return f"{value[:4]}-{value[4:6]}-{value[6:]}" if keyword.endswith("Date") and len(value) == 8 else value
